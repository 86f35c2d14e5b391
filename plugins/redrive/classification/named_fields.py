"""Columns, fields and functions that libraries name in forms of their own, told in the one way that is read everywhere.

``field 'weight'`` is the name of what is broken, whoever says it: Go's ``column index 4, name "weight"``, a way through
JSON (``$.lines[3].weight``), ajv's ``data/lines/3/weight must``, FluentValidation's ``'Weight' must``, or in brackets.
"""

import re
from typing import Final

from redrive.classification.word_lists import any_of, says

#: [email] can't be blank: what is said of a field, and of no logger and no thread that says it.
BRACKETED: Final = (
    rf"\[(?!(?i:{any_of('levels')})\])([A-Za-z_]{{1,40}})\]:? "
    r"(?=(?:must|should|shall|may not)(?: not)? (?:be|contain|match|have|start|end|equal|conform|satisfy)\b|"
    r"(?:can[\u2019']t|can ?not|may not) be"
    r" (?:blank|null|nil|empty|negative|zero|less|greater|more|in|changed|undefined)\b|"
    r"(?:is|are) (?:an? )?"
    r"(?:required|invalid|missing|mandatory|reserved|blank|empty|null|negative|undefined|out of range|"
    r"not (?:an?|allowed|valid|included|numeric|unique|in|one of)|too (?:long|short|big|small|large|many|few)|"
    r"already (?:taken|in use)|the wrong)\b|"
    r"has (?:already been taken|an? (?:invalid|wrong)|invalid|wrong)\b|do(?:es)?(?: not|n[\u2019']t) match\b|"
    r"darf nicht (?:leer|null|negativ)\b|muss \w{1,30} sein\b|ist (?:erforderlich|ung\u00fcltig|ein Pflichtfeld)|"
    r"est (?:obligatoire|requise?|invalide)\b|doit \u00eatre\b|es (?:obligatori[oa]|requerid[oa]|inv\u00e1lid[oa])|"
    r"debe ser\b)"
)
_BRACKETED = re.compile(rf"(?:^|(?<=[:;,] )){BRACKETED}")
_VALUE = re.compile(r"[0-9]|<\*>")
# column index 4, name "closed_by", as Go's database/sql tells it
_SCANNED = re.compile(r"column index (?:<\*>|[0-9]+), name (?=[\"'])")
# $.lines[3].qty
_JSON_PATH = re.compile(r"(?<![\w$'\"])[$](?:[.][A-Za-z_]\w{0,60}|\[(?:<\*>|[0-9]{1,6}|\*)\]){1,12}(?![\w(])")
# Shop.Cart.total/1, as Elixir calls functions
_WITH_ARITY = re.compile(r"(?<![\w/.])((?:[A-Z]\w{0,60}[.]){1,8}[a-z_]\w{0,60}[?!]?)/<\*>(?![\w/])")
# method plan, parameter depot
_NAMED_LAST = re.compile(r"(, (?:parameter|argument|field|property)) ([A-Za-z_]\w{0,60})$")
# book.parcels[0].weight
_INDEX = re.compile(r"\[(?:<\*>|[0-9]{1,6})\]")
_INDEXED_PATH = re.compile(
    r"(?<![\w.$'\"])(?:[A-Za-z_]\w{0,40}[.]){0,6}[A-Za-z_]\w{0,40}(?:\[(?:<\*>|[0-9]{1,6})\](?:[.][A-Za-z_]\w{0,40}){1,4}){1,4}"
    r"(?![\w(\[])"
)
# data/passengers/1/birthDate must match format "date"
_ROOTS = ("data/", "body/", "instance/")
_OF_AJV = re.compile(r"(?<![\w/.])(?:data|body|instance)((?:/(?:<\*>|\w{1,40})){1,8})(?= (?:must|should)\b)")
# was missing required properties including: 'BrokerId'
_BEFORE_BEHIND = (": [", ": '", ': "')
_NAMED_BEHIND = re.compile(
    r"(\b(?:[Ff]ields?|[Pp]ropert(?:y|ies)|[Cc]olumns?|[Pp]arameters?|[Aa]ttributes?|[Aa]rguments?)(?: [a-z]+){0,3}): "
    r"(?=\[?['\"]?[A-Za-z_]\w{0,60}['\"]?\]?(?:[.,; ]|$))(?=[\['\"])"
)
# 'Birth Date' must not be empty, as FluentValidation tells it
_BEHIND_VALIDATED = ("' must", "' should", "' may not", "' cannot", "' is not", "' has a")
_VALIDATED = re.compile(
    r"(?:(?<=^)|(?<=[:;] )|(?<=-- ))'([A-Z][A-Za-z]{0,40}(?:[. ]{1,2}[A-Z][A-Za-z]{0,40}){0,4})'"
    r"(?= (?:must|should|may not|cannot|is not in|is not a valid email|has a)\b)"
)
_PART_OF_PATH = re.compile(r"(?<=[.])[A-Za-z_]\w*")
_AT_PATH = re.compile(r" at path (?=[\"'][A-Za-z_][\w.]{0,60}[\"'])")
# 'Sku' is a required property: what it is comes behind the name
_WORDS_OF_REQUIRED = ("required", "missing", "mandatory", "unexpected", "unknown")
_REQUIRED = re.compile(
    r"(?<![Ff]ield )(?<!olumn )(?<!roperty )(?<!ribute )(?<!arameter )(?<![Kk]ey )(['\"])([\w.$-]{1,60})\1"
    r"(?= (?:is|was) (?:an? )?(?:required|missing|mandatory|unexpected|unknown)\b)"
)

# (rota.py:88); assertion failed: end >= start, src/shift.rs:19:5: the file stays, its lines move
_FILE = (
    r"(?:[^\s():,]{0,200}[/\\])?([A-Za-z][\w-]{0,60}[.](?:py|js|ts|mjs|cjs|jsx|tsx|rb|go|java|kt|scala|cs|rs|c|cc|cpp|h|"
    r"hpp|exs?|erl|php|p[lm]|swift|dart|fs|vb))"
)
_PLACE = re.compile(rf"\((?:at |in )?{_FILE}:<\*>\)")
_PLACE_OF_ASSERTION = re.compile(rf"(?<=[^\s]),? (?:at |file )?{_FILE}(?::|, line )<\*>$")
_ASSERTED = re.compile(r"\b[Aa]ssert")
# ClassNotFoundException: com.acme.OrderV1
_CLASS_LOADED = re.compile(
    r"((?:ClassNotFoundException|NoClassDefFoundError|[Cc]lass not found): |[Cc]ould not initialize class |"
    r"\b[Cc]lass (?=[^ ]{1,300} (?:not found|does not exist|could not be)))"
    r"(?:[A-Za-z_][\w$]{0,80}[./]){1,12}([A-Za-z_][\w$]{0,80})(?![\w./$])"
)


def with_fields_named(text: str) -> str:
    """A masked line of prose with what is named in such a form named as others do."""
    if "[" in text:
        text = _BRACKETED.sub(r"field '\1' ", text)
    if "column index" in text:
        text = _SCANNED.sub("column ", text)
    if "$" in text:
        text = _JSON_PATH.sub(_of_json_path, text)
    if ":<*>)" in text:
        text = _PLACE.sub(r"(at '\1')", text)
    if text.endswith("<*>") and "ssert" in text and _ASSERTED.search(text):
        text = _PLACE_OF_ASSERTION.sub(r" (at '\1')", text)
    if "lass" in text:
        text = _CLASS_LOADED.sub(_of_class, text)
    if "]." in text:
        text = _INDEXED_PATH.sub(_of_indexed_path, text)
    if says(text, _ROOTS):
        text = _OF_AJV.sub(_of_ajv, text)
    if says(text, _BEFORE_BEHIND):
        text = _NAMED_BEHIND.sub(r"\1: field ", text)
    if says(text, _BEHIND_VALIDATED):
        text = _VALIDATED.sub(_validated, text)
    if "/<*>" in text:
        text = _WITH_ARITY.sub(r"\1()", text)
    text = _NAMED_LAST.sub(r"\1 '\2'", text)
    if " at path " in text:
        text = _AT_PATH.sub(" at field ", text)
    return _REQUIRED.sub(r"field '\2'", text) if says(text, _WORDS_OF_REQUIRED) else text


def _of_class(match: re.Match[str]) -> str:
    if not _VALUE.search(match[2]):
        return match[1] + match[2]
    return f"{match[1].removesuffix('class ')}class '{match[2]}'"


def _of_indexed_path(match: re.Match[str]) -> str:
    return f"field '{_INDEX.sub('', match[0])}'"


def _of_ajv(match: re.Match[str]) -> str:
    steps = [step for step in match[1].split("/") if step and not _VALUE.search(step)]
    return f"field '{'.'.join(steps)}'" if steps else match[0]


def _validated(match: re.Match[str]) -> str:
    return f"field '{'_'.join(match[1].replace('.', ' ').split())}'"


def _of_json_path(match: re.Match[str]) -> str:
    steps = _PART_OF_PATH.findall(match[0])
    return f"field '{'.'.join(steps)}'" if steps else match[0]
