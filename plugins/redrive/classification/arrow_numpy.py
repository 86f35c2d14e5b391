"""Between Arrow and NumPy and back, without what a worker would rather not wait for.

``pyarrow.array``, ``scalar`` and ``to_numpy`` import pandas where it is installed, which takes more than a second of
every new process; the buffers themselves can be had without.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]

_WIDTHS = {pa.int32(): np.int32, pa.uint32(): np.uint32, pa.int64(): np.int64}


def numbers(array: pa.Array, *, offsets: bool = False) -> Integers:
    """An array of integers; what stands where one is null is undefined. Or the ``offsets`` of an array of strings."""
    width = np.int32 if offsets else _WIDTHS[array.type]
    buffer = array.buffers()[1]
    if buffer is None or not buffer.size:
        return np.zeros(1 if offsets else len(array), np.int64)
    count = len(array) + 1 if offsets else len(array)
    return np.frombuffer(buffer, width)[array.offset : array.offset + count].astype(np.int64)


def integers(values: Integers, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """``int64``, null where not ``valid``."""
    return pa.Array.from_buffers(
        pa.int64(), len(values), [_bitmap(valid), pa.py_buffer(np.ascontiguousarray(values, np.int64))]
    )


def strings(values: Sequence[str | None]) -> pa.Array:
    """``string``; characters that have no UTF-8 become question marks."""
    encoded = [b"" if value is None else value.encode("utf-8", "replace") for value in values]
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum([len(one) for one in encoded], out=offsets[1:])
    valid = np.array([value is not None for value in values], np.bool_)
    text = pa.large_string()
    buffers = [_bitmap(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(text, len(values), buffers).cast(pa.string())


def has_nul(texts: pa.Array) -> bool:
    """Whether a NUL is anywhere in the texts; looks at their bytes as one, which is much faster than text by text."""
    data = texts.buffers()[2]
    return data is not None and b"\0" in memoryview(data).tobytes()


def _bitmap(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if valid is None or valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
