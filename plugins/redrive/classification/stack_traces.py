"""What a stack trace is named by: the exception at its root, and the nearest frame of the application's own code.

The way there is decoration: line numbers, frames of libraries and containers, generated names, wrapping exceptions.
"""

import re
from collections.abc import Sequence
from typing import Final

#: Between what a trace says and its frame, in keys and templates.
FRAME: Final = "\n  at "
#: At the end of what was cut short.
CUT: Final = "\u2026"
_MAX_LINE = 600
#: Lines of a message, and of one that is told in fields.
_MAX_MESSAGE, _MAX_FIELDS = 6, 40

# Classes and places that are not the application's: the runtimes and what applications are usually built on.
_LIBRARY = re.compile(
    r"^(?:async |new )?(?:<lib>|<frozen |\{main\}|node:|internal/|\(?<anonymous>|native |"
    r"(?:java|javax|jdk|sun|jakarta|kotlin|kotlinx|scala|groovy|clojure|akka|reactor|okhttp3|okio|retrofit2|feign|rx|"
    r"zio|cats)[./]|java[.][a-z]+/|"
    r"com[.](?:sun|fasterxml|google|amazonaws|mysql|microsoft|azure|rabbitmq|zaxxer|netflix|mongodb|datastax|oracle|ibm|"
    r"github[.])|"
    r"org[.](?:springframework|apache|hibernate|postgresql|jboss|eclipse|slf4j|codehaus|aspectj|junit|mariadb|quartz|"
    r"redisson|elasticsearch|mongodb|glassfish|jooq|mybatis|flywaydb|bson|xml|w3c)[.]|"
    r"io[.](?:netty|grpc|micrometer|lettuce|vertx|quarkus|micronaut|github|opentelemetry|projectreactor|smallrye|"
    r"reactivex|dapr|ktor|confluent|debezium|nats|awspring|helidon)[.]|"
    r"software[.]amazon|net[.]sf|System[.]|Microsoft[.]|Newtonsoft|MassTransit|NServiceBus|Npgsql|MySql|RabbitMQ|Azure[.]|"
    r"Amazon[.]|Grpc[.]|Polly|FluentValidation|Dapper|MediatR|Confluent[.]|"
    r"StackExchange|Illuminate|Symfony|Doctrine|GuzzleHttp|Monolog|processTicksAndRejections|runMicrotasks|process[.]|EventEmitter[.]|"
    r"Module[.]|Object[.](?!<anonymous> \(<path>)|Function[.]|Promise|"
    r"JSON[.]|runtime[.]|net/|database/sql|encoding/|reflect[.]|testing[.]|panic\(|std::|core::|tokio|alloc::|"
    r"rust_begin_unwind|__rust|"
    r"\((?:elixir|stdlib|kernel|broadway|gen_stage|ecto|ecto_sql|postgrex|db_connection|phoenix|plug|oban|jason|tesla|finch|"
    r"mint)[ )])",
)
_LIBRARY_PATH = re.compile(
    r"<lib>|node:internal|<frozen|/usr/local/go|node_modules|\[internal function\]|/(?:usr/)?lib/ruby/|"
    # what the runtime itself brings has no file
    r"(?<=[\w>] )\((?:<anonymous>|native|native code)\)$"
)
_AT = re.compile(r"^(?:[ \t]{0,16}at|[ \t]{2,16}(?:bei|à|en|em|в|in|場所|在)) (?!\[)(.+)$")
_PYTHON = re.compile(r'^[ \t]{0,8}File "([^"]*)", line [^,\n]*(?:, in (.*))?$')
_PHP = re.compile(r"^#[0-9<*>]{1,4} (.+)$")
_RUBY = re.compile(r"^[ \t]{0,16}(?:from )?([^ \t]+[.](?:rb|erb|rake)[:(].*in .*)$")
_GO = re.compile(r"^\t([^ \t]+[.]go:.*)$")
# (app <*>) lib/app/seat.ex:<*>: App.Seat.parse/<*>; older ones have no name in front
_ELIXIR = re.compile(
    r"^[ \t]{0,8}(\([a-z_0-9]{1,40}(?: [^)\n]{1,20})?\) [^\n]+[.]exs?:.*|"
    r"(?:<path>/|lib/|test/)[\w./-]{0,120}[.]exs?:[^ \n]{1,8}: .*)$"
)
_RUST = re.compile(r"^[ \t]{0,8}(?:[0-9]{1,3}|<\*>): +((?:[\w<>{}$*]+::)+[^\n]*|rust_begin_unwind)$")
_NO_NEWS = re.compile(
    r"^(?:traceback \(most recent|\s*[.]{3}|stack ?trace:|stack backtrace|\s*--- (?:end of|ende |fin )|"
    r"goroutine |\[signal |\s*[~^]+\s*$|\s*$|\[stacktrace\]|"
    r"the above exception was|note: run with|"
    r"\s*\[truncated\]|\s*\u2026|created by |exit status |"
    r"during handling of the above)",
    re.IGNORECASE,
)
_ROOT = re.compile(r"^\s*(?:caused by:?|cause by:?|\[cause\]:?|--->|root cause:?)", re.IGNORECASE)

# Names that compilers, proxies and schedulers make of the application's.
_MADE = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" (?:in|\[as) .*$", ""),
        (r"\$\$[A-Za-z]{1,40}(?:\$\$|\$)?[0-9a-f<*>/x]{0,40}", ""),
        (r"\$Proxy(?:[0-9]|<\*>){1,6}", "$Proxy"),
        (r"lambda\$([A-Za-z_]\w*?)\$(?:[0-9]|<\*>)*", r"\1"),
        (r"\$?\$anonfun\$([A-Za-z_]\w*?)\$(?:[0-9]|<\*>)*", r".\1"),
        (r"\$([a-z]\w*)\$(?:[0-9]|<\*>)+[.](?:invokeSuspend|invoke|emit|run|apply|call)", r".\1"),
        (r"<>c__DisplayClass[0-9<*>_]*[.]", ""),
        (r"<>c[.]", ""),
        (r"<<(\w+)>b__[^>.]*>d?(?:[.]MoveNext)?", r"\1"),
        (r"<(\w+)>(?:b|d|g)__[0-9A-Za-z_|<*>]*(?:[.]MoveNext)?", r"\1"),
        (r"[.](?:MoveNext|invokeStatic|doInvoke|applyTo)$", ""),
        (r"\$(?:[0-9]|<\*>)+(?=[.(])", ""),
        (r"[$](?=[.])", ""),
        (r"`[0-9]+", ""),
        (r"(?<![a-z])[0-9a-f]{8,}|[0-9]+", "<*>"),
        (r"::h(?:[0-9a-f]|<\*>){16}$", ""),
    )
)


def _place(frame: str) -> str:
    """A frame without what a new build or a proxy changes of it."""
    if match := re.match(
        r"(?:\([a-z_0-9]+(?: [^)]*)?\) [^ ]+|[^ ]+[.]exs?:[^ ]{1,8}): (.*)$", frame
    ):  # Elixir: (app version) file:line: Module.function/arity
        frame = match[1]
    elif match := re.match(r"([^ ]+?[.](?:rb|erb|rake))[:(].*in [`'\"]?(?:[\w:]+[#.])?([^`'\"]+)", frame):
        return f"{match[1].rpartition('/')[2]} in {match[2].removeprefix('block in ')}"
    elif match := re.match(r"([^ ]+[.]php)\([^)]*\): (.*)$", frame):
        # What is called there; of a library's the file that calls it.
        frame = match[1].rpartition("/")[2] if _LIBRARY.match(match[2]) else match[2]
    if " in " not in frame or frame.startswith(("async", "new ")) or "(" in frame:
        frame = frame.removeprefix("async ")
        opening = frame.find("(", 1) if not frame.startswith("github") and ".(*" not in frame else -1
        where = frame[opening:] if opening > 0 else ""
        if opening > 0:
            frame = frame[:opening].strip()
            # A function without a class is told by its file.
            if re.fullmatch(r"[\w$]+|Object[.][\w$]+|<anonymous>", frame) and (
                file := re.search(r"([\w.-]+)[.][a-z]{2,3}:", where)
            ):
                frame = f"{frame} {file[1]}"
    for pattern, replacement in _MADE:
        if pattern.pattern.startswith(" (?:in") and re.match(r"\S+[.]py in ", frame):
            continue
        frame = pattern.sub(replacement, frame)
    return frame.strip()[:300]


_CUT = re.compile(r" ?(?:\[truncated\]|\u2026|[.]{3})\s*$")
#: Lines that only say that a text was cut, or nothing.
_NOTHING_MORE: Final = frozenset(["", "[truncated]", "\u2026", "..."])
_PANIC = re.compile(
    r"(?:thread '[^'\n]{0,60}' )?panicked at (?:'(?P<old>[^\n]{1,400})', )?"
    r"(?P<file>[^\s:]{1,200}[.]rs)(?::[^\s:]+)*:?(?:[\n ](?P<new>[^\n]{1,400}))?"
)


_DIED = re.compile(
    r"(?P<said>[^\n]{3,600}?) at (?:[^\s]{1,200}/)?(?P<file>[\w-]{1,60}[.]p[lm]) line (?:<\*>|[0-9]{1,6})"
    r"(?:, <[^<>\n]{0,20}(?:<\*>)?> line [^\s,.]{1,12})?[.]?(?=\n|$)"
)


def may_tell_its_file(text: str) -> bool:
    """Whether it is worth to ask :func:`with_its_file`."""
    return "panicked at" in text[:400] or (".p" in text and " line " in text)


def with_its_file(text: str) -> tuple[str, str] | None:
    """What a panic of Rust, or a Perl program that died, says, and its file: they need no trace for it."""
    if match := _PANIC.match(text):
        return match["old"] or match["new"] or "", match["file"].replace("\\", "/").rpartition("/")[2]
    if match := _DIED.match(text):
        return match["said"], match["file"]
    return None


class Trace:
    """The lines of one stack trace, told apart."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.frames: list[tuple[int, str, bool]] = []  # line number, frame, whether it is the application's
        self.said: list[tuple[int, str]] = []  # lines that are not frames
        self.python = False
        self._empty = {number for number, line in enumerate(lines) if not line.strip()}
        end = len(lines) - 1
        self._cut = bool(_CUT.search(lines[-1]))
        while end and lines[end].strip() in _NOTHING_MORE:
            end -= 1
        if (
            lines[end].lstrip().startswith("at ")
            and (_CUT.search(lines[end]) or "(" not in lines[end])
            and not lines[end].endswith(")")
        ):
            self._cut = True
            lines = [
                *lines[:end],
                _CUT.sub("", lines[end]).partition("(")[0] + ("(" if "(" in lines[end] else "\u2026"),
            ]
        after_python = False
        for number, line in enumerate(lines):
            if match := _PYTHON.match(line):
                self.python = after_python = True
                self._add(number, f"{match[1].rpartition('/')[2]} in {match[2] or '?'}", match[1])
                continue
            if after_python and line[:4] == "    ":
                continue  # the code of the frame
            after_python = False
            if (
                match := _AT.match(line)
                or _PHP.match(line)
                or _RUBY.match(line)
                or _ELIXIR.match(line)
                or _RUST.match(line)
            ):
                self._add(number, match[1], match[1])
            elif match := _GO.match(line):
                function = self.said.pop()[1].strip() if self.said and self.said[-1][0] == number - 1 else ""
                self._add(number, re.sub(r"\((?!\*)[^()]*\)?$", "", function), function + " " + match[1])
            elif not _NO_NEWS.match(line):
                self.said.append((number, line.strip()[:_MAX_LINE]))
        self._chained = [
            n for n, line in enumerate(lines) if line.startswith(("The above exception", "During handling of"))
        ]

    def _add(self, number: int, frame: str, place: str) -> None:
        own = not _LIBRARY.match(place) and not _LIBRARY_PATH.search(place)
        self.frames.append((number, frame, own))

    def root_and_frame(self) -> tuple[str, str]:
        """What the exception at the root says, and the nearest own frame."""
        root, at = self._root()
        frame = self._own_frame(at)
        return root, _place(frame) if frame else ""

    def _root(self) -> tuple[str, int]:
        if not self.said:
            return "", 0
        if self.python:
            end = self._chained[0] if self._chained else self.said[-1][0] + 1
            before = [item for item in self.said if item[0] < end]
            # The exception's own line follows its last frame; a message of several lines begins there.
            frames = [number for number, _, _ in self.frames if number < end]
            last_frame = frames[-1] if frames else -1
            after = [item for item in before if item[0] > last_frame]
            number, root = (after or before or self.said)[0]
            return self._whole(root, number), number
        roots = [item for item in self.said if _ROOT.match(item[1])]
        if roots:
            number, root = roots[-1]
            return self._whole(_ROOT.sub("", root).strip(), number), number
        number, root = self.said[0]
        return self._whole(root, number), number

    def _whole(self, root: str, number: int) -> str:
        """A message with the lines that follow it directly."""
        lines = [root]
        known = dict(self.said)
        most = _MAX_FIELDS if root.endswith(("[", "{")) else _MAX_MESSAGE
        while (number := self._next(number, lines[-1])) in known and len(lines) < most:
            if _ROOT.match(known[number]):
                break
            lines.append(known[number])
        return "\n".join(lines)

    def _next(self, number: int, line: str) -> int:
        """The number of the line behind one: of one that ends in a colon, behind empty lines."""
        number += 1
        while line.endswith(":") and number in self._empty:
            number += 1
        return number

    def _own_frame(self, root_line: int) -> str:
        if self.python:
            own = [frame for number, frame, is_own in self.frames if is_own and number < root_line]
            return own[-1] if own else ""
        near = [frame for number, frame, is_own in self.frames if is_own and number > root_line]
        own = near or [frame for _, frame, is_own in self.frames if is_own]
        if self._cut and own and own[0].endswith("\u2026") and own[0].count(".") < 2:
            return "\u2026"
        return own[0] if own else "\u2026" if self._cut else ""
