"""What the words of a search may have meant: a route, a state, a cause, a queue, a header."""

import difflib
from collections.abc import Collection, Mapping

from redrive.classification.causes import Cause
from redrive.settings import Settings
from redrive_ui.search_request import NAMES, STATES, Search


def source_queues(settings: Settings, readable: Collection[str]) -> list[str]:
    """The sources of the routes that may be read."""
    return sorted(
        {source.queue for name in set(settings.routes) & set(readable) for source in settings.routes[name].sources}
    )


def suggestions(
    asked: Search, settings: Settings, readable: Collection[str], declared: Mapping[str, str]
) -> list[tuple[str, str]]:
    """What the words may have meant: what is said to people, and the query of the search that it would be."""
    found: list[tuple[str, str]] = []

    def suggest(name: str, value: str, without: str) -> None:
        rest = " ".join(word for word in asked.word.split() if word != without)
        changes = {"field": f"{declared[name]}={value}"} if name in declared else {name: value}
        one = (f"{name}:{value}", asked.query(word=rest, **changes))
        if one not in found:
            found.append(one)

    values = {
        "route": sorted(readable),
        "state": list(STATES),
        "cause": [cause.value for cause in Cause],
        "queue": source_queues(settings, readable),
    }
    for word in asked.word.split()[:20]:
        name, colon, value = word.partition(":")
        if colon and value:
            near = difflib.get_close_matches(name.lower(), [*NAMES, *declared], n=2, cutoff=0.5)
            for one in near:
                if one not in values or value in values[one]:
                    suggest(one, value, word)
            for one, known in values.items():
                if value in known:
                    suggest(one, value, word)
            suggest("header", f"{name}={value}", word)
            suggest("text", value, word)
            continue
        plain = word.lower().replace(" ", "_").replace("-", "_")
        for one, known in values.items():
            for value in known:
                same = value.lower().replace("-", "_")
                if plain == same or (len(plain) > 3 and plain in same.split("_")) or (len(plain) > 4 and plain in same):
                    suggest(one, value, word)
        if "=" in word:
            suggest("header", word, word)
    return found[:6]
