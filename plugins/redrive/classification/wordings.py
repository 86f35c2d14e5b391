"""How one maker's software, or one version of it, says what others say in other words: told in one way.

Also codes of a standard that say it all: whatever is told beside them, the failure is the code.
"""

import re
from collections.abc import Callable
from typing import Final, cast

#: gRPC's statuses, as most languages write them; any failure may be UNKNOWN, INTERNAL or UNAVAILABLE.
_STATUSES: Final = (
    "CANCELLED|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|PERMISSION_DENIED|RESOURCE_EXHAUSTED|"
    "FAILED_PRECONDITION|ABORTED|OUT_OF_RANGE|UNIMPLEMENTED|DATA_LOSS|UNAUTHENTICATED"
)


def _of_grpc(match: re.Match[str]) -> str:
    """A status and what it says, as Go's clients are read: *what it says (NotFound)*."""
    return f"{match[2]} ({match[1].title().replace('_', '')})"


#: What to read instead, as :func:`re.sub` takes it.
_Instead = str | Callable[[re.Match[str]], str]

# Where a text has the literal, what to read instead.
_WORDINGS: Final[tuple[tuple[str, re.Pattern[str], _Instead], ...]] = tuple(
    (literal, re.compile(pattern), cast("_Instead", replacement))
    for literal, pattern, replacement in (
        (
            "An error occurred (",
            r"(?:(?<![\w.])[\w.]{1,120}+: )?An error occurred \(([\w.]{1,80})\) when calling the \w{1,60} operation"
            r"(?: \([^()\n]{0,60}\))?: ",
            r"\1: ",
        ),
        (
            "operation error ",
            r"operation error [\w ]{1,60}: \w{1,60}, (?:exceeded maximum number of attempts, [^ ,]{1,20}, )?"
            r"https response error StatusCode: [^ ,]{1,10}, "
            r"(?:RequestID: [^ ,]{0,90}, )?(?:HostID: [^,]{0,120}, )?(?:api error )?",
            "",
        ),
        ("(Service: ", r" ?\(Service: [^;,()\n]{1,60}[;,] Status Code: [^()\n]{1,600}\)?", ""),
        (
            "Validation failed for",
            r"Validation failed for classes [^ ]{1,200} during \w+ time for groups \[[^\]\n]{0,200}\]",
            "Validation failed",
        ),
        # Elasticsearch and OpenSearch: what their clients print of an answer
        (
            " exception [type=",
            r"(?:\w{1,60}\[)?(?:Elasticsearch|OpenSearch) exception \[type=(\w{3,80}), reason="
            r"(?=.{2,1503}+$)(.{1,1500}?)\]{1,3}$",
            r"\1: \2",
        ),
        (
            "Error(",
            r"^(?:[\w.]{1,80}: )?\w{3,40}\((?:[0-9]{3}|<\*>), '(\w{3,80})', ([\"'])(.{1,1500}?)\2\)$",
            r"\1: \3",
        ),
        # Azure: which request it was; and where to read on
        ("TrackingId:", r"(?<![. ])[. ]*+\bTrackingId:\S[^\n]*$", ""),
        (
            " http",
            r"[.,;:]? ?(?:[Ff]or (?:more )?(?:information|details|help)\b[^.;\n]{0,40}|[Ss]ee(?: also)?|"
            r"[Ll]earn more(?: at)?|[Mm]ore info(?:rmation)?:?|[Rr]ead more(?: at)?) https?://[^\s]+$",
            "",
        ),
        (" http", r"[;,] https?://[^\s]+$", ""),
        # Spring: what it was about to do
        (
            "I/O error on ",
            r"I/O error on (?:GET|HEAD|POST|PUT|PATCH|DELETE) request for [\"'][^\"'\n]{1,300}[\"']: ",
            "",
        ),
        # with which server it was, behind what it said
        ("<*>]", r" \[<\*>(?:[:/]<\*>)?\][.]?$", ""),
        # Python's SMTP client prints the answer as a tuple, ODBC its layers, a MongoDB server the whole command
        (
            ", b'",
            r"(?:\{?(?<![^{}()\n])[^{}()\n]{0,120}+)?\(((?:[0-9]{3})|<\*>), b'"
            r"(?=.{3,1100}+$)([^\n]{3,1000}?)(?:'(?:, [^)\n]{0,80})?\)?\}?)?$",
            r"\1 \2",
        ),
        (
            "ODBC Driver",
            r"[(\[]?['\"]?(?:<\*>|[0-9A-Z]{5})['\"]?[,\]]? ?['\"]?(?:\[(?:<\*>|[0-9A-Z]{5})\])? ?"
            r"\[Microsoft\]\[[^\]\n]{1,60}\](?:\[SQL Server\])?",
            "",
        ),
        ("(SQL", r" ?\((?:<\*>|[0-9]{1,6})\) \(SQL\w{2,40}\)['\")]{0,3}$", ""),
        ("[CLI Driver]", r"\[IBM\]\[CLI Driver\](?:\[[^\]\n]{1,40}\])? ?", ""),
        (
            "not authorized on ",
            r"not authorized on [^ ]{1,120} to execute command \{ ?(\w{1,40})[^\n]*",
            r"not authorized to execute \1",
        ),
        ("Fehler bei ", r" Fehler bei (?:INSERT|UPDATE|DELETE|MERGE)[.]", ""),
        # 'Name'-Spalte
        ("'-", r"'([^'\n]{1,60})'-(Spalte|Tabelle|Feld|Eigenschaft|column|field|table)\b", r"\2 '\1'"),
        # Oracle: "SCHEMA"."TABLE"."COLUMN"
        ('"."', r"\"[\w$#]{1,60}\"[.]\"[\w$#]{1,60}\"[.]\"([\w$#]{1,60})\"", r"column \1"),
        # SAX: where
        ("lineNumber: ", r"lineNumber: [^ ;]{1,12}; columnNumber: [^ ;]{1,12}; ", ""),
        # [HAT_LOST] in front names what failed, as in parentheses behind
        ("] ", r"^\[([A-Z]+(?:_[A-Z]+)+)\] ([^\n]{3,1500})$", r"\2 (\1)"),
        # pydantic: which check failed, in whatever words
        (" [type=", r"; [^;\[\n]{3,300} \[type=(\w{2,60})[,\]][^;]*", r"; \1"),
        # V8: of what it could not read the first letter, and where
        (
            "Unexpected token",
            r"Unexpected token (?:'[^'\n]{1,4}'|[^\s]{1,4})"
            r"(?: in JSON at position [^ )\n]{1,9}|,? ?[\"<.][^\n]{0,80} is not valid JSON)"
            r"(?: \(line [^()\n]{1,30}\))?",
            "Unexpected token in JSON",
        ),
        # libxml2: which element was open
        ("tag mismatch: ", r"(tag mismatch: )[\w:.-]{1,80} line [^ ]{1,9} and [\w:.-]{1,80}", r"\1<*>"),
        # Jackson: what was open
        ("close marker for ", r"close marker for (?:Object|Array|OBJECT|ARRAY|ROOT|root)\b", "close marker"),
        # AMQP: how one logged in
        ("authentication mechanism ", r"authentication mechanism [A-Z][A-Z0-9-]{2,20}", "authentication mechanism"),
        # Postfix: for which record it asked
        ("Name service error for name=", r" type=[A-Z]{1,5}(?=:)", ""),
        # ClickHouse: whose query was ended, and what was done meanwhile
        ("OvercommitTracker", r"[.,]? ?\(?OvercommitTracker decision: [^:\n]{1,120}[.]\)?", ""),
        ("While executing ", r":? ?While executing \w{1,60}[.]?", ""),
        ("(while ", r":? ?\(while [a-z][^()\n]{1,120}\)[.]?", ""),
        # Cassandra: the code in front of what it says
        ("Error from server: code=", r"Error from server: code=[^ ]{1,8} \[[^\]\n]{1,120}\] (?:message=)?", ""),
        # StackExchange.Redis: its own state
        ("Timeout performing ", r"(Timeout (?:performing|awaiting)) .*$", r"\1"),
        # Go: what newer versions put in front
        ("tls: failed to verify certificate: ", r"tls: failed to verify certificate: ", ""),
        # Java: why a name could not be resolved, which not every system says
        ("UnknownHostException: ", r"(UnknownHostException: )[\w.<*>:-]{1,200}$", r"\1<*>: host not found"),
        # requests and httpx: what a server answered
        (
            " error '",
            r"(?:Client|Server) error '([1-5][0-9]{2} [^'\n]{1,60})' for url '([^'\n]{1,300})'",
            r"\1 for url: \2",
        ),
        (" Error: ", r"([1-5][0-9]{2}) (?:Client|Server) Error: ([^\n]{1,60}?) for url: ", r"\1 \2 for url: "),
        # OpenSSL: with whom
        (" peeraddr=", r" peeraddr=[^ ]{1,80}", ""),
        # PostgreSQL: how versions say that no encryption was asked for
        (", SSL o", r", SSL off\b", ", no encryption"),
        # requests, with one urllib3 and another
        ("to connect to proxy", r"Unable to connect to proxy", "Cannot connect to proxy."),
        # jsonschema: which format it should have
        (" is not a", r" is not an? '([a-z]{2,20}(?:-[a-z]{2,20}){0,2})'", r" is not a \1"),
        # ClickHouse over HTTP, and which version answered
        ("HTTPDriver for ", r"HTTPDriver for [^ ]{1,200} returned response code [^ ]{1,8}[ ;]{0,3}", ""),
        ("(version ", r" ?\(version [^\n]{1,60}$", ""),
        # jOOQ and Spring put the statement in front, gRPC its status
        ("SQL [", r"(?:\w{1,40}; )?SQL \[(?:(?!SQL \[)[^\n]){1,2000}?\]; (?=[^ ])", ""),
        ("rpc error: ", r"rpc error: code = \w{1,40} desc = (?=[^ ]+ [^ ]+ )", ""),
        # Postgrex, SQL Server: the state, and what was done
        ("ERROR ", r"ERROR (?:[0-9A-Z]{5}|<\*>) \(\w{3,60}\) (?=[a-z])", ""),
        ("cannot execute ", r"cannot execute [\w ()]{1,30} in a read-only", "cannot execute in a read-only"),
        (" statement ", r"\b(?:INSERT|UPDATE|DELETE|MERGE) statement (?=conflicted)", "statement "),
        (" fails.", r" (?:INSERT|UPDATE|DELETE|MERGE) fails[.]", ""),
        # PHP: where it was called, and what it was called with
        (", called in ", r", called in [^\s,]{1,300} on line [^\s,]{1,12}(?: and defined in [^\s,]{1,300})?", ""),
        (
            " given",
            r"\b(?!(?:The|As|Is|Was|If|No|A|An) )"
            r"(?:null|string|int|float|bool|array|object|true|false|[A-Z]\w{1,60}) given\b",
            "<*> given",
        ),
        # Avro: what was none of them
        ("ot in union ", r"(ot in union \[[^\]\n]{1,300}\]): [^\s,;()]{1,80}", r"\1"),
        # jsonschema: what it was instead
        (
            " is not of type ",
            r"(?:^|(?<=: ))(?:None|True|False|null|true|false|<\*>) is not of type ",
            "<*> is not of type ",
        ),
        # .NET: the key that was there
        ("Key: ", r"(?<=[.] )Key: [^\s]{1,80}$", "Key: <*>"),
        # gRPC's Python client prints its call
        (
            "RpcError of RPC that terminated with",
            r"<?_?\w{0,40}RpcError of RPC that terminated with:[ ;]{1,6}status = (?:StatusCode[.])?(\w{2,40})[ ;]{1,6}"
            r"details = \"([^\n]{0,800}?)\"(?: ; [^\n]*)?$",
            r"\1: \2",
        ),
        # RabbitMQ: in which queue, which the header of the first death names
        ("-death-", r",? ?(?:x-)?(?:first|last)-death-(?:queue|exchange): [^\s,]{1,200}", ""),
        *(
            (f"{reason} (", rf"^({reason}) \([^()\n]{{1,200}}\)$", r"\1")
            for reason in ("expired", "rejected", "maxlen", "delivery_limit")
        ),
        # Google's clients: what was asked, in front of the answer
        (
            "://",
            r"(?:[1-5][0-9]{2}|<\*>) (?:GET|POST|PUT|PATCH|DELETE|HEAD) https?://[^\s]{1,300}?(?:: |\?<\*> )"
            r"(?=[^ ]+ (?:[^ ]+ ){2})",
            "",
        ),
        (" not one of ", r"(^|[:;] )[^\s:;][^:;\n]{0,60}? (?:is|was) (not one of )", r"\1\2"),
        # Db2: which column of which table
        (
            "COLNO=",
            r",? ?SQLERRMC=TBSPACEID=[^,\n]{1,9}, TABLEID=[^,\n]{1,9}, COLNO=([0-9]{1,5})",
            r" (column code-\1)",
        ),
        # JNDI: what was looked for
        ("; remaining name ", r"; remaining name [^\n]*$", ""),
        # mail: who has the sender on a list
        (
            "blocked using ",
            r"blocked using (?:[\w-]{1,40}[.])?([\w-]{3,40})[.](?:net|org|com|de)\b",
            r"blocked using '\1'",
        ),
        # PHP's PDO, which has no connection yet
        ("SQLSTATE[", r"SQLSTATE\[(\w{5})\] \[([0-9]{4})\] ", r"ERROR \2 (\1): "),
        # FHIR: which code of a catalogue
        ("nknown code '", r"([Uu]nknown code) '[^'\n]{1,40}'", r"\1 <*>"),
        # Db2: which index of which table, or why
        ("SQLERRMC=", r",? ?SQLERRMC=([0-9]{1,4});(?:[\w$]{1,60}[.])?([\w$]{1,60})", r" (index_\1 of \2)"),
        ("SQLERRMC=", r",? ?SQLERRMC=([0-9]{1,4})(?![\w;])", r" (reason_\1)"),
        # serde: what it was instead
        ("invalid ", r"invalid (type|value): [^,\n]{1,80}, expected ", r"invalid \1, expected "),
        # Java: what could not be called, without where it is and with what
        (
            "Cannot invoke ",
            r"Cannot invoke \"(?:[\w$]{1,80}[.]){0,12}?([\w$]{1,80}[.][\w$]{1,80})\([^\"\n]{0,300}\)\"",
            r'Cannot invoke "\1()"',
        ),
        # JAX-WS: what it says of every fault
        (
            "received SOAP Fault from server",
            r"Client received SOAP Fault from server: (.{3,800}?)(?: Please see the server log [^\n]*)?$",
            r"\1",
        ),
        ("$JS.EVENT.", r"\$JS[.]EVENT[.]ADVISORY[.](?:CONSUMER|STREAM)[.](\w{3,40})[.][^ \n]{1,200}", r"advisory \1"),
        # .NET: of what a generic exception is, and a generic type
        ("`", r"`(?:[0-9]|<\*>)\[[\w., `<*>]{1,200}+\](?=:)", ""),
        ("`", r"`(?:[0-9]|<\*>)\[{1,2}([\w.]{1,120})[^\]\n]{0,200}\]{1,2}", r" of \1"),
        # PostgreSQL: for whom the last connections are kept
        (
            "connection slots are reserved",
            r"(remaining connection slots are reserved) for [^\n;:()]{3,100}",
            r"\1",
        ),
        # and what a table was called before version 12
        ("for relation ", r"\b(permission denied for) relation ", r"\1 table "),
        # Kubernetes: why other nodes were none, and whom it would have driven out
        ("nodes are available: ", r"[.]? preemption: [^\n]*$", ""),
        ("nodes are available: ", r", (?:<\*>|[0-9]+) node\(s\) had (?:untolerated )?taints? \{[^}\n]{0,120}\}", ""),
        # NATS: of which consumer it tells
        (
            ".jetstream.advisory.",
            r"^[^\n]{0,20}nats[.]jetstream[.]advisory[.][^. ]{1,6}[.](\w{3,40})\b[^\n]*$",
            r"advisory \1",
        ),
        # Google's clients: what was asked for
        (
            " does not have storage.",
            r"(?:(?:<\*>|[1-5][0-9]{2}) )?\b(?:GET|POST|PUT|PATCH|DELETE|HEAD) https?://[^ \n]{1,400}: ",
            "",
        ),
        # OpenSearch: of an answer that was cut short
        ("Error(", r"^(?:[\w.]{1,80}: )?\w{3,40}\((?:[0-9]{3}|<\*>), '(\w{3,80})', ([\"'])([^\n]{3,1500})$", r"\1: \3"),
        # SQLite: how its clients say whose error it is
        (
            "constraint failed: ",
            r"^(?:SQLITE_CONSTRAINT\w{0,20}: |SQLite Error (?:[0-9]{1,3}|<\*>): ['\"]?)(?=[A-Z])",
            "",
        ),
        # Mutiny and RxJava: several exceptions as one
        (
            "xceptions caught: ",
            r"^(?:[\w.]{0,80}CompositeException: )?Multiple exceptions caught: (?:; )?"
            r"[\[(]Exception (?:<\*>|[0-9]{1,2})[\])] ",
            "",
        ),
        # BigQuery: that there were more
        (
            "Error while reading data, ",
            r"Error while reading data, error message: JSON table encountered too many errors, "
            r"giving up[.] Rows: [^\n]{1,120}? collection for more details[.](?:; )?",
            "",
        ),
        # Go: for what a file was opened
        (
            "too many open files",
            r"\b(?:open|stat|lstat|read|write|fork/exec) (?=[^ \n]{1,200}:? ?too many open files)",
            "open ",
        ),
        # DBI: the statement
        (" [for Statement ", r" \[for Statement [^\n]*", ""),
        # Axios: what was asked for, behind a bar
        ("| url=", r"(failed with status code (?:[0-9]{3}|<\*>)) \| url=", r"\1 GET "),
        # ClickHouse: which server said it, and for whom
        ("Received ", r"Received exception from server \(version [^()\n]{1,20}\): ?(?:; )?", ""),
        ("Received from ", r"Received from [^ \n]{1,80}[.] (?:DB::)?Exception: ", ""),
        # Entra: what to do
        ("client secret keys for app", r"(client secret keys for app [^ ]{1,60} are expired)[.] [^\n]*", r"\1"),
        # Redshift: the fields of what the server said
        ("{'S': ", r"\{'S': '[A-Z]{2,10}', 'C': '([^'\n]{1,12})', 'M': ([\"'])([^\n]{3,1500}?)\2(?=[,}])[^\n]*", r"\3"),
        # Go: of which type it should have been
        ("converting NULL to ", r"(converting NULL) to [\w.*]{1,40} (is unsupported)", r"\1 \2"),
        # serde: where
        (" at line ", r" at line (?:<\*>|[0-9]{1,7}) column (?:<\*>|[0-9]{1,7})$", ""),
        # Temporal: which events of which activity
        ("EventId=", r" ?\b(?:scheduledEventId|startedEventId)=(?:<\*>|[0-9]{1,9})", ""),
        # Redis: its code says it all, and its sentences change from version to version
        (
            "",
            r"^(?:-|[\w.]{1,60}: -?)?(?:ReplyError: |ResponseError: )?"
            r"(MISCONF|NOREPLICAS|LOADING|MASTERDOWN|CLUSTERDOWN|NOAUTH|"
            r"WRONGPASS|EXECABORT|UNKILLABLE|TRYAGAIN|CROSSSLOT|NOSCRIPT|READONLY) [A-Z][a-z\u2019'][^\n]*",
            r"REDIS_\1",
        ),
        (
            "a read only ",
            r"^(?:[\w.]{1,60}: )?You can't write against a read only (?:replica|slave|instance)[.]?$",
            "REDIS_READONLY",
        ),
        # IBM MQ and SMPP: so do the names of their reasons
        ("MQRC_", r"^[^\n]*?\b(MQRC_[A-Z_]{3,60})\b[^\n]*$", r"reason \1"),
        ("ESME_R", r"^[^\n]*?\b(ESME_R[A-Z]{3,30})\b[^\n]*$", r"status \1"),
        # ISO 20022: so does the reason of a status; and SWIFT: the code behind which a message was refused
        *(
            (
                form,
                rf"^(?=[^\n]*?\b{form}\b)[^\n]*?"
                r"\b((?:AB|AC|AG|AM|BE|DS|DT|ED|FF|MD|MS|RC|RR|SL|TM)[0-9]{2})\b[^\n]*$",
                r"status reason \1",
            )
            for form in ("pain", "pacs", "camt", "RJCT", "SEPA")
        ),
        ("{<*>:", r"\{<\*>:([A-Z][0-9]{2})\}+", r" (code \1) "),
        # AWS: of which kind the policy is that is missing
        (" policy allows the ", r" because no [\w -]{3,40} policy allows the [\w:*]{2,80} action", ""),
        # MongoDB: the whole answer
        (", full error: ", r", full error: \{[^\n]*$", ""),
        # Temporal: of which type it was
        ("retryable: ", r" ?\(type: \w{1,60}(?:, retryable: \w{4,5})?\)", ""),
        (" (type: ", r" \(type: \w{1,60}\)$", ""),
        # Elixir's pools: what it means
        ("was dropped from queue", r"(request was dropped from queue)[^\n]*", r"\1"),
        # Java: which list it should have been
        ("java.util.", r"\bjava[.]util[.](?:Array|Linked)?(?:List|Collection)(?=<)", "java.util.List"),
        # Ruby: a class without a colon
        ("::", r"^((?:[A-Z]\w{1,40}::){1,6}[A-Z]\w{1,60}(?:Timeout|Error|Exception)) (?=[A-Z][a-z])", r"\1: "),
        # gRPC: how the clients of each language tell a status
        (
            "RPC that terminated with",
            r"(?:[\w.]{1,80}: )?<\w{0,40}RpcError of RPC that terminated with: ; status = StatusCode[.](\w{2,30})"
            r" ; details = ([\"'])((?:(?!RPC that)[^\n]){3,1500}?)\2(?: ;.*|>?)$",
            r"\1: \3",
        ),
        ("RpcError: <", r"[\w.]{0,60}RpcError: <[^\n]{0,200}", "RpcError"),
        ("Status(StatusCode=", r"Status\(StatusCode=\"?(\w{2,30})\"?, Detail=\"([^\"\n]{3,1500})\"[^\n]*$", r"\1: \2"),
        (
            "_",
            rf"^(?:[\w.]{{0,80}}(?:StatusRuntimeException|StatusException|RpcError|ServiceError|RpcException): )?"
            rf"(?:Error: )?(?:[0-9]{{1,2}} |<\*> )?({_STATUSES}): ([^\n]{{3,1500}})$",
            _of_grpc,
        ),
        # Axios: what was asked for, in parentheses or not
        (
            "failed with status code ",
            r"(failed with status code (?:[0-9]{3}|<\*>))[ ,:]{1,2}[(\[]"
            r"((?:GET|POST|PUT|PATCH|DELETE|HEAD) [^()\[\]\n]{3,300})[)\]]",
            r"\1 \2",
        ),
        # HTTP: what newer versions of it call a status
        ("4", r"\b422 Unprocessable Content\b", "422 Unprocessable Entity"),
        ("4", r"\b413 (?:Content|Request Entity) Too Large\b", "413 Payload Too Large"),
        ("4", r"\b414 Request-URI Too (?:Large|Long)\b", "414 URI Too Long"),
        ("416 ", r"\b416 Requested Range Not Satisfiable\b", "416 Range Not Satisfiable"),
        # Java: how OkHttp says that nothing came to read
        ("SocketTimeoutException: timeout", r"(SocketTimeoutException: )timeout$", r"\1Read timed out"),
        # zod: what was not there
        (", received ", r"\bExpected \w{2,30}, received (?:undefined|null)\b", "Required"),
        ("key not found: ", r"(key not found: )[A-Z0-9<][A-Z0-9<*>_-]{1,30}$", r"\1<*>"),
        ("Error on line ", r"Error on line [^ \n]{1,10} of document ?: ", ""),
        ("SAXParseException; ", r"SAXParseException; ", "SAXParseException: "),
        (
            " type ",
            r"\b(is (?:of )?type) (?:int|integer|long|float|double|number|string|bool|boolean|null|object|array)\b"
            r"(?=, already| in document)",
            r"\1 <*>",
        ),
        (" with #<", r" with #<\w{1,60}(?::(?:[^<>\n]|<\*>){0,60})?>", ""),
        ("No query results for model ", r"(No query results for model \[[^\]\n]{1,120}\]) [^\n]{1,200}$", r"\1"),
        ("exceeded quota: ", r"exceeded quota: [\w.-]{1,80}, ", "exceeded quota, "),
        # LDAP: why Active Directory refused
        (
            "AcceptSecurityContext error, data ",
            r"^[^\n]*?(AcceptSecurityContext error), data (\w{2,4})\b[^\n]*$",
            r"\1 DATA_\2",
        ),
        # Postfix: to what it was an answer
        ("(in reply to ", r" \(in reply to [\w ]{2,40} command\)", ""),
        # MongoDB: how its clients tell what a server said
        (
            "Command failed with error ",
            r"Command failed with error [^ ]{1,10} \((\w{3,60})\): '?([^\n]{3,800}?)'? on server [^ \n]{1,120}.*$",
            r"\2 (\1)",
        ),
        # MySQL: what a driver's exception holds; and what is done with the rows of a table
        (
            "(",
            r"^((?:[\w.]{1,80}: )?)\(([0-9]{3,5}|<\*>), ([\"'])([^\n]{3,1500}?)\3\)((?: \([^()\n]{1,120}\))?)$",
            r"\1(\2, \4)\5",
        ),
        (" ON ", r" ON (?:DELETE|UPDATE) (?:CASCADE|RESTRICT|SET NULL|SET DEFAULT|NO ACTION)", ""),
        # Java: a local of a class that was compiled without their names
        (' because "<local', r" because \"<local[^>\n]{1,8}>(?:>)?\" is null", ""),
        # Rust: an error of serde, printed
        ("Error(", r"\bError\(\"([^\"\n]{3,600})(?:\", line: .{0,60})?$", r"Error: \1"),
        # Artemis: which message it was
        (
            "RELIABLE:",
            r"Reference\[?[^\s\]:]{1,40}\]?:(?:NON-)?RELIABLE:\w{1,60}[\[(][^\])\n]{0,400}[\])](?:@[^\s]{1,20})?",
            "Reference",
        ),
        # Java, Scala: what there was no constant, and no case, for
        ("No enum constant ", r"(No enum constant (?:[a-z_]\w*[.])*[A-Z]\w*(?:[.$][A-Z]\w*)*?)[.][^.\n]{1,80}$", r"\1"),
        ("MatchError: ", r"(MatchError: )[^\n]{1,300}? (?=[(]of class )", r"\1<*> "),
    )
)


def as_others_say(text: str) -> str:
    """A line of masked prose in the words that are read everywhere."""
    for literal, pattern, replacement in _WORDINGS:
        # What begins with the text is looked for at its beginning: a search would try it at each of its characters. No
        # such expression has an alternative that begins elsewhere.
        if literal in text and (not pattern.pattern.startswith("^") or pattern.match(text)):
            text = pattern.sub(replacement, text)
    return text
