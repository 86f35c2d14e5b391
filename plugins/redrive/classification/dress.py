"""What loggers, retries and consumers put in front of a failure, and behind it: no part of it, and taken off.

Every team has a layout of its own, so the lists are long: one expression for one way to begin a line. Each is matched
at the beginning of a masked text, as long as something is left, and as often as it takes.
"""

import re
from functools import lru_cache
from typing import Final

from redrive.classification.named_fields import BRACKETED
from redrive.classification.values_and_names import PLAIN_WORD, is_of_consumer
from redrive.classification.word_lists import WORDS, any_of, says

#: So many things in front of a text are taken off, one after the other.
_MAX_FRONT: Final = 10

#: What names of exceptions end with.
_RAISED: Final = f"(?:{any_of('raised')})"
_LEVEL: Final = f"(?:{any_of('levels')})"
#: A number, masked or not; a program that tells it; a file of its code.
_N: Final = r"(?:<\*>|[0-9]+)"
_TELLER: Final = f"(?:{any_of('tellers')})"
_FILE: Final = r"[\w./-]{1,120}[.](?:py|go|rb|js|ts|php|java|kt|rs|cs|exs?|scala):(?:<\*>|[0-9]+)"
_DAY: Final = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"

# What begins a line as a whole, and is told by several things that stand in their order.
_LINES: Final = (
    # Mar 11 <*> host app[<*>]: , <14>Mar 11 <*> host app[<*>]:
    (r"(?:<[^ \n]{1,6}>)?[A-Z][a-z]{2} {1,2}(?:<\*>|[0-9]{1,2}) (?:<\*>) [^ \n]{1,80} [^ \n:]{1,60}: ", 0),
    # <14>1 <*> host app <*> - -, as RFC 5424 has it
    (r"<[^ \n]{1,6}>(?:<\*>|[0-9]) <\*> (?:[^ \n]{1,255} ){4}(?:-|\[[^\]\n]{0,200}\]) ", 0),
    # <14>1 <*> host, of a logger that leaves the rest of it out
    (r"<[^ \n]{1,6}>(?:<\*>|[0-9]) <\*> [a-z][\w.<*>-]{0,80} (?=[^ ])", 0),
    # <14><*> host app[<*>]: , <*> host-<*> app[<*>]: , as rsyslog forwards
    (r"<[^ \n]{1,6}><\*> [^ \n]{1,80} [^ \n:]{1,60}: (?=[^ ])", 0),
    (r"<\*> [a-z][\w-]{0,60}(?:-<\*>|[.]\w)[\w.<*>-]{0,60} [a-z][\w./-]{0,60}(?:\[<\*>\])?: (?=[^ ])", 0),
    (r"<\*> [a-z][\w.-]{0,60} [a-z][\w./-]{0,60}\[<\*>\]: (?=[^ ])", 0),
    # <*> orders:
    (r"<\*> [a-z][a-z0-9_-]{1,40}: (?=[^ ])", 0),
    # Thu May <*> <*> UTC <*>, Thu, <*> May <*> <*> GMT:
    (
        rf"{_DAY},? (?:[A-Z][a-z]{{2}} {{1,2}}{_N}|{_N} [A-Z][a-z]{{2}}) (?:<\*> )?<\*>(?: [A-Z]{{3,4}}\b)?"
        r"(?: <\*>)?:? +(?=[^ ])",
        0,
    ),
    # <*>-May-<*> <*>, as Tomcat logs
    (r"<\*>-[A-Z][a-z]{2}-<\*>[ T]<\*> +(?=[^ ])", 0),
    # LEVEL [thread] app.Handler.handle
    (rf"{_LEVEL} \[[^\]\n]{{1,80}}\] (?:[a-z]\w{{0,40}}[.]){{1,8}}[A-Z]\w{{0,60}}[.][\w<>$]{{1,60}} +(?=[^ :])", 0),
    # <*> error worker , <*> WARN retry <*>: who tells it, behind the level; and in front of it: worker[<*>] ERROR
    (rf"<\*> {_LEVEL} {_TELLER}(?:(?:[ #/-]|\[)?{_N}(?:/{_N})?\]?)?:? +(?=[^ :])", re.I),
    (rf"(?:<\*> )?{_TELLER}(?:\[{_N}\]|[-#/]{_N})? (?-i:{_LEVEL}):? +(?=[^ :])", re.I),
    # LEVEL <*> worker <*> <*>, as Django's verbose layout has it
    (rf"{_LEVEL} <\*> [a-z_][\w.]{{0,60}} <\*> <\*> +(?=[^ ])", 0),
    # LEVEL app.worker worker.py:<*>
    (rf"{_LEVEL} +[a-z_][\w.]{{0,60}} {_FILE}:? +(?=[^ ])", 0),
    # LEVEL name >, LEVEL file.go:<*> >
    (rf"{_LEVEL} +[\w.:/<*>-]{{1,120}} > (?=[^ ])", 0),
    # LEVEL span{{order=<*>}}: crate::worker: , as Rust traces
    (rf"{_LEVEL} +(?:[\w:]{{1,80}}\{{[^{{}}\n]{{0,200}}\}}:){{1,8}} (?:[a-z_][\w:]{{0,80}}: )?(?=[^ ])", 0),
    # E, [<*> #<*>] ERROR -- worker: , as Ruby logs
    (rf"[DIWEFA], \[[^\]\n]{{1,60}}\] +{_LEVEL} -- [^:\n]{{0,40}}: ", 0),
    # LEVEL: worker/<*> on host-<*>: , as Bunyan logs
    (rf"{_LEVEL}: [\w.-]{{1,60}}/{_N} on [^ \n:]{{1,80}}: ", 0),
    # LEVEL app.Worker [(null)] - , as log4net logs
    (rf"{_LEVEL} +[\w.$+]{{1,120}} \[[^\]\n]{{0,60}}\] - ", 0),
    # LEVEL [<*>] app.Worker:
    (rf"{_LEVEL} +\[<\*>\] (?:[a-z_]\w{{0,40}}[.]){{1,8}}\w{{1,60}}(?<!Error)(?<!Exception): ", 0),
    # ERRO[<*>], as Logrus logs to a terminal
    (rf"(?:TRAC|DEBU|INFO|WARN|ERRO|FATA|PANI)\[{_N}\] +", 0),
    # E0311 <*> <*> file.go:<*>]
    (r"[EWIF](?:[0-9]{4}|<\*>) <\*>\s{1,8}(?:<\*>|[0-9]+) [^ \n\]]{1,60}\] ", 0),
    # LEVEL <*> --- [thread] logger : as Spring Boot logs
    (r"[A-Z]{4,8} +(?:\[[^\]\n]{0,160}\] +)?(?:[0-9]+|<\*>) --- (?:\[[^\]\n]{0,80}\] ?){1,3}[^ \n]{1,80} *: ", 0),
    # LEVEL|logger|, as NLog has it
    (rf"{_LEVEL}\|[\w.-]{{1,80}}\|(?=[^ ])", re.I),
    # LEVEL:logger:, as Python's basic logging writes
    (rf"{_LEVEL}:(?:root|[a-z_][\w.]{{0,60}}):(?=[^\s])", 0),
    # LEVEL<tab>logger<tab>file.go:<*><tab>, as zap logs; LEVEL<tab>logger<tab>; and LEVEL<tab>, as functions log
    (rf"{_LEVEL}\t(?:[\w./-]{{1,60}}\t)?[^\s]{{1,160}}[.][a-z]{{1,4}}:{_N}\t", re.I),
    (rf"{_LEVEL}\t(?:[\w./-]{{1,60}}\t)?(?=[^\s])", re.I),
    # LEVEL [logger] (thread), as JBoss logs
    (rf"{_LEVEL} +\[[^\]\n]{{1,100}}\] \([^()\n]{{1,80}}\) +(?=[^ ])", 0),
    # LEVEL logger - , LEVEL service-name:
    (
        rf"{_LEVEL} +(?:[A-Za-z_$](?:[\w.$/<*>-]|::){{1,100}} - |"
        rf"(?![^ :]{{0,100}}{_RAISED}:)"
        r"(?=[^ ]{0,100}[._$-]|[^ ]{1,60}::|[a-z_]{2,40}: )[A-Za-z_$](?:[\w.$/<*>-]|::){1,100}: )(?=[^ ])",
        0,
    ),
    # pid=<*> class=X LEVEL:
    (rf"(?:[A-Za-z_][\w.-]{{0,40}}=[^\s=\"]{{1,80}} +){{2,12}}(?={_LEVEL}[: ])", 0),
    # Apr <*>, <*> <*> AM app.Handler handle SEVERE: , of Java's own logging
    (
        r"(?:[A-Z][a-z]{2} )?(?:<\*>|[0-9]{1,2}),? (?:<\*>,? ){1,3}[AP]M [\w.$]{1,120} [\w$<>]{1,60}\s+"
        r"(?:SEVERE|WARNING|INFO): ",
        0,
    ),
    # fail: Category[<*>], as .NET logs to a console
    (rf"(?:trce|dbug|info|warn|fail|crit): +[A-Za-z_][\w.+`]{{1,100}}\[{_N}\]\s*", 0),
    # Msg 515, Level <*>, State <*>, Line <*>, as SQL Server's clients print it
    (
        r"Msg (?:[0-9]+|<\*>), Level [^,\n]{1,8}, State [^,\n]{1,8}"
        r"(?:, (?:Server|Procedure|Line) [^,\n]{1,80}){0,3}[\s;]+",
        0,
    ),
    # IDoc <*> status <*> - , of SAP
    (r"IDOC?(?: number)? (?:<\*>|[0-9]+)[:,]? +status (?:<\*>|[0-9]+)(?::| -) ", re.I),
    # Symfony's Messenger and Spring's error handler
    (r"Error thrown while handling message \S{1,200} (?:Removing|Sending)[^\n]{1,120}? Error: ", 0),
    (r"Backoff [^\n;]{0,160}exhausted for [^\s;]{1,120}[\s;]+", 0),
)
# What a consumer says of itself.
_CONSUMERS: Final = (
    # Task orders.ship<*> raised unexpected: , job <*> (Ship) failed (attempt <*>): , message <*> rejected:
    (
        r"(?:Task|Job|Handler|Handling|Consumer|Listener|Worker|Processing|Actor|Step|Message|Event|Processor)"
        r" [^ :]{1,120} (?:\([^()\n]{1,60}\) )?"
        r"(?:(?:was |has been |is )?(?:rejected|nacked|discarded|dropped|parked|dead-?lettered)|"
        r"raised(?: unexpected)?|failed|threw(?: an)?(?: exception| error)?|errored|crashed)"
        r"(?: \([^()\n]{1,60}\))?: ",
        re.I,
    ),
    (r"Message [^ \n]{1,80} (?:was |has been )?moved to (?:the )?error queue: ", 0),
    (r"x-death: (?=\w+=)", 0),
    (r"(?:dead[ -]?letter(?:ed|ing)?|DLQ|poison(?: message)?)(?: message| queue| reason)?: (?=[^ ])", re.I),
    (r"[^\s:]{1,200}/\$DeadLetterQueue[ :,-]{1,3}", re.I),
    # orders-consumer: , OrderWorker: , worker-<*>: , pool-<*> |
    (
        r"(?:[\w.-]{0,60}?(?:handler|listener|consumer|worker|processor|subscriber)s?|"
        rf"(?:[\w.-]{{0,40}}-)?(?:{_TELLER}|thread|pool|shard|node)s?[-#/]{_N})(?::| \|) +(?=[^ ])",
        re.I,
    ),
    # Error for batch element #<*>: , as Db2's driver says
    (r"Error for batch element #(?:<\*>|[0-9]+): ", 0),
    # retry #<*> in <*> - , <*> after start:
    (r"retry #?(?:<\*>|[0-9]+) in [^ \n]{1,12} [\u2014\u2013-] ", re.I),
    (r"<\*>[a-z]{0,2} after start: ", 0),
    # attempt <*>/<*>:
    (rf"\(?(?:(?:{any_of('counted')})\b[ #:=]*(?:<\*>[ /]*+|[0-9]++[ /]*+)*+){{1,4}}(?:[:|](?!:)|[)\]]) *", re.I),
    (r"(?:Uncaught|Unhandled)(?: exception| rejection| error)?(?:[.] |:? (?=(?-i:[A-Z])))", re.I),
    (r"last ?_?error: (?=[^ ])", re.I),
    (r"panic: (?=[^ ])", 0),
    (r"PHP (?:Fatal error|Parse error|Warning|Notice|Recoverable fatal error): *(?:Uncaught )?", 0),
    # <*> error occurred: *, as many errors of Go are one
    (r"(?:(?:<\*>|[0-9]+) )?errors? occurred:\s*(?:\* *)?", 0),
    # jobs.batch: , Error creating: , pod-<*>@<*>: , as Kubernetes tells of
    (r"(?:[a-z]{2,30}[.](?:batch|apps)(?:/v1)?|Error creating|[\w.<*>-]{1,120}@(?:<\*>|[0-9]+)): (?=[^ ])", 0),
)
# Pieces of a layout, each for itself.
_PIECES: Final = (
    # what is in brackets: a time, a level, a thread, an id; not a sentence, nor a field of which something is said
    (
        rf"(?!{BRACKETED})"
        r"\[(?![\"'{\[]|[1-5][0-9]{2} |[45][0-9]{2}\] [A-Z][a-z]|[A-Z]+(?:_[A-Z]+)+\])(?:[^\]\n ]{1,80}+ ?+){1,3}+\]"
        r"(?=[ :|\[\t-])[:| \t-]{0,3}",
        0,
    ),
    # LEVEL | , LEVEL - , LEVEL :: ; not the number of a failure: ERROR 1452
    (rf"{_LEVEL}(?: {{0,8}}\||:{{1,2}}| --?| ::)[ ]*|{_LEVEL}(?:(?=  ?\[)\s*|[ ]+(?=[^\s\d]))", 0),
    # error [orders]
    (rf"{_LEVEL} (?=\[[\w.-]{{1,60}}\][ :])", re.I),
    # [Tue Sep  6 <*> <*>], as Apache logs
    (rf"\[{_DAY} [^\]\n]{{5,40}}\] +", 0),
    # app[web.<*>]: as Heroku logs
    (r"(?:app|heroku)\[[\w.<*>-]{1,40}\]: ", 0),
    # <*> stderr F, as containers' runtimes log
    (r"(?:<\*> )?(?:stdout|stderr) [FP] ", 0),
    # <*> error relay: , E/sync:
    (rf"<\*> {_LEVEL} (?![^ :]{{0,100}}{_RAISED}:)[a-z][\w.-]{{1,40}}: (?=[^ ])", re.I),
    (r"[VDIWEF]/[\w.-]{1,40}: ", 0),
    # tenant=eu shard=<*>: {"code": ..}
    (r"(?:[a-z_]\w{0,40}=[^\s{}:,=]{1,60}[ ,]{1,2}){0,6}[a-z_]\w{0,40}=[^\s{}:,=]{1,60}: (?=[{\[])", 0),
    # delivery_tag=<*>, pid=<<*>>
    (r"(?:[A-Za-z][\w.-]{1,40}=<?<\*>>?[ ,;]{1,2})++(?![\w.@-]{1,60}=)(?=[^ ,;])", 0),
    # tenant=acme order=<*>: only what such things are called, as a code may be what failed; level=error
    (
        rf"(?:(?:[\w-]{{1,30}}[._-])?(?:{any_of('context')}|{any_of('owners')}|level|lvl|at|ts|severity)"
        r"=[^\s=\"{\[]{1,80}[ ,;:]{1,2}){1,12}+(?![\w.@-]{1,60}=)(?=[^ ,;])",
        0,
    ),
    (r"[AP]M +(?=[A-Z\[])", 0),
    (r"[-\u2013\u2014:>*\u00b7!=#|]{1,4} +(?=[^ (])|[-\u2013\u2014:>*\u00b7] +(?=[^ ])", 0),
    (r"\((?:error|ERR)\) +", 0),
    # (name/<*>): as pino has it
    (r"\([\w.-]{1,60}/(?:<\*>|[0-9]+)\): ", 0),
    # (worker-<*>), {worker-<*>}, <worker-<*>>
    (r"\([a-z][\w.-]{1,60}-(?:<\*>|[0-9]+)\):? (?=[^ ])", 0),
    (r"\{[^{}\n\"':=, ]{2,60}\} +(?=[^ ])", 0),
    (r"<[a-z][\w.-]{0,60}-<\*>> +(?=[^ ])", 0),
    # {taskinstance.py:<*>} LEVEL - , as Airflow logs
    (rf"\{{[\w.-]{{1,60}}[.]py:{_N}\}} +(?=[^ ])", 0),
    # ApiException: (<*>) Reason: Bad Request HTTP response body: , as clients made of an OpenAPI description print
    (
        r"(?:[\w.]{1,80}: )?\((?:<\*>|[0-9]{3})\)\s{1,3}Reason: [^\n]{1,60}\n"
        r"(?:HTTP response headers: [^\n]{0,1000}\n)?HTTP response body: (?=\{)",
        0,
    ),
    # Logger|, as NLog has it
    (r"(?:[A-Za-z_]\w{0,60}[.]){1,8}[A-Za-z_]\w{0,60}\|(?=[^ ])", 0),
    # channel.LEVEL: as Monolog logs
    (rf"[A-Za-z_][\w-]{{0,40}}[.]{_LEVEL}: ", 0),
    (r"(?:error|err|warning|fatal|exception|failed|failure|fehler|erreur)[:|] *", re.I),
    (r"<\*>(?:[/.:-]<\*>){0,4}(?: ?[,.:;|/\]-]{1,2}(?= )| ?\|)? *(?=[^ ,.:;/])", 0),
    (r"\(<\*>\): ", 0),
    # a logger's name
    (r"(?![A-Z_]+ )[A-Za-z_$][A-Za-z0-9_.$/<*>:-]{1,80} {1,3}- (?=[^ ])", 0),
    (r"(?:[a-z_][a-z0-9_]{0,40}[.]){1,8}[A-Za-z_$][A-Za-z0-9_$]{0,60}(?<!Exception)(?<!Error):(?=[^ :])", 0),
    (r"(?:[a-z]{1,12}-){0,4}reason: (?=[a-z_]+(?: |$))", 0),
    (r"[|] *", 0),
    (r"[^\s|]{1,60} {1,20}\| (?=[^ ])", 0),
)
_ALL: Final = (*_LINES, *_CONSUMERS, *_PIECES)
_FRONT: Final = tuple(re.compile(pattern, flags) for pattern, flags in _ALL)
#: Any of them: by far the most texts begin with none, and one expression says so several times as fast as a hundred.
_ANY: Final = re.compile("|".join(f"(?i:{pattern})" if flags else f"(?:{pattern})" for pattern, flags in _ALL))
# , giving up after <*> attempts; - retrying in <*>s; (moved to the dead letter queue)
_END = re.compile(
    r"(?:[,;.]? ?(?:[-\u2013\u2014] ?)?| ?[(\[])"
    r"\b(?:giving up|gave up|(?:not )?retrying|will (?:be )?retr(?:y|ied)|no more retries|retries exhausted|"
    r"(?:moved|sent|moving|sending) to (?:the )?(?:DLQ|dead[- ]letter(?: queue| topic)?))"
    rf"(?: later| now| again| (?:in|after) {_N} ?[a-z]{{0,10}})?[)\]]?[.!]*$",
    re.I,
)
_LONGEST_END: Final = 90
_ENDINGS: Final = ("giving up", "gave up", "retr", "dlq", "dead")
#: Words that have to be left before such an end.
_LEFT: Final = 3
_CLAUSE = re.compile(r"([^:\n\"'(){}=]{3,120}?)(?: \(<\*>[^()\n]{0,30}\))?(?:: | - )(?=[^ ])")
_TRIES: Final = frozenset(WORDS["tries"])
_CLOSING: Final = {"[": "]", "(": ")", "{": "}"}
_LONGEST_BRACKETS: Final = 120
_IS_VALUE = re.compile(r"<\*>|[0-9]|=")
# What is behind one of these is a code.
_NAMES_CODES: Final = frozenset(WORDS["of_failures"]) - frozenset(
    ["message", "event", "of", "by", "for", "from", "with"]
)
_OF_TELLERS: Final = frozenset(
    map(str.lower, [*WORDS["tellers"], *WORDS["context"], *WORDS["counted"], *WORDS["levels"]])
)
_OF_RETRIES: Final = frozenset(WORDS["of_retries"])
# event OrderCreated: of what kind it was
_OF_KIND = re.compile(r"\b([Mm]essage|[Ee]vent|[Cc]ommand|[Jj]ob|[Tt]ask|[Hh]andler) (?:[A-Z][a-z]+(?:[A-Z][a-z]+)+)\b")
_HAS_DIGIT = re.compile(r"[0-9]")
# Error 1264: a number that the masks have left
_IS_CODE = re.compile(r"(?<![\w.-])[0-9]{3,6}(?![\w.-])")
_TWO_LETTERS_OF_WORDS = re.compile(r"\b[^\W\d_]{2,}")
#: Whatever says something has two letters side by side.
TWO_LETTERS: Final = re.compile(r"[^\W\d_]{2}")


@lru_cache(maxsize=4)  # a text is asked for its cause and for its template
def without_front(text: str) -> str:
    """``text`` without what loggers, retries and consumers put in front of it, as long as something is left."""
    for _ in range(_MAX_FRONT):
        end = _end_of_front(text)
        if not end:
            return text
        text = text[end:].lstrip()
    return text


def without_end(text: str) -> str:
    """``text`` without what consumers and retries say at its end, as long as enough is left."""
    end = text[-_LONGEST_END:].lower()
    match = _END.search(text, max(0, len(text) - _LONGEST_END)) if says(end, _ENDINGS) else None
    if match is None or len(_TWO_LETTERS_OF_WORDS.findall(text[: match.start()])) < _LEFT:
        return text
    return text[: match.start()]


def _end_of_brackets(text: str) -> int:
    """Where brackets end, of whatever form, in which a text begins by saying who tells it: *[retry <*> of <*>]*,
    *(Camel (hats) thread <*> - JmsConsumer)*; 0 where what they say may be the failure."""
    if text[:1] not in _CLOSING:
        return 0
    end = _closed(text)
    words = text[1 : end - 1].split() if end else []
    if not words or text[end : end + 1] not in (" ", ":"):
        return 0
    values = known = unknown = 0
    for word in words:
        bare = word.strip("()[]{}<>,;:-#")
        if _IS_VALUE.search(word):
            values += 1
        elif bare.lower() in _NAMES_CODES:
            return 0
        elif not bare or bare.lower() in _OF_TELLERS or is_of_consumer(bare):
            known += bool(bare)
        else:
            unknown += 1
    if not values or not known or unknown > values + known:
        return 0
    return end + len(text[end:]) - len(text[end:].lstrip(" :"))


def _closed(text: str) -> int:
    """Behind the bracket that closes the first one; 0 where there is none near."""
    opening, closing, depth = text[0], _CLOSING[text[0]], 0
    for at, char in enumerate(text[:_LONGEST_BRACKETS]):
        depth += (char == opening) - (char == closing)
        if not depth:
            return at + 1
    return 0


def _end_of_front(text: str) -> int:
    """Where the first thing in front ends; 0 where there is none, or nothing behind it."""
    for pattern in _FRONT if _ANY.match(text) else ():
        match = pattern.match(text)
        if match is not None and match.end() and TWO_LETTERS.search(text, match.end()):
            return match.end()
    if (end := _end_of_brackets(text)) and TWO_LETTERS.search(text, end):
        return end
    # Handler Orders failed for <*>: , failed to process <*>: , Retry <*> exhausted: , Max retries exceeded, last error:
    clause = _CLAUSE.match(text)
    if (
        clause is not None
        and " " in clause[1]
        and not _IS_CODE.search(clause[1])
        and TWO_LETTERS.search(text, clause.end())
    ):
        said = _OF_KIND.sub(r"\1", clause[1].replace("<*>", " "))
        told = [word.lower() for word in PLAIN_WORD.findall(said) if not _HAS_DIGIT.search(word)]
        if not _TRIES.isdisjoint(told) and all(word in _OF_RETRIES or is_of_consumer(word) for word in told):
            return clause.end()
    return 0
