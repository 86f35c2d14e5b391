"""A route's own rules, looked for in failure texts by RE2: in linear time, whatever the expression and the text.

RE2 comes with Arrow, which is wherever rules are run: settings, the command line, Spark's executors. Arrow is imported
when there is a rule to run, so that reading a configuration without rules stays cheap.
"""

from collections.abc import Sequence


def problem(expression: str) -> str | None:
    """Why RE2 does not take ``expression``; None if it does."""
    from pyarrow import ArrowInvalid  # noqa: PLC0415

    try:
        first_matches([""], [expression])
    except ArrowInvalid as error:
        return str(error).removeprefix("Invalid regular expression: ")
    return None


def first_matches(texts: Sequence[str], expressions: Sequence[str]) -> list[int]:
    """For each text the number of the first expression that is found in it, from 1 on; 0 where none is.

    Equal texts are looked at once. Raises ``pyarrow.ArrowInvalid`` for what :func:`problem` objects to.
    """
    if not expressions:
        return [0] * len(texts)
    import pyarrow.compute as pc  # noqa: PLC0415

    from redrive.classification.arrow_numpy import strings  # noqa: PLC0415

    found = dict.fromkeys(texts, 0)
    left = list(found)
    for number, expression in enumerate(expressions, 1):
        matches = pc.match_substring_regex(strings(left), expression).to_pylist()
        found.update((text, number) for text, is_match in zip(left, matches, strict=True) if is_match)
        left = [text for text, is_match in zip(left, matches, strict=True) if not is_match]
    return [found[text] for text in texts]
