# ruff: noqa: E501, RUF001 - lists of words stand in one line each
"""What a text says against another try: that there must be none, that the first may have succeeded, or that the reason
is one which waiting doesn't change.

*Do not retry*, *payment may have been executed* and *account closed* stand beside *timed out*, *503* and *quota
exceeded* in the texts of those who wrap what they were answered. They are asked only where the rest of a text would
have its message sent again by itself, and only if one of a few words is in it.
"""

import re
from typing import Final

from redrive.classification.causes import Cause
from redrive.classification.rules import Finding
from redrive.classification.word_lists import says

#: Characters of a text that are looked at, from its beginning.
_LOOKED_AT: Final = 3000

_AGAIN: Final = (
    r"(?:re-?tr(?:y|ied)|re-?sen[dt]|re-?submit(?:ted)?|re-?deliver(?:ed)?|re-?play(?:ed)?|re-?process(?:ed)?|repeat(?:ed)?|"
    r"try again|send again)\b"
)
_DONE: Final = (
    r"(?:succeeded|gone through|completed|executed|booked|posted|charged|captured|sent|committed|paid|transferred|"
    r"delivered|debited|credited|accepted|submitted|placed|created|refunded|settled|shipped|printed|processed|applied)\b"
)
# A field says so only where its value doesn't deny it, and nothing is forbidden for good that is for a while, or so often.
_UNLESS_NOT: Final = r"(?![\"']?\s?[:=]\s?[\"']?(?:false|no\b|none\b|0\b))"
_UNLESS_SOON: Final = (
    r"(?! (?:(?:before|until)(?: the| your| this| its)? (?:<|[0-9]|in \b|retry-?after|re-?set|re-?connect|next|later|rate|"
    r"limit|window|period|quota|time|lock|back-?off|delay|available)|immediately\b|right away\b|at once\b|yet\b|"
    r"too (?:often|soon|fast|early)|(?:for|within) (?:<|[0-9]|an? (?:sec|min|hour|while|few)|the (?:same|next) )|"
    r"more (?:than|often)\b|(?:faster|sooner|earlier)\b|without (?:an? |any |exponential )?(?:back|delay|wait|pause|jitter)))"
)
# What is done too often or of no matter.
_NO_MATTER: Final = r"(?! too (?:many|often|fast)\b)(?! (?:the |its |some |all )?offsets?\b)"
_NOT_AGAIN: Final = re.compile(
    r"\b(?:non|not|un)[-_ ]?retr(?:y|i)able" + _UNLESS_NOT + r"|"
    r"\b(?:is[-_ ]?)?unrecoverable(?!\w{0,10}[?:]* job stalled)" + _UNLESS_NOT + r"|"
    r"\b(?:do|must|should|shall|can|may|does|will) ?n[o'](?:t|t be|ver)? (?:be )?" + _AGAIN + _UNLESS_SOON + r"|"
    r"\bwon't (?:be )?" + _AGAIN + _UNLESS_SOON + r"|\bnever " + _AGAIN + _UNLESS_SOON + r"|"
    r"(?<!non)(?<!non[-_ ])(?<!not)(?<!not[-_ ])(?<!un)retr(?:y|i)able[\"']?\s?[:=]\s?[\"']?(?:false|no\b)|"
    r"\bpermanent(?:ly)?[-_ ]?(?:failure|failed|error|rejected)(?!_invalid_ack_id)" + _UNLESS_NOT + r"|"
    r"\bmanual(?:ly)? (?:intervention|reconciliation)|\breconcile[sd]? manually|"
    r"\bnicht (?:erneut|nochmals?|wieder|mehr) (?:ge)?(?:senden|sendet|versuchen|einreichen|übertragen|wiederholen)|"
    r"\bnicht wiederholen|\bne pas (?:ré-?essayer|renvoyer|relancer|rejouer|retenter)|"
    r"\bno (?:reintent(?:ar|e)|reenv[ií](?:ar|e)|repetir|volver a (?:enviar|intentar))|"
    r"\bnão (?:reenviar|repetir|reprocessar|tentar novamente|tente novamente)|"
    r"\bnon (?:riprovare|reinviare|ritentare|ripetere)|\bniet opnieuw (?:versturen|verzenden|proberen)|"
    r"\bnie (?:ponawia|wysyła[ćj] ponownie)|\bне (?:повторя|отправлять повторно)|"
    r"(?:请勿|不要|不得|禁止|不可)(?:再次)?(?:重试|重发|重复|再次|重新)|再(?:試行|送|実行)(?:しないで|不可|禁止|せず)|재(?:시도|전송)하지 ?마",
    re.IGNORECASE,
)
# What gave up says that it does not try again: that says nothing about another day. Nor does what a client says of
# itself, but where money or goods are moved.
_GAVE_UP: Final = re.compile(
    r"attempts|retries|exhausted|g[ia]ve?(?:ing)? ?up|max[a-z]*[ _-]?(?:retr|attempt)|retry ?_?count|"
    r"\bnetworkingerror\b|\bawssdk\b|\bkafkajs",
    re.IGNORECASE,
)
_BY_ITSELF: Final = re.compile(r"^(?:will ?n[o']|won't)", re.IGNORECASE)
_SAID_FALSE: Final = re.compile(r"^retr(?:y|i)able", re.IGNORECASE)
_BUSINESS: Final = (
    r"(?:pay(?:ment|out|in)?|transfer|capture|charge|refund|booking|order|settlement|transaction|bank|debit|credit|shipment|"
    r"submission|posting)s?"
)
# What shows whether something was done, where somebody is to look.
_TO_CHECK: Final = (
    rf"\b(?:{_BUSINESS}|status|state|result|outcome|already|whether it|if it|duplicates?|invoices?|ledger|statement|"
    r"balance|amount|price|total|quantity|stock|receipt|accounts?|customer|merchant|documents?|records?|delivery|portal|journal|reservation|entry|entries|"
    r"policy|claim|ticket|supplier|vendor|carrier|partner|recipient|messages?)\b"
)
# Beside these nobody knows that only the client stopped.
_NOT_ITS_OWN: Final = re.compile(
    rf"fatal|(?<![a-z])(?:{_BUSINESS}|invoices?|vouchers?|cheques?|ledger|document|merchant|customer|claim|ticket|reservation|"
    r"parcel|mandate|withdrawal|deposit|sale|purchase)(?![a-z])",
    re.IGNORECASE,
)
_MAY_BE_DONE: Final = re.compile(
    r"\b(?:may|might|could) (?:already )?(?:have )?(?:already )?(?:been )?(?:already )?" + _DONE + _NO_MATTER + r"|"
    r"\b(?:possibly|perhaps|probably|maybe) (?:already )?(?:was |been )?" + _DONE + _NO_MATTER + r"|"
    r"\b(?:unknown[ _]outcome|outcome[ _](?:is )?(?:unknown|unclear|uncertain))|"
    rf"\b(?:outcome|(?:status|state|result)(?= of (?:the |this )?{_BUSINESS}\b)) of [^\n.,;]{{1,40}}? "
    r"(?:is |was |remains )?(?:unknown|unclear|uncertain)|"
    rf"\b{_BUSINESS} (?:status|state|result) (?:is |was |remains )?"
    r"(?:unknown(?! (?:host|error|exception))|unclear|uncertain)|"
    r"\b(?:status|result) unknown[,;:.]? (?:contact|check|verify|ask)|"
    r"\b(?:contact|reconcile|ask|(?:check|verify|confirm)(?! (?:your |the |that )?(?:internet|network|connect|server|service|"
    rf"log|endpoint|firewall|host))(?= [^\n.;]{{0,60}}?{_TO_CHECK})) [^\n.;]{{1,60}} before "
    r"(?:re-?try|re-?send|re-?submit|repeat|sending|trying)|"
    r"\b(?:möglicherweise|eventuell|vielleicht) (?:bereits |schon )?(?:\w{1,20} )?(?:ausgeführt|gebucht|gesendet|bezahlt|"
    r"verarbeitet|belastet|erfolgt|angelegt)|\b(?:status|ergebnis|ausgang)[^\n.,;:]{0,40} (?:unbekannt|unklar|ungewiss)|"
    r"\b(?:peut avoir (?:déjà )?(?:été )?|peut-être (?:déjà )?|a peut-être (?:déjà )?été )(?:été )?(?:exécut|débit|"
    r"envoy|trait|enregistr|compt|pay)|\brésultat[^\n.,;:]{0,40} inconnu|"
    r"\bpued(?:e|o) haber(?:se)? (?:sido )?(?:ya )?(?:ejecut|proces|cobr|envi|realiz|pag)|"
    r"\b(?:resultado|estado)[^\n.,;:]{0,40} desconocido|\bpode (?:já )?ter sido|\bpotrebbe essere (?:già )?stat|"
    r"возможно,? (?:уже )?(?:был[аои]? )?(?:выполнен|провед|списан|отправлен|оплачен)|"
    r"可能(?:已经?|已被)(?:经)?(?:执行|成功|扣款|处理|转账|支付|提交|入账|发送)|(?:结果|状态)(?:未知|不明)|"
    r"(?:実行|処理|決済|送金|送信|登録|請求)(?:済み|された|され(?:て)?いる)(?:の)?可能性|(?:結果|状態)(?:が|は)?不明|"
    r"(?:처리|결제|전송|실행)되었을 수",
    re.IGNORECASE,
)

_OF_A_PERSON: Final = (
    r"(?:accounts?|contracts?|licen[cs]es?|merchants?|tenants?|memberships?|api[- ]?keys?|trial|agreement|customers?|cards?|"
    r"subscriptions?)"
)
_ENDED: Final = (
    r"(?:closed|cancell?ed|ended|terminated|revoked|barred|banned|suspended|deactivated|disabled|deleted|expired|frozen|"
    r"rejected|declined|discontinued|blocked|stolen)\b"
)
# One after the other, with what such a thing is called between them, and not more.
_IS_OVER: Final = re.compile(
    rf"(?<![\w./-]){_OF_A_PERSON}(?: agreement| account| number| id)?(?: #?(?:<\*>|[0-9][\w-]{{0,20}}))?"
    rf"(?: (?:is|was|has|have|had|been|now|already|permanently)){{0,3}} {_ENDED}(?! (?:the )?connection)|"
    rf"(?<![\w./-])(?:closed|cancell?ed|terminated|revoked|suspended|deactivated|expired|frozen|blocked|stolen) "
    rf"{_OF_A_PERSON}(?![\w./-])|"
    r"\bpermanently (?:closed|removed|disabled|unavailable|exhausted|blocked|suspended)|\bnon-?payment\b|"
    r"\bdecommissioned\b|\bdown for good\b|"
    r"\b(?:konto|vertrag|abonnement|abo|lizenz|kund(?:e|in)|karte|mandant|händler|zugang)\b(?: \w{1,20}){0,2}? (?:wurde |ist )?"
    r"(?:gesperrt|gekündigt|geschlossen|beendet|gelöscht|widerrufen|deaktiviert|stillgelegt|erloschen)|"
    r"\bgesperrte[srnm]? (?:konto|kund|karte)|"
    r"\b(?:compte|contrat|abonnement|licence|client|carte)\b(?: \w{1,20}){0,2}? (?:résilié|clôturé|fermé|suspendu|bloqué|"
    r"expiré|révoqué|annulé|désactivé)|"
    r"\b(?:cuenta|contrato|suscripción|licencia|cliente|tarjeta)\b(?: \w{1,20}){0,2}? (?:cerrad|cancelad|bloquead|"
    r"suspendid|revocad|rescindid|caducad|dad[oa] de baja)|"
    r"\b(?:conta|contrato|assinatura|licença|cliente|cartão)\b(?: \w{1,20}){0,2}? (?:encerrad|cancelad|bloquead|suspens|"
    r"revogad|rescindid|expirad)|"
    r"\b(?:conto|contratto|abbonamento|licenza|cliente|carta)\b(?: \w{1,20}){0,2}? (?:chius|disdett|bloccat|sospes|revocat|"
    r"scadut|rescis)|"
    r"\b(?:rekening|contract|abonnement|licentie|klant)\b(?: \w{1,20}){0,2}? (?:opgezegd|beëindigd|geblokkeerd|gesloten|"
    r"verlopen|ingetrokken)|"
    r"\b(?:konto|umowa|subskrypcja|licencja|klient)\b(?: \w{1,20}){0,2}? (?:zamkni|zablokowan|rozwiązan|anulowan|wygas)|"
    r"(?:сч[её]т|аккаунт|договор|подписка|лицензия|клиент|карта)(?: \w{1,20}){0,2}? (?:закрыт|заблокирован|расторгнут|"
    r"отозван|ист[её]к|удал[её]н|аннулирован)|"
    r"(?:账户|账号|合同|订阅|许可证?|客户|商户|会员|银行卡|授权)[^，。；：,;:\n]{0,6}(?:注销|关闭|终止|冻结|停用|封禁|过期|吊销|解约|到期)|"
    r"余额不足|"
    r"(?:口座|アカウント|契約|ライセンス|会員|カード)[^、。,\n]{0,6}(?:解約|停止|凍結|閉鎖|失効|退会|終了)|"
    r"(?:계정|계약|구독|라이선스)[^.,\n]{0,6}(?:해지|정지|폐쇄|만료|종료)",
    re.IGNORECASE,
)
# What a message, a mail, a job or a statement is about is no reason: it is quoted, named before the words, or after them.
_TOLD: Final = (
    r"(?:events?|notifications?|webhooks?|e-?mails?|mails?|sms|push|jobs?|tasks?|letters?|newsletters?|templates?|handlers?|"
    r"listeners?|callbacks?|subject|benachrichtigung|ereignis|courriel|correo|evento|événement)"
)
_QUOTATION: Final = r"(?:\"[^\"\n]{1,120}\"|(?<!\w)'[^'\n]{1,120}'|“[^”\n]{1,120}”|„[^“”\n]{1,120}[“”]|«[^»\n]{1,120}»|「[^」\n]{1,120}」)"
_ABOUT: Final = re.compile(
    rf"\b{_TOLD}(?: (?:to|for|of|an|à|a|para|für)(?: \w{{1,20}}){{1,2}})? {_QUOTATION}(?! (?:received|got|returned) )|"
    rf"\b(?:send(?:ing)?|publish(?:ing)?|deliver(?:ing)?|env[ií]o de|envoi de|senden von|versand von) {_QUOTATION}|"
    rf"(?:发送|推送|发布|通知|处理|邮件|事件){_QUOTATION}|{_QUOTATION}(?: {_TOLD}\b|の(?:送信|通知|配信)|通知|邮件|事件|メール|イベント)|"
    r"\[(?:SQL|parameters): [^\]\n]*|\bSQL statement \"[^\"\n]*\"|"
    r"\b(?:UPDATE [\w.\"<*>]{1,60} SET|DELETE FROM|INSERT INTO|SELECT [^\n]{1,80}? FROM)\b[^\n;:]*",
    re.IGNORECASE,
)
_TOLD_BEFORE: Final = re.compile(
    r"\b(?:delet(?:e|es|ing)|remov(?:e|es|ing)|purg(?:e|es|ing)|clos(?:e|es|ing)|archiv(?:e|es|ing)|clean(?:ing)?(?: ?up)?|"
    r"anonymi[sz](?:e|es|ing)|notif(?:y|ying) (?:about|of)|inform(?:ing)? (?:about|of))(?: (?:the|all|old|any|an?|of)){0,2} $|"
    rf"\b(?:send(?:ing)?|publish(?:ing)?|process(?:ing)?|handl(?:e|ing)|deliver(?:ing)?)(?: \w{{1,20}}){{0,2}} {_TOLD}"
    r"(?:: ?(?:your |the )?| (?:about|for|of) (?:an? |the )?)$|"
    r"\b(?:event|event[_ ]?(?:type|name)|subject|template|routing[_ ]?key)[\"']?\s?[:=]\s?[\"']?$",
    re.IGNORECASE,
)
_TOLD_AFTER: Final = re.compile(
    rf"[\"'”»]?[ _-]?{_TOLD}(?![\w-])|(?<=ocked) by (?:user|session|process|transaction|another|pid|thread|query)\b",
    re.IGNORECASE,
)
# A consumer's subscription ends with its connection, and of a machine nobody knows that it is for good.
_SUBSCRIBED: Final = re.compile(
    r"subscription(?: (?:is|was|has|been))* (?:closed|cancell?ed|ended|terminated)$", re.IGNORECASE
)
_CONSUMERS: Final = re.compile(
    r"\b(?:consumers?|brokers?|pulsar|kafka|topics?|queues?|mqtt|nats|jms|amqp|pubsub|websocket|grpc|stomp|redis|"
    r"listener)\b",
    re.IGNORECASE,
)
_MACHINE_BEFORE: Final = re.compile(
    r"\b(?:upstreams?|backend|node|host|server|replica|broker|cluster|endpoint|shard|origin)(?: (?:is|was))? $",
    re.IGNORECASE,
)
# Of a plan somebody has to buy more, and where a thing isn't offered it won't be.
_NOT_BOUGHT: Final = re.compile(
    r"\binsufficient_quota\b|\bplan and billing\b|\bplans (?:&|and) billing\b|(?<![\w./-])billing (?:details|hard limit|"
    r"(?:account )?(?:is |was |has been )?(?:not|disabled|closed|inactive))|\bupgrade to (?:a |an |the )?(?:paid|pro|premium|"
    r"higher|business|enterprise)|\bplease upgrade\b|\btrial (?:account|period|has|is)|\bfree trial\b",
    re.IGNORECASE,
)
_NOT_OFFERED: Final = re.compile(
    r"\b(?:in|for|on|under|with) (?:your|this|the) (?:current )?(?:country|(?:subscription |service )?plan|subscription(?: "
    r"tier)?|tier|contract|merchant|licen[cs]e|account type)\b|\bsanction(?:s|ed)\b|"
    r"\bunavailable_for_(?:region|country|plan)|\bnot contained in (?:your|the) contract",
    re.IGNORECASE,
)
_LATER: Final = re.compile(
    r"\bper[ -](?:min|sec|hour|day)|/(?:min|s|sec|h|hour|day)\b|try again|\bretry|\bresets?\b|\bwait\b|\bquota exceeded for metric|\bresource_exhausted\b",
    re.IGNORECASE,
)
# Looking for a word is cheap, for an expression it is not: in a text of ASCII there is a word of each of some lists,
# lower case, where anything is found.
_NOT: Final = ("not ", "n't ", "never ", "nicht ", "ne pas ", "no re", "non ri", "niet ", "nie ")
_ONCE_MORE: Final = ("retr", "resen", "re-", "submi", "deliver", "repla", "repr", "repeat", "repet", "again")
_ONCE_MORE_ELSEWHERE: Final = (
    "erneut",
    "wieder",
    "nochmal",
    "relanc",
    "renvoy",
    "rejou",
    "reint",
    "reenv",
    "ponawia",
    "opnieuw",
)
_FOR_EVER: Final = ("retryable", "retriable", "recover", "permanent", "manual", "reconcile")
_PERHAPS: Final = (
    "have ",
    "been ",
    "possibl",
    "perhaps",
    "maybe",
    "probabl",
    "unknown",
    "unclear",
    "uncertain",
    "before ",
)
_PERHAPS_ELSEWHERE: Final = ("unbekannt", "unklar", "eventuell", "vielleicht", "haber", "desconocido", "potrebbe")
_WHOSE: Final = (
    "account",
    "contract",
    "licen",
    "merchant",
    "tenant",
    "membership",
    "key",
    "trial",
    "agreement",
    "customer",
    "card",
)
_WHOSE_ELSEWHERE: Final = (
    "subscri",
    "konto",
    "vertrag",
    "abo",
    "kund",
    "mandant",
    "karte",
    "contrat",
    "compte",
    "client",
    "cuenta",
    "tarjeta",
    "conto",
    "carta",
    "rekening",
    "klant",
    "umowa",
    "klient",
)
_PAST: Final = (
    "closed",
    "cancel",
    "ended",
    "terminat",
    "revoke",
    "barred",
    "banned",
    "suspend",
    "activat",
    "disabled",
    "deleted",
    "expir",
    "frozen",
    "reject",
    "declined",
    "discontinued",
    "blocked",
    "stolen",
)
_PAST_ELSEWHERE: Final = (
    "gesperr",
    "schlossen",
    "beendet",
    "widerrufen",
    "stillgelegt",
    "erloschen",
    "bloq",
    "cerrad",
    "revoca",
    "rescind",
    "caducad",
    "dado de",
    "encerrad",
    "chius",
    "disdett",
    "blocca",
    "scadut",
    "opgezegd",
    "gesloten",
    "verlopen",
    "ingetrokken",
    "anulowan",
    "wygas",
)
_OFFERED: Final = (
    "country",
    "plan",
    "tier",
    "contract",
    "merchant",
    "licen",
    "account type",
    "subscription",
    "sanction",
    "region",
)
_BOUGHT: Final = ("quota", "billing", "upgrade", "trial")
_FOR_GOOD: Final = ("permanently ", "payment", "decommission", "for good")

_ATTEMPTS: Final = (
    "attempt",
    "try ",
    " try",
    "retry",
    "last ",
    "final ",
    "latest ",
    "fallback",
    "backup",
    "secondary",
    "standby",
)
_LAST: Final = re.compile(
    r"\b(?:final|last|latest) (?:error|response|failure|exception|answer|reply|result|cause|attempt)"
    r"(?: (?:message|code|received|returned))?(?::| was:?| is:?| said:?)\s|"
    r"\b(?:fallback|backup|secondary|standby)(?: (?:provider|gateway|server|host|node|region|system|service|bank))? "
    r"(?:said|answered|replied|returned|responded|reported|declined)(?: with)?:?\s",
    re.IGNORECASE,
)
_NUMBERED: Final = re.compile(
    r"\b(?:attempt|try|retry) ?#?(?:<\*>|[0-9]{1,4})(?: ?(?:/|of) ?(?:<\*>|[0-9]{1,4}))?(?: failed)?(?: with)?[: ]\s?(?=[^\s,;.)])|"
    r"(?:<\*>|[0-9]|<\*>(?:st|nd|rd|th)|1st|2nd|3rd|[4-9]th) (?:attempt|try):\s",
    re.IGNORECASE,
)
_EARLIER: Final = re.compile(
    r"[(\s.;,](?:earlier|before that|previous(?:ly| error)?|first error|main (?:provider|gateway)|primary)(?: \w{1,12})?:",
    re.IGNORECASE,
)
_SEVERAL_LETTERS: Final = re.compile(r"[^\W\d_]{2,}")

_OVER: Final = Finding(Cause.AUTH_FAILURE, "refused.over", 0.6)
_NEVER_AGAIN: Final = Finding(Cause.MALFORMED_PAYLOAD, "refused.not_again", 0.5)
_PERHAPS_DONE: Final = Finding(Cause.DUPLICATE, "refused.may_be_done", 0.6)


def refusal_of(text: str, found: Finding) -> Finding | None:
    """What ``text``, masked, says against another try, where ``found`` would bring one; None: nothing.

    Whether something may have been done already is asked before it is done again, so that is said first. Where a lease
    ran out, that is known without a word.
    """
    if found.cause is not Cause.LEASE_EXPIRED and (perhaps := perhaps_done(text)) is not None:
        return perhaps
    text = text[:_LOOKED_AT]
    lower, is_any = text.lower(), not text.isascii()
    if (is_any or says(lower, _FOR_EVER) or _says_not_again(lower)) and _is_forbidden(text):
        return _NEVER_AGAIN
    if (is_any or says(lower, _FOR_GOOD) or _says_over(lower)) and _is_over(text, found.cause):
        return _OVER
    if found.cause is Cause.DEPENDENCY_UNAVAILABLE and says(lower, _OFFERED) and _NOT_OFFERED.search(text):
        return _OVER
    if (
        found.cause in (Cause.DEPENDENCY_UNAVAILABLE, Cause.THROTTLED)
        and says(lower, _BOUGHT)
        and _NOT_BOUGHT.search(text)
        and not (found.cause is Cause.THROTTLED and _LATER.search(text))
    ):
        return _OVER
    return None


def perhaps_done(text: str) -> Finding | None:
    """What follows where ``text``, masked, says that what was asked for may have been done already."""
    text = text[:_LOOKED_AT]
    lower = text.lower()
    told = not text.isascii() or says(lower, _PERHAPS) or says(lower, _PERHAPS_ELSEWHERE)
    return _PERHAPS_DONE if told and _MAY_BE_DONE.search(text) else None


def _is_forbidden(text: str) -> bool:
    """Whether ``text`` says that there must be no other try, and not only that a client stops by itself."""
    said = [refused[0] for refused in _NOT_AGAIN.finditer(text)]
    fields = [words for words in said if _SAID_FALSE.search(words)]
    if len(fields) + sum(_BY_ITSELF.search(words) is not None for words in said) < len(said):
        return True
    if not said:
        return False
    gave_up, is_its_own = _GAVE_UP.search(text) is not None, _NOT_ITS_OWN.search(text) is None
    return not (gave_up and is_its_own) if fields else not (gave_up or is_its_own)


def _is_over(text: str, cause: Cause) -> bool:
    """Whether ``text`` gives as its reason that something ended, and not only names it as what it is about."""
    if not _IS_OVER.search(text):
        return False
    text = _ABOUT.sub(" ", text)
    return any(not _is_beside(match, text, cause) for match in _IS_OVER.finditer(text))


def _is_beside(match: re.Match[str], text: str, cause: Cause) -> bool:
    """Whether what ``match`` found of ``text`` is what is handled, or what ends with a connection."""
    before = text[max(0, match.start() - 60) : match.start()]
    if _TOLD_AFTER.match(text, match.end()) or _TOLD_BEFORE.search(before):
        return True
    if match[0].lower() == "permanently unavailable":
        return _MACHINE_BEFORE.search(before) is not None
    if _SUBSCRIBED.match(match[0]):
        lost = cause is Cause.TRANSIENT_NETWORK and not before.strip()
        return lost or _CONSUMERS.search(text) is not None
    return False


def last_attempt(text: str) -> str:
    """What ``text``, masked, says of the last of several attempts, where it says so: *final error: card declined*, *attempt
    2: unknown article*, *fallback said: no such user*; else ""."""
    if not says(text.lower(), _ATTEMPTS):
        return ""
    text = text[:_LOOKED_AT]
    marks = [*_LAST.finditer(text)]
    if not marks:
        numbered = [*_NUMBERED.finditer(text)]
        marks = numbered if len(numbered) > 1 else []
    if not marks:
        return ""
    said = _EARLIER.split(text[marks[-1].end() :], maxsplit=1)[0]
    return said if len(_SEVERAL_LETTERS.findall(said)) > 1 else ""


def _says_not_again(lower: str) -> bool:
    return says(lower, _NOT) and (says(lower, _ONCE_MORE) or says(lower, _ONCE_MORE_ELSEWHERE))


def _says_over(lower: str) -> bool:
    return (says(lower, _WHOSE) or says(lower, _WHOSE_ELSEWHERE)) and (
        says(lower, _PAST) or says(lower, _PAST_ELSEWHERE)
    )
