# ruff: noqa: E501, RUF001 - lists of words stand in one line each
"""Words that name a fault which did not happen: *Unknown enum value "THROTTLED"*, *timeout must be positive*, *not a
network error*.

What a value, an event or a part of a program is called, what is demanded of a setting, and what a text says that it is
not, are no reason to send a message again. :func:`without_named_faults` blanks them; whatever else is said stays.
"""

import re
from typing import Final

from redrive.classification.values_and_names import BLANK
from redrive.classification.word_lists import may_say

_UNKNOWN: Final = (
    r"(?:unknown|unrecogni[sz]ed|unsupported|invalid|illegal|undefined|undeclared|unmapped|unhandled|no such)"
)
#: What has a name that a message or a program may get wrong.
_NOUN: Final = (
    r"(?:(?:enum|event|message|command|task|job) )?"
    r"(?:value|constant|literal|member|variant|type|event|command|method|function|procedure|property|attribute|field|"
    r"column|key|option|parameter|param|argument|header|setting|directive|flag|keyword|symbol|identifier|action|category|"
    r"kind|variable|feature|metric|discriminator|tag|label|class|module|package|policy|mode|strategy|enum|index|offset|"
    r"array key)s?"
)
#: What a server has too: there its name may be the failure.
_STATE: Final = r"(?:status|state|code|reason|outcome|phase|step)"
_OF_SERVERS: Final = r"(?!(?:response|http|grpc|server|reply|error|connection|channel|session|socket|link|exit)\b)"
_QUOTED: Final = (
    r"(?:\"[^\"\n]{1,80}\"|'[^'\n]{1,80}'|`[^`'\n]{1,80}[`']|\u201c[^\u201d\n]{1,80}\u201d|"
    r"\u00ab[^\u00bb\n]{1,80}\u00bb)"
)
# Without quotes a name ends what is said, or is followed by what follows names.
_BARE: Final = (
    r"-{0,2}[a-z_$][\w$-]{0,60}(?:(?:[.\\/]|::|->)[\w$-]{1,60}){0,8}"
    r"(?=[.!]?\s*$|[.!]\s|[,;:)\]\n]|\s(?:for|in|of|on|at|to|from|by|with|is|was|does|has|cannot|could|must|and|or|"
    r"received|given|found|provided|specified|supplied|encountered)\b)"
)
_NAME: Final = rf"({_QUOTED}|{_BARE})"
_SETTING: Final = (
    r"(?:value|parameter|setting|option|property|field|argument|attribute|header|period|duration|interval|variable|key)"
)
_DEMANDED: Final = (
    r"(?:(?:must|should|shall|can ?not|can[\u2019']t|may not|needs? to|has to|have to|ought to) (?:not )?"
    r"(?:be (?:an? |set\b|specified|provided|given|defined|null\b|nil\b|none\b|empty|blank|zero|negative|positive|"
    r"non[- ]|greater|less|larger|smaller|higher|lower|more than|fewer|at least|at most|between|within|"
    r"in the (?:range|format)|in range|one of|of type|equal|valid\b|unique|present\b|numeric|[<>=]|<\*>)|"
    r"match\b|contain\b|start with|end with|conform|satisfy|equal\b)|"
    r"(?:is|are|was|were) (?:negative|out of (?:range|bounds)|not (?:allowed|permitted|supported|recogni[sz]ed|"
    r"numeric|set|specified|configured|provided|defined|one of|an? (?:valid|known|supported|recogni[sz]ed|legal|"
    r"allowed|permitted|number|function|constructor|string|boolean|integer|member|property|field|column|method|class|type|"
    r"positive))|null\b|empty|blank|required|missing|undefined)|<=? ?(?:<\*>|zero))"
)
#: What a text says of itself that it is not.
_FAULT: Final = (
    r"(?:throttl|rate[- ]?limit|timed? ?-?out|deadlock|overload|unavailable|unreachable|outage|too many requests|"
    r"(?:(?:network|connection|connectivity|dns|server|service|database|infrastructure|internal|lock|transient|"
    r"temporary|retr[iy]able|intermittent)[ -]){1,2}"
    r"(?:error|failure|fault|issue|problem|outage|time-?out|conflict|condition))\w{0,6}"
)

#: Words that say that something is not known, or not good; that something is demanded; that it was not.
_NOT_KNOWN: Final = (
    *("unknown", "unrecogni", "unsupported", "invalid", "illegal", "undefined", "undeclared", "unmapped", "unhandled"),
    "no ",
)
_NOT_GOOD: Final = (
    *("invalid", "illegal", "negative", "malformed", "unpars", "unsupported", "incorrect", "missing", "unknown"),
    *("bad ", "wrong "),
)
_DEMANDING: Final = (
    *("must ", "should ", "shall ", "cannot ", "can not ", "can't ", "can\u2019t ", "may not ", "need", "has to "),
    *("have to ", "ought to ", " negative", " out of ", " not ", " null", " empty", " blank", " required", " missing"),
    *(" undefined", "< ", "<<", "<=", "<zero"),
)
_DENYING: Final = ("not ", "never ", "no ", "nor ", "without ", "kein", "pas ", "aucun", "n't ", "n\u2019t ")
#: What names a fault, and words of which one, in small letters, is in every text of ASCII where it does.
_NAMED: Final = tuple(
    (words, re.compile(pattern, re.IGNORECASE))
    for words, pattern in (
        # Unknown enum value "X", undefined method `x', Unknown event type: X, has no attribute 'x'
        (
            _NOT_KNOWN,
            rf"\b(?:{_UNKNOWN}|has no|no)(?: [a-z-]{{2,20}})?? {_NOUN}(?: (?:name|named|called))?[:=]? {_NAME}",
        ),
        # HTTP 503 in field "status" is not an allowed value
        (
            (" field", " column", " element", " property", " attribute"),
            r"\b((?:HTTP )?[1-5][0-9]{2}) (?:in|of) (?:the )?(?:field|column|element|property|attribute)\b",
        ),
        # Invalid status "x" for order <*>, Unknown order state X
        (
            _NOT_KNOWN,
            rf"\b{_UNKNOWN} {_OF_SERVERS}(?:[a-z-]{{2,20}} )?{_STATE}[:=]? ({_QUOTED})",
        ),
        (
            _NOT_KNOWN,
            rf"\b{_UNKNOWN} {_OF_SERVERS}[a-z-]{{2,20}} {_STATE}[:=]? ({_BARE})",
        ),
        # No handler for event X, could not find a listener for X, no mapping registered for message type X
        (
            ("no ", "find ", "missing "),
            r"\b(?:no|find(?: an?)?|missing) (?:[a-z-]{2,20} ){0,2}?(?:handler|listener|consumer|subscriber|mapping|mapper|"
            r"route|processor|binding|converter|serializer|deserializer|parser|schema|strategy|policy|rule|template|workflow|"
            rf"saga|factory)s? (?:[a-z-]{{2,20}} )??(?:for|of|to handle|named|called):? (?:the )?(?:{_NOUN}:? )?{_NAME}",
        ),
        # error parsing header X, missing required property: x, invalid value for x, the value of "x" is out of range
        (
            ("pars", "decod", "convert", "interpret"),
            rf"\b(?:parsing|parse|decode|decoding|convert|interpret) (?:the )?(?:[a-z-]{{2,20}} )?{_NOUN} {_NAME}",
        ),
        (
            ("missing", "required", "malformed", "bad ", "duplicate", "unexpected"),
            rf"\b(?:missing|required|malformed|bad|duplicate|unexpected) (?:[a-z-]{{2,20}} )??{_NOUN}:? {_NAME}",
        ),
        (
            ("value for ", "value of "),
            rf"\bvalue (?:for|of) (?:the )?(?:{_SETTING} )?{_NAME}",
        ),
        # cannot import name 'x', cannot read properties of undefined (reading 'x'), invalid literal for int(): 'x'
        (
            ("import name", "reading", "invalid literal"),
            rf"\b(?:import name|reading|invalid literal for [^:\n]{{1,40}}:) ({_QUOTED})",
        ),
        # timeout is invalid; but: lock is invalid, which has run out
        (
            ("invalid", "not valid"),
            rf"({_QUOTED}|time-?outs?|deadline|retry-after|rate[- ]limit|throttl(?:e|ing)) (?:{_SETTING} )?(?:is|are|was) "
            r"(?:invalid|not valid)",
        ),
        # enum constant X is unknown
        (
            ("unknown", "unsupported", "unmapped", "invalid"),
            rf"\b{_NOUN} ({_QUOTED}|[\w$.-]{{1,80}}) (?:is )?(?:unknown|unsupported|unmapped|invalid)\b",
        ),
        # invalid timeout, negative deadline; but: unknown timeout error
        (
            _NOT_GOOD,
            r"\b(?:invalid|illegal|negative|malformed|unparsable|unparseable|unsupported|incorrect|missing) "
            r"((?:[a-z-]{2,20} )?(?:time-?out|deadline|retry-after|rate[- ]limit|throttling|throttle))"
            r"(?! (?:error|exception|occurred|while|after|waiting))\b",
        ),
        # invalid connection string, unknown failover mode
        (
            _NOT_GOOD,
            r"\b(?:invalid|illegal|malformed|bad|missing|unknown|unsupported|incorrect|wrong) (?!(?:host|server)\b)"
            r"([a-z-]{2,20}(?: [a-z-]{2,20})??) "
            rf"(?:string|format|name|policy|mode|config|configuration|{_SETTING})s?\b",
        ),
        # connection timeout cannot be negative, 'retry-after' is not a valid number, timeout value <*> is out of range
        (
            _DEMANDING,
            rf"({_QUOTED}|(?<![\w.-])[a-z_][\w.-]{{0,60}}(?: [a-z_][\w.-]{{0,60}}){{0,2}}?)(?: {_SETTING})?:?"
            rf"(?: [\"'(-]?<\*>[a-z\"')]{{0,4}})? {_DEMANDED}",
        ),
        # not a network error, never timed out, wasn't throttled, without a timeout
        (
            _DENYING,
            r"(?:\b(?:not|never|no|nor|without|kein(?:e[nrms]?)?|pas (?:une?|de)|aucune?)|n[\u2019']t) "
            rf"(?:(?:yet|been|being|due to|because of|caused by|related to|an?|the|any) ){{0,3}}({_FAULT})",
        ),
    )
)

# What is demanded of a setting, in the other languages that rules know. What it is demanded of stands before it, in the
# same clause, or behind one of a few beginnings.
_NUMERIC: Final = r"(?:\d|<\*>)"
_DEMANDED_ELSEWHERE: Final = re.compile(
    # German
    r"\b(?:muss|müssen|darf|dürfen|soll|sollte|kann) (?:nicht |stets |immer |mindestens |als |eine? |zwischen ){0,3}(?:größer|kleiner|"
    rf"höher|niedriger|positiv|negativ|null|leer|ganz|gültig|angegeben|gesetzt|vorhanden|unter|über|höchstens|[<>=]|{_NUMERIC})|"
    r"\bist (?:kein[en]? (?:gültige|zulässige|erlaubte|positive|ganze)|nicht (?:zulässig|erlaubt|angegeben|gesetzt|numerisch)|"
    r"ein pflichtfeld|erforderlich|negativ|leer|ungültig(?=[.!]?$))|"
    # French
    r"\b(?:doit|doivent|devrait) être (?:un |une |strictement |compris|supérieur|inférieur|égal|positi|négati|renseign|défini|"
    r"spécifi|entre|au moins|au plus|numérique)|\bne (?:peut|doit|peuvent|doivent) (?:pas )?être (?:négati|null|vide|"
    r"supérieur|inférieur|égal)|\best (?:obligatoire|requis|négati|vide|manquant)|\bn'est pas (?:valide|un nombre|autoris|"
    r"défini|renseign|une valeur)|"
    # Spanish
    r"\b(?:debe|deben|debería) (?:ser|estar) (?:un |una |mayor|menor|positiv|negativ|entre|igual|al menos|como|numéric|"
    r"definid|especificad)|\bno (?:puede|debe|pueden) (?:ser|estar) (?:negativ|nul|vací|mayor|menor|cero)|"
    r"\bes (?:obligatori|requerid|negativ|un campo obligatorio)|\bno es (?:válid|un número|un valor|una? enter)|"
    # Portuguese
    r"\b(?:deve|devem) (?:ser|estar) (?:um |uma |maior|menor|positiv|negativ|entre|igual|no mínimo|no máximo|numéric|definid)|"
    r"\bnão (?:pode|deve|podem) (?:ser|estar) (?:negativ|nul|vazi|maior|menor|zero)|\bé (?:obrigatóri|requerid|negativ)|"
    r"\bnão é (?:válid|um número|um valor)|"
    # Italian
    r"\b(?:deve|devono) essere (?:un |una |maggiore|minore|positiv|compres|almeno|uguale|numeric|specificat)|"
    r"\bnon (?:può|deve) essere (?:negativ|null|vuot|maggiore|minore|zero)|\bè (?:obbligatori|richiest|negativ)|\bnon è "
    r"(?:valid|un numero|un valore)|"
    # Dutch, Polish, Russian
    rf"\bmoet (?:een |minstens |tussen ){{0,2}}(?:groter|kleiner|positief|geheel|getal|{_NUMERIC})|\bmag niet (?:negatief|leer|nul|"
    r"groter|kleiner)|\bis verplicht|"
    r"\bmusi być (?:większ|mniejsz|dodatni|liczb|podan|równ)|\bnie może być (?:ujemn|pust|zer|większ|mniejsz)|\bjest wymagan|"
    r"\bдолж(?:ен|на|но|ны) быть (?:больше|меньше|положительн|целым|числом|не менее|не более|указан|задан|равн)|"
    r"\bне может быть (?:отрицательн|пуст|нул|больше|меньше)|\bобязател(?:ен|ьна|ьно|ьны)|"
    # Chinese, Japanese, Korean
    r"(?:必须|必須|应|须)(?:是|为|大于|小于|在|介于|不小于|不大于|填|设置|指定|正整数)|不能(?:为|小于|大于|是|低于|高于|超出范围)|"
    r"不得(?:为|小于|大于|低于|高于)|不合法|(?:值|参数|格式)(?:无效|不正确)|"
    r"でなければ|(?:以上|以下|未満|必須|整数|正の数|数値|範囲)(?:で|に|を|の|です|である)|(?:値|設定|形式|指定|パラメータ)(?:は|が)"
    r"(?:不正|無効|必須)|(?:が|は)(?:不正です|必須です)|"
    r"(?:이상|이하|미만|양수|정수|숫자)(?:이어야|여야|만)|(?:값이|형식이) (?:유효하지|올바르지)|필수",
    re.IGNORECASE,
)
#: One of these is in every text of ASCII that says so, lower case.
_DEMANDS: Final = (
    *(
        " muss ",
        " darf ",
        " soll",
        " kann ",
        " ist ",
        "doit ",
        "doivent ",
        " est ",
        "n'est ",
        " debe",
        " puede",
        " es ",
    ),
    *(" deve", " devono ", " moet ", " mag niet ", "verplicht", " musi ", " jest ", " nie mo"),
)
#: Characters before what is demanded in which it stands of what.
_LONGEST_SUBJECT: Final = 60
_CLAUSE_ENDS: Final = ".;!?\n。；！？"


def without_named_faults(text: str) -> str:
    """``text``, masked, with :data:`BLANK` instead of faults that it only names."""
    for words, pattern in _NAMED:
        if may_say(text, words):
            text = pattern.sub(_blanked, text)
    return _without_demanded(text) if may_say(text, _DEMANDS) else text


def _without_demanded(text: str) -> str:
    """``text`` without what something is demanded of in a language other than English."""
    kept: list[str] = []
    at = 0
    for match in _DEMANDED_ELSEWHERE.finditer(text):
        start = max(
            at, *(text.rfind(end, at, match.start()) + 1 for end in _CLAUSE_ENDS), match.start() - _LONGEST_SUBJECT
        )
        kept += text[at:start], BLANK, " "
        at = match.start()
    return "".join([*kept, text[at:]]) if kept else text


def _blanked(match: re.Match[str]) -> str:
    start, end = (at - match.start() for at in match.span(1))
    return f"{match[0][:start]}{BLANK}{match[0][end:]}"
