# ruff: noqa: E501 - a line of the table is one family of wordings; broken up it could not be searched
"""The one table of rules: what wordings and codes mean which cause.

A rule is data: an id that never changes, a cause, a tier, a confidence, literals and at most one pattern.
Rules see the masked text in lower case, without stack frames, and the words inside its names
(``TooManyRequests``, ``RATE_LIMIT_EXCEEDED``) apart. A rule matches where one of its literals
occurs and, if it has one, its pattern does; literals are what makes a few hundred rules cheap.

Which rule decides: the text is cut where exceptions are chained, and the parts are looked at from the root
cause outwards. In the first part where a rule of tier :attr:`Tier.SAID` or :attr:`Tier.USUAL` matches, the
first such rule of the table wins. Only if no part has one, tier :attr:`Tier.GENERIC` is asked in the same
way, and after that :attr:`Tier.LAST`. What none of them knows, or of which only is known that something was
raised, is weighed word by word (``hints.words``), with a low confidence and in doubt for the cause that is not
sent again by itself; such findings are ``weak``, and ``explain`` asks the learned model before it believes them.

Patterns are written in the subset that Java and Python share, on lower-case ASCII, with bounded repetition.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from redrive.classification.causes import AUTOMATIC, PROFILES, Cause


class Tier(IntEnum):
    """How much a match says; lower is asked first."""

    SAID = 0  # a code, a class or a phrase that means one thing
    USUAL = 1  # wording that usually means it
    GENERIC = 2  # a class of errors, a bare status, a bare "timeout"
    LAST = 3  # only says that it was given up


class Rule(NamedTuple):
    """One line of the table."""

    id: str
    cause: Cause
    tier: Tier
    confidence: float  # that the cause is right where the rule decides, 0 to 1
    literals: tuple[str, ...]  # lower case; at least one must occur
    pattern: str = ""  # must be found as well, where there is one


class Finding(NamedTuple):
    """A cause and why."""

    cause: Cause
    rule: str
    confidence: float
    last_resort: bool = False  # decided in tier LAST
    weak: bool = False  # single words, or no more than that something was raised


def _rules(cause: Cause, prefix: str, *rows: tuple[object, ...]) -> list[Rule]:
    rules = []
    for row in rows:
        name, tier, confidence, literals, *pattern = row
        rules.append(
            Rule(
                f"{prefix}.{name}",
                cause,
                tier,  # type: ignore[arg-type]
                confidence,  # type: ignore[arg-type]
                tuple(str(literals).split("|")),
                str(pattern[0]) if pattern else "",
            )
        )
    return rules


def _status(*codes: str) -> tuple[str, str]:
    """Literals and pattern of an HTTP status, wherever clients and servers put it."""
    either = "|".join(codes)
    return either, (
        r"(?:http|https|http/<\*>|http/[12](?:[.][01])?|status|status[ _-]?code|statuscode|response|response code|"
        r"response status|responded with|returned|received|with|got|code|error|errorcode|http_code|http_status|"
        r"httpstatus|http error|an error)[\"']?(?: ?[:=>(\[#] ?| is | of | ){0,2}[\"'\[(]{0,2}(?:"
        + either
        + r")(?![0-9a-z])"
        r"|(?:^|[^0-9a-z.>])(?:"
        + either
        + r")(?:[ :,-]{1,3}|[)\]] )(?:\(?(?:bad|unauth|payment|forbidden|not|method|proxy|request|"
        r"conflict|gone|precondition|payload|content|uri|unsupported|unprocessable|locked|failed|too|internal|"
        r"server|client|service|gateway|http|insufficient|network|error))"
    )


_S, _U, _G, _L = Tier.SAID, Tier.USUAL, Tier.GENERIC, Tier.LAST
# Any name of an exception class, for rules that look for a part of it.
_NAME = r"[a-z0-9_.$]{0,80}"

_TABLE: list[Rule] = [
    # --- the same said by systems that speak the language of their machine ---------------------------------
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "localised",
            _S,
            0.9,
            "空指针|空引用|no existe la columna|no existe la relación|relation existiert nicht|referencia a objeto no establecida|la référence d'objet|objektverweis wurde nicht|referência de objeto não",
        ),
    ),
    *_rules(
        Cause.DUPLICATE,
        "duplicate",
        (
            "localised",
            _S,
            0.9,
            "llave duplicada|clave duplicada|doppelter schlüsselwert|chave duplicada|duplicar valor da chave|valeur d'une clé dupliquée|rompt la contrainte unique|contrainte d'unicité|重复键违反|已处理|重复消费|重复提交|已存在|повторяющееся значение ключа|bereits vorhanden|ya existe|já existe|existe déjà|已经存在",
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "localised",
            _S,
            0.9,
            "不存在|未找到|找不到|查无此|llave foránea|clave foránea|fremdschlüssel|chave estrangeira|clé étrangère|no se encontró|no existe|nicht gefunden|existiert nicht|não encontrad|não existe|introuvable|n'existe pas|не найден|не существует|見つかりません|存在しません|찾을 수 없",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "localised",
            _S,
            0.9,
            "解析失败|解析错误|格式错误|格式不正确|参数错误|反序列化|参数校验|校验失败|不能为空|sintaxis de entrada no válida|ungültige eingabesyntax|formato incorrecto|formato inválido|ungültiges format|format invalide|not null-verletzung|no tiene un formato",
        ),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        (
            "localised",
            _S,
            0.9,
            "签名验证失败|签名错误|验签失败|认证失败|鉴权失败|无权限|权限不足|没有权限|未授权|用户名或密码|登录失败|拒绝访问|acceso denegado|zugriff verweigert|accès refusé|acesso negado|отказано в доступе|autentificación password falló|passwort-authentifizierung|authentification par mot de passe|falha na autenticação|permiso denegado|keine berechtigung",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "localised",
            _S,
            0.9,
            "连接超时|请求超时|调用超时|读取超时|服务超时|积极拒绝|拒绝连接|连接被拒绝|强迫关闭|连接重置|网络异常|无法连接|连接失败|denegó expresamente|tiempo de espera|conexión rechazada|se ha forzado la interrupción|verbindung verweigert|zielcomputer die verbindung|zeitüberschreitung|verbindung wurde vom remotehost|connexion refusée|délai d'attente|a dû être fermée par l'hôte|conexão recusada|recusou ativamente|tempo limite|foi forçado o cancelamento|接続が拒否|タイムアウト|время ожидания|отверг запрос|연결이 거부|시간 초과|시간이 초과",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        (
            "localised",
            _S,
            0.9,
            "服务不可用|系统异常|服务异常|系统繁忙|系统维护|服务器内部错误|服务降级|已熔断|熔断器|servicio no disponible|dienst nicht verfügbar|service indisponible|serviço indisponível|сервис недоступен",
        ),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        (
            "localised",
            _S,
            0.9,
            "请求过于频繁|访问频率|被限流|触发限流|频率限制|次数超限|demasiadas solicitudes|zu viele anfragen|trop de requêtes|muitas solicitações|слишком много запросов",
        ),
    ),
    *_rules(
        Cause.RESOURCE_EXHAUSTED,
        "resource",
        (
            "localised",
            _S,
            0.9,
            "磁盘空间不足|内存不足|内存溢出|no queda espacio|espacio insuficiente|kein speicherplatz|nicht genügend speicher|plus d'espace|espace insuffisant|espaço insuficiente|недостаточно места|недостаточно памяти",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        (
            "localised",
            _S,
            0.9,
            "发生死锁|死锁检测|锁等待超时|interbloqueo|verklemmung|interblocage|impasse detectado|взаимоблокировк",
        ),
    ),
    # --- phrases with which one system says what in another's words would be something else ----------------
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        ("masstransit_skip", _S, 0.9, "r-skip "),
    ),
    *_rules(
        Cause.DUPLICATE,
        "duplicate",
        ("entity_exists", _S, 0.93, "entityexistsexception"),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        ("mysql_hourly", _S, 0.9, "max_questions|max_updates|max_connections_per_hour"),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        (
            "ran_out",
            _S,
            0.95,
            "expired",
            r"(?:jwt|(?<!lock )(?<!lease )(?<!ack )token|certificate|credentials?|password|api key|access key|secret|licen[cs]e|signature)(?:[^\n]{0,30}) (?:has |have |is |are |was )?expired(?! in queue)|expiredjwt",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        (
            "starting_service",
            _S,
            0.9,
            "brokermetadataexception: service is not ready|service is not ready",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "stream_ended",
            _S,
            0.9,
            "unexpected end of stream|end of stream reached",
            r"(?<![a-z])(?:jedis|redis|mongo|okhttp|socket|connection|http|ioexception)[^\n]{0,120}(?:unexpected end of stream|end of stream reached)",
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        ("file_reply", _S, 0.9, "failed to open file|could not open file|unable to open file|cannot open file"),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        ("vault", _S, 0.93, "vaultdown|vault is sealed|vault is not initialized"),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "parts_of_format",
            _S,
            0.9,
            "not found|unpack requires|struct.error|not a zip file|badzipfile",
            r"(?:marker|delimiter|boundary|header|trailer|signature|terminator|separator|tag|segment|footer)(?:s)? (?:was |were )?not found(?! in (?:the )?database)|unpack requires|struct[.]error|not a zip file|badzipfile",
        ),
    ),
    *_rules(
        Cause.RESOURCE_EXHAUSTED,
        "resource",
        ("blocked_connection", _S, 0.9, "blocked connection timeout|connectionblockedtimeout"),
    ),
    *_rules(
        Cause.CONSISTENCY_LAG,
        "lag",
        ("not_leader", _S, 0.93, "not the leader|no longer the leader|not leader for"),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        (
            "closed_transaction",
            _S,
            0.9,
            "expired transaction|transaction already closed|transaction is already closed|transaction has already been closed|transaction has timed out",
        ),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "unknown_part",
            _S,
            0.85,
            "unknown |usercodesyntax",
            r"unknown (?:[a-z]{1,20} )?(?:strategy|driver|engine|adapter|dialect|filter|operator|option|plugin|modifier|helper|directive)(?![a-z])|usercodesyntax",
        ),
    ),
    *_rules(
        Cause.CONSISTENCY_LAG,
        "lag",
        (
            "not_there_yet",
            _S,
            0.93,
            "behind|yet|already in progress|locked by|checked out by",
            r"(?:replica|follower|secondary|standby|projection|read model|read side|index|view|cache)[^\n]{0,60}(?: behind|not updated|not caught|lagging)|not (?:[a-z]{1,12} )?(?:synced|replicated|visible|propagated|indexed|committed|arrived|materialized|materialised) yet|(?:operation|update|deployment|change|sync|migration|request) is already in progress|(?:is|being) (?:currently )?(?:locked|edited|processed|held|checked out) by (?:another |user|a different|other|someone)",
        ),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        (
            "provider_token",
            _S,
            0.93,
            "expiredprovidertoken|invalidprovidertoken|missingprovidertoken|mismatched-credential|mismatchsenderid|senderid mismatch",
        ),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        (
            "device_token",
            _S,
            0.9,
            "registration-token-not-registered|token not registered|baddevicetoken|device token not for topic",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "no_such_field",
            _S,
            0.9,
            "no such field|not a valid fcm|invalid registration token|invalid-registration-token",
        ),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        ("neo4j_statement", _S, 0.9, "statement.syntaxerror|clienterror.statement"),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        (
            "too_many",
            _S,
            0.93,
            "too many",
            r"too many (?:[a-z_-]{1,20} ){0,2}(?:queries|statements|parts|calls|operations|writes|reads|tokens|logins|messages)(?![a-z])",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        ("ambiguous", _S, 0.9, "result is ambiguous"),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        ("openai", _S, 0.9, "server had an error"),
    ),
    *_rules(
        Cause.LEASE_EXPIRED,
        "lease",
        (
            "held_no_more",
            _S,
            0.9,
            "lock lost|hold the lease|not locked by current thread|revoked before commit|partitions revoked|lost the partition",
        ),
    ),
    *_rules(
        Cause.CONSUMER_STUCK,
        "stuck",
        (
            "stopped",
            _S,
            0.9,
            "was terminated|was killed|was stopped|was interrupted|was aborted|interrupted|blocked for|sigterm|lost* node|start to close|schedule to close",
            r"(?:task|job|worker|handler|process|container|pod|consumer|executor|script|thread) (?:[^\n ]{1,30} )?was (?:terminated|killed|stopped|interrupted|aborted)|(?:handler|worker|task|job|consumer) interrupted|interrupted (?:while|by|during)|(?<![a-z])interruptedexception: |blocked for (?:more than )?(?:<[*]>|[0-9])|received sigterm|lost[*] node|(?:start|schedule) to close",
        ),
    ),
    *_rules(
        Cause.MESSAGE_EXPIRED,
        "expired",
        (
            "too_late",
            _S,
            0.9,
            "in queue|in the queue|stale|outdated|expired|too old|too late|validity|revoked task|overdue",
            r"(?:sat|waited|spent|stayed|was|been|lay) (?:[^\n ]{1,20} ){0,2}in (?:the )?queue[^\n]{0,60}(?:exceed|longer|over|max|limit|too long|older)|(?:discard|dropp|skipp|ignor|reject|abandon)(?:ing|ed)? (?:[a-z]{1,12} )?(?:stale|old|outdated|expired|late|overdue)(?: [a-z]{1,12})? (?:message|event|task|job|request|command|notification)|discarding revoked task|(?:message|event|task|job|request|command) [^\n]{0,40}(?:skipped|dropped|discarded|ignored)[^\n]{0,40}(?:too (?:old|late)|expired|stale)|validity (?:window|period|time)",
        ),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        (
            "mailbox",
            _S,
            0.9,
            "recipient address rejected|over quota|mailbox|recipient",
            r"recipient address rejected|(?:mailbox|account|recipient|user|email)[^\n]{0,80}(?:is |are )?(?:over (?:its |the )?quota|(?:is )?full(?![a-z]))|over its quota",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        ("mongo_aborted", _S, 0.9, "transaction <*>", r"transaction <[*]> (?:has been|was) aborted"),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        ("wcf_endpoint", _S, 0.9, "no endpoint listening|endpointnotfoundexception"),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "foreign_key_named",
            _S,
            0.97,
            "foreign key constraint|foreign key violation|foreignkeyviolation|same table reference constraint|the reference constraint",
        ),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "no_such_method",
            _S,
            0.93,
            "does not exist",
            r"method [a-z0-9_\\<>*]{1,160}(?:::|->)[a-z0-9_]{1,80}(?:\(\))? does not exist",
        ),
        ("redis_script", _S, 0.9, "noscript no matching|no matching script"),
    ),
    *_rules(
        Cause.MAX_DELIVERIES,
        "deliveries",
        ("laravel", _S, 0.9, "been attempted too many times"),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        ("ecto", _S, 0.93, "dbconnection.connectionerror|pooltimedout|pool timed out|command timeout expired"),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "phrase",
            _S,
            0.93,
            "transport-level error|transport level error|network name is no longer|present in metadata after|tls: internal error|the consumer is closed|the session is closed|the producer is closed|the specified network|name could not be resolved",
        ),
    ),
    *_rules(
        Cause.CONSISTENCY_LAG,
        "lag",
        (
            "phrase",
            _S,
            0.93,
            "replica that is not the leader|metadata is out of date|uid in precondition|operation cannot be fulfilled on|being used by another process",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        (
            "none_there",
            _S,
            0.93,
            "available|reachable|alive|does not contain an instance|degradeexception",
            r"(?:^|[^a-z])(?:no|without any|zero) (?:[a-z]{1,30} ){0,2}(?:node|server|host|broker|provider|instance|backend|replica|upstream|peer)s? (?:is |are |was |were )?(?:currently )?(?:available|alive|reachable)|not have (?:an )?available (?:server|instance)|does not contain an instance|degradeexception",
        ),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        (
            "not_there",
            _S,
            0.9,
            "does not exist|doesn't exist|not exist|unknowntopic|local: unknown|no route info|has reached its maximum| is full|deleted destination|no endpoint could be found|moved <*>",
            r"(?:^|[^a-z_.])(?:queue|topic|topic or partition|exchange|subscription|consumer group|virtual host|vhost|messaging entity)(?: [^\n ]{1,120}){0,2} (?:that )?(?:does not|doesn't|did not|do not) exist|unknowntopic|local: unknown|no route info|(?:queue|topic|entity|subscription|stream|mailbox) (?:[^\n ]{1,80} )?has reached its maximum|address [^\n ]{1,120} is full|deleted destination|no endpoint could be found|^moved <\*>",
        ),
        (
            "mq_code",
            _S,
            0.93,
            "reason",
            r"reason(?: code)?[ :=]{0,3}[\"'(]{0,2}(?:2042|2051|2016|2053|2052|2082|2085|2087|2092)(?![0-9])",
        ),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        ("mq_code", _S, 0.93, "reason", r"reason(?: code)?[ :=]{0,3}[\"'(]{0,2}(?:2035|2393|2063)(?![0-9])"),
        ("no_ssl", _S, 0.85, "ssl is not enabled on the server|server does not support ssl"),
    ),
    *_rules(
        Cause.OVERSIZED,
        "oversized",
        ("mq_code", _S, 0.93, "reason", r"reason(?: code)?[ :=]{0,3}[\"'(]{0,2}(?:2010|2030|2031|2218)(?![0-9])"),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "out_of_range",
            _S,
            0.9,
            "out of range|out-of-range",
            r"(?<![a-z])(?:parsing|parse|conversion|convert|converting|cast|casting|date|datetime|timestamp|day|month|year|hour|minute|second|numeric|decimal|integer|bigint|smallint|tinyint)(?![a-z])[^\n]{0,100}out[- ]of[- ]range",
        ),
        ("phrase", _S, 0.93, "undefinedconversion|start tag expected|xml::syntaxerror"),
    ),
    *_rules(
        Cause.MESSAGE_EXPIRED,
        "expired",
        ("phrase", _S, 0.93, "timetobereceived|time to be received"),
    ),
    *_rules(
        Cause.LEASE_EXPIRED,
        "lease",
        ("receipt", _S, 0.9, "receipt", r"receipt (?:[a-z]{1,12} )?(?:has )?expired"),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        ("phrase", _S, 0.93, "block.flow.|.flowexception|slow consumer"),
    ),
    *_rules(
        Cause.CONSUMER_STUCK,
        "stuck",
        ("phrase", _S, 0.93, "active longer than specified deadline"),
    ),
    # --- what would be mistaken for something else comes first -------------------------------------------
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:42(?!000|501)[0-9a-z]{3}|22012|0a000|21000|3b001|2d000|2f0[0-9a-z]{2}|p0001|39[0-9a-z]{3})(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:42(?!000|501)[0-9a-z]{3}|22012|0a000|21000|3b001|2d000|2f0[0-9a-z]{2}|p0001|39[0-9a-z]{3}): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:102|105|107|137|145|156|170|201|207|208|209|213|217|2812|8134|8144|8145|8146|1054|1064|1109|1136|1146|1305|1318|1364)(?![0-9a-z])|(?:^|[^a-z])er_(?:parse_error|bad_field|no_such_table|bad_table|non_uniq|sp_does_not|no_default_for|wrong_value_count|unknown_column|syntax)",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:22(?!012)[0-9a-z]{3}|23502|23514)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:22(?!012)[0-9a-z]{3}|23502|23514): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:241|242|245|248|295|515|2628|8114|8115|8152|1048|1264|1265|1292|1366|1406|3140|3819)(?![0-9a-z])|(?:^|[^a-z])er_(?:truncated|data_too_long|bad_null|warn_data|data_out_of|invalid_json|check_constraint|wrong_value_for|wrong_value(?!_count))",
        ),
    ),
    *_rules(
        Cause.DUPLICATE,
        "duplicate",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:23505)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:23505): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:2601|2627|1062|1586)(?![0-9a-z])|(?:^|[^a-z])er_(?:dup_)",
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:23503)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:23503): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:1216|1217|1451|1452)(?![0-9a-z])|(?:^|[^a-z])er_(?:no_referenced|row_is_referenced)",
        ),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:28[0-9a-z]{3}|42501)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:28[0-9a-z]{3}|42501): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:229|230|262|297|300|916|4060|4064|18452|18456|18470|18486|18487|18488|1044|1045|1142|1143|1227|1698|3118)(?![0-9a-z])|(?:^|[^a-z])er_(?:access_denied|dbaccess|tableaccess|columnaccess|specific_access|host_not_priv|host_is_blocked|not_supported_auth|must_change|password_)",
        ),
    ),
    *_rules(
        Cause.RESOURCE_EXHAUSTED,
        "resource",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:53[0-9a-z]{3})(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:53[0-9a-z]{3}): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:701|802|845|1101|1105|3257|8645|9002|1021|1037|1038|1040|1041|1114|1203|1226)(?![0-9a-z])|(?:^|[^a-z])er_(?:con_count_error|out_of|disk_full|record_file_full|too_many_user|user_limit)",
        ),
    ),
    *_rules(
        Cause.OVERSIZED,
        "oversized",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:^|[^a-z])er_(?:net_packet_too|too_big_row|too_long_string)|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:1153|1301)(?![0-9a-z])|(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:54000)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:54000): )",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        (
            "sql_code",
            _S,
            0.95,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:40[0-9a-z]{3}|55p03|55006|57p0[1-5]|57014|25006|25p0[23]|58[0-9a-z]{3}|72000)(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:40[0-9a-z]{3}|55p03|55006|57p0[1-5]|57014|25006|25p0[23]|58[0-9a-z]{3}|72000): )|(?:msg|error number|number|error code|errorcode|sql error|sqlexception|error)[ :=#]{1,3}(?:1205|1222|3960|3961|3967|1213|1290|1317|1836|1053|2006|2013|2055|3024|3572|40613|40197|40143|40166|40540|42108|42109|983)(?![0-9a-z])|(?:^|[^a-z])er_(?:lock_|server_shutdown|option_prevents|query_interrupted|query_timeout|read_only|unknown_com|statement_timeout|cant_execute_in_read)",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "sql_code",
            _S,
            0.8,
            "sqlstate|state:|state=|state |postgresexception|msg |error number|number:|error code|errorcode|error: 1|error 1|error: 2|error 2|sql error|sqlexception|er_",
            r"(?:(?:sqlstate|state)[^0-9a-z]{1,4}(?:08(?!004)[0-9a-z]{3})(?![0-9a-z])|(?:^|[^0-9a-z._-])(?:08(?!004)[0-9a-z]{3}): )",
        ),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "go_runtime",
            _S,
            0.95,
            "changed size during iteration|invalidstateerror|illegalargumentexception: source must|mutated during iteration|modified during iteration|parseerror: syntax error|not json serializable|notserializableexception|is not serializable|not jsonable|serialization of 'closure'|circular structure|converting circular|exception was thrown by handler|could not be translated|all goroutines are asleep|reflect: call of|send on closed channel|close of closed channel|assignment to entry in nil|negative shift amount|sync: unlock|sync: negative",
        ),
        (
            "orm",
            _S,
            0.9,
            "nonuniqueobject|was already associated with the session|not defined|converternotfound|no converter found|attempted merging values|sqlalchemy.exc.invalidrequest|multipleresultsfound|multiple rows were found|pendingrollback|multipleobjectsreturned|nonuniqueresult|operator does not exist|entity type is not part of the model",
        ),
    ),
    *_rules(
        Cause.RESOURCE_EXHAUSTED,
        "resource",
        (
            "breaker",
            _S,
            0.9,
            "thread pool exhausted|thread pool is exhausted|threadpool exhausted|no threads available|circuit_breaking_exception|database space exceeded|local: queue full|_queue_full",
        ),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        ("consumer_group", _S, 0.9, "nogroup no such key|nogroup |unregistered task"),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "broken_transport",
            _S,
            0.9,
            "http response to https|https client|transport connection broken|malformed http|broker transport failure|server sent goaway|socket: broken",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        ("no_endpoint", _S, 0.9, "no endpoints available|no endpoint available|no healthy endpoints"),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        ("class_name", _S, 0.9, "not found", r"class \\?[\"'`][^\n\"'`]{1,200}[\"'`] not found"),
        (
            "undefined",
            _S,
            0.93,
            "argument type mismatch|invalid argument supplied|same key has already been added|key has already been added|improperlyconfigured|templatedoesnotexist|templatenotfound|command not found|exec format error|exec: not found|executable file not found|sh: <*>: |not recognized as an internal|] not defined|] is not defined|is not defined|freemarker.|invalidreferenceexception|spelevaluation|groovy.lang|templatesyntax|template syntax|templateprocessing|undefinederror|non-existent service|circular reference|circular dependency|entitymanager is closed|entitymanagerclosed|uninitializedproperty|lateinit|sql compilation error|could not find stored procedure|which was not supplied|expects parameter|no overload for|cannot set headers|headers already sent|headers_sent|functionclauseerror|no function clause|no case clause|caseclauseerror|no match of right hand|matcherror|badmatch|function_clause|undefinedfunctionerror|badarityerror|argumentoutofrange|index was out of range|cannot resolve keyword|fielderror|index was outside the bounds|could not load file or assembly|bindingresolution|is not instantiable|nosuchbean|no qualifying bean|unsatisfieddependency|unsatisfied dependency|no bean named|no provider for|resolve dependencies of|no service for type|no component for supporting|lazyinitialization|could not initialize proxy|cannot be tracked because another|second operation was started|detached entity passed|unsaved transient instance|transientobjectexception|transientpropertyvalue|no persister for|mappingexception: unknown entity|querysyntaxexception|named query|argumentnull|modulenotfound|no module named|cannot find module|undefinedcolumn|undefinedtable|undefined column|undefined table|unknown column|no such column|no such table|invalid object name|invalid column name|42p01|42703|42601|maximum call stack|classnotfound|class not found|noclassdef|nosuchmethod|method does not exist|cannot import name|cannot load such file",
        ),
        ("key_error", _S, 0.93, "keyerror", r"(?:^|[^a-z])keyerror(?![a-z])"),
        (
            "runtime_class",
            _S,
            0.95,
            "missingmethod|missingfield|missingmember|typeload|typeinitialization|entrypointnotfound|badimageformat|dllnotfound|keynotfoundexception|indexoutofrange|indexoutofbounds|nullpointer|nullreference|classcastexception|invalidcastexception|nosuchmethod|nosuchfield|noclassdeffound|unsupportedoperationexception|notimplemented|arithmeticexception|dividebyzero|zerodivision|divisionbyzero|stackoverflow|unboundlocalerror|attributeerror|nameerror|importerror|referenceerror|frozenerror|nomethoderror|concurrentmodificationexception|negativearraysize|arraystoreexception|illegalmonitorstate|emptystack|instantiationexception|illegalaccessexception|illegalaccesserror|systemstackerror|recursionerror|localjumperror|fibererror|noreverseexception|noreversematch|fieldaccess|bindingexception|illegaltransactionstate|exceptionininitializer|nullargument|argumentcounterror|argumenterror: wrong number",
            r"(?:^|[^a-z])(?:missing(?:method|member)|system[.]missingfield|typeload|typeinitialization|entrypointnotfound|badimageformat|dllnotfound|keynotfoundexception|indexoutofrange|(?:array|string)?indexoutofbounds|nullpointer|nullreference|classcastexception|invalidcastexception|nosuchmethod|nosuchfield|noclassdeffound|unsupportedoperationexception|notimplemented|arithmeticexception|dividebyzero|zerodivision|divisionbyzero|stackoverflow|unboundlocalerror|attributeerror|nameerror|importerror|referenceerror|frozenerror|nomethoderror|concurrentmodificationexception(?!: (?:aggregate|stale))|negativearraysize|arraystoreexception|illegalmonitorstate|emptystack|instantiationexception|illegalaccessexception|illegalaccesserror|systemstackerror|recursionerror|localjumperror|fibererror|noreversematch|illegaltransactionstate|exceptionininitializer|argumentcounterror|argumenterror: wrong number)",
        ),
        (
            "null_value",
            _S,
            0.93,
            "must not be null|value cannot be null|because the return value of|cannot invoke|of undefined (reading|of null (reading|reading ",
            r"value cannot be null|illegalargument[a-z]{0,9}: [^\n]{0,80}must not be null|cannot invoke \\?[\"']|because \\?[\"'`][^\n]{1,200} is null|(?:propert(?:y|ies)|reading)[^\n]{0,80} of (?:null|undefined)|reading property",
        ),
        (
            "oracle_code",
            _S,
            0.95,
            "ora-|pls-",
            r"ora-0{0,4}(?:900|904|905|907|911|913|917|918|920|923|932|933|936|942|947|979|1006|1008|1036|1422|1427|1476|1747|4063|4065|4088|4091|6502|6503|6508|6512|6530|6531|6532|6533|6550|6553)(?![0-9])|pls-[0-9]{5}",
        ),
        (
            "wiring",
            _S,
            0.93,
            "does not exist|doesn't exist|not found|could not be found|not be resolved",
            r"(?:class|bean|interface|service|provider|binding|module|namespace|package|assembly|template|view|partial|macro|filter|trait|method|attribute|constant|property|variable|command class) \\?[\[\"'`(][^\n\[\]\"'`()]{1,200}[\]\"'`)] (?:does not exist|doesn't exist|(?:was |is |could |can |can)?not (?:be )?(?:found|resolved))",
        ),
        (
            "relation",
            _S,
            0.9,
            "does not exist|doesn't exist",
            r"(?:relation|column|table|function|operator|type|view|schema) [\"'`]?[^\n ]{1,120}[\"'`]?(?:\([^\n)]{0,80}\))? (?:does not|doesn't) exist",
        ),
        (
            "said",
            _S,
            0.9,
            "cannot send message without|no message returned from method|payloadnotfoundexception|no response message was returned|unable to resolve service for type|synchronousonlyoperation|call from an async context|cannot be called from a running event loop|event loop is closed|attached to a different loop|was never awaited",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "said",
            _S,
            0.95,
            "strconv.|cannot identify|unidentified|notencodablevalue|notnormalizablevalue|unexpectedvalue: |missingfieldexception: field '|does not match format|does not match the expected format|too long for column|too long for type|did not find expected|psych::|bad control character|cast to objectid failed|cast to number failed|cast to date failed|casterror|does not comply with|not in a correct format|not in the correct format|not a recognized|literal does not match|schema being registered|incompatible with an earlier|not well-formed|not well formed|invalid utf|unsupported message version|unsupported schema version|is not valid json|invalid json",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "oracle_code",
            _S,
            0.93,
            "ora-",
            r"ora-0{0,4}(?:1400|1407|1438|1722|1830|1840|1841|1843|1847|1850|1858|1861|1867|2290|12899|40441|31011|6576)(?![0-9])",
        ),
    ),
    *_rules(
        Cause.DUPLICATE,
        "duplicate",
        (
            "conditional",
            _S,
            0.85,
            "conditionalcheckfailed|conditional check failed|the conditional request failed",
        ),
        (
            "named_constraint",
            _S,
            0.85,
            "constraint",
            r"constraint \[[\"'`]?(?:[a-z0-9]{1,30}[.])?(?:(?:uk|uq|uc|ux|unq|uniq|unique|idx|ix|pk|ak)[_-]|[^\n\]]{1,80}_(?:uk|uq|ux|unq|uniq|unique|key|idx|pk|pkey)[\"'`]?\])",
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "named_constraint",
            _S,
            0.85,
            "constraint",
            r"constraint \[[\"'`]?(?:[a-z0-9]{1,30}[.])?(?:fk[_-]?|[^\n\]]{1,80}_(?:fk|fkey|foreign))",
        ),
        ("offset", _S, 0.85, "offsetoutofrange|offset_out_of_range|offset out of range|fetchposition|requested offset"),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        (
            "destination_full",
            _S,
            0.93,
            "full|maximum entity size|reached or exceeded for",
            r"(?:queue|topic|destination|mailbox|stream|subscription|exchange|inbox)(?: [^\n ]{1,80}){0,2} (?:is|was|are) full|mailbox full|maximum entity size|(?:reached|exceeded) for (?:the )?(?:topic|queue|entity|subscription)",
        ),
        (
            "no_method",
            _S,
            0.9,
            "backlog quota|producerblockedquota|not_found - no |consumerbusy|producerbusy|exclusive consumer|exclusive access to locked queue|inequivalent arg|mqrc_q_full|mqrc_unknown|mqrc_put_inhibited|mqrc_get_inhibited|mqrc_q_deleted|mqrc_def_xmit|no method found for class|no listener method|no suitable listener",
        ),
    ),
    *_rules(
        Cause.CONSUMER_STUCK,
        "stuck",
        (
            "killed_by",
            _S,
            0.93,
            "container killed|executorlost|was sent sig|exited with|terminated by signal|killed by|died from|died with",
            r"container killed|executorlost|was sent sig(?:kill|term|abrt|int|quit)|(?:worker|process|child|job|container|task)[^\n]{0,120}(?:exited with|terminated by|killed by|died from|died with) [\"'`]?signal",
        ),
        (
            "heartbeat_late",
            _S,
            0.93,
            "heartbeat|heart beat",
            r"(?:heart ?beats?)[^\n]{0,40}(?:fail|miss|expir|time|lost|stopp|late|exceed|overdue|not received|not sent)|(?:missed|no|lost|late|missing|without|failed|skipped)(?: [a-z]{1,20}){0,2} heart ?beat",
        ),
        (
            "outran_limit",
            _S,
            0.93,
            "exceeded by function|timeout value of 0|abandonedjob|abandoned job|job abandoned|exceeded the timeout of|processtimedout|states.timeout|timeoutexceededexception|exceeded timeout of|exceeded its timeout|ran longer than|running longer than|run too long|running too long|took longer than allowed",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "said",
            _S,
            0.9,
            "httprequestexception: resource temporarily|socketexception: resource temporarily|read: resource temporarily|unexpected close|closed unexpectedly|unexpectedly closed|connection is closed by|closed before|network-related or instance-specific|semaphore timeout period|alreadyclosedexception|shutdownsignalexception|tns:no listener|rediscommandtimeout|redis command timed out|redistimeout|stream error: stream id|connection closed by server|the operation has timed out",
        ),
    ),
    *_rules(
        Cause.LEASE_EXPIRED,
        "lease",
        (
            "lock_timed_out",
            _S,
            0.93,
            "lock|lease",
            r"(?:peek-lock|message lock|session lock|lease)[^\n]{0,60}(?:timed out|has expired|was lost|has lapsed)|locklost|lock token[^\n]{0,30}expired",
        ),
        (
            "ran_out",
            _S,
            0.9,
            "lease|reservation|visibility|ownership|ttr",
            r"(?:lost|losing|lapsed|expired|missed|no longer holds?|no longer owns?)(?: [a-z]{1,12}){0,3} (?:lease|reservation|ownership)|(?:lease|reservation|visibility|ownership|(?<![a-z])ttr)(?: [a-z0-9<*>]{1,20}){0,4} (?:lost|expired|lapsed|ran out|timed out|passed|elapsed|exceeded)",
        ),
        (
            "receipt_handle",
            _S,
            0.98,
            "receipt handle|receipthandle",
            r"receipt ?handle[^\n]{0,200}(?:expired|not valid|invalid)|receipthandleisinvalid|(?:expired|invalid)[^\n]{0,80}receipt ?handle",
        ),
        (
            "message_lock",
            _S,
            0.98,
            "lock supplied is invalid|messagelocklost|message lock lost|sessionlocklost|session lock lost|message-lock-lost|"
            "session-lock-lost|lock expired|lock has expired|lock was lost|lock on the message|lost the lock|lock token|missing lock for job|lock mismatch for job|"
            "could not renew lock|failed to renew lock|unable to renew lock|lock renewal failed|lock is not held|lock that's no longer owned|lock no longer owned|"
            "no longer owns the lock|not the lock owner|cannot release an unlocked lock|cannot extend an unlocked lock|locknotowned|"
            "lock not owned",
        ),
        ("message_lock_auto", _S, 0.95, "autolockrenew|auto lock renew"),
        (
            "ack_id",
            _S,
            0.98,
            "ack id|ack_id|acknowledgement id|acknowledgment id|ackid",
            r"(?:ack[_ ]?id|acknowledge?ment id)[^\n]{0,200}(?:expired|invalid|permanent_failure|malformed)|(?:invalid|expired)[^\n]{0,60}ack[_ ]?id|permanent_failure_invalid_ack_id",
        ),
        (
            "ack_timeout",
            _S,
            0.97,
            "delivery acknowledgement on channel|ack deadline|acknowledgement deadline|acknowledgment deadline|ack timeout|acktimeout|ack wait|delivery ack timeout|consumer_timeout|consumer ack timed out",
        ),
        ("delivery_tag", _U, 0.7, "unknown delivery tag|unknown delivery-tag"),
        (
            "visibility",
            _S,
            0.95,
            "visibility timeout|visibilitytimeout|messagenotinflight|message is not in flight|not inflight|no longer in flight|message not in flight",
        ),
        (
            "lease",
            _S,
            0.95,
            "lease present|leasealready|leaseispresent|lease lost|lost lease|lease expired|lease has expired|lease is expired|lease already expired|leaseexpired|lease timed out|leaselost|lease was lost|"
            "leaseidmismatch|leasenotpresent|leaseidmissing|lost its lease|no longer holds the lease|lease is no longer|lease renewal failed|could not renew lease|failed to renew lease|reservation expired|reservation timed out|popreceiptmismatch|pop receipt|max_lease_duration|lease duration exceeded",
        ),
        (
            "kafka_commit",
            _S,
            0.85,
            "coordinator is not aware of this member|not known in the current generation|illegal generation|unknown member|commitfailedexception|commit cannot be completed since|commit failed: the coordinator is not aware|offset commit cannot be completed|illegal_generation|unknown_member_id|unknown member",
        ),
        (
            "nats_jobs",
            _S,
            0.9,
            "job not found or not reserved|not_found: job is not reserved|job is no longer reserved|ttr expired|deadline_soon|time-to-run",
        ),
    ),
    *_rules(
        Cause.MESSAGE_EXPIRED,
        "expired",
        (
            "deadline",
            _S,
            0.85,
            "deadline",
            r"(?:message|job|task|event|its) deadline (?:has )?passed|deadline passed before",
        ),
        (
            "delivery",
            _S,
            0.97,
            "older than max|older than the max|older than allowed|passed its validity|past its validity|validity expired|is too old|was too old|past its deadline|expired at|delivery expired|message expired|message has expired|message is expired|expired message|messageexpired|message too old|ttlexpired|ttl expired|time to live expired|"
            "time-to-live expired|time-to-live exceeded|message ttl|past its ttl|ttl exceeded|expired before|expired in queue|expired while waiting|message lifetime|message is stale|stale message|maximumeventage|event age exceeded|maximum event age|event too old|event is too old|"
            "older than the maximum age|message age exceed|exceeded max age|exceeds max age|exceeds maximum age|maximum age exceeded|too old to process|retention expired|retention period expired|job expired|task expired|taskrevokederror|revoked: expired|unable to deliver in|"
            "offer expired|request expired in|validity period|x-message-ttl|_amq_expiry|activemq.expiry|amqp:message-expired",
        ),
        (
            "waited",
            _S,
            0.9,
            "too long in queue|too long in the queue|waited too long|queued too long|queue wait time|queue timeout exceeded|timed out in queue|timed out waiting in queue|time in queue exceeded|exceeded queue time",
        ),
        (
            "x_death",
            _S,
            0.9,
            "reason",
            r"[\"']?(?:x-first-death-)?reason[\"']?[ ]?(?:=>|[:=])[ ]?[\"'<\[{ ]{0,4}expired(?![a-z])",
        ),
        ("smtp", _S, 0.9, "<*>", r"(?:4[.]4[.]7|5[.]4[.]7)[^\n]{0,40}(?:expired|too old)"),
    ),
    *_rules(
        Cause.OVERSIZED,
        "oversized",
        (
            "unit_over",
            _S,
            0.93,
            "> kb|> mb|> gb|>kb|>mb|>gb|> kib|> mib|>kib|>mib",
            r"(?:exceeds?|exceeding|longer than|larger than|bigger than|greater than|more than|limit is|limit of|maximum of|maximum is)(?: the)?(?: limit| maximum| size)?(?: of)? <\*> ?[kmg]i?b(?![a-z])",
        ),
        ("status", _S, 0.97, *_status("413", "414", "431")),
        (
            "too_large",
            _S,
            0.95,
            "larger than|bigger than|greater than|size exceeding|exceeding the maximum|datalimitexceeded|too large|too big|too long|size exceeded|limit exceeded|exceeds",
            r"(?:message|data|payload|request|record|body|batch|document|event|item|header|attachment|packet|frame|content|file|upload|entry|line|input|value|count|size|length|limit)[a-z]{0,3}(?: (?:for|of|in) [^\n ]{1,80})? (?:size )?(?:is |was |are )?too (?:large|big|long)(?!, data for)|"
            r"(?:message|record|payload|frame|body|packet)[ -]size[ -](?:limit[ -])?exceeded|(?:larger|bigger|greater) than (?:the )?(?:configured |allowed |broker |server |permitted |supported )?(?:max|limit)|size exceeding|exceeding the maximum (?:number of bytes|size|length)|datalimitexceeded|<\*> bytes exceeds|exceeds <\*>(?: ?bytes|$)|message exceeds max|exceeds maximum size",
        ),
        (
            "entity",
            _S,
            0.97,
            "too many input tokens|too many tokens in|entity too large|entitytoolarge|payload too large|payloadtoolarge|request too large|requesttoolarge|requestentitytoolarge|request_too_large|message too large|message too long|message is too large|message too big|messagetoolarge|message_too_large|msg_size_too_large|"
            "messagesizeexceeded|recordtoolarge|recordbatchtoolarge|record is too large|record too large|body too large|content too large|document too large|document is too large|bsonobjecttoolarge|object to insert too large|event too large|header too large|headers too large|header fields too large|"
            "headersizeexceeded|header size exceeded|uri too long|batch too large|batch is too large|batchrequesttoolong|item size has exceeded|item too large|string too long|value too large|file too large|file is too large|attachment too large|too large for|too big|frame too large|frame size too large|packet too large|toolongframe|"
            "payload_too_large|max_payload|maximum payload|packet bigger than|max_allowed_packet|rpc message too large|maxmessagesize|max message size|maximum message size|max_message_size|maximum allowed message size|message size exceeds|message size is larger|"
            "message size larger|message larger than max|larger than max|larger than the max|larger than the configured max|exceeds the maximum message|max.request.size|max.message.bytes|exceeded the maximum allowed size|exceeds the maximum allowed size|maximum request length|maximum request size|request body too large|"
            "exceeds the maximum size|exceeds maximum size|exceeded maximum size|exceeds max size|exceed max size|exceeds size limit|exceeds the size limit|size limit exceeded|size exceeds|size exceeded|max size exceeded|maximum size exceeded|exceeds the limit of <*> bytes|exceeds limit of <*> bytes|exceeds maximum allowed|messagesizeexceededexception|"
            "payload size|content length exceeds|content-length exceeds|datatoolong|length limit exceeded|maximum context length|context length exceeded|context_length_exceeded|context window|prompt is too long|fixed maximum message size|message exceeds|payload exceeds|event exceeds|body exceeds",
        ),
        (
            "bytes_over",
            _S,
            0.95,
            "size must be between|bsonobj size|byte",
            r"size must be between|bsonobj size|(?:cannot be (?:longer|larger|greater) than|must be (?:shorter|smaller|less) than|longer than|larger than|greater than|bigger than|more than|exceeds?(?: the)?(?: limit| maximum| max)?(?: of)?|limit of|limit is|maximum(?: is| of)?|when max is|max(?:imum)? size(?: is| of)?)[ :(]{1,3}<\*> ?(?:bytes|byte|[kmg]i?b)(?![a-z])",
        ),
        ("smtp", _S, 0.9, "552|523|5.3.4", r"(?:552|5[.]3[.]4|523)[^\n]{0,80}(?:size|large|exceed)"),
    ),
    *_rules(
        Cause.RESOURCE_EXHAUSTED,
        "resource",
        ("redis_disk", _S, 0.9, "misconf redis|able to persist on disk"),
        (
            "disk",
            _S,
            0.98,
            "not enough storage|disk error|disk i/o|kafkastorage|insufficient system storage|insufficient space|insufficient storage space|insufficient system resources|no space left|enospc|disk full|diskfull|disk is full|disk quota exceeded|edquot|not enough space|there is not enough space|insufficient disk|insufficientstorage|insufficient storage|out of disk|low disk space|disk usage exceeded|flood stage|flood-stage|free disk space|"
            "storage quota|storage limit|storage is full|bucket quota|quota of storage|could not extend file|tablespace|filegroup is full|is full due to|database is full|sqlite_full|database or disk is full|read-only-allow-delete|read-only / allow delete|write failed: disk",
        ),
        (
            "disk_code",
            _S,
            0.95,
            "errno 28|error 28|os error 112|ora-01653|ora-01654|ora-01652|ora-00257|ora-19809|ora-30036|ora-01688|53100|msg 1105|msg 9002|1114",
            r"errno:? ?28(?![0-9])|(?:system|os) error 28(?![0-9])|os error 112|ora-0{0,4}(?:1653|1654|1652|257|19809|30036|1688)(?![0-9])|(?:sqlstate|state)[ :=\[]{1,3}53100|msg (?:1105|9002)(?![0-9])|(?:error|\() ?1114(?![0-9])",
        ),
        (
            "memory",
            _S,
            0.97,
            "resources exceeded|allotted memory|memory limit|memory exceeded|outofmemory|out of memory|out-of-memory|cannot allocate memory|can't allocate memory|unable to allocate|failed to allocate memory|memory allocation failed|allocation failed|memoryerror|bad_alloc|enomem|java heap space|gc overhead limit|heap out of memory|allowed memory size|"
            "insufficient memory|insufficientmemory|not enough memory|memory limit exceeded|memory limit reached|exceeded memory limit|exceeded the memory limit|memory quota|oom command not allowed|used memory > 'maxmemory'|maxmemory|circuit_breaking_exception|data too large, data for|nomemoryerror|failed to allocate|metaspace|unable to create native thread|"
            "unable to create new native thread|can't start new thread|resource temporarily unavailable|memory resource alarm|memory alarm|memory high watermark|mem_alloc|nobufferspace|no buffer space|enobufs|insufficient_memory|53200|work_mem|shared memory",
        ),
        ("oom_killed", _S, 0.8, "oomkilled|oom-killed|oom killer|oom-kill"),
        (
            "handles",
            _S,
            0.98,
            "too many open files|emfile|enfile|too many files open|file descriptors|out of file handles|no more handles|handle limit|errno 24",
        ),
        (
            "connections",
            _S,
            0.95,
            "slots reserved|remaining slots|slots are reserved|no free slots|no available slots|too many connections|too many clients|toomanyconnections|connection slots|connection limit exceeded|connection limit reached|max number of clients reached|maximum number of connections|max connections|max_connections|max_user_connections|max_client_conn|no more connections allowed|"
            "too many database connections|connection_limit|ora-00018|ora-00020|ora-12516|ora-12519|ora-12520|53300|channelmax|channel-max|channel_max|maximum number of channels|resource limit exceeded|resource limits reached|connections on this instance|remaining connection",
        ),
        ("mysql_connections", _S, 0.9, "1040|1203|1226", r"(?:error |\(|code[:= ]{1,2})(?:1040|1203|1226)(?![0-9])"),
        (
            "session_limit",
            _S,
            0.85,
            "resource id : <*>|request limit for the database|session limit for the database|worker threads|the limit for the database|elastic pool",
        ),
        (
            "blocked",
            _U,
            0.85,
            "thresholds exceeded|threshold exceeded|nodes are available: |insufficient pods|no nodes available to schedule|connection.blocked|connection blocked|low on disk|low on memory|resource alarm|insufficient resources|insufficient_resources|insufficient cpu|out of resources|resources exhausted|address already in use|cannot assign requested address|eaddrnotavail|ephemeral port|port exhaustion|snat port",
        ),
        ("status", _S, 0.9, *_status("507")),
    ),
    *_rules(
        Cause.CONSUMER_STUCK,
        "stuck",
        (
            "time_limit",
            _S,
            0.95,
            "timelimitexceeded|time limit exceeded|hard time limit|soft time limit|jobtimeoutexception|job timeout|task exceeded maximum timeout|exceeded maximum execution time|maximum execution time|max execution time|execution time limit|job exceeded|task timeout|function timed out|functiontimeout|functiontimeoutexception|"
            "execution timed out|lambda timed out|workflow timed out|starttoclosetimeout|start_to_close|start-to-close|heartbeattimeout|schedule_to_close|worker timeout|exceeded its time limit|exceeded time limit|exceeded the time limit|handler timed out|handler timeout|task took too long|job took too long|worker took too long",
        ),
        (
            "task_timed_out",
            _S,
            0.93,
            "timed out",
            r"(?:task|job|handler|function|lambda|activity|step|worker|script|process|hook|consumer|invocation)(?: [^\n ]{1,80}){0,3} (?:has )?timed out(?: after|[.!]|$|\n)",
        ),
        ("laravel_timeout", _S, 0.9, "has timed out", r"has timed out[.!]?(?:$| in |\n)"),
        (
            "killed",
            _S,
            0.95,
            "workerlosterror|worker lost|workerlost|worker exited prematurely|work-horse terminated|workhorse terminated|waitpid returned|worker process died|worker died|worker was killed|worker terminated|worker shutdown|worker crashed|worker has been terminated|process killed|process was killed|process terminated|container killed|"
            "container was killed|killed by signal|terminated by signal|signal: killed|signal: terminated|sigkill|sigterm|exitcode 9|runtime exited|runtime.exiterror|process terminated unexpectedly|worker terminated unexpectedly|exited unexpectedly|deadworker|shutdownexception|zombie job|zombie task|zombie|orphaned job|job was abandoned|job is orphaned|executor lost|executorlostfailure|lost task|lost executor|"
            "killing container|preempted|pod was deleted|pod deleted|node lost|nodelost|nodeshutdown|spot interruption|spot instance|instance terminated|graceful shutdown|shutting down worker|application is shutting down|consumer is shutting down|interrupted by shutdown|workershutdown|worker is shutting down|sidekiq::shutdown",
        ),
        (
            "signal",
            _S,
            0.9,
            "signal|exit|terminated",
            r"(?:signal|killed by|exit(?:ed)?(?: with)?(?: code| status)?)[ :=(]{1,3}(?:9|15|137|143|-9|-15)(?![0-9])|billiard[.]exceptions[.]terminated|(?:^|[\n ])raise terminated",
        ),
        ("evicted", _S, 0.95, "evicted|low on resource|eviction"),
        (
            "probe",
            _S,
            0.95,
            "liveness probe|readiness probe|health check failed|healthcheck failed|failed liveness|crashloopbackoff|back-off restarting|watchdog",
        ),
        (
            "stalled",
            _S,
            0.95,
            "stuck in|stuck at|got stuck|process stuck|removed from the group|removed from group|kicked out|stopped responding|not making progress|job stalled|stalled more than|stalled job|stalled|deadlocked worker|thread starvation|hung task|hung thread|hung consumer|consumer hung|consumer not responding|worker not responding|process not responding|task not responding|stuck thread|stuckthread|no progress|stuck for|is stuck|became unresponsive|unresponsive|blocked for more than|thread blocked|event loop blocked|has been blocked for",
        ),
        (
            "heartbeat",
            _S,
            0.95,
            "missed heartbeat|missed heartbeats|heartbeat missed|heartbeats missed|heartbeat timeout|heartbeat timed out|no heartbeat|heartbeat failed|heartbeat expired|heartbeat lost|lost heartbeat|heartbeat from client|heartbeat session expired|too many heartbeats|too many missed|failed to heartbeat|member failed|fenced|"
            "max.poll.interval|maximum poll interval|max_poll_exceeded|max poll interval|consumer poll timeout|has left the group|group is rebalancing|rebalance in progress|rebalanceinprogress|rebalancing|already rebalanced|session.timeout|leaving group|member_id|consumer cancelled|consumer_cancelled|consumercancelled|consumer was cancelled",
        ),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        ("status", _S, 0.98, *_status("429", "420")),
        (
            "class",
            _S,
            0.97,
            "too many recipients|throttl|toomanyrequests|too many requests|too_many_requests|requestlimitexceeded|request limit exceeded|ratelimit|rate limit|rate-limit|rate_limit|rate exceeded|rate is large|request rate too large|rateexceeded|slowdown|slow down|reduce your request rate|provisionedthroughput|provisioned throughput|throughput exceeded|throughput limit|"
            "limitexceededexception|limit exceeded exception|quota exceeded|quota_exceeded|quotaexceeded|exceeded your current quota|exceeded your quota|exceeds quota|exceed quota|exceeded quota|over quota|over_query_limit|insufficient_quota|quota limit|daily limit|dailylimitexceeded|monthly limit|hourly limit|usage limit|userratelimitexceeded|"
            "requests per second|requests per minute|requests per hour|requests/minute|requests/min|per second exceeded|per minute exceeded|emails per second|messages per second|sending limit|send limit|sending rate|maximum sending rate|sending quota|too many emails|too many messages|too many concurrent|too many calls|too many attempts, please|too many login attempts|too many queries|too many operations|too many updates|"
            "concurrency limit|concurrent request|concurrent executions|concurrent connections limit|maximum concurrent|simultaneous requests|api calls|call limit|reserved concurrency|es_rejected_execution|rejectedexecution|rejected execution|bulk queue|enhance your calm|enhance_your_calm|backoff requested|retry-after|back off|serverbusy|server is busy|server too busy|server_busy|system is busy|"
            "activity limit|dropped due to rate|overload_limit|spending limit|burst limit|bandwidth limit|bandwidthlimit|tokens per min|credit balance|flow control|kafka quota|producer quota|token for <*> price|req dropped",
        ),
        (
            "pace",
            _S,
            0.93,
            "per second|per minute|per hour|per day|a second|a minute|/second|/minute|/sec|/min",
            r"(?:calls|requests|messages|queries|operations|tokens|emails|mails|events|writes|reads|updates|api|sms|limit|<\*>)(?: ?/| per| a) ?(?:second|minute|hour|day|sec|min)(?![a-z])[^\n]{0,60}(?:exceed|limit|reduce|slow|reached|for|max)|(?:exceed|limit|reduce|more than|maximum)[^\n]{0,60}(?:calls|requests|messages|queries|operations|tokens|emails|mails|events|writes|reads|updates|sms|<\*>)(?: ?/| per| a) ?(?:second|minute|hour|day|sec|min)(?![a-z])",
        ),
        (
            "credits",
            _S,
            0.9,
            "credit",
            r"credits? (?:limit|exceeded|exhausted|used up|balance)|(?:out of|no|insufficient|not enough|maximum|too few|exceeded) (?:[a-z]{1,12} )?credits?",
        ),
        (
            "smtp",
            _S,
            0.9,
            "deferred|greylist|graylist|try again later|4.7.",
            r"(?:421|450|451|452|4[.][27][.][0-9]{1,3})[^\n]{0,120}(?:(?<!status=)(?<!stat=)deferred|greylist|graylist|(?<![a-z])rate(?![a-z])|too many|try again later|limit)|<\*>[^\n]{0,120}(?:(?<!status=)(?<!stat=)deferred|greylist|graylist|too many)|greylisted|graylisted|ip address deferred",
        ),
        ("mail_deferred", _G, 0.5, "status=deferred|stat=deferred|temporarily deferred|delivery deferred"),
        (
            "limit",
            _U,
            0.7,
            "limit exceeded|limit reached|exceeded limit|exceeded the limit|limit has been reached|limit was reached|over the limit|over limit",
        ),
        ("in_flight", _S, 0.9, "in flight messages|in-flight messages|inflight messages|overlimit"),
        ("grpc", _U, 0.85, "resource_exhausted|resourceexhausted|resource exhausted|resource has been exhausted"),
        (
            "azure",
            _S,
            0.9,
            "50002|50008|50009|msg 40501|40501|49918|49919|49920|10928|10929",
            r"(?:error|code|msg|error code|errorcode)[ :=]{1,3}(?:50002|50008|50009|40501|4991[89]|49920|1092[89])",
        ),
    ),
    *_rules(
        Cause.AUTH_FAILURE,
        "auth",
        (
            "signature",
            _S,
            0.95,
            "hmac|signatureverification|no signatures found|verify jwt|verify the jwt|verify signature|verify the signature|signature is invalid|webhook signature",
        ),
        (
            "certificate",
            _S,
            0.96,
            "certificate|x509|pkix|cert_|ssl_cert|trust anchor|untrusted root|untrustedroot",
            r"certificate (?:has |is )?(?:expired|not trusted|untrusted|revoked|required|unknown|invalid|problem|verify failed|verification failed|not yet valid|is not valid|signed by unknown|chain|relies on|rejected|error)|certificate_(?:verify|expired|unknown|required|revoked)|x509:|pkix path|cert_(?:has|not|signature|untrusted|revoked|expired)|self[ -_]signed|"
            r"ssl certificate|sslcertverif|certificateexception|certificateexpired|certpathvalidator|certpathbuilder|remote certificate is invalid|unable to (?:find valid certification|get (?:local )?issuer|verify the first)|bad certificate|bad_certificate|trust anchor|untrusted ?root|client certificate|certificate verify|invalid certificate|altnames|(?:hostname|host name|name)[^\n]{0,120}certificate|certificate[^\n]{0,120}(?:expired|match|valid for|unknown authority)",
        ),
        (
            "self_signed",
            _S,
            0.95,
            "self signed certificate|self-signed certificate|self_signed_cert|unable_to_verify_leaf|unable_to_get_issuer|err_tls_cert|sslpeerunverified|unknown_ca|unknown ca|alert bad certificate",
        ),
        (
            "token",
            _S,
            0.97,
            "session expired or invalid|invalid session|invalid_session|session id is invalid|session is invalid|session is not valid|session token|expiredtoken|token expired|token has expired|token is expired|token included in the request is|tokenexpired|expired token|token_expired|jwt expired|jwt is expired|expiredjwt|expiredsignature|signature has expired|signature expired|signaturedoesnotmatch|signature does not match|signature mismatch|invalidsignature|invalid signature|signature verification failed|"
            "signature we calculated|requesttimetooskewed|request time too skewed|invalidclienttokenid|unrecognizedclient|unrecognized client|invalidaccesskey|invalid access key|access key id you provided|missingauthenticationtoken|missing authentication|invalid token|invalidtoken|invalid_token|token is invalid|token was rejected|token revoked|token has been revoked|invalid_grant|invalid_client|"
            "unauthorized_client|invalid bearer|refresh token|refreshtoken|access token|access_token|jsonwebtokenerror|authenticationtoken|jwt malformed|invalid jwt|session expired, please log|session has expired|not logged in|login required|please log in|expired credentials|credentials expired|credentials have expired|expired_token|aadsts|put token failed|sas token|csrf token",
        ),
        (
            "credentials",
            _S,
            0.97,
            "auth fail|bad credentials|invalid credentials|invalid credential|wrong credentials|incorrect credentials|credentials are not valid|invalid api key|invalid api_key|invalid_api_key|invalid apikey|incorrect api key|api key not valid|api key is invalid|api key expired|missing api key|no api key|api key not found|invalid password|incorrect password|wrong password|wrongpass|password authentication failed|"
            "login failed|login incorrect|login was refused|logon failure|logon failed|access denied for user|authentication failed|authenticationfailed|authentication failure|authentication error|authenticationerror|authenticationexception|authentication required|authentication unsuccessful|authentication credentials|authentication is required|authentication needed|failed to authenticate|could not authenticate|unable to authenticate|"
            "cannot authenticate|not authenticated|unauthenticated|saslauthentication|sasl authentication|sasl handshake|noauth|nocredential|no credentials|unable to locate credentials|unable to load credentials|could not load credentials|unable to load aws credentials|credentials could not|credentials not|credentialsprovider|could not find credentials|default credentials|defaultcredentials|credentialunavailable|partial credentials|missing credentials|"
            "auth failed|auth failure|authfailure|authfailed|auth error|autherror|invalid auth|invalid_auth|invalidauth|authorizationheader|authorization header|authorization required|account is disabled|account disabled|account locked|account is locked|account suspended|account has been suspended|user is disabled|password has expired|password expired|password must be changed|no password supplied|"
            "username and password not accepted|username or password|userauth|publickey|host key verification|kerberos|gssapi|sspi|no pg_hba.conf entry|ntlm|ldap: error code 49|mechanism plain|could not authenticate to|unauthorised|invalid user|security token|invalid_user_token|invalidcredential|api token|api_token|apitoken",
        ),
        (
            "database_code",
            _S,
            0.97,
            "ora-01017|ora-1017|ora-28000|ora-28001|ora-01031|ora-01045|28p01|28000|42501|msg 18456|18456|1045|1142|1044|1143|msg 229|msg 916|4060",
            r"ora-0{0,4}(?:1017|28000|28001|1031|1045)(?![0-9])|(?:sqlstate|state)[ :=\[(]{0,3}(?:28p01|28000|42501)|(?:28p01|28000|42501)(?![0-9a-z])|msg (?:18456|229|916)(?![0-9])|(?:error|error:|\(|code:) ?(?:18456|1045|1142|1044|1143)(?![0-9])",
        ),
        (
            "lacking",
            _S,
            0.93,
            "authorization|permission|access|rights|privilege",
            r"(?<!or you )(?:does not|doesn't|do not|don't|did not|has no|have no|without|lacks?|missing|no|insufficient)(?: have)?(?: the| any| sufficient| enough| required| necessary| proper)?(?: [a-z.:*_]{1,40})? (?:authorization|permissions?|access rights|access to|rights|privileges?)(?![a-z])",
        ),
        (
            "permission",
            _S,
            0.95,
            "readonly database|read-only file system|erofs|servicedisabled|service_disabled|accessnotconfigured|access not configured|has not been used in project|is disabled for this account|accessdenied|access denied|access is denied|access_denied|access refused|access_refused|access forbidden|permissiondenied|permission_denied|permission denied|permissions denied|permission to|permission error|permissionerror|permissions error|eacces|operation not permitted|not permitted to|is not allowed to access|no permission|lacks permission|does not have permission|doesn't have permission|do not have permission|don't have permission|"
            "not have sufficient|insufficient permission|insufficient privilege|insufficientprivilege|insufficient scope|insufficient_scope|insufficientpermissions|insufficient access|insufficient rights|insufficientauth|insufficient authentication|missing scope|missing permission|required permission|not authorized|not authorised|notauthorized|unauthorizedaccess|unauthorizedoperation|unauthorizedexception|unauthorized|authorizationexception|"
            "authorizationfailed|authorization failed|authorization error|authorizationerror|authorization_error|topicauthorization|groupauthorization|clusterauthorization|topic_authorization|group_authorization|command denied|noperm|forbidden|explicit deny|is not authorized|accesscontrolexception|securityexception|unauthorizedclaim|claim is empty|claim(s) are required|send claim|listen claim|ip address is not allowed|ip not allowed|not whitelisted|not on the allow|blocked by policy|"
            "denied by policy|denied the request|kms|assumerole|not entitled|subscription is required|privilege",
        ),
        ("status", _S, 0.95, *_status("401", "403", "407", "511")),
        (
            "smtp",
            _S,
            0.95,
            "530|534|535|538|5.7.",
            r"(?:code \"?|^|[^0-9])(?:530|534|535|538)(?:[ -\"]|$)|5[.]7[.](?:0|1|3|8|9|14|57)(?![0-9])[^\n]{0,60}auth",
        ),
        (
            "mail_policy",
            _S,
            0.85,
            "spf|dkim|dmarc|spam|unsolicited|blacklist|blocklist|block list|reputation|not a sender",
            r"(?:5[0-9]{2}|5[.]7[.]|bounced|rejected|blocked|denied|<\*>)[^\n]{0,160}(?:(?<![a-z])spf(?![a-z])|dkim|dmarc|(?<![a-z])spam|unsolicited|blacklist|block ?list|reputation)|not a sender",
        ),
        (
            "ssh",
            _U,
            0.8,
            "invalidsecret|invalid secret|secret not found|secretnotfound|decrypt|decryption failed|bad decrypt|invalid key",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        ("deadlock", _S, 0.98, "deadlock"),
        (
            "serialization",
            _S,
            0.97,
            "could not serialize|serialization failure|serializationfailure|serialization_failure|restart transaction|restarting transaction|retry txn|transactionretry|transaction retry|retry your operation or multi-document|retry transaction|transienttransactionerror|writeconflict|write conflict|write_too_old|transaction aborted due to|snapshot isolation transaction|snapshot too old|"
            "cannot serialize access|can't serialize access|try re-issuing transaction|transactioncanceledexception|transactionconflict|transaction conflict|transaction was aborted|aborted due to concurrent|rollback due to concurrent|transaction has been rolled back|chosen as the deadlock victim|serializable isolation violation|conflicting transaction",
        ),
        (
            "code",
            _S,
            0.97,
            "40001|40p01|55p03|57p01|57p02|57p03|25006|57014|08006|08003|08001|08s01|1213|1205|1222|3960|ora-|2006|2013|-911|-913|sqlcode|-2146232060|1317|3024|1290|1836|40613|40197|10053|233",
            r"(?:sqlstate|state)[ :=\[(]{0,3}[\"']?(?:40001|40p01|55p03|57p0[123]|25006|08006|08003|25p02)|(?:^|[^0-9a-z])(?:40p01|55p03|57p0[123])(?![0-9a-z])|[( ](?:40001)[):]|(?:error|error:|msg|\(|code:|code) ?(?:1213|1205|1222|3960|2006|2013|2055|1290|1836|40613|40197)(?![0-9])|ora-0{0,4}(?:60|54|8177|3113|3114|3135|25408|25402|1033|1034|1089|1092|4021|4068|30006|2049|1555|12505|12514|12518|12521|12526|12527|12528|24756|25401|25403|25405)(?![0-9])|sqlcode[ :=]{1,2}-?(?:911|913|904|912)(?![0-9])",
        ),
        (
            "lock_wait",
            _S,
            0.97,
            "could not be acquired|waiters for this lock|number of waiters|unable to lock|unable_to_lock|could not lock|failed to lock|cannot lock|exclusive access to this record|lock wait timeout|lock request time out|lock timeout|locktimeout|could not obtain lock|cannot acquire lock|cannotacquirelock|could not acquire lock|unable to acquire lock|pessimisticlock|locknotavailable|lock_not_available|lockacquisition|database is locked|database file is locked|database table is locked|table is locked|database schema is locked|sqlite_busy|sqlite_locked|sqlite3.busyexception|"
            "resource busy and acquire|being locked by another|locked by another transaction|lock escalation|lock conflict|row is locked|busyexception|lock contention|lockingexception|queryblocked|record lock|while it is being locked",
        ),
        (
            "failover",
            _S,
            0.95,
            "failover|fail over|read-only transaction|read only transaction|readonly transaction|read-only mode|read only replica|read-only replica|readonly you can't write|--read-only|super-read-only|read_only option|is read-only|in read only mode|notwritableprimary|not writable primary|not primary|notprimary|notmaster|not master|not the primary|primarysteppeddown|primary stepped down|interruptedatshutdown|interrupteddueto|node is recovering|"
            "in recovery mode|recovery conflict|conflict with recovery|hot standby|database system is shutting down|is being recovered|being restored|server is shutting down|server shutdown in progress|terminating connection|administrator command|admin shutdown|adminshutdown|crash of another server process|no primary|primary server|no master|no writable|standby|switchover|leader changed|leader election",
        ),
        (
            "gone",
            _S,
            0.95,
            "database is closed|database connection closed|database connection is closed|database is not open|not connected to the database|connection pool is closed|pool is closed|pool was closed|pool is draining|gone away|lost connection to mysql|lost connection to server during|server closed the connection unexpectedly|connection already closed|connection is already closed|connection terminated unexpectedly|connection has been closed|this connection has been closed|connection is closed|connection was killed|connection not open|no operations allowed after connection closed|driver: bad connection|invalid connection|bad connection|"
            "client has encountered a connection error|communications link failure|communication link failure|packets out of order|ssl syscall error|pg::connectionbad|pg::unabletosend|connectionnotestablished|connection not established|connectiondoesnotexist|connectiondoesnotexisterror|interfaceerror: connection|interfaceerror|connection to the server was lost|operationalerror: (2013|operationalerror: (2006|mysql server has|cursor closed|protocol error, session",
        ),
        (
            "pool",
            _S,
            0.93,
            "queuepool|pool exhausted|pool is exhausted|pool timeout|pooltimeout|pool_timeout|from the pool|from pool|hikari|connection is not available, request timed out|obtaining a connection|timed out fetching a new connection|could not get jdbc connection|unable to acquire jdbc connection|cannot get a connection|could not obtain a database connection|waiting for a connection|acquiring connection|acquireconnection|connection acquisition|acquire connection|get connection timeout|"
            "max pool size|connectiontimeouterror: could not obtain|p2024|timeout acquiring a connection|knex: timeout|pool error|sequelizeconnectionacquiretimeout|resourcerequest timed out|wait for connection|waiting for idle object|too many waiters|connection pool is full|connection pool timeout|connection pool exhausted|connection pool limit|connection pool is exhausted|connection pool timed out|no available connection in pool|query_wait_timeout",
        ),
        (
            "statement_timeout",
            _S,
            0.9,
            "querytimeoutexception|command timeout expired|timeout expired before|coordinator node timed out|writetimeoutexception|write timeout|during write query|during read query|during simple write|waiting for replica nodes|statement timeout|statement_timeout|querycanceled|query canceled|query cancelled|canceling statement|execution timeout expired|timeout expired.|query timeout|querytimeout|sqltimeoutexception|query execution was interrupted|maximum statement execution time|max_execution_time|operation exceeded time limit|maxtimemsexpired|readtimeoutexception: query|querytimedout|lock_timeout|wait_timeout|commandtimeout|command timeout|idle-in-transaction|idle in transaction|current transaction is aborted|infailedsqltransaction",
        ),
        (
            "transient",
            _U,
            0.85,
            "was rolled back|been rolled back|rolled back by|transient failure|transient error|transient fault|transientdataaccess|sqltransient|sqlrecoverable|transient database|transienterror: database|recoverabledataaccess|cannotcreatetransaction|could not open jpa entitymanager|could not open connection|unable to commit against jdbc|unable to rollback|jdbcconnectionexception|retryablecommit|transaction rolled back because|transient transaction|psycopg2.operationalerror: ssl|sequelizedatabaseerror: timeout|dbexception: timeout",
        ),
    ),
    *_rules(
        Cause.DUPLICATE,
        "duplicate",
        (
            "already_done",
            _U,
            0.85,
            "already",
            r"(?:has|was|have|is) already (?:been )?(?!clos|expir|delet|remov|rebalanc|exceed|terminat|lock|dispos|stopp|cancel|fail|disconnect|exhaust|abort|releas|start|block|destroy|dropp)[a-z]{2,20}(?:ed|ped)(?![a-z])",
        ),
        (
            "unique",
            _S,
            0.98,
            "duplicate key|duplicatekey|duplicate entry|duplicateentry|unique constraint|uniqueconstraint|unique violation|uniqueviolation|unique_violation|unique index|unique key|violates unique|violation of primary key|primary key constraint|primary key violation|primary key must be unique|must be unique|recordnotunique|not unique|e11000|dup key|p2002|already been taken|has already been taken|sequelizeuniqueconstraint|duplicate record|duplicate value|duplicate row|duplicate object|duplicate document|duplicate primary|dup_val_on_index|column is not unique|columns are not unique|integrity constraint violation: 1062",
        ),
        (
            "code",
            _S,
            0.97,
            "23505|1062|ora-00001|ora-1:|2627|2601|11000|-803|sqlite_constraint_unique|sqlite_constraint_primarykey|1586",
            r"(?:sqlstate|state)[ :=\[(]{0,3}[\"']?23505|(?:^|[^0-9a-z])23505(?![0-9a-z])|(?:error|error:|msg|\(|code:|code) ?(?:1062|2627|2601|11000|1586)(?![0-9])|ora-0{0,4}1(?![0-9])|sqlcode[ :=]{1,2}-?803|sqlite_constraint_(?:unique|primarykey)",
        ),
        (
            "processed",
            _S,
            0.95,
            "received before|seen before|processed before|handled before|already seen|already received|executionalreadystarted|already started|alreadystarted|already running|already scheduled|already enqueued|already queued|already processed|already been processed|already handled|already been handled|already completed|already been completed|already consumed|already executed|already applied|already delivered|already submitted|already sent|already paid|already captured|already refunded|already been refunded|already been captured|already settled|already recorded|already imported|already ingested|already in use|already registered|already subscribed|already charged|duplicate message|duplicate event|duplicate request|duplicate transaction|duplicate order|duplicate payment|duplicate submission|duplicate delivery|duplicatemessage|duplicaterequest|duplicate id|duplicate detected|duplicate found|"
            "idempoten|message already|messagealready|event already|job already|order already|replayed message|replay detected|messagededuplication|deduplicat|request has already been|operation has already|nonce too low|already known",
        ),
        (
            "exists",
            _S,
            0.93,
            "already exists|alreadyexists|already_exists|already exist|alreadyowned|resourceexists|entityexists|eexist|file exists|exists already|resource_already|duplicate name|resourcealreadyexists|entityalreadyexists|objectalreadyexists|blobalreadyexists|is already present|already present",
        ),
        ("status", _G, 0.6, *_status("409")),
        ("conflict", _G, 0.5, "conflict"),
        ("hibernate_constraint", _G, 0.7, "hibernate.exception.constraintviolation"),
        (
            "word",
            _U,
            0.8,
            "duplicate",
            r"duplicate (?:[a-z_-]{1,30} )?(?:id|key|detected|found|ignored|rejected|exception|error|insert|record|name|value)",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        (
            "said",
            _S,
            0.95,
            'docker daemon|daemon running|daemon is not running|masterdown|master is down|link with master|running replica|maxretriesperrequest|max retries per request|leadership election|election in progress|electing|code = unavailable|code=unavailable|statuscode="unavailable"|statuscode=unavailable|statuscode.unavailable|14 unavailable|dial unix|unix socket|through socket|serviceunavailable|service unavailable|state not recovered|available brokers|out of available',
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "said",
            _S,
            0.95,
            "does not exist in the store|couldn't find ",
            r"does not exist in the store|couldn't find [a-z:]{1,80} with",
        ),
    ),
    *_rules(
        Cause.CONSISTENCY_LAG,
        "lag",
        ("stale", _S, 0.88, "is stale|are stale|was stale|stale read|stale follower|if-match failed"),
        (
            "version",
            _S,
            0.95,
            "is not the latest|not the latest version|not the current version|conflict occurred|conflict_error|updated since|changed since|since last read|since it was read|since the last read|the wrong version|wrong version of|watched variable|watcherror|has been compacted|wrong last sequence|wrong sequence|fast forward|fast-forward|cas operation|sha does not match|unexpected starting version|unexpected version|concurrencyexception|concurrencyerror|stale version|expected revision|wrong revision|out of date version|expected seqno|expected sequence|no matching document found for id|version conflict|version_conflict|versionconflict|version mismatch|versionmismatch|optimistic lock|optimisticlock|optimistic concurrency|optimistic_lock|optimisticconcurrency|optimisticentitylock|staleobjectstate|staleobject|stale object|stale element|staledata|stale data|stale read|stale version|stale state|stale row|row was updated or deleted by another|updated by another transaction|updated by another|changed by another|modified by another|modified since|has been modified|been changed since|base version|expected version|wrongexpectedversion|wrong expected version|"
            "concurrent modification of|concurrent update|concurrently updated|concurrently modified|concurrent write|update conflict|document update conflict|edit conflict|etag mismatch|etag does not match|if-match|preconditionfailed: etag|conditionnotmet|condition not met|condition specified using http conditional|conditional operation is currently|conflicting conditional operation|operationaborted|concurrentmodificationexception: aggregate|aggregate version|eventstore|revision conflict|conflict: document|sequence conflict|concurrency violation|concurrencyfailure|"
            "cas mismatch|casmismatch|cas_mismatch|compare and swap|compareandset|generation mismatch|mod_revision|badversion|bad version",
        ),
        (
            "in_progress",
            _S,
            0.93,
            "contention|too much contention|contention on|statusruntimeexception: aborted|update is in progress|update in progress|operation in progress|operation is in progress|another operation|operation already in progress|resourceconflict|resource conflict|resourceinuse|resource in use|resource is in use|resource is being|currently being modified|being modified|being updated|being created|being deleted|being provisioned|pending state|is in the following state: pending|incorrectstate|incorrect state|invalidstate: pending|not ready yet|not yet ready|not yet available|not available yet|not yet visible|not yet exist|does not exist yet|doesn't exist yet|not found yet|not yet created|not yet been created|not yet replicated|not yet committed|not yet complete|not yet processed|not yet synced|not yet propagated|not propagated|has not been replicated|has not propagated|"
            "please retry later, the|still processing|still pending|still in progress|still being|conflict_exception|conflictexception",
        ),
        (
            "replica",
            _S,
            0.95,
            "replica lag|replication lag|replica is behind|replica behind|replica not caught up|lagging|behind the primary|behind primary|behind leader|behind the leader|not caught up|not up to date|not up-to-date|not in sync|out of sync|eventual consistency|eventually consistent|read-your-writes|read your writes|snapshot not available|snapshot unavailable|afterclustertime|readconcern|staleread|too stale|catching up|schema mismatch, retry|schema not in agreement|schema agreement",
        ),
        (
            "kafka",
            _S,
            0.85,
            "leader_not_available|leadernotavailable|leader not available|not_leader_or_follower|notleaderorfollower|not_leader_for_partition|notleaderforpartition|not leader for partition|unknown_leader_epoch|fenced_leader_epoch|offset_not_available|replica_not_available|replicanotavailable|preferred_leader|metadata not propagated|not present in metadata after",
        ),
        (
            "transaction_try_again",
            _U,
            0.8,
            "please apply your changes to the latest version|retry with the latest|refetch|reload and try|re-read|try again with the latest|please reload|please refresh|please try your changes again",
        ),
        ("mongoose_version", _S, 0.93, "versionerror", r"(?<![a-z])versionerror"),
        ("status", _S, 0.85, *_status("412", "423", "425", "428")),
        (
            "precondition",
            _U,
            0.7,
            'dbupdateconcurrency|concurrencyexception|concurrency exception|concurrency conflict|precondition failed|preconditionfailed|expectationfailed|code = aborted|statuscode="aborted"|statuscode.aborted|10 aborted',
        ),
    ),
    *_rules(
        Cause.ROUTING_FAILURE,
        "routing",
        ("declared_otherwise", _S, 0.85, "inequivalent arg"),
        (
            "queue",
            _S,
            0.97,
            "partner profile|queuedoesnotexist|nonexistentqueue|queue does not exist|queue doesn't exist|no such queue|unknown queue|queue not found|queuenotfound|no queue|specified queue|queue named|not_found - no|no exchange|no binding|no such exchange|exchange not found|unroutable|no_route|no route, |message returned|no route for|no route found|no route matched|no route configured|no routes|no matching route|norouteexception|basic.return|returned message|mandatory message|"
            "unknowntopic|unknown topic|unknown_topic|unknowntopicorpartition|invalidtopic|invalid topic|invalid_topic|does not host this topic|topic does not exist|topic doesn't exist|topic not found|topicnotfound|no such topic|topic_not_found|topicdoesnotexist|subscription not found|subscription does not exist|subscription doesn't exist|subscriptionnotfound|topicterminated|topic was terminated|topic has been terminated|stream not found|no such stream|no stream matches|no responders|messagingentitynotfound|messaging entity|"
            "entity could not be found|entitynotfound: queue|messagingentitydisabled|entitydisabled|entity is disabled|is disabled for|queue is disabled|topic is disabled|entity is currently disabled|destination does not exist|destination not found|no such destination|unknown destination|invalid destination|invaliddestination|destination unavailable|no destination|destinationresolution|could not resolve destination|endpointnotfound|no endpoint|unknown endpoint|dispatcher has no subscribers|no subscribers|no subscriber|has no consumers|no consumers|missing local cluster name|namespace not found|namespace does not exist|no partition|vhost|non-existent vhost",
        ),
        (
            "topic_path",
            _S,
            0.95,
            "notfound|not found|not_found",
            r"(?:code ?=? ?notfound|not[ _]?found)[^\n]{0,60}(?:topic|subscription|queue|exchange)|(?:topic|subscription|queue|exchange)(?: [\"'\[(]?[^\n ]{1,120})? (?:was |is |could |can )?not (?:be )?found",
        ),
        (
            "full",
            _S,
            0.93,
            "maxlen|queue is full|queue full|queuefull|queue length limit|queue limit|max-length|max length reached|reject-publish|destination full|mailbox is full|mailbox full|topic is full|quota for entity|entity has reached|backlogquota|backlog quota|producerblockedquota|maximum queue size|queue size exceeded|maximum entity size|over its quota of messages|queue depth|amqp:resource-limit-exceeded",
        ),
        (
            "handler",
            _S,
            0.96,
            "dead letters encountered|not deliverable|undeliverable|unregistered|baddevicetoken|wrong destination|unknown message|unregistered task|notregistered|not registered|no handler|nohandler|handler not found|no handlers|handler for message|could not find handler|unable to find handler|cannot find handler|missing handler|no message handler|no listener for|no listener found|no listener registered|no consumer for|no processor|no such job|unknown job|unknown task|unknown message type|unknown messagetype|unknown event type|unknown event|unknown command|unknown type of message|unknown action|unrecognized event|unrecognized message type|unsupported message type|unsupported event|unsupported message|unhandled message|unhandled event|unexpected message type|unexpected event type|no suitable handler|no matching handler|no mapping for|"
            "not handled during|not accepted in state|unhandledevent|no saga|saga not found|no workflow registered|workflow type|activity type|activitynotregistered|no worker for|no actor|actornotfound|unknown actor|deadletters|unimplemented|unknown service|unknown method|method not found|service not found|no such service|no such method rpc|function not found: arn|functionnotfound|no such procedure|unknown procedure",
        ),
        (
            "lacking",
            _S,
            0.9,
            "handler|processor|listener|subscriber|route|binding",
            r"(?:missing|no|unknown|without an?|lacks an?|not find an?)(?: (?:suitable|matching|registered|appropriate|known|event|message|command|process|task|job|queue|such|valid|configured|available|default)){0,3} (?:handler|processor|listener|subscriber|subscription|route|binding)s?(?![a-z]| to host)",
        ),
        (
            "session",
            _S,
            0.95,
            "session id is null|requires sessions|sessionful|session-enabled|session is required|no session|sessioncannotbelocked|session cannot be locked|sessionid|session id cannot|without a session|session identifier is null|session enabled entity",
        ),
        ("filter", _S, 0.9, "filterexception|filter exception|ruleactionexception|rule action exception"),
        (
            "hops",
            _S,
            0.97,
            "too many hops|hop count|allowed hops|maxtransferhop|transfer hop|max hops|hops exceeded|mail loop|routing loop|message loop|loop detected|5.4.6|cycle detected",
        ),
        ("status", _U, 0.8, *_status("405", "501", "508")),
        (
            "mail",
            _U,
            0.75,
            "relay denied|relaying denied|relay not permitted|unable to relay|domain not found|host not found in smtp|no mx|5.4.4",
        ),
        (
            "amqp",
            _U,
            0.7,
            "amqp:not-found|amqp:not-allowed|not_allowed|not-allowed|resource_locked|resource-locked|precondition_failed - inequivalent|inequivalent arg|exclusive access|exclusive consumer|consumerbusy|producerbusy|subscription is exclusive",
        ),
    ),
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        (
            "json",
            _S,
            0.97,
            "jsondecodeerror|json decode|jsonparseexception|jsonparse|json parse|json::parsererror|jsonexception|jsonsyntax|jsonreaderexception|jsonreader|jsonmapping|jsonserialization|jsonmarshal|jsoneofexception|malformedjson|malformed json|invalid json|invalid_json|not valid json|is not json|not a valid json|json syntax|json error|error parsing json|parse json|parsing json|json.parse|json at position|json input|in json|json_error|unexpected token|unexpected end of|unexpected character|unexpected char|expecting value|expecting property name|expecting ',' delimiter|"
            "extra data: line|unterminated string|invalid control character|invalid character|looking for beginning of|cannot unmarshal|unmarshal|unmarshalling|can't unmarshal|trailing characters|eof while parsing|expected value at line|expected `|missing field `|unknown field `|unknown variant|invalid type: |simplejson|orjson|syntaxerror: json|premature end|invalid utf-8 in|mismatchedinput|unrecognizedproperty|unrecognized field|unrecognized property|invalidformatexception|invaliddefinition|invalidtypeid|could not resolve type id|could not read json|cannot deserialize|can't deserialize|could not be converted to|bsonerror|bson",
        ),
        (
            "avro_proto",
            _S,
            0.97,
            "serializationexception|serialization exception|deserializationexception|deserialization|deserializ|deserialis|unknown magic byte|magic byte|invalidprotocolbuffer|invalid protocol buffer|protocol message had|protocol message contained|protocol message tag|while parsing a protocol message|protobuf|wire type|wiretype|proto: |avrotype|avroruntime|to avro|avro schema|avro data|avro message|avrodecode|avro::|avro: |unable to decode|failed to decode|could not decode|cannot decode|decodeerror|decoding error|decode error|decodeexception|decodingexception|thrift|tprotocolexception|msgpack|unpackvalueerror|unpackexception|extradata|cbor|schema registry|schema not found|schemanotfound|incompatible schema|incompatibleschema|schema id|error retrieving avro|unpickling|unpicklingerror|pickle|contentdisallowed|invalid header|corrupted|corruptrecord|corrupt message|crc mismatch|crc error|crc check|invalid crc|checksum mismatch|checksum error|invalid checksum|checksum failed|not in gzip|bad gzip|invalid gzip|gzip: |zlib error|zlib.error|error -3 while decompressing|inflate error|inflating|incorrect header check|decompress|snappy|invalid compressed|base64|illegal base64|incorrect padding|truncated message|truncated payload|invalid frame",
        ),
        (
            "encoding",
            _S,
            0.97,
            "unicodedecodeerror|unicodeencodeerror|codec can't decode|codec can't encode|invalid byte sequence|invalid start byte|invalid continuation byte|malformedinput|malformed input|unmappablecharacter|invalid utf-8|invalid utf8|not valid utf-8|malformed utf-8|incomplete multibyte|encoding::|incompatible character encodings|invalid encoding|invalidbytesequence|character encoding|illegal character|illegal unquoted character|null byte|null character|0x00|\\u0000|22p05|22021",
        ),
        (
            "xml",
            _S,
            0.95,
            "saxparse|saxexception|xmlsyntax|xml syntax|xml parse|xml document|xmlexception|xmlstream|not well-formed|not well formed|mismatched tag|premature end of file|content is not allowed in prolog|root element is missing|root element|cvc-|xsd|unmarshalexception|jaxb|expat|parseerror|parse error|parser error|parsererror|parseexception|parsing error|parsing failed|failed to parse|unable to parse|could not parse|cannot parse|can't parse|error parsing|error while parsing|invalid syntax in|yaml: |yamlexception|yaml parse|scannererror|csv parse|csverror|malformedcsv|wrong number of fields|bare \" in|edifact|hl7|malformed|mangled|garbled",
        ),
        (
            "conversion",
            _S,
            0.93,
            "messageconversion|conversionexception|conversionfailed|conversion failed|failed to convert|could not convert|cannot convert|unable to convert|can't convert|httpmessagenotreadable|messagenotreadable|not readable|messagenotwriteable|cannot construct instance|extract logical messages|messagedeserialization|messageformatexception|message format|invalid message|invalid format|wrong format|bad format|bad message format|badmessage|unexpected format|datetimeparse|for input string|numberformatexception|invalid date|invalid datetime|invalid timestamp|not a valid date|could not be parsed|not a valid uuid|invalid uuid|invalid input syntax|invalid text representation|22p02|22007|invalid input value|datatypemismatch|data_exception|incorrect datetime value|incorrect integer value|out of range value|numeric value out of range|numeric field overflow|string data, right truncat|right truncated|data too long|value too long|would be truncated|data truncat|data truncated|1406|1366|1292",
        ),
        (
            "schema",
            _S,
            0.93,
            "joi validation|joi.|joi: |validationerror|validation error|validationexception|validation exception|validation failed|validation failure|validationfailed|failed validation|schema validation|schemavalidation|jsonschema|json schema|schema violation|schema mismatch|does not match schema|does not conform|doesn't match schema|not match the schema|additional properties|additionalproperties|required property|required field|required fields|required parameter|required attribute|required key|required header|is required|are required|field required|missing field|missing required|missing mandatory|missing property|missing attribute in message|missing header|mandatory field|must not be null|must not be blank|must not be empty|must be a string|must be a number|must be an integer|must be a valid|must be one of|may not be null|cannot be blank|can't be blank|cannot be null|can't be null|not-null constraint|not null constraint|notnullviolation|notnull violation|null value in column|23502|1048|cannot insert the value null|ora-01400|check constraint|23514|checkviolation|checkconstraint|"
            "unprocessable|invalid payload|payload is invalid|invalid request body|invalid body|invalid input|invalid value for|invalid value|invalid enum|no enum constant|is not a valid enum|not a valid choice|value is not a valid|type_error.|value_error.|zoderror|ajv|pydantic|marshmallow|voluptuous|cerberus|methodargumentnotvalid|invalid argument value|invalid content-type|unsupported content type|unsupported media|unsupportedmediatype|content type|no content-type|empty body|empty message|empty payload|message body is empty|body is empty|payload is empty|unsupported schema|schema version|unsupported version|type mismatch|mapper_parsing|mapper_parsing_exception|strict_dynamic_mapping|document_parsing|failed to parse field|illegal_argument_exception: mapper",
        ),
        ("status", _U, 0.8, *_status("400", "406", "415", "422")),
        (
            "request",
            _U,
            0.8,
            "invalidparameter|invalid_parameter|badrequestexception|bad_request|badrequest|bad request|invalid_request|invalidrequest",
        ),
        (
            "refused_state",
            _G,
            0.5,
            "failed precondition|failedprecondition|failed_precondition",
        ),
        (
            "grpc",
            _G,
            0.75,
            "code = outofrange|out_of_range: |statuscode.outofrange|invalidargument|invalid_argument|invalid argument",
        ),
        (
            "constraint",
            _G,
            0.6,
            "constraintviolation|constraint violation",
            r"(?<!hibernate[.]exception[.])constraint ?violation",
        ),
    ),
    *_rules(
        Cause.MISSING_DATA,
        "missing",
        (
            "foreign_key",
            _S,
            0.97,
            "foreign key|foreignkey|foreign_key|referential integrity|is not present in table|parent key not found|23503|1452|1451|ora-02291|ora-02292|a foreign key constraint fails|reference constraint|integrity constraint (|p2003|-530",
        ),
        (
            "record",
            _S,
            0.95,
            "noresultserror|cross reference id|cross_reference|got none in query|no documents|redis: nil|no result set|unabletoreadfile|unable to read file|unable to retrieve|could not retrieve|unknown database|parameternotfound|entity is deleted|record is deleted|row is deleted|object is deleted|is deleted|already deleted|already been deleted|doesnotexist|does not exist in the store|matching query does not exist|recordnotfound|record not found|no such record|record does not exist|couldn't find|could not find|cannot find|can't find|unable to find|was unable to locate|modelnotfound|no query results|entitynotfound|entity not found|objectnotfound|object not found|object does not exist|objectdoesnotexist|documentnotfound|document not found|document_missing|document does not exist|no such document|resourcenotfound|resource not found|resource_not_found|resource does not exist|datanotfound|data not found|no data found|no rows in result|no rows found|no result found|noresultfound|noresultexception|emptyresultdataaccess|incorrect result size|expected 1, actual 0|sequence contains no|sql: no rows|no row was found|row not found|rownotfound|nosuchkey|no such key|key does not exist|"
            "nosuchbucket|nosuchentity|no such entity|nosuchupload|no such object|nosuchfile|no such file|filenotfound|file not found|file does not exist|enoent|path not found|path does not exist|directorynotfound|blobnotfound|containernotfound|blob does not exist|bucket does not exist|itemnotfound|item not found|user not found|usernotfound|customer not found|account not found|order not found|product not found|unknown user|unknown customer|unknown product|unknown order|unknown account|unknown id|unknown sku|no user found|no customer|no order|no product|no account|no matching record|no record|no records found|no longer exists|no longer available|has been deleted|was deleted|been removed|is missing from|missing data|missing record|missing reference|missing row|missing entity|dangling reference|orphan|unknown reference|invalid reference|"
            "nonexistent|non-existent|non existent|index_not_found|ora-01403|no such container|no such image|manifest unknown|manifest for|user unknown|mailbox unavailable|no such user|recipient address rejected|address not found|5.1.1|p2025|an operation failed because it depends on one or more records",
        ),
        (
            "not_found",
            _S,
            0.9,
            "not found|notfound|not_found|does not exist|doesn't exist|not exist|no such| unknown in| unknown to| unknown at",
            r"(?:^|[^a-z])(?:not ?found|not_found)(?![a-z ]{0,3}(?:in module|class|method))|(?:does not|doesn't|did not|do not|not) exist| unknown (?:in|to|at)(?![a-z])|notfound(?:exception|error)|code ?= ?notfound|statuscode[=.\"' ]{0,3}notfound|no such (?!host|method|module|variable|attribute|function|column|table|property|element|algorithm|provider)",
        ),
        ("status", _U, 0.9, *_status("404", "410")),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        ("status", _S, 0.96, *_status("500", "502", "503", "504", "520", "521", "522", "523", "524", "529", "530")),
        (
            "circuit",
            _S,
            0.97,
            "bulkhead|circuit breaker|circuitbreaker|circuit is open|circuit is now open|circuit open|circuitopen|brokencircuit|isolatedcircuit|callnotpermitted|call not permitted|hystrix|short-circuited|shortcircuit|is open and does not permit|breaker is open|breakeropen|opossum|gobreaker",
        ),
        (
            "wording",
            _S,
            0.95,
            "quiescing|quiesced|mqrc_q_mgr|mqrc_host_not|draining|connection_forced|shutting down|service unavailable|serviceunavailable|service_unavailable|service is unavailable|service not available|service is not available|service temporarily|service currently|temporarily unavailable|temporarily_unavailable|temporary unavailable|temporarily out of service|temporarily unable|currently unavailable|not currently available|is unavailable|are unavailable|unavailableexception|bad gateway|badgateway|gateway timeout|gateway time-out|gatewaytimeout|no healthy|upstream connect error|upstream request timeout|upstream unavailable|upstream prematurely|no live upstreams|no available server|no server is available|no servers available|no available backend|backend unavailable|backend is down|backend fetch failed|"
            "internal server error|internalservererror|internal_server_error|internalerror|internal error|internal_error|internal failure|internalfailure|internalfault|internal service error|internalserviceerror|server error|servererror|server_error|apiservererror|we encountered an internal error|unexpected server error|something went wrong|maintenance|under maintenance|planned outage|outage|scheduled downtime|offline|out of service|is down for|service down|is down|are down|was down|is not running|not running|overloaded|over capacity|at capacity|under heavy load|try again in a few|host is unavailable|endpoint unavailable|dependency unavailable|dependency failed|upstream error|upstream failure|upstream service|external service",
        ),
        (
            "cluster",
            _S,
            0.95,
            "loadinprogress|load in progress|is loading|starting up|is starting|not yet accepting connections|isn't ready|is not ready|clusterdown|masterdown|master is down|cluster is down|cluster_down|hash slot not served|tryagain|loading redis|loading the dataset|redis is loading|nohostavailable|no host available|no hosts available|allnodesfailed|all host(s) tried|all hosts tried|not enough replicas|notenoughreplicas|not_enough_replicas|not enough in-sync|in-sync replicas|unable to achieve consistency|cannot achieve consistency|consistency level|no brokers|nobrokersavailable|no broker|broker may not be available|brokernotavailable|broker_not_available|broker not available|brokers are down|brokers down|all broker|broker is not|broker: |no node available|nonodeavailable|no nodes available|no living connections|nolivingconnections|no alive nodes|no shard available|all shards failed|"
            "master_not_discovered|masternotdiscovered|serverselection|server selection|no suitable servers|replicasetnoprimary|no primary found|no reachable servers|no leader|noleader|coordinator not available|coordinatornotavailable|coordinator_not_available|group_coordinator_not_available|coordinator is not available|no quorum|lost quorum|quorum|etcdserver|zookeeper|connectionloss|sessionexpired for|no connection is available to service|noconnection|it was not possible to connect to the redis|connection to node|could not be established. broker|namespace bundle|serviceunit|lookup failed|metadata store|no available instances|no instances available|no instances|not enough brokers|not available|node not connected|nodenotconnected|failed to find leader|failed to connect to all|no available channel|all sub-channels|subchannel|name resolver|transport: error while dialing|could not connect to any|unable to connect to any",
        ),
        (
            "grpc",
            _S,
            0.95,
            'code = unavailable|code=unavailable|statuscode="unavailable"|statuscode=unavailable|statuscode.unavailable|status unavailable|14 unavailable|unavailable: |unavailable:',
        ),
        (
            "unknown_state",
            _U,
            0.7,
            "can't reach|couldn't reach|unable to reach|failed to reach|unable to reach|unreachable service|service unreachable|not reachable|cannot reach|could not reach|vendor error|provider error|third-party|third party|remote service",
        ),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "reset",
            _S,
            0.96,
            "can't contact|cannot contact|could not contact|unable to contact|failed to contact|is not open|channel/connection|wrong version number|error on connection|error on socket|error while reading|error while writing|error reading from|error writing to|brokerunreachable|endpoints were reachable|endpoint is reachable|could not establish|failed to open connection|could not open connection|unable to open connection|unable to establish|cannot establish|failed to create connection|failed to open tcp|could not establish tcp|protocol banner|data connection|connection reset|econnreset|connection_reset|connectionreset|connection was reset|reset by peer|forcibly closed|broken pipe|epipe|brokenpipe|socket hang up|connection aborted|econnaborted|connection was aborted|connection abort|remote end closed|remotedisconnected|remote host closed|closed by remote|closed by the remote|closed by peer|peer closed|server disconnected|serverdisconnected|connection closed|connection was closed|connection is broken|connection broken|connection lost|connection was lost|lost connection|connection dropped|connection interrupted|connection terminated|connection shut down|connection error|connectionerror|connection failure|connection failed|connectexception|connectionexception|connection exception|connecterror|connection could not be|use of closed network|closed network connection|stream closed|stream was reset|stream reset|stream error|rst_stream|goaway|http2: |http2|err_http2|premature close|prematurely closed|incompleteread|incomplete read|chunkedencoding|incomplete chunked|protocolerror|unexpected eof|unexpected_eof|unexpected end of stream|eof occurred|eofexception|eoferror|: eof|failed to respond|nohttpresponse|empty reply|fetch failed|failed to fetch|"
            "transport endpoint|transport error|transport is closing|channelclosed|channel closed|channel is closed|alreadyclosed|closedchannel|socket closed|socketexception|socket error|socket is closed|socket is not connected|enotconn|network error|networkerror|networkexception|network is down|network is unreachable|network unreachable|networkunreachable|enetunreach|ehostunreach|enetdown|host is unreachable|host unreachable|host is down|ehostdown|no route to host|noroutetohost|destination host|brokerconnection|amqpconnection|connection to broker|disconnected|disconnect|not connected|cannot connect|can't connect|could not connect|couldn't connect|unable to connect|failed to connect|failed connecting|error connecting|failed to establish|connection attempt failed|error while dialing|dial tcp|wsarecv|wsasend|connectex|winsock|i/o error|err_network|err_connection",
        ),
        (
            "refused",
            _S,
            0.96,
            "connection refused|connection refuse|connectionrefused|econnrefused|actively refused|connect refused|refused the connection|refused to connect|err_connection_refused",
        ),
        (
            "dns",
            _S,
            0.96,
            "getaddrinfo|eai_again|eai_noname|enotfound|name or service not known|name resolution|name does not resolve|nodename nor servname|no such host|unknownhost|unknown host|resolve host|nameresolution|dns |dns_|dns:|nxdomain|servfail|gaierror|host not found|lookup |no address associated|socket.gaierror|temporary failure in name|noaddress",
        ),
        (
            "resolve",
            _S,
            0.93,
            "resolve|resolution failed",
            r"(?:could not|couldn't|cannot|can't|failed to|unable to|error while trying to|not able to|to) resolve (?:the )?(?:remote |server |broker |proxy |domain |dns |ip |destination |target |bootstrap ){0,2}(?:host|name|address|proxy|dns|domain|url|server|endpoint|broker|ip|[\"'`]?[a-z0-9<*>-]{1,60}[.][a-z0-9<])|(?:name|host|dns|address) resolution failed|resolution failed for|could(?: not|n't) resolve:",
        ),
        (
            "timeout",
            _U,
            0.93,
            'timed out|timed-out|time out|time-out|timeout|timedout|etimedout|esockettimedout|econntimeout|deadline exceeded|deadlineexceeded|deadline_exceeded|deadline expired|deadline has passed|took too long to respond|no response from|no response received|did not respond|did not properly respond|didn\'t respond|not respond|context canceled|context cancelled|request aborted|request canceled|request cancelled|request was canceled|aborterror|the operation was canceled|the operation was aborted|a task was canceled|taskcanceled|task was canceled|operationcanceled|operation was canceled|code = canceled|code = cancelled|statuscode="cancelled"|statuscode.cancelled|1 cancelled|call cancelled|und_err',
        ),
        (
            "tls",
            _S,
            0.9,
            "handshake|ssl_error|sslerror|ssl error|sslexception|ssl exception|tls error|tlserror|ssl peer shut down|wrong version number|ssl routines|sslv3|ssl_connect|ssl connection|ssl: |protocol_version|secure channel|ssl alert|tls alert|ssl/tls",
        ),
        ("curl", _S, 0.95, "curl", r"curl(?: error|:? \(|errno| code)? ?\(?(?:5|6|7|18|28|35|52|55|56|92)(?![0-9])"),
        (
            "code",
            _S,
            0.95,
            "errno|winerror|os error|ora-12|tns-12|tns:|error 1006|10054|10060|10061|2003|2002|socket error",
            r"errno:? ?-?(?:32|54|60|61|64|65|100|101|103|104|107|108|110|111|112|113|4077|4078|3008|3001|10053|10054|10060|10061|11001)(?![0-9])|winerror 1(?:0053|0054|0060|0061|1001|0065|0051)|os error (?:32|104|110|111|113|10054|10060|10061)(?![0-9])|(?:ora|tns)-(?:12170|12535|12537|12541|12543|12545|12547|12560|12571|12606|12609|12637|12152|12154|03136)(?![0-9])|tns:(?:connect|no listener|operation timed|packet|lost|connection)|(?:error |\()(?:2002|2003)(?![0-9])",
        ),
        ("status", _S, 0.9, *_status("408", "499", "598", "599")),
        (
            "smtp",
            _U,
            0.8,
            "421|4.4.|service closing|connection could not be established with host|could not be established",
            r"(?:421|4[.]4[.][0-9])[^\n]{0,80}(?:timeout|connection|closing|error)|could not be established",
        ),
    ),
    # --- the consumer's own code: only where nothing above is said ----------------------------------------
    *_rules(
        Cause.MALFORMED_PAYLOAD,
        "malformed",
        ("data_exception", _U, 0.85, "data exception|dataexception", r"(?<![a-z])data ?exception"),
    ),
    *_rules(
        Cause.CONSUMER_STUCK,
        "stuck",
        ("cancelled", _G, 0.5, "cancellederror|cancelederror|cancelledexception"),
    ),
    *_rules(
        Cause.THROTTLED,
        "throttled",
        ("retry_after", _U, 0.8, "retry after", r"(?<!no more )(?<!will )(?<!not )retry after"),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "null",
            _G,
            0.95,
            "nullpointer|null pointer|nullreference|null reference|nil pointer|object reference not set|of null|of undefined|on null|is null|is not an object|nonetype|nilclass|for nil|undefined method|undefined local|is undefined|cannot read propert|cannot set propert|can't access property|unexpectedly found nil|invalid memory address|segmentation fault|sigsegv|segfault|access violation|optional type|no value present|called `option::unwrap()`|unwrap()",
        ),
        (
            "key_or_index",
            _G,
            0.95,
            "keyerror|indexerror|undefined index|undefined array key|undefined offset|undefined variable|undefined property|index out of|indexoutofbounds|out of bounds|out of range|outofrange|arrayindex|stringindex|keynotfound|key not found in dictionary|given key was not present|nosuchelement|no such element|list index|slice bounds|stopiteration|attributeerror|has no attribute|attribute not found|not in list|array key",
        ),
        (
            "type",
            _G,
            0.93,
            "typeerror|type error|nameerror|is not defined|referenceerror|unboundlocal|classcast|cannot be cast|invalidcast|unable to cast|cannot cast|specified cast|is not a function|is not iterable|not callable|is not subscriptable|object is not|unsupported operand|must be of the type|must be of type|argument #|expects parameter|too few arguments|too many arguments|wrong number of arguments|unexpected keyword argument|missing <*> required|positional argument|call to undefined|call to a member|undefined function|undefined constant|uninitialized constant|class not found|nomethoderror|nosuchmethod|no such method|no method|method does not exist|nosuchfield|incompatibleclasschange|abstractmethod|linkageerror|verifyerror|noclassdef|classnotfound|could not load type|could not load file or assembly|typeload|typeinitialization|missingmethod|modulenotfound|no module named|cannot find module|module not found|importerror|cannot import name|loaderror|cannot load such file|err_module|interface conversion|cannot use|array to string|object of class|non-numeric|non-object|bad operand|unsupportedtype",
        ),
        (
            "value",
            _G,
            0.9,
            "valueerror|argumenterror|argumentexception|argumentnull|argumentoutofrange|illegalargument|invalidargumentexception|invalid argument supplied|illegalstate|invalidoperation|invalid operation|illegal state|unsupportedoperation|notimplemented|not implemented|notsupported|not supported|assertion|assert |assertfailed|zerodivision|division by zero|divide by zero|dividebyzero|modulo by zero|arithmeticexception|overflowerror|arithmetic overflow|integer overflow|floatingpoint|stackoverflow|stack overflow|maximum call stack|recursionerror|recursion depth|stack level too deep|infinite loop|concurrentmodification|collection was modified|concurrent map|rangeerror|unreachable|invariant|logic error|logicexception|domainexception|unexpectedvalue|bug|panic|panicked|fatal error|uncaught|unhandledrejection|unhandled exception|unhandledpromise|unhandled promise|syntaxerror|syntax error|indentationerror|parse error: syntax|"
            'runtimeerror|runtimeexception|runtime error|errorexception|standarderror|sqlsyntax|sql syntax|bad sql grammar|badsqlgrammar|invalid object name|invalid column name|undefinedtable|undefinedcolumn|undefined column|undefined table|unknown column|no such column|no such table|relation "|column "|42p01|42703|42601|1054|1146|1064|ora-00904|ora-00942|ora-00933|programmingerror|lazyinitialization|beancreation|nosuchbean|unsatisfieddependency|init method failed|detachedinstance|transactionrequired|nonuniqueresult|multipleobjectsreturned|synchronousonlyoperation|payloadnotfoundexception|cannot access a disposed|objectdisposed|disposed object|cannot send message without|without a sender|has not been initialized|not initialized|uninitialized|configuration error|misconfigured|improperlyconfigured|configurationexception|missing configuration|environment variable|is not set|no context|no jcics',
        ),
        ("sqlstate_class", _G, 0.8, "sqlstate", r"sqlstate[ :=\[(]{1,3}(?:42|22)[0-9a-z]{3}"),
    ),
    *_rules(
        Cause.TRANSIENT_NETWORK,
        "network",
        (
            "class",
            _G,
            0.7,
            "transportexception|transport exception|ioexception|i/o exception|io exception|socketexception|connectionexception|networkexception|amqpconnection|amqpioexception|connectionerror|clientexception: connection",
        ),
    ),
    *_rules(
        Cause.DEPENDENCY_UNAVAILABLE,
        "dependency",
        (
            "grpc_internal",
            _G,
            0.7,
            'code = internal|statuscode="internal"|statuscode.internal|13 internal|status: internal|code: internal',
        ),
    ),
    *_rules(
        Cause.TRANSIENT_DATABASE,
        "database",
        ("class", _G, 0.6, "operationalerror|databaseerror|dataaccessresourcefailure|sqlnontransientconnection"),
    ),
    # --- only says that it was given up ------------------------------------------------------------------
    *_rules(
        Cause.MAX_DELIVERIES,
        "deliveries",
        (
            "count",
            _L,
            0.9,
            "delivered <*> times|times without ack|to dead letter|to the dead letter|dead letter topic|the morgue|exceeded attempts|after retries|no more retry|no more attempts|x-retry-count|delivery attempt:|reached the specified backoff limit|backoff limit|no attempts left|attempts left|no tries left|job buried|redelivered more|moved to dlq|sent to dlq|moved to the dlq|to dlq after|moved to activemq.dlq|retryerror|state=finished raised|terminal error after|abandoned after|abandoned: |discarded after|dropped after|gave up|giving up|given up|max deliver|maximum redeliver|redelivery policy|maximum deliver|maxdeliverycount|max delivery|maximum delivery|max deliveries|delivery attempts|delivery count|deliverycount|delivery_limit|delivery limit|redelivery limit|too many redeliver|redeliveries|redelivered too many|maxdequeuecount|dequeue count|maxreceivecount|receive count|max receive|retries exhausted|retry exhausted|retryexhausted|retriesexhausted|exhausted all retries|exhausted retries|exhausted all|retry attempts exhausted|retry limit|retrylimit|retry policy exhausted|retry attempts|retry count exceeded|retries exceeded|max retries|maxretries|maximum retries|maximum number of retries|max_retries|maxretryerror|maximum retry|max retry|retry budget|maximum number of attempts|maximum attempts|max attempts|maxattempts|attempted too many times|too many times|too many attempts|too many retries|number of attempts exceeded|attempts exceeded|attempts exhausted|after all retries|giving up after|gave up after|given up after|no more retries|rejectanddontrequeue|moving message to queue|poison queue|poison message|-poison|failed after <*>|failed <*> times|after <*> attempts|after <*> retries|after <*> tries|retry_exhausted|backoff limit|backofflimitexceeded|maximumretryattempts|message rejected too many|dead-lettered after|moved to dead letter|moved to the dead letter|sent to dead letter",
        ),
    ),
    *_rules(
        Cause.APPLICATION_BUG,
        "bug",
        (
            "raised",
            _L,
            0.5,
            "raised unexpected|raised error|threw exception|threw an exception|exception",
            r"raised unexpected|threw (?:an )?exception|[a-z]{3,60}exception(?![a-z])",
        ),
        ("error_class", _L, 0.4, "error", r"(?:^|[\n .:])[a-z_.]{0,80}[a-z]error(?::|\()"),
    ),
]

RULES: Final[tuple[Rule, ...]] = tuple(_TABLE)

#: What the broker's own reason means; asked where the text says nothing or only that it was given up.
REASONS: Final[dict[str, Finding]] = {
    "maxdeliverycountexceeded": Finding(Cause.MAX_DELIVERIES, "broker.max_delivery_count", 0.6),
    "delivery_limit": Finding(Cause.MAX_DELIVERIES, "broker.delivery_limit", 0.6),
    "maximumretryattempts": Finding(Cause.MAX_DELIVERIES, "broker.retry_attempts", 0.6),
    "ttlexpiredexception": Finding(Cause.MESSAGE_EXPIRED, "broker.ttl_expired", 0.95),
    "expired": Finding(Cause.MESSAGE_EXPIRED, "broker.expired", 0.95),
    "maximumeventageinseconds": Finding(Cause.MESSAGE_EXPIRED, "broker.event_age", 0.95),
    "headersizeexceeded": Finding(Cause.OVERSIZED, "broker.header_size", 0.95),
    "session id is null": Finding(Cause.ROUTING_FAILURE, "broker.no_session", 0.95),
    "maxtransferhopcountexceeded": Finding(Cause.ROUTING_FAILURE, "broker.hops", 0.95),
    "maxlen": Finding(Cause.ROUTING_FAILURE, "broker.maxlen", 0.9),
    "rejected": Finding(Cause.UNCLASSIFIED, "broker.rejected", 0.2),
}

# What single words hint at, for texts that no family above knows. A word stands for all that begin with it.
_HINTS: Final[dict[Cause, dict[int, str]]] = {
    Cause.TRANSIENT_NETWORK: {
        3: "timeout timedout unreachable disconnect socket handshake closed",
        2: "connect reset refused network dns hostname peer transport hung-up timed elapsed",
        1: "host port remote stream reach respond",
    },
    Cause.TRANSIENT_DATABASE: {
        3: "deadlock rollback failover",
        2: "transaction locked",
        1: "database primary commit lock",
    },
    Cause.DEPENDENCY_UNAVAILABLE: {
        3: "unavailable outage maintenance overload offline degraded",
        2: "upstream gateway temporar backend downtime",
        1: "server service later again internal",
    },
    Cause.THROTTLED: {
        3: "throttl quota ratelimit",
        2: "rate burst frequent concurrency backoff",
        1: "limit many slow per retry wait",
    },
    Cause.CONSISTENCY_LAG: {
        3: "stale concurren optimistic eventual",
        2: "conflict revision replica precondition sync",
        1: "version yet pending progress modified",
    },
    Cause.RESOURCE_EXHAUSTED: {
        3: "memory disk heap oom",
        2: "exhaust allocat capacity storage descriptor insufficient",
        1: "space threads handles resource",
    },
    Cause.CONSUMER_STUCK: {
        3: "killed heartbeat stalled crashed evicted hung hang terminated liveness unresponsive",
        2: "worker shutdown interrupt restart abort stuck cancel",
        1: "process signal exit",
    },
    Cause.LEASE_EXPIRED: {3: "lease reservation visibility", 2: "renew unacked", 1: "lock ack expired"},
    Cause.DUPLICATE: {3: "duplicat idempot unique replay", 2: "already twice", 1: "exists same again"},
    Cause.MESSAGE_EXPIRED: {3: "ttl outdated expired", 2: "expir late", 1: "old age too"},
    Cause.MALFORMED_PAYLOAD: {
        3: "malformed decod pars schema deserial serializ corrupt unmarshal encod validat",
        2: "invalid format syntax convert mismatch unsupported illegal unrecogni truncat required incompatible bad garbage",
        1: "unexpected must field value payload body header empty version type expected missing charset json xml csv date",
    },
    Cause.MISSING_DATA: {
        3: "notfound nonexist orphan",
        2: "found exist unknown absent deleted missing removed unresolved dangling",
        1: "no not reference record lookup",
    },
    Cause.AUTH_FAILURE: {
        3: "denied forbid unauth permission credential password certificate privilege revoked",
        2: "verif token login signature secret authenti authoriz access expired allowed scope blocked suspended",
        1: "role key policy user account invalid rejected",
    },
    Cause.OVERSIZED: {
        3: "oversize toolarge",
        2: "large big bytes size length",
        1: "maximum max limit bigger exceed long",
    },
    Cause.ROUTING_FAILURE: {
        3: "routing unroutable undeliverable",
        2: "route handler destination exchange subscriber binding recipient endpoint queue topic",
        1: "listener no disabled full unknown",
    },
    Cause.APPLICATION_BUG: {
        3: "null undefined assert panic nil traceback unhandled uncaught bug segfault",
        2: "argument cast import attribute index module exception syntax overflow recursion uninitial initiali config",
        1: "error unexpected type variable function method state object code invalid",
    },
}
_HINT: Final[dict[str, tuple[tuple[Cause, int], ...]]] = {
    word: tuple(
        (cause, weight) for cause, words in _HINTS.items() for weight, line in words.items() if word in line.split()
    )
    for words in _HINTS.values()
    for line in words.values()
    for word in line.split()
}
_LONGEST_HINT: Final = max(map(len, _HINT))
_HINT_WORD: Final = re.compile(r"[a-z]{2,24}", re.ASCII)
# At the bottom of a chain of exceptions these say more than the wording of the wrappers above them.
_PLAIN_BUGS: Final = frozenset({"bug.null", "bug.key_or_index", "bug.type"})
#: The rule that weighs single words.
HINTS: Final = "hints.words"
_RAISED: Final = Cause.APPLICATION_BUG
#: Points from which hints decide, and by how much a cause that is sent again by itself must lead.
_ENOUGH: Final = 2
_LEAD: Final = 2

# In the order of asking: stage by stage, within a stage as in the table.
_STAGE_OF: Final = {Tier.SAID: 0, Tier.USUAL: 0, Tier.GENERIC: 1, Tier.LAST: 2}
_ORDERED: Final = tuple(sorted(RULES, key=lambda rule: rule.tier))
_PATTERNS: Final = tuple(re.compile(rule.pattern, re.ASCII) if rule.pattern else None for rule in _ORDERED)
_STAGES: Final = (0, 1, 2)
_GRAM: Final = 3
#: Up to this length a literal that is one word must begin a word of the text; longer ones say enough anywhere.
_SHORT: Final = 7


def _index() -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Three letters of each literal -> the literal and the numbers of its rules.

    Two thousand literals would be two thousand searches for each text; so only those are searched for whose
    rarest three letters occur in it.
    """
    rules_of: dict[str, list[int]] = {}
    for number, rule in enumerate(_ORDERED):
        for literal in rule.literals:
            rules_of.setdefault(literal, []).append(number)
    frequency = Counter(gram for literal in rules_of for gram in _grams(literal))
    index: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for literal, numbers in rules_of.items():
        rarest = min(_grams(literal), key=lambda gram: (frequency[gram], gram))
        index.setdefault(rarest, []).append((literal, tuple(numbers)))
    return index


def _grams(text: str) -> set[str]:
    return {text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)}


# Names such as ``TooManyRequestsException`` and ``RATE_LIMIT_EXCEEDED`` say the same as the words in them.
_WORDS: Final = re.compile(
    r"(?<![A-Za-z0-9_-])[A-Za-z]{1,40}(?:[_-][A-Za-z]{1,40}){1,8}|(?<![A-Za-z])[A-Z]?[a-z]{1,40}(?:[A-Z][a-z]{1,40}){1,10}",
    re.ASCII,
)
_HUMPS: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|[_-]", re.ASCII)


def _view(text: str) -> str:
    """What rules look at: lower case, and below it the names with their words apart."""
    if len(text) > 2 * _LOOKED_AT:
        text = text[:_LOOKED_AT] + "\n" + text[-_LOOKED_AT:]
    names = _WORDS.findall(text)
    return text.lower() + "\n" + "\n".join(_HUMPS.sub(" ", name).lower() for name in names) if names else text.lower()


# Where a deeper cause begins: Java, Spring, .NET, Node, Ruby and PHP name the wrapper first.
_DEEPER: Final = re.compile(
    r"caused by:? |while trying to deserialize arguments: |nested exception is |---> |\[cause\]:? |cause by: |with root cause\n|root cause:? |inner exception:? |"
    r"innerexception:? |previous exception:? |exception_cause[\"']?[:=] ?",
    re.IGNORECASE | re.ASCII,
)
# Python names the deepest first and says so between the two.
_PYTHON_CHAIN: Final = "The above exception was the direct cause of the following exception"
_PYTHON_DURING: Final = "During handling of the above exception, another exception occurred"
# Frames: their class and file names say where, not why. Python's frames are followed by a line of code.
_FRAMES: Final = re.compile(
    r"(?:^|\n)(?:[ \t]{1,12}at [^\n]{0,600}|[ \t]{0,8}file \"[^\n\"]{0,400}\", line [^\n]{0,200}(?:\n[ \t]{4,12}[^ \t\n][^\n]{0,400})?|"
    r"#[^ \n]{1,5} [^\n]{0,600}|[ \t]{1,12}from [^\n]{0,300}:in [^\n]{0,200}|[ \t]{1,8}\.\.\. [^\n]{0,12} more)(?=\n|$)",
    re.IGNORECASE | re.ASCII,
)
_MAX_PARTS: Final = 24

_INDEX: Final = _index()
#: Characters of a text without its frames that rules look at, from its beginning and from its end.
_LOOKED_AT: Final = 3000


def without_frames(text: str) -> str:
    """``text`` without the lines that say where and not why."""
    return _FRAMES.sub("", text)


@lru_cache(maxsize=4096)
def find(text: str) -> Finding | None:
    """What a masked failure text says, or None where no rule of the table knows it."""
    bare = without_frames(text)
    found = _find_in(list(_parts(bare)))
    if found is None and bare != text:
        # Nothing but frames, or none that says why: better a hint from the frames than nothing, and less sure.
        found = _find_in([text])
        found = found and found._replace(confidence=found.confidence / 2)
    return found


def _find_in(parts: Sequence[str]) -> Finding | None:
    views = [_view(part) for part in parts]
    candidates = [_candidates(view) for view in views]
    for stage in _STAGES:
        for depth, (view, numbers) in enumerate(zip(views, candidates, strict=True)):
            for number in numbers:
                rule, pattern = _ORDERED[number], _PATTERNS[number]
                at_root = depth == 0 and stage == 0 and len(views) > 1 and rule.id in _PLAIN_BUGS
                if (_STAGE_OF[rule.tier] == stage or at_root) and (pattern is None or pattern.search(view) is not None):
                    found = Finding(rule.cause, rule.id, rule.confidence, rule.tier is Tier.LAST)
                    # That something was raised says less than the words about it do.
                    if rule.cause is _RAISED and found.last_resort:
                        return _hinted_in(views) or found._replace(weak=True)
                    return found
    return _hinted_in(views)


def _hinted_in(views: Sequence[str]) -> Finding | None:
    return next((found for found in map(_hinted, views) if found is not None), None)


def _hinted(view: str) -> Finding | None:
    """The cause that most words of ``view`` hint at; where it is close, the one for which nothing is sent again."""
    points: Counter[Cause] = Counter()
    for word in set(_HINT_WORD.findall(view)):
        for length in range(min(len(word), _LONGEST_HINT), 1, -1):
            hints = _HINT.get(word[:length])
            # Short words are whole words: "no" is not the beginning of "node".
            if hints is not None and (length > 4 or length == len(word)):
                for cause, weight in hints:
                    points[cause] += weight
                break
    if not points:
        return None
    bold = max((points[cause], cause) for cause in AUTOMATIC)
    careful = max(((points[cause], cause) for cause in points if cause not in AUTOMATIC), default=(0, bold[1]))
    score, cause = bold if bold[0] >= careful[0] + _LEAD else careful
    if score < _ENOUGH:
        return None
    return Finding(cause, HINTS, min(0.25 + 0.03 * score, 0.45), weak=True)


def _is_word(literal: str) -> bool:
    # Scripts without blanks between words have no beginnings of words either.
    return literal.isascii() and literal.isalpha()


def _begins_a_word(literal: str, view: str) -> bool:
    """Whether ``literal`` stands at the beginning of a word: "stalled" is not in "installed"."""
    at = view.find(literal)
    while at > 0 and view[at - 1].isalpha():
        at = view.find(literal, at + 1)
    return at >= 0


def _candidates(view: str) -> list[int]:
    """The numbers of the rules of which a literal occurs in ``view``, in the order of asking."""
    numbers: set[int] = set()
    for gram in _grams(view) & _INDEX.keys():
        for literal, rules in _INDEX[gram]:
            if literal in view and (len(literal) > _SHORT or not _is_word(literal) or _begins_a_word(literal, view)):
                numbers.update(rules)
    return sorted(numbers)


def _parts(text: str) -> Iterator[str]:
    """The parts of a chain of exceptions, the root cause first."""
    blocks: Sequence[str]
    if _PYTHON_CHAIN in text or _PYTHON_DURING in text:
        # The direct cause is the deeper one. What happened "during handling" often hides what it was handling,
        # but a handler that fails for a reason of its own is what stopped the message: the later comes first.
        blocks = []
        for piece in text.split(_PYTHON_DURING):
            blocks = [*piece.split(_PYTHON_CHAIN), *blocks]
    else:
        blocks = [text]
    for block in blocks:
        parts = _DEEPER.split(block, maxsplit=_MAX_PARTS)
        yield from (part for part in reversed(parts) if part.strip())


def find_reason(reason: str) -> Finding | None:
    """What the broker's own reason code means (any case), or None if it is not one of its words."""
    return REASONS.get(reason.lower()) if reason else None


def document() -> str:
    """``docs/causes.md``: what every cause means, what is done, what helps, and which rules find it."""
    lines = [
        "# Causes",
        "",
        "Generated by `python -m redrive.classification.rules > docs/causes.md` from `classification/causes.py` and `rules.py`; a test fails when",
        "it is stale. Which rule decides is told in the docstring of `rules.py`. A route's own `rules` come before these.",
        "A text that no rule knows is answered by a learned model ([adr/0009](adr/0009-learned-causes.md)): `learned: `",
        "and the words that speak for the cause, with a calibrated confidence. Where that abstains, the text is weighed word by",
        "word: rule `hints.words`, confidence below 0.5. Both choose in doubt the cause that is not sent again by itself.",
        "",
    ]
    for cause, profile in PROFILES.items():
        lines += [
            f"## {cause.value}",
            "",
            profile.meaning,
            "",
            f"First verdict: `{profile.verdict.value}`.",
            "",
            profile.advice,
            "",
        ]
        rules = [rule for rule in RULES if rule.cause is cause]
        reasons = sorted(reason for reason, finding in REASONS.items() if finding.cause is cause)
        if reasons:
            lines += [f"Broker reasons (last resort): {', '.join(f'`{reason}`' for reason in reasons)}.", ""]
        if rules:
            lines += ["| rule | says | confidence | looks for, among others |", "|---|---|---|---|"]
        for rule in rules:
            some = ", ".join(f"`{literal.strip()}`" for literal in rule.literals[:5]).replace("|", "\\|")
            lines.append(f"| `{rule.id}` | {rule.tier.name.lower()} | {rule.confidence:.2f} | {some} |")
        if rules:
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(document(), end="")  # noqa: T201
