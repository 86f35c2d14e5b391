"""Which words of a failure text name what is broken, and which are values that differ from message to message.

:func:`phrase` writes a line of masked prose with its names bare and its values blanked. What a word is, is told by its
form, by its quotes and by the word before it (*column "email"*, *user 'ana'*): see ``word_lists.txt``.
"""

import functools
import math
import re
from collections import Counter
from collections.abc import Iterator
from importlib import resources
from itertools import pairwise
from string import ascii_lowercase, digits
from typing import Final

from redrive.classification.named_fields import with_fields_named
from redrive.classification.word_lists import WITHOUT_BLANKS, WORDS, any_of, may_say, says

BLANK: Final = "<*>"

# A country_code is no failure's.
_NOT_OF_OTHERS: Final = "".join(
    f"(?<!{whose}_)"
    for whose in (
        *("country", "currency", "language", "region", "area", "dialing", "postal", "post", "zip", "airport"),
        *("station", "depot"),
        *("product", "item", "article", "promo", "coupon", "discount", "voucher", "tax", "bank", "branch"),
        *("carrier", "warehouse", "customer"),
    )
)
#: A name of a field whose value names something.
NAMING: Final = re.compile(
    rf"(?:^|[._-])(?:{_NOT_OF_OTHERS}code|type|errortype|errorcode|error_code|error_type|status|statuscode|status_code|http_status|rule|"
    r"outcome|delivery_outcome|event|evt|why|op|operation|action|class|error_class|kind|field|param|parameter|property|column|constraint|resource|"
    r"component|faultcode|fqcn|flags|decline|domain|check|step|phase|stage|category|subtype|subcode|errno|number|__type|_type|"
    r"loc|sqlcode|cd|rc|property_path|(?:error_|reason_)?(?:codes|types|reasons))$|"
    # a name of what is broken, not of a host, a user or a product
    r"^name$|^(?:feature|metric|flag|attribute|setting|variable)$|(?:^|[._-])(?:attribute|check|class|column|constraint|error|event|exception|field|function|method|param|"
    r"parameter|phase|property|rule|stage|step|table|type)[._-]?name$"
)
#: A name of a field that says what was asked for: of its value the words of its path tell.
ASKED_FOR: Final = re.compile(
    r"^(?:(?:http|request|target|upstream|full|original)[._-])?(?:path|uri|url|endpoint|route)$"
)
#: With which method something is asked for, as HTTP writes it; and as an expression, as Go's clients write it too.
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
METHOD: Final = "|".join((*METHODS, *map(str.title, METHODS)))
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

# A letter of any script is [^\W\d_]; of a word it is not the middle: (?<![^\W_]).
_TOKEN = re.compile(
    # what most tokens are, first: nothing below begins as they do
    r"\s+"
    r"|(?:https?|wss?|ftps?|sftp|s3a?|gs|abfss?|hdfs|file|amqps?|tcp|redis|postgres(?:ql)?|mysql|jdbc:[a-z]+|"
    r"mongodb(?:\+srv)?|queue|topic|persistent)://(?P<url>[^\s\"'`,;()\[\]{}|]*)"
    r"|(?P<segment>(?<![^\W_])[A-Z][A-Z0-9]{2}(?:\^[0-9]{1,2}){1,4}(?![\w^]))"
    r"|(?P<arn>arn:[^\s\"',;()]+)"
    r"|(?P<word>[^\W_][\w$<*>@#%+-]*(?:(?:[.:/\\]|->)+[\w$<*>@#%+-]+)*|_[\w.<*>]+)"
    r"|<<\*>>|<\*>(?:[-_.]{0,2}(?:<\*>|[^\W_]+))*|<(?:path|lib)>[^\s\"'`,;()\[\]{}<>|]*"
    r"|\\?\"(?P<double>(?:[^\"\n\\]|\\(?!\")){0,200})\\?\""
    r"|\u00bb(?P<german>[^\u00bb\u00ab\n]{0,200})\u00ab|\u00ab\s?(?P<french>[^\u00bb\u00ab\n]{0,200}?)\s?\u00bb"
    r"|\u201e(?P<low>[^\u201c\u201d\u201e\n]{0,200})[\u201c\u201d]|\u201c(?P<high>[^\u201c\u201d\n]{0,200})\u201d"
    r"|\u2018(?P<single>[^\u2018\u2019\n]{0,200})\u2019|\u300c(?P<corner>[^\u300c\u300d\n]{0,200})\u300d"
    r"|`(?P<back>[^`'\n]{0,200})[`']|(?<![^\W_])'(?P<straight>[^'\n]{0,200})'(?![^\W_])"
    r"|\[(?P<bracket>[^\[\]\"'\n]{0,120})\]"
    r"|."
)
_DIGIT = re.compile(r"[0-9]|<\*>")
# What has digits and is a name all the same: ORA-00060, 42S02, ENOENT, NOT_FOUND, 503; utf8, x509, S3.
_CODE = re.compile(
    r"0[xX][0-9A-Fa-f]{2,8}|AADSTS[0-9]{4,7}|[A-Z]{1,6}[_-]?[0-9]{2,6}[A-Z]?|[0-9]{2}[A-Z0-9]{3}|[0-9]{3,9}|[45][.][0-9][.][0-9]{1,3}|E[A-Z]{3,12}|"
    r"[A-Z][A-Z0-9]{2}-[0-9]{1,2}(?:[.][0-9])?|[A-Z]{3}[+][0-9]{1,3}|(?:[Ff]ield|[Tt]ag)-[0-9]{1,2}[A-Z]|[0-9]{4}[A-Z]{1,2}|[A-Z][0-9]/[0-9]{3}|[A-Z0-9]+(?:_[A-Z0-9]+)+|DATA_[0-9a-f]{2,4}|[a-z][a-z0-9-]{1,20}:[A-Z][A-Za-z]{3,60}"
)
# In scripts that part no words by blanks, what is in another script.
_OTHER_SCRIPT = re.compile(f"[^{WITHOUT_BLANKS}]+")
# 课程 PH354: what is in front of it says whether it is a code
_SCRIPT_WITHOUT_BLANKS = re.compile(f"[{WITHOUT_BLANKS}]")
_NUMBERED_CODE = re.compile(r"[A-Z]{1,6}[_-]?[0-9]{2,6}")
_CALLED_CODES = ("错误", "错误码", "代码", "状态码", "状态", "异常", "エラー", "コード", "エラー番号", "오류", "코드")
_CALLED_NAMES = tuple(WORDS["names_in_scripts"])
_LONGEST_NAME = 60
_SMALL_NUMBER = re.compile(
    r"[A-Za-z]{2,}+[a-z_-]*+[0-9]{1,3}|[a-z][0-9]|[0-9]{2}[a-f]|[a-z]+[0-9]{1,2}[a-z]+|[A-Z][A-Z]?[0-9][a-z]*|"
    r"(?:utf|UTF|iso|ISO|sha|SHA|rfc|RFC)-?[0-9]{1,5}(?:-[0-9]{1,2})?"
)
_NUMBERED = re.compile(r"(?P<name>[A-Za-z]{3,40})(?:_-?<\*>)+")
# deviceId_<*>_ts_<*>, as MongoDB calls indexes
_NUMBERED_PARTS = re.compile(r"(?:[A-Za-z]{2,40}_-?<[*]>_?){2,6}")
_CAMEL = re.compile(r"[A-Z]?[a-z]+[A-Z]|[A-Z][A-Z]+[a-z]")
_CLASS = re.compile(r"(?:[A-Z][a-z]+){2,6}")
_SAYS_MORE = re.compile(rf"{_CAMEL.pattern}|[a-z]_[a-z]")
_PLAIN_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*(?:[.][A-Za-z_$*][A-Za-z0-9_$]*|\[\]|::[A-Za-z_]+)*(?:\(\))?")
_HEADER = re.compile(r"x-[a-z-]+")
_HOST = re.compile(
    r"(?:[A-Za-z0-9_-]|<\*>)+(?:[.](?:[A-Za-z0-9_-]|<\*>)+)*[.](?:example|com|net|org|io|dev|internal|local|localdomain|"
    r"corp|lan|intra|cloud|app|test|[a-z]{2}|amazonaws|svc|windows)(?:[.][a-z]{2,9})*(?::(?:[0-9]+|<\*>))?"
)
# In a path, what follows is whose it is: /projects/acme-prod/topics
_ONE_OF_MANY = frozenset(
    ["project", "projects", "b", "bucket", "buckets", "org", "orgs", "tenant", "tenants", "namespaces", "subscriptions"]
)
_PATH_WORD = re.compile(r"[A-Za-z][a-z_-]{2,30}(?:[A-Z][a-z]{1,30}){0,4}")
_FILE = re.compile(r"[.][a-z]{2,7}(?:[.]gz)?$")
# TS-BLU-M, DE-BY
_SHOUTED = re.compile(r"[A-Z]{1,6}(?:-[A-Z]{1,4}){2,}|[A-Z]{2}-[A-Z]{2,3}")
# Patient/<*>
_OF_TYPE = re.compile(r"([A-Z][a-z]+(?:[A-Z][a-z]+)*)/[\w.<*>-]*(?:<\*>|[0-9])[\w.<*>-]*")
#: Capital letters of Latin scripts.
_CAPITALS = (
    r"A-Z\u00c0-\u00deĀĂĄĆĈĊČĎĐĒĔĖĘĚĜĞĠĢĤĦĨĪĬĮİĴĶĹĻĽĿŁŃŅŇŌŎŐŒŔ"
    r"ŖŘŚŜŞŠŢŤŦŨŪŬŮŰŲŴŶŸŹŻŽ"
)
_CAPITAL = rf"[{_CAPITALS}][\w'-]*[^\W\d_A-Z]"
#: Between the names of a person.
PARTICLES: Final = (
    "van",
    "von",
    "de",
    "da",
    "del",
    "la",
    "al",
    "bin",
    "der",
    "den",
    "dos",
    "do",
    "du",
    "le",
    "el",
    "ben",
    "ter",
    "zu",
    "di",
)
_PARTICLES = f"(?:{'|'.join(PARTICLES)})"
# A capital letter, and what is written in capitals, behind a blank.
_CAPITAL_BEHIND_BLANK = re.compile(rf" [{_CAPITALS}]")
_SHOUTED_BEHIND_BLANK = re.compile(r" [A-Z][A-Z0-9_-]")
# The letter first and then what is before it: almost every position fails at it.
_NAMED = re.compile(
    rf"[{_CAPITALS}](?<=[^\W\d_A-Z,(] .)[\w'-]*[^\W\d_A-Z](?:(?: {_PARTICLES}\b){{0,2}} {_CAPITAL}){{1,3}}(?![\w-])"
)
# Dr Brandt, Mme van der Berg
_TITLED = re.compile(
    r"(?=[DdPMHFS])(?<![^\W_])((?:[Dd]r|Dre|Prof|M[.]|Mme|Mlle|Mr|Mrs|Ms|Herrn?|Frau|Señora?)[.]?)"
    rf"(?: {_PARTICLES}\b){{0,2}} {_CAPITAL}(?:(?: {_PARTICLES}\b){{0,2}} {_CAPITAL}){{0,2}}(?![\w-])"
)
# postal code 91547: only codes of failures name something
_OTHER_CODE = re.compile(
    rf"(?<![^\W_])((?!(?:{any_of('of_failures')})\b)[a-z]{{3,20}} code|[Pp]ostcode|[Zz]ipcode|[Bb]arcode)"
    r" (?:[0-9]{3,12}|[A-Z]{1,3}[0-9]{1,6})(?![^\W])"
)
# decline code 51: short ones are codes behind these words alone
_SHORT_CODE = re.compile(
    rf"(?<![^\W_])((?:{any_of('of_failures')}) code|status|cause|reason|field|tag|kennzahl|alert number|"
    r"(?:(?<!\[)errno|rc)(?![ :=]{1,2}0(?![0-9])))(?::? |=)([0-9]{1,2}(?![\w.,:-])|[0-9]{1,2}[A-Z](?![\w.-]))",
    re.I,
)
# error 5, (signal 9): where that is all
_SHORT_CODE_LAST = re.compile(
    r"(?<![^\W_])((?:[Ww]in(?:dows )?|[Ss]ystem )?[Ee]rror|[Ss]ignal|[Ff]ehler|[Ee]rreur|[Ee]rrore|[Ff]elkod)"
    r"(?: ?:? |=)([0-9]{1,2})(?=$|[)\];,])"
)
# [Errno 28], of which nobody says more
_ERRNO = re.compile(r"\[((?:[Ww]in)?[Ee]rr(?:no|or)) ([0-9]{1,2})\]$")
# エラーコード1001
_CODE_IN_SCRIPT = re.compile(
    r"((?:错误|錯誤)(?:码|碼|代码|代碼)?|エラー(?:コード|番号)?|(?:오류|에러) ?(?:코드)?)([:\uff1a=]?) ?([0-9]{1,9})"
    r"(?![0-9A-Za-z.,:-])"
)
# 451-4.3.0, as 451 4.3.0
_ENHANCED = re.compile(r"([45](?<![\w.].)[0-9]{2})-(?=[45][.][0-9][.][0-9])")
_SHORT_NUMBER = re.compile(r"[ =][0-9]{1,2}(?:[A-Z](?![\w])|(?![\w.:-]))")
# exit code -1073741819: of Windows, where others write 0xC0000005; masks have left no other number of so many digits
_SIGNED_STATUS = re.compile(r"-(?<![\w.-]-)([0-9]{9,10})(?![\w.,:-])")
# XGLU^Glucose^L, as HL7 writes a code of a catalogue
_CODED_VALUE = re.compile(r"(?<![^\s(\[])[A-Za-z0-9._-]{1,40}\^[^\s^()]{2,80}\^[A-Za-z0-9]{1,20}(?![\w^])")
# 'duration'='PT30M'
_QUOTED_SETTING = re.compile(r"('[A-Za-z_][\w.-]{0,60}')='[^'\n]{0,200}'")
# Kroeger Bau GmbH, Villa Sole S.r.l.: a company is a value
_FORMS = (
    r"(?:GmbH(?: & Co[.]? KG)?|KGaA|Ltd|Limited|LLC|LLP|Inc|plc|PLC|Corp|S[.]r[.]l|S[.]p[.]A|S[.]A[.]S|S[.]A|SARL|SpA|"
    r"SAS|B[.]V|N[.]V|ApS|A/S|Oyj|Pty(?: Ltd)?|K[.]K|Sp[.] z o[.]o)"
)
_SMALL_FORMS = r"(?:AG|KG|OHG|AS|AB|SA|SE|NV|BV|Oy|SL|Co)"
_LEGAL_FORM = re.compile(rf" (?:{_FORMS}|{_SMALL_FORMS})(?![\w-])")
_COMPANY = re.compile(
    r"(?<![\w/.-])(?:[^\W\d_a-z][\w'\u2019.-]{1,30} (?:(?:&|and|und|et|y|of|de) )?){1,4}" + _FORMS + r"(?![\w-])[.]?"
)
# Müller AG, Halvorsen & Sønner AS: only behind what is no word of the trade
_SMALL_COMPANY = re.compile(
    r"(?<![\w/.-])((?:[^\W\d_a-z][\w'\u2019-]{0,30}[^\W\d_A-Z] (?:(?:&|and|und|et|y) )?){1,4})"
    + _SMALL_FORMS
    + r"(?![\w.-])[.]?"
)
_MEDIA_TYPE = re.compile(
    r"(?<![\w/])(?:text|application|image|audio|video|multipart)/[\w.+-]{1,80}(?:; ?charset=[\w-]{1,20})?"
)
# by hpark, par l'utilisateur ortiz, by LAB2; who has a name with a capital may be what refused
_WHO_DID = ("by ", "par ", "durch ", "por ", "von ")
_BY = re.compile(
    r"(?<![^\W_])((?:by|par|durch|por) (?:user |utilisateur |l'utilisateur |usuario |Benutzer )?)"
    r"(?!signal-)([a-z\u00df-\u00ff][\w.-]{1,40}|[A-Z]{5,14}|[^\W\d_][\w.-]{0,20}[0-9_][\w.-]{0,20})"
    r"(?=[.,;:)]?(?:$|[,;:] |[.] [A-Z]))"
)
# par l'utilisateur ortiz depuis le …: whatever comes behind
_BY_USER = re.compile(
    r"(?<![^\W_])((?:by|par|durch|por|von) (?:the |den |el |la |le )?"
    r"(?:user|utilisateur|l'utilisateur|l\u2019utilisateur|usuario|utilizador|Benutzer(?:in)?|utente|gebruiker)) (?!<)"
    r"[\w.@-]{1,60}"
)
# by BNPAFRPP: a bank
_BANK = re.compile(r"(?<![^\W_])((?:by|from|to|at|bank|BIC)) ([A-Z]{6}[A-Z0-9]{2}(?:[A-Z0-9]{3})?)(?![\w-])")
# in depot Nantes, to Iran: where nouns have no capitals, a capital behind a preposition is what something is called
_CALLED = re.compile(
    rf"(?<![^\W_])((?:in|at|from|to|near|via|dans|chez|à|en|de|pour)(?: (?:the|le|la|el))?"
    rf"(?: (?!(?:{any_of('names')}|entity|model|resource|object|record|schema|document)\b)[a-z\u00df-\u00ff]{{2,20}})?)"
    rf" ({_CAPITAL})(?![\w-]|[.]\w|[ ]?[#='\"]|[ ]<\*>|[ ](?:{any_of('names')}|id)\b)"
)
_GERMAN = re.compile(rf"(?<![^\W_])(?:{any_of('german')})(?![^\W_])")
_OF_TYPES = re.compile(rf"(?<![^\W_])(?:{any_of('of_types')})", re.I)
# seq=<*> dest=<*>: what was at hand, behind what is said
_CONTEXT = re.compile(r"(?<=[^\s:,;=(])(?:[ ,;]{1,2}\w[\w.-]{0,40}=<\*>){1,20}(?=[ .]*$)")
# found: String, got null, but was HashMap: what came instead
# _WORDS_OF_X: one of these is in every text in which _X finds something, if it is asked whether it may say it.
_WORDS_OF_FOUND = ("found", "received", "actual", "given", "got", "was")
_FOUND = re.compile(
    r"(?=[fragb,])(?<!not )\b((?:found|received|actual|given|got)(?: value| type)?: |"
    r"(?:but|,) (?:was |is )?(?:got|found|received|given|was):? )"
    r"(?!(?:to|no|not|an?|the|from|in|for|on|at|by|with|and|error|unexpected|invalid|code|status|message|response|http)\b)"
    r"[\w.$\[\]]{2,60}(?=[,;.)\]]?(?:\s|$))"
)
# at depot B12, im Werk DE01: a code behind a preposition is a value
_PLACED = re.compile(
    rf"(?=[iaoftvndpcàe])(?<![^\W_])((?:in|at|on|from|to|for|im|für|von|auf|aus|ab|nach|zu|dans|chez|pour|à|en|da|de)"
    rf"(?: (?:the|der|dem|den|le|la|el))?(?: (?!(?:{any_of('names')}|status|sqlstate|errno)\b)[^\W\d_]{{2,20}})?)"
    r" (?!(?:ORA|TNS|PLS|SQL|HTTP|CVE|RFC|ISO|UTF)-?[0-9])[A-Z]{1,4}[-_]?[0-9]{1,6}(?![\w.-])"
)
# caller svc-claims lacks role x: who was refused
_SUBJECT = re.compile(
    r"((?:^|[:;,.(] )(?:[Cc]aller|[Uu]ser|[Pp]rincipal|[Cc]lient|[Tt]enant|[Mm]ember|[Ss]ubject)) [\w./@:<*>-]{1,120}"
    r"(?= (?:may|lacks|has no|does not|is not|cannot|can not|must|needs)\b)"
)
# password for ana from <*>, user ana logged in, invalid user ana <*>: who signed in, or tried to
_SIGNED_IN = re.compile(
    r"((?:^|[:;] )[Uu]ser(?= [^ ]+ (?:authenticated|connected|disconnected|logged (?:in|on|out)|from <\*>))"
    r"|\b(?:[Ii]nvalid|[Ii]llegal|[Uu]nknown) user(?= [^ ]+ (?:from |at |port )?<\*>)"
    r"|\b(?:password|publickey|[Ll]ogin|[Ss]ign-?in|[Aa]uthentication|credentials) for"
    r"(?= [^ ]+ (?:from|at|on|via) <\*>))"
    rf" (?!<|(?:{any_of('no_values')})\b)[\w.@-]{{1,64}}"
)
# Topic orders not present in metadata, access group: orders
_QUEUE = re.compile(
    r"((?:^|[:;,.(] )(?:Topic|Queue|Stream|Subscription|Exchange|Container|Pod|Node|Namespace)) "
    r"(?!(?:is|was|does|has|not|with|name)\b)"
    r"[\w.#$/<*>-]{1,160}"
    r"(?= (?:not|is|was|does|has|already|could|cannot)\b)"
)
_QUEUES = re.compile(r"\b((?:access|consumer) (?:groups?|topics?)): \[?[\w.,#$<*>-]{1,160}\]?$")
# Beneficiary Arrow Dental Group (<*>) is on hold
_ROLE = re.compile(
    r"((?:^|[:;.] )(?:Beneficiary|Customer|Supplier|Vendor|Patient|Employee|Merchant|Partner|Passenger|Guest|Driver|"
    rf"Kunde|Lieferant|Mitarbeiter|Patientin|Bénéficiaire|Fournisseur)) {_CAPITAL}(?: [^\s()<,;:]{{1,40}}){{0,4}}?"
    r"(?= \(|,| (?:is|was|has|does|cannot|could|must|not|ist|wurde|hat|est)\b)"
)
# not authorized for product D
_LETTER = re.compile(
    rf"(?=[foiatw])(?<![^\W_])((?:for|of|in|at|from|to|with) "
    rf"(?!(?:{any_of('names')}|type|option|flag|drive)\b)[a-z]{{3,20}}) [A-Z]"
    r"(?=[.,;)]?(?:$|\s))(?! [A-Z])"
)
# lane PLGDN -> JPOSA
_LANE = re.compile(
    r"\b((?:lane|route|leg|sector|segment|relation)) (?:[A-Z]{3,5}|<\*>) ?(?:->|\u2192|\u2013|-) ?"
    r"(?:[A-Z]{3,5}|<\*>)(?![\w-])",
    re.I,
)
# the address value Oak St was incomplete
_VALUE_OF = re.compile(
    r"(\b[Tt]he (?:[a-z]{2,20} )?value) (?!(?:is|was|must|of|for|in|does|has|type|provided|given|you|that)\b)"
    r"[^\s,;:()'\"]{1,60}(?: (?!of )[^\s,;:()'\"]{1,60}){0,4}? (?=(?:is|was|must|does|has|cannot|exceeds|could)\b)"
)
_PHP_CLASS = re.compile(r"(?:[A-Z]\w{0,60}\\{1,2}){1,8}[A-Z]\w{0,60}")
# Where nobody could be asked, what was to be asked for tells nothing.
_NOT_ASKED = re.compile(
    r"\b(?:tls|TLS|x509|certificate|SSL|ssl|ECONNREFUSED|ENOTFOUND|ERR_NAME_NOT_RESOLVED|"
    r"ERR_CONNECTION_REFUSED|getaddrinfo|dial tcp|no such host|"
    r"[Cc]onnection refused|[Nn]ame or service not known)\b"
)
_WORDS_OF_NOT_ASKED = (
    *("tls", "TLS", "x509", "certificate", "ssl", "SSL", "ECONN", "ENOTFOUND", "ERR_NAME_NOT", "ERR_CONN"),
    *("getaddrinfo", "dial tcp", "no such host", "onnection refused", "service not known"),
)
_URL = re.compile(rf"(?:\b(?:{METHOD}|{METHOD.lower()}) )?\"?https?://[^\s\"'`,;()\[\]{{}}|]{{1,300}}\"?")
# für 王伟: in a text of another script
_IN_SCRIPT = re.compile(rf"(?<![^\W])[{WITHOUT_BLANKS}]{{1,12}}(?: [{WITHOUT_BLANKS}]{{1,12}}){{0,2}}(?![^\W])")
_LATIN = re.compile(r"(?<![^\W\d_])[A-Za-z\u00c0-\u024f]{2,}")
# Priya Raman さん, 王様
_PERSON_IN_JAPANESE = re.compile(
    r"[^\s:\uff1a\u3001\u3002\uff08\uff09()<>\n]{1,20}(?: [^\s:\uff1a\u3001\u3002]{1,20}){0,3} (?=さん|様(?!式)|氏)"
)
# 司机 王芳 的: between blanks, where blanks part no words
_PERSON_IN_SCRIPT = re.compile(
    rf"(?<=[{WITHOUT_BLANKS}] )[{WITHOUT_BLANKS}]{{1,5}}(?: [{WITHOUT_BLANKS}]{{1,5}})?"
    r"(?= [的のはがをにへとも已正不无未在被様さ])"
)
# 予約番号 PYUSDPHJ
_NUMBERED_IN_SCRIPT = re.compile(
    "((?<!错误)(?<!エラー)(?<!状态)(?:番号|编号|号码|单号|订单|注文|予約|伝票|口座|合同|保单|번호)[:\uff1a]?)"
    r" ?[A-Z][A-Z0-9-]{3,20}(?![\w])"
)
# 沪B·MTCQR
_PLATE = re.compile(
    r"(?<![^\s\uff08(])[\u4e00-\u9fff][A-Z]\u00b7?[A-Z0-9<*>]{3,10}(?![\w])|"
    r"(?<=[\s\uff08(])[\u4eac\u6d25\u6caa\u6e1d\u5180\u8c6b\u4e91\u8fbd\u9ed1\u6e58\u7696\u9c81\u65b0\u82cf\u6d59"
    r"\u8d63\u9102\u6842\u7518\u664b\u8499\u9655\u5409\u95fd\u8d35\u7ca4\u9752\u85cf\u5ddd\u5b81\u743c]<\*>(?![\w])"
)
# VAT registration FR <*>
_COUNTRY_OF = re.compile(r"[A-Z](?<![\w/.-].)[A-Z] (?=<\*>)")
_SAYS = re.compile(r"(?:Error|Exception): ")
# Where a broker says why it gave a message up, the queues that it names say nothing.
_WORDS_OF_GIVEN_UP = ("dead", "deliver")
_GIVEN_UP = re.compile(r"dead[- ]?letter|redeliver|delivery (?:attempts|count|limit)|max[\w ]{0,8} deliver", re.I)
_TO = frozenset(["from", "to"])
_OF_BROKER = re.compile(
    r"(?<![^\W_])(queue|topic|address|endpoint|stream|subscription|exchange|channel|destination|from|to):? "
    r"(?=[A-Za-z#$])[\w.#$*/<>:-]{1,200}",
    re.I,
)
_PARTS_OF_NAME = re.compile(r"::|\\|->")
# Reading.co2, pay.Mandate.getLine1()
_FIELD_OF_CLASS = re.compile(r"(?:[a-z]\w{0,40}[.]){0,8}[A-Z][A-Za-z]{1,60}[.][a-z][A-Za-z_]{0,60}[0-9]{1,2}(?:\(\))?")
_SHORTEST_ID, _SHORTEST_SHOUT, _MANY_TURNS, _STRANGE = 8, 5, 3, 3.8
_TURNS = re.compile(r"[a-z](?=[A-Z])|[A-Z](?=[a-z])")
# A request, or a status with its words.
_REQUEST = re.compile(rf"(?:{'|'.join(METHODS)}) |[1-5][0-9]{{2}} [A-Z][a-z]")
_CODED = frozenset(["code", "error", "errno", "state", "sqlstate", "status", "reason"])
_VALUES, _NAMES = frozenset(WORDS["values"]), frozenset(WORDS["names"])
_HAVE_NAMES = (_NAMES | {"import", "object"}) - {"service", "entity", "model", "package", "label", "action"}

# {jakarta.validation.constraints.NotBlank.message}
_RULE_OF_BEANS = re.compile(r"\{(?:\w{1,40}[.]){1,8}(\w{1,60})[.]message\}")
# 'Send' claim(s) are required
_GRANTED = re.compile(r" (?:claims?|permissions?|privileges?|scopes?|rights?|grants?)\b")
# Path `qty` (<*>) is less than minimum: of a document, as Mongoose validates it
_OF_DOCUMENT = re.compile(r" (?:is required|is invalid|\([^()\n]{1,80}\) is )")
_BROKEN = frozenset(WORDS["broken"])
_OF_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_-]{3,80}")
_WORDS_IN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
# What people call what they fill in: field "Postal code"
_FIELDS = frozenset(WORDS["fields"])
_LONGEST_LABEL = 4
_NOTHING = frozenset(["", "null", "nil", "none", "undefined"])
# What holds messages, files or rights is broken itself where it does not exist; else it is one of many.
HOLDERS: Final = frozenset(["queue", "topic", "exchange", "role", "bucket", "subscription", "stream", "database"])
_SAID_MISSING = frozenset(["no", "such", "missing", "unknown"])
_IS_MISSING = (
    r"(?:does(?: not|n[\u2019']t) exist|(?:(?:was|is|could|can) ?)?not (?:be )?found|is missing|existiert nicht|"
    r"(?:wurde )?nicht gefunden|n[\u2019']existe pas|(?:est )?introuvable|no existe|non esiste|n\u00e3o existe|"
    r"\u4e0d\u5b58\u5728|\u304c?\u5b58\u5728\u3057\u307e\u305b\u3093|\u304c\u898b\u3064\u304b\u308a\u307e\u305b\u3093)"
)
_NOT_THERE = re.compile(rf" ?(?:in (?:v?host|virtual host|database|namespace|tenant) '[^'\n]{{0,60}}' )?{_IS_MISSING}")
_NAME_OF_HOLDER = re.compile(r"[A-Za-z_]+(?:[./-][A-Za-z_]+){0,8}")
_VERSION = re.compile(r"[._-]?v[0-9]{1,3}$|[._-]<\*>$")
_MISSING: Final = "missing"
_CODE_FILE = re.compile(r"[A-Za-z_][\w-]{0,60}[.][a-z]{1,5}")
# Missing config key sms.url
_OF_CONFIG = frozenset(["config", "configuration", "setting", "settings"])
_KEYS = frozenset(["key", "property", "value", "option", "parameter"])
_CONFIG_KEY = re.compile(r"[A-Za-z_]+(?:[.][A-Za-z_]+){1,3}")
# What a whole dotted word names: role hats.admin, hat_lost.html
_GRANTS = frozenset(["role", "permission", "scope", "privilege", "grant"])
_DOTTED = re.compile(r"[A-Za-z_]+(?:[.:][A-Za-z_*]+){1,4}")
_TEMPLATE = re.compile(
    r"[A-Za-z_-]{1,60}[.](?:html|hbs|ftl|jinja|twig|erb|tpl|mustache|liquid|xsd|xsl|xslt|sql|proto|avsc|graphql)"
)
_SHORT_SHOUT = re.compile(r"[A-Z][A-Z0-9]{1,4}|[A-Za-z]{2,3}-[A-Za-z]{2,4}")

_AFTER_VALUE = re.compile(rf"<\*> ?(?:(?:{any_of('units')})(?:\([sn]\))?)(?![^\W\d_])")
_BEFORE_VALUE = re.compile(
    rf"(?=[A-Zn€$£¥+#№])(?:(?:{any_of('currencies')})(?![^\W])|€|[$]|£|¥|[+#№]|"
    r"(?<![^\W])(?:[Nn][°º]|[Nn]r[.]|[Nn]o[.]|[Nn]úm[.]|[Nn]um[.])) ?(?=<\*>)"
)
_MAY_BE_BEFORE_VALUE = re.compile(rf"[{''.join(sorted({word[-1] for word in WORDS['currencies']}))}€$£¥+#№°º.] ?<\*>")
_DATE = re.compile(rf"(?=[<JFMASOND])(?:<\*>[., ]{{1,2}})?(?:{any_of('months')})[. ]{{1,2}}<\*>(?:,? <\*>)?")
_RUN_OF_VALUES = re.compile(
    r"<\*>(?:(?:[ ]?[,;/:.+x\u2013-]|[ ]and|[ ]or|[ ]und|[ ]et|[ ]on|[ ]of|[ ]out of|[ ]?\u3001|[ ]?&)?[ ]?<\*>)+"
)

_OF_NOUN = re.compile(
    rf"(?=[ofitbwavedp])(?<![^\W_])((?:of|in|for|from|to|by|on|with|at|im|für|von|en|dans|pour) "
    rf"(?:the |der |dem |le |la |el )?(?:{any_of('nouns')})) (?!<|(?:{any_of('no_values')})\b)[\w./@-]+(?:://[^\s,;]*)?",
    re.I,
)
_BEHIND_NOUN = re.compile(rf" (?:{any_of('nouns').lower()}) ")
# lager BER1: whether the word in front is one of the nouns is looked up
_NOUN_SHOUTED = re.compile(r"(?<![^\W_])([^\W\d_]{2,20}) (?:[A-Z][A-Z0-9]{1,11}|[A-Z]{2,6}[-_][A-Z0-9]{1,8})(?![^\W])")
_NOUNS = frozenset(WORDS["nouns"])
_COUNTRY = re.compile(
    rf"(?=[tif])(?<![^\W])(to|in|from|for|into) (?!(?:{any_of('no_countries')})\b)[A-Z]{{2}}(?![\w-])"
)
# on ward EE, in tablespace USERS: what one of many things is called, unless its kind names what is broken
_BEFORE_CAPITALS = re.compile(r" [A-Z](?<=[a-z] .)[A-Z]")
_ONE_OF_A_KIND = re.compile(
    rf"(?<![^\W_])((?:in|on|of|at|to|from|for|by|with) (?:the )?"
    rf"(?!(?:{any_of('names')}|{any_of('of_failures')}|{any_of('stop')}|state|"
    r"mode|phase|step|stage|type|operation|method|format|command|action|level|class|version|protocol|segment|"
    r"function|procedure|schema|encoding|charset|algorithm|scope|role|claim|rule|policy|permission|header|option)\b)"
    r"[a-z]{3,20}) ([A-Z]{2,12}(?:_[A-Z]{1,10})?)(?![\w./:=(-])"
)
_SHORT, _SHORT_WORDS = 2, frozenset(["ID", "IP", "IO", "OK", "DB", "OS", "VM", "UI", "CA", "CN"])
# Unknown carrier code ZZ
_UNKNOWN = re.compile(
    rf"((?i:unknown|unsupported|invalid|unrecogni[sz]ed|unexpected|illegal)(?: [a-z]{{2,20}})? "
    rf"(?:(?:{any_of('nouns')}|unit|sku|product|item) (?!{any_of('no_values')})|code (?=[A-Z0-9]{{1,5}}$)))"
    r"[^\s,:;()]{1,40}$"
)


def _of_holder(match: re.Match[str]) -> str:
    """What holds messages, in quotes where it is missing."""
    is_missing = match[1].rpartition(" ")[2].lower() in HOLDERS and _NOT_THERE.match(match.string, match.end())
    return f"{match[1]} '{match[0][match.end(1) - match.start() + 1 :]}'" if is_missing else f"{match[1]} <*>"


def _of_unknown(match: re.Match[str]) -> str:
    return match[0] if match[1].split()[-1].lower() in HOLDERS else f"{match[1]} <*>"


#: Where a text may say one of the literals (or has a capital behind a blank, where there are none), the kind of a value
#: and the value, and what to read instead.
_TOLD_VALUES: Final = (
    (("lane ", "route ", "leg ", "sector ", "segment ", "relation "), _LANE, r"\1 <*>"),
    (
        (
            *("topic ", "queue ", "stream ", "subscription ", "exchange "),
            *("container ", "pod ", "node ", "namespace "),
        ),
        _QUEUE,
        _of_holder,
    ),
    (("group: ", "groups: ", "topic: ", "topics: "), _QUEUES, r"\1: <*>"),
    (
        (
            *("beneficiary ", "customer ", "supplier ", "vendor ", "patient ", "employee ", "merchant ", "partner "),
            *("passenger ", "guest ", "driver ", "kunde ", "lieferant ", "mitarbeiter ", "patientin "),
            *("bénéficiaire ", "fournisseur "),
        ),
        _ROLE,
        r"\1 <*>",
    ),
    (("unknown", "unsupported", "invalid", "unrecogni", "unexpected", "illegal"), _UNKNOWN, _of_unknown),
    (
        ("caller ", "user ", "principal ", "client ", "tenant ", "member ", "subject "),
        _SUBJECT,
        r"\1 <*>",
    ),
    ((), _LETTER, r"\1 <*>"),
    (
        (
            *("user ", "password for", "publickey for", "login for", "sign-in for", "signin for"),
            *("authentication for", "credentials for"),
        ),
        _SIGNED_IN,
        r"\1 <*>",
    ),
    (("value ",), _VALUE_OF, r"\1 <*> "),
)
_OF_LISTS = (",", ";", "(", "\uff08")
# (limit: 5, user: ana); two and more of ", client: x, server: y"; qty=5
_LISTED = re.compile(rf"([(\uff08,] ?(?:{any_of('nouns')})):? [\w.@-]+(?=[),\uff09])", re.I)
# , tenant retail: at the end too
_LISTED_LAST = re.compile(rf"(, (?!stat)(?:{any_of('nouns')})) [\w.@-]+$", re.I)
_CLAUSE = re.compile(
    r"[,;] (?!\w*(?:[Cc]ode|[Ss]tatus|[Ee]rrno)(?:: |=))[A-Za-z_]{2,20}(?:: |=)"
    r"(?:\"[^\"\n]{0,300}\"|[^ ,;=\n]{1,200})(?=[,;]|$)"
)
_SETTING = re.compile(r"(?<![^\W])([A-Za-z_][\w.-]{0,40})=([^\s,;()\[\]{}\"']{1,200})")
# What a driver prints of its objects.
_DUMP = re.compile(
    r"(?:, )?(?:full error: )?\{(?:[^{}\n]{0,400}?['\"]?\w+['\"]?: ){2}(?:[^{}\n]|\{[^{}\n]{0,300}\}){0,1500}\}?|"
    r"<[A-Z]\w{2,60} [a-z_]{1,30}: [^\n]*"
)
_MAY_BE_DUMP = re.compile(r"\{|<[A-Z]")
_ERROR_IN_DUMP = re.compile(
    r"(?:error|code|error_?code|reason)['\"]?: ['\"]?([A-Za-z]+(?:[_.-][A-Za-z]+)+|[A-Z]{2,6}[0-9]{2,6})\b", re.I
)
_NESTED = re.compile(r" ?\[\w{1,40}=\[[^\n]*$")
_OBJECT = re.compile(r"<[\w.]{2,80} (?:object )?at <\*>>")
_NOT_CONNECTED = re.compile(
    r"(?:error trying to connect: |client error \(connect\): |connect: )?(?:tcp connect error: )?"
    r"(?:connection refused|connection timed out|connect timed out|i/o timeout|no route to host|"
    r"network is unreachable|host is unreachable|operation timed out|etimedout|econnrefused|ehostunreach)",
    re.I,
)
_WORDS_OF_NOT_CONNECTED = ("refused", "timed out", "timeout", "timedout", "route to host", "unreach")
_CONNECTING = re.compile(
    r"establish a new connection|while dialing|dial tcp|(?:could|can|un|not) ?(?:not|able)? (?:to )?connect|"
    r"trying to connect|failed to connect|client error \(connect\)",
    re.I,
)
_NOT_RESOLVED = re.compile(
    r"nodename nor servname provided, or not known|name or service not known|temporary failure in name resolution|"
    r"no address associated with hostname|no such host|(?<=getaddrinfo )(?:enotfound|eai_again)|name does not resolve",
    re.I,
)
_RESOLVING = ("not known", "resolution", "no address", "no such host", "getaddrinfo", "not resolve")

#: A word of prose, for :func:`is_of_consumer`.
PLAIN_WORD: Final = re.compile(r"[^\W\d_][\w.$-]*")
# A class that takes messages, as its name says.
_CONSUMER = re.compile(r"[\w.$-]*(?:Handler|Listener|Consumer|Worker|Processor|Subscriber|Job|Task)s?", re.I)
_OF_CONSUMERS = frozenset(WORDS["of_consumers"])
_STOP = frozenset(WORDS["stop"])


def is_of_consumer(word: str) -> bool:
    """Whether a word is what takes messages, or what it says about itself: it tells no failure."""
    small = word.lower()
    return small in _OF_CONSUMERS or small in _STOP or _CONSUMER.fullmatch(word) is not None


def field_of(key: str) -> str:
    """The name of a field in small letters, its parts parted by underscores."""
    return _HUMP.sub("_", key.rpartition(":")[2]).lower()


def phrase(text: str) -> str:
    """A line of prose with its names bare and its values blanked."""
    text = _with_forms_told(_without_objects(text))
    text = _without_owners(_FOUND.sub(r"\1 <*>", text) if says(text, _WORDS_OF_FOUND) else text)
    text = _network(text)
    if not text.isascii() or _BEHIND_NOUN.search(text.lower()):
        text = _OF_NOUN.sub(r"\1 <*>", text)
    if _SHOUTED_BEHIND_BLANK.search(text):
        text = _COUNTRY.sub(r"\1 <*>", _NOUN_SHOUTED.sub(_of_noun, text))
    text = _with_values_told(_unasked(_in_one_script(text)))
    if _BEFORE_CAPITALS.search(text):
        text = _ONE_OF_A_KIND.sub(_of_a_kind, text)
    if (": " in text or "=" in text) and says(text, _OF_LISTS):
        text = _LISTED_LAST.sub(r"\1 <*>", _LISTED.sub(r"\1 <*>", text))
        if len(_CLAUSE.findall(text)) > 1:
            text = _CLAUSE.sub("", text)
    if "=" in text:
        text = _SETTING.sub(_setting, text)
    text = _with_codes_told(text)
    if "/" in text:
        text = _MEDIA_TYPE.sub(BLANK, text)
    found = "".join(_prose(_without_whom(text)))
    return " ".join((_without_units(found) if BLANK in found else found).split())


def _without_objects(text: str) -> str:
    """``text`` without what programs print of their objects, and what brokers say of their queues."""
    if "<" in text:
        text = _OBJECT.sub(BLANK, text)
    if _MAY_BE_DUMP.search(text):
        text = _DUMP.sub(_of_dump, text)
    if "=[" in text:
        text = _NESTED.sub("", text)
    is_given_up = may_say(text, _WORDS_OF_GIVEN_UP) and _GIVEN_UP.search(text)
    return _OF_BROKER.sub(_of_broker, text) if is_given_up else text


def _without_owners(text: str) -> str:
    """``text`` without the places, the companies and the people whose it is."""
    if _SHOUTED_BEHIND_BLANK.search(text):
        text = _PLACED.sub(r"\1 <*>", text)
    text = _without_companies(text)
    return _NAMED.sub(_person, _TITLED.sub(BLANK, text)) if _CAPITAL_BEHIND_BLANK.search(text) else text


def _without_whom(text: str) -> str:
    """``text`` without who did it, and what the place is called where it was."""
    if says(text, _WHO_DID):
        text = _BY.sub(_who, _BY_USER.sub(r"\1 <*>", text))
    if _SHOUTED_BEHIND_BLANK.search(text):
        text = _BANK.sub(_who, text)
    is_called = _CAPITAL_BEHIND_BLANK.search(text) and _CALLED.search(text)
    return _CALLED.sub(_who, text) if is_called and not (_GERMAN.search(text) or _OF_TYPES.search(text)) else text


def _without_units(text: str) -> str:
    """``text``, which has blanked values, without what belongs to them: units, currencies, months, more values."""
    if text.rstrip(" .\n").endswith(f"={BLANK}"):
        text = _CONTEXT.sub("", text)
    text = _DATE.sub(BLANK, _COUNTRY_OF.sub("", text))
    if _MAY_BE_BEFORE_VALUE.search(text):
        text = _BEFORE_VALUE.sub("", text)
    return _RUN_OF_VALUES.sub(BLANK, _AFTER_VALUE.sub(BLANK, text))


def _with_forms_told(text: str) -> str:
    """``text`` with the values blanked, and the names found, that a form of their own tells."""
    if "^" in text:
        text = _CODED_VALUE.sub(BLANK, text)
    if "'='" in text:
        text = _QUOTED_SETTING.sub(rf"\1={BLANK}", text)
    return with_fields_named(text)


def _with_codes_told(text: str) -> str:
    """``text`` with the numbers that are codes as such, and without those that are called codes and are values."""
    if not text.isascii():
        text = _CODE_IN_SCRIPT.sub(_of_code_in_script, text)
    if _SHORT_NUMBER.search(text):
        text = _ERRNO.sub(r"\1-\2", text)
        text = _SHORT_CODE_LAST.sub(r"\1-\2", _SHORT_CODE.sub(r"\1-\2", text))
    if "-" in text:
        text = _ENHANCED.sub(r"\1 ", _SIGNED_STATUS.sub(_of_signed, text))
    if "code " in text:
        text = _OTHER_CODE.sub(r"\1 <*>", text)
    return text


def _of_code_in_script(match: re.Match[str]) -> str:
    code = match[3] if len(match[3]) > _SHORT else f"code-{match[3]}"
    return f"{match[1]}{match[2]} {code}"


def _without_companies(text: str) -> str:
    return _SMALL_COMPANY.sub(_person, _COMPANY.sub(BLANK, text)) if _LEGAL_FORM.search(text) else text


def _in_one_script(text: str) -> str:
    """``text`` without names in another script than its own: für 王伟."""
    if text.isascii():
        return text
    letters = len(_SCRIPT_WITHOUT_BLANKS.findall(text))
    if letters and len(_LATIN.findall(text)) >= letters:
        return _IN_SCRIPT.sub(BLANK, text)
    if not letters:
        return text
    text = _NUMBERED_IN_SCRIPT.sub(rf"\1 {BLANK}", text)
    return _PLATE.sub(BLANK, _PERSON_IN_SCRIPT.sub(BLANK, _PERSON_IN_JAPANESE.sub(f"{BLANK} ", text)))


def _unasked(text: str) -> str:
    """``text`` without what was to be asked for, where nobody could be asked."""
    is_unasked = "://" in text and says(text, _WORDS_OF_NOT_ASKED) and _NOT_ASKED.search(text)
    return _URL.sub(BLANK, text) if is_unasked else text


def _with_values_told(text: str) -> str:
    """``text`` with the values blanked whose kind is told by a word before them."""
    for literals, pattern, replacement in _TOLD_VALUES:
        if may_say(text, literals) if literals else _CAPITAL_BEHIND_BLANK.search(text):
            text = pattern.sub(replacement, text)
    return text


def _of_dump(match: re.Match[str]) -> str:
    """Of what a driver prints of an object the error that it names."""
    error = _ERROR_IN_DUMP.search(match[0])
    return f" ({error[1]})" if error else ""


def _of_broker(match: re.Match[str]) -> str:
    """A queue's name, as its form says, or that it is no word of the trade."""
    name = match[0][match.end(1) :].strip(" :.")
    is_word = name.isalpha() and (is_of_failures(name.lower()) or match[1].lower() in _TO)
    return match[0] if is_word else f"{match[1]} {BLANK}"


def _person(match: re.Match[str]) -> str:
    """A run of words with capitals is a person, a place or a company unless it is one of the trade's own words; the
    first group is what it is called, if there is one."""
    called = match[match.lastindex or 0].split()
    return match[0] if any(is_of_failures(word.lower().strip(".")) for word in called) else BLANK


def is_of_failures(word: str) -> bool:
    """Whether a word, in small letters, is one with which failures are told."""
    return word in _known_words()


def says_broken(word: str) -> bool:
    """Whether it is a name of several words, of which one says what is wrong: OAuth2TokenRevoked."""
    if not _OF_WORDS.fullmatch(word):
        return False
    words = _WORDS_IN.findall(word)
    return len(words) > 1 and any(one.lower() in _BROKEN for one in words)


@functools.cache
def _known_words() -> frozenset[str]:
    """The words of failures, as the texts say that the causes were learned from."""
    texts = (resources.files("redrive.classification") / "cause_texts.jsonl").read_text(encoding="utf-8")
    return frozenset(re.findall(r"[a-z]{2,}", texts)) | frozenset(
        map(str.lower, re.findall(r"[A-Z](?<!\w.)[a-z]+\b", texts))
    )


def _who(match: re.Match[str]) -> str:
    """Who did it, as far as it is no word of the trade: locked by hpark."""
    bare = match[2].lower()
    return match[0] if is_of_failures(bare) or _CAMEL.search(match[2]) else f"{match[1]} {BLANK}"


def _of_noun(match: re.Match[str]) -> str:
    return f"{match[1]} {BLANK}" if match[1].lower() in _NOUNS else match[0]


def _of_a_kind(match: re.Match[str]) -> str:
    called = match[2]
    is_known = called in _SHORT_WORDS if len(called) == _SHORT else is_of_failures(called.lower())
    return match[0] if is_known else f"{match[1]} {BLANK}"


def _network(text: str) -> str:
    """Why a system could not connect, or resolve a name, depends on the moment: it is one failure."""
    small = text.lower()
    if any(words in small for words in _RESOLVING):
        text = _NOT_RESOLVED.sub("host not found", text)
    if ("connect" in small or "dial" in small) and may_say(text, _WORDS_OF_NOT_CONNECTED):
        text = _NOT_CONNECTED.sub("could not connect", text) if _CONNECTING.search(text) else text
    return text


def _of_signed(match: re.Match[str]) -> str:
    """A status that was printed as a number with a sign, in hexadecimal."""
    return f"0x{-int(match[1]) & 0xFFFFFFFF:08X}"


def _setting(match: re.Match[str]) -> str:
    field, key = field_of(match[1]), match[1].lower()
    names = NAMING.search(field) or key.endswith("reason") or (key == "error" and match[2].isdigit())
    if ASKED_FOR.search(field) and (words := path_words(match[2])):
        return words
    return match[0] if names else f"{match[1]}={BLANK}"


def _prose(text: str) -> Iterator[str]:
    before = ""  # the word before, or ": " where a clause of several words has ended
    earlier = ""  # the word before that
    words = 0
    for match in _TOKEN.finditer(text):
        piece, kind = match.group(), match.lastgroup
        if kind == "word":
            bare = piece.rstrip(".:")
            word = _of_letters(bare) if bare.isalpha() else _of_name(bare, earlier, before)
            yield word + piece[len(bare) :]
            earlier, before = before, ": " if piece.endswith(":") and piece.islower() and words else piece
            words += 1
        elif kind is None:
            if piece.isspace():
                yield " "
                continue
            yield BLANK if piece.startswith("<") else piece
            if piece == ":" and before.islower() and before not in _NAMES:
                before = ": "
        elif kind == "url":
            yield _of_url(match[kind]) if piece.startswith(("http", "ws")) else BLANK
        elif kind == "arn":
            yield BLANK
        elif kind == "segment":  # of HL7: where in a message it is wrong
            yield piece
        elif kind == "bracket" and " " in match[kind].strip():
            yield f"({''.join(_prose(match[kind]))})"
        else:
            name = match[kind].strip()
            if not (_CONFIG_KEY.fullmatch(name) and _is_of_config(earlier, before)):
                name = _of_quoted(name, _kind_of_quoted(earlier, before, text, match.end()))
            yield name if BLANK in name or " " in name else f"'{name}'"


def _is_of_config(earlier: str, before: str) -> bool:
    return before.lower() in _OF_CONFIG or (before.lower() in _KEYS and earlier.lower() in _OF_CONFIG)


def _kind_of_quoted(earlier: str, before: str, text: str, end: int) -> str:
    """The word that says of what kind that is which stands in quotes up to ``end``, behind two words."""
    if _GRANTED.match(text, end):
        return "operation"
    small = before.lower()
    if small in HOLDERS and (earlier.lower() in _SAID_MISSING or _NOT_THERE.match(text, end)):
        return _MISSING
    if small == "name":  # that of a column is none of a customer
        if earlier.lower() in _HAVE_NAMES:
            return earlier if earlier.lower() in _NAMES else "class"
        return "variable" if text.startswith(" is not defined", end) else before
    return "field" if small == "path" and _OF_DOCUMENT.match(text, end) else before


def _is_numbered_behind(before: str, word: str) -> bool:
    """Whether a word with a number is a value, as it is in scripts without blanks unless it is called a code."""
    is_in_script = _SCRIPT_WITHOUT_BLANKS.search(before[-1:]) is not None and not before.endswith(_CALLED_CODES)
    return is_in_script and _NUMBERED_CODE.fullmatch(word) is not None


def _of_letters(word: str) -> str:
    """As :func:`_of_word`, of one that is all letters."""
    return BLANK if _is_random(word) else word


def _of_name(word: str, earlier: str, before: str) -> str:
    """As :func:`_of_word`, of one that is not all letters, behind two words."""
    is_whole = (
        (before.lower() in _GRANTS and _DOTTED.fullmatch(word))
        or _TEMPLATE.fullmatch(word)
        or (_is_of_config(earlier, before) and _CONFIG_KEY.fullmatch(word) and "." in word)
    )
    return word if is_whole else BLANK if _is_numbered_behind(before, word) else _of_word(word)


def _of_word(word: str) -> str:
    """A word of prose: itself where it names something, else BLANK."""
    if word.isalpha():
        return _of_letters(word)
    if "#" in word and "." in word:
        word = word.partition("#")[0]
    if "/" in word:
        if match := _OF_TYPE.fullmatch(word):
            return match[1]
        if word.count("/") > 1 and BLANK in word and not word.startswith("/") and _FILE.search(word):
            return BLANK  # of an object store
        is_pair = word.count("/") == 1 and BLANK not in word and "://" not in word and len(word) < 40
        return word if is_pair else _path_words(word, "") or BLANK
    if "." in word and _SAYS_MORE.search(last := word.rpartition(".")[2]) and not _DIGIT.search(last):
        return _last(word)
    if _DIGIT.search(word):
        part = _PARTS_OF_NAME.split(word)[-1]  # what is called, of a class with a number
        return part if part != word and part.isidentifier() and not _DIGIT.search(part) else _of_numbered(word)
    if "@" in word or _SHOUTED.fullmatch(word):
        return BLANK
    if "." in word.strip("."):
        return BLANK if _HOST.fullmatch(word) else _last(word)
    return _PARTS_OF_NAME.split(word)[-1] or word


def _of_numbered(word: str) -> str:
    """A word with digits or blanks in it: a code, a name with a number at its end or in its path, or a value."""
    if not word.isascii() and (blanked := _OTHER_SCRIPT.sub(_if_numbered, word)) != BLANK:
        return blanked
    if BLANK not in word:
        is_name = _SMALL_NUMBER.fullmatch(word) is not None and not _is_random(word.rstrip(digits), turns=1)
        if is_name or _CODE.fullmatch(word) or says_broken(word):
            return word
        return _last(word) if _FIELD_OF_CLASS.fullmatch(word) else BLANK
    if word.endswith("$" + BLANK):  # of a table that day's part
        return _of_word(word[: -len(BLANK) - 1])
    if match := _NUMBERED.fullmatch(word):
        return match["name"]
    if _NUMBERED_PARTS.fullmatch(word):
        return "_".join(part for part in word.split("_") if part.isalpha())
    if "." in word and not _HOST.fullmatch(word):
        parts = [part for part in word.split(".") if part and BLANK not in part]
        return _of_word(parts[-1]) if parts and _PLAIN_NAME.fullmatch(parts[-1]) else BLANK
    bare = word.replace(BLANK, "")
    return bare if len(bare) > 3 and bare.isalpha() and bare.islower() and not word.startswith(BLANK) else BLANK


def _if_numbered(match: re.Match[str]) -> str:
    return BLANK if _DIGIT.search(match[0]) else match[0]


def _is_random(word: str, turns: int = _MANY_TURNS) -> bool:
    """Whether a word is letters by chance, an id without a digit: capitals alone, or large and small in turn, in pairs
    that the words of failures hardly have."""
    if len(word) < _SHORTEST_SHOUT or word.islower() or not word.isascii():
        return False
    if word.isupper() and word.isalpha():  # a booking, a bank: WHHXVQ
        return not is_of_failures(word.lower()) and _strangeness(word.lower()) > _STRANGE
    return len(word) >= _SHORTEST_ID and len(_TURNS.findall(word)) >= turns and _strangeness(word.lower()) > _STRANGE


@functools.lru_cache(maxsize=1 << 14)
def _strangeness(word: str) -> float:
    """How unlikely the pairs of letters of a word are, in the words of failures: the mean of -ln p.

    Words joined (*getByIdOrNull*) have 2.0 to 3.7, of ten letters by chance nine in ten more than 3.7.
    """
    pairs, firsts = _pairs_of_letters()
    letters = len(ascii_lowercase)
    found = (math.log((firsts[a] + letters / 2) / (pairs[a + b] + 1 / 2)) for a, b in pairwise(word))
    return sum(found) / (len(word) - 1)


@functools.cache
def _pairs_of_letters() -> tuple[Counter[str], Counter[str]]:
    pairs = Counter(a + b for word in _known_words() for a, b in pairwise(word))
    firsts: Counter[str] = Counter()
    for pair, count in pairs.items():
        firsts[pair[0]] += count
    return pairs, firsts


def _last(word: str) -> str:
    """Of a dotted name what tells: the class or the column, and what it is a part of where that is a class."""
    parts = [part for part in word.rstrip(".:").split(".") if part]
    if len(parts) > 1 and parts[-2][:1].isupper() and not parts[-2].isupper() and parts[-1][:1].islower():
        return ".".join(parts[-2:])
    if len(parts) > 1 and _CLASS.fullmatch(parts[-2]) and not _SAYS_MORE.search(parts[-1]):
        return ".".join(parts[-2:])  # of Go and C#: methods have capitals
    if len(parts) > 1 and len(parts[-1]) == 1:
        return parts[0]
    return parts[-1] if parts else word


def _of_quoted(said: str, before: str) -> str:
    """What stands in quotes after the word ``before``: a name, a whole message, or a value."""
    if _REQUEST.match(said):
        return "".join(_prose(said))
    if "://" in said:
        return _of_url(said.partition("://")[2]) if said.startswith(("http", "ws")) else BLANK
    if said.startswith("<"):
        return BLANK
    if form := _of_form(said, before):
        return form
    if " " in said:
        # A sentence in quotes is a message; a few words are a value.
        words = [word.strip(":,.;'") for word in said.split()]
        is_sentence = len(words) > 3 and sum(word.islower() and word.isalpha() for word in words) > 2
        is_sentence |= _SAYS.search(said) is not None
        if before.lower().rstrip(":=") in _FIELDS and len(words) <= _LONGEST_LABEL and all(map(str.isalpha, words)):
            return "_".join(words)
        return "".join(_prose(said)) if is_sentence else BLANK
    context = before.lower().rstrip(":=")
    if before.endswith(_CALLED_NAMES) and len(said) <= _LONGEST_NAME:
        return said
    is_code = context in _CODED and _CODE.fullmatch(said) is not None
    is_name = _PLAIN_NAME.fullmatch(said) is not None and BLANK not in said
    if before == ": " or context in _VALUES - _NAMES or said.lower() in _NOTHING:
        return BLANK
    if context == "key" and (":" in said or _SHORT_SHOUT.fullmatch(said)):  # of a table that is looked up
        return BLANK
    if context in _NAMES:
        return _last(said) if is_name or said.isalpha() else _of_numbered(said) if _DIGIT.search(said) else said
    if _DIGIT.search(said) or ("." in said and _HOST.fullmatch(said)):
        return said if is_code else _last(said) if _FIELD_OF_CLASS.fullmatch(said) else BLANK
    if is_name and (said.islower() or "_" in said or said.endswith("()") or _CAMEL.search(said)):
        return _last(said)
    return said if _HEADER.fullmatch(said) else BLANK


def _of_missing(said: str) -> str:
    """What is called so is missing: its whole name, without a version or a number."""
    name = _VERSION.sub("", said)
    if not _NAME_OF_HOLDER.fullmatch(name):
        return _of_numbered(said) if _DIGIT.search(said) else BLANK
    return BLANK if any(map(_is_random, re.split("[./_-]", name))) else name


def _of_form(said: str, before: str) -> str:
    """What a name of a form of its own names, "" of any other: a class of PHP, or a part of one; a rule of Java's
    beans; the file of the code where it was; what is missing."""
    if before == _MISSING:
        return _of_missing(said)
    if before == "at" and _CODE_FILE.fullmatch(said):
        return said
    if match := _RULE_OF_BEANS.fullmatch(said):
        return match[1]
    php, hash_, of_php = said.partition("#")
    is_php = _PHP_CLASS.fullmatch(php) is not None and (not hash_ or of_php.isidentifier())
    return re.split(r"\\+", said)[-1] if is_php else ""


def path_words(asked_for: str) -> str:
    """The words of the path of a request, "" where it has none."""
    path = asked_for.partition("://")[2].partition("/")[2] if "://" in asked_for else asked_for
    return _path_words(path.partition("?")[0], "/") if "/" in asked_for else ""


def _of_url(rest: str) -> str:
    """Of an address without its scheme the words of its path: they say what was asked for."""
    path = rest.partition("?")[0].partition("#")[0].partition("/")[2]
    return _path_words(path, "/") or BLANK


def _path_words(path: str, start: str) -> str:
    parts = path.split("/")
    words = [
        part
        for before, part in zip(["", *parts], parts, strict=False)
        if _PATH_WORD.fullmatch(part) and before.lower() not in _ONE_OF_MANY
    ][:6]
    return start + "/".join(words) if words else ""
