"""Follow every link of the page, from its first page on."""

import html
import re
from collections import Counter
from collections.abc import Callable

from redrive_ui.rendering import PREFIX


def follow_links(get: Callable[[str], tuple[int, str]], *, alike: int = 20) -> set[str]:
    """All addresses that were reached; AssertionError names the first that is not there.

    ``get`` gives the status of an address on the host, and its text where that is HTML. Links of the page's own pages
    are followed, those of others are only tried. Addresses that differ only in where a list goes on are one; of those
    that differ only in their numbers, as those of messages, ``alike`` stand for all.
    """
    pending, known = [f"{PREFIX}/"], {f"{PREFIX}/"}
    forms: Counter[str] = Counter()
    while pending:
        status, text = get(path := pending.pop())
        assert status < 400, f"{path} answers {status}"
        if not path.startswith(f"{PREFIX}/"):
            continue
        for link in re.findall(r'href="(/[^"]*)"', text):
            following = re.sub(r"&?after=[^&]*", "", html.unescape(link))
            form = re.sub(r"\d+", "0", following)
            if following not in known and forms[form] < alike:
                forms[form] += 1
                known.add(following)
                pending.append(following)
    return known
