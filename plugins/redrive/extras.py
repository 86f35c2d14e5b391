"""What is installed only where it is asked for: the extras of the package, and the sentence where one is missing."""

from collections.abc import Iterator
from contextlib import contextmanager

from redrive.errors import ExtraMissing


@contextmanager
def needing(extra: str, who: str) -> Iterator[None]:
    """Around the imports that the extra ``extra`` brings; ``who`` needs them.

    Raises :class:`~redrive.errors.ExtraMissing` with the command that mends it. With an empty ``extra``, for packages
    that are not ours, it names the module only.
    """
    try:
        yield
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        if missing and (error.name or "").partition(".")[0] in ("redrive", "redrive_ui"):
            raise  # a mistake of ours
        trouble = f"{who} needs {error.name}, which is not installed" if missing else f"{who} can't be used: {error}"
        raise ExtraMissing(f"{trouble}: pip install 'redrive[{extra}]'" if extra else trouble) from error
