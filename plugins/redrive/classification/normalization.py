"""Normalization: a masked text becomes the one line that names the failure, its template.

Decoration goes: whatever the same failure is told with or without, such as what a logger puts in front, wrappers, how
a driver quotes, details and hints, how long a list is. Values go: what differs from message to message. What is left,
the names of what is broken and the words about it, is the template. It is a function of the text alone, so it is the
same in every batch and on every machine. Which templates are one failure all the same is decided in
:mod:`redrive.classification.similarity`.

Every expression is linear or bounded: the texts come from outside.
"""

import re
from typing import Final

from redrive.classification import error_fields, printed_errors
from redrive.classification.error_fields import BETWEEN
from redrive.classification.stack_traces import CUT, FRAME, Trace, may_tell_its_file, with_its_file
from redrive.classification.values_and_names import PLAIN_WORD, is_of_consumer, phrase
from redrive.classification.word_lists import WORDS, any_of

MAX_TEMPLATE: Final = 1000
#: Lines of a text, beside those of its frames, that are looked at.
_MAX_LINES: Final = 12
#: Characters of prose of which a template is made.
_LONGEST: Final = 2_000
#: Letters of two words, in pairs, before an answer in JSON.
_WORDS_BEFORE: Final = 6
#: So many things in front of a text are taken off, one after the other, and so many causes looked behind.
_MAX_FRONT, _MAX_CAUSES = 10, 8

#: What names of exceptions end with.
_RAISED: Final = f"(?:{any_of('raised')})"
_FRONT: Final = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        # Mar 11 <*> host app[<*>]:
        (r"[A-Z][a-z]{2} {1,2}(?:<\*>|[0-9]{1,2}) (?:<\*>) [^ \n]{1,80} [^ \n:]{1,60}: ", 0),
        # <14>1 <*> host app <*> - -, as RFC 5424 has it
        (r"<[^ \n]{1,6}>(?:<\*>|[0-9]) <\*> (?:[^ \n]{1,255} ){4}(?:-|\[[^\]\n]{0,200}\]) ", 0),
        # <14>1 <*> host, of a logger that leaves the rest of it out
        (r"<[^ \n]{1,6}>(?:<\*>|[0-9]) <\*> [a-z][\w.<*>-]{0,80} (?=[^ ])", 0),
        # E0311 <*> <*> file.go:<*>]
        (r"[EWIF](?:[0-9]{4}|<\*>) <\*>\s{1,8}(?:<\*>|[0-9]+) [^ \n\]]{1,60}\] ", 0),
        # LEVEL <*> --- [thread] logger : as Spring Boot logs
        (r"[A-Z]{4,8} +(?:\[[^\]\n]{0,160}\] +)?(?:[0-9]+|<\*>) --- (?:\[[^\]\n]{0,80}\] ?){1,3}[^ \n]{1,80} *: ", 0),
        # what is in brackets: a time, a level, a thread, an id; not a sentence
        (r"\[(?![\"'{\[]|[1-5][0-9]{2} |[A-Z]+(?:_[A-Z]+)+\])(?:[^\]\n ]{1,80} ?){1,3}\](?=[ :|\[-])[:| -]{0,3}", 0),
        # LEVEL:logger:, as Python's basic logging writes
        (rf"(?:{any_of('levels')}):(?:root|[a-z_][\w.]{{0,60}}):(?=[^\s])", 0),
        (
            rf"(?:{any_of('levels')})(?:(?: {{0,8}}\||:| -)[ ]*|(?=  ?\[)\s*|"
            rf"[ ]+(?=[A-Z<\[\"'({{#/*]|[\w.-]{{1,40}}=|[\w.$]{{1,120}}{_RAISED}:))",
            0,
        ),
        # Task orders.ship<*> raised unexpected: , job <*> failed (attempt <*>):
        (
            r"(?:Task|Job|Handler|Handling|Consumer|Listener|Worker|Processing|Actor|Step|Message|Event|Processor)"
            r" [^ :]{1,120} (?:raised unexpected|failed|threw(?: an)?(?: exception| error)?|errored|crashed)"
            r"(?: \([^()\n]{1,60}\))?: ",
            re.I,
        ),
        # LEVEL<tab>logger<tab>file.go:<*><tab>, as zap logs
        (rf"(?:{any_of('levels')})\t(?:[\w./-]{{1,60}}\t)?[^\s]{{1,160}}[.][a-z]{{1,4}}:(?:<\*>|[0-9]+)\t", re.I),
        # LEVEL [logger] (thread), as JBoss logs
        (rf"(?:{any_of('levels')}) +\[[^\]\n]{{1,100}}\] \([^()\n]{{1,80}}\) +(?=[^ ])", 0),
        # [Tue Sep  6 <*> <*>], as Apache logs
        (r"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [^\]\n]{5,40}\] +", 0),
        # app[web.<*>]: as Heroku logs
        (r"(?:app|heroku)\[[\w.<*>-]{1,40}\]: ", 0),
        # <*> stderr F, as containers' runtimes log
        (r"(?:<\*> )?(?:stdout|stderr) [FP] ", 0),
        # <*> error relay: , E/sync:
        (r"<\*> (?:error|err|warn|warning|info|fatal|crit|critical|debug) [a-z][\w.-]{1,40}: (?=[^ ])", 0),
        (r"[VDIWEF]/[\w.-]{1,40}: ", 0),
        # IDoc <*> status <*> - , of SAP
        (r"IDOC?(?: number)? (?:<\*>|[0-9]+)[:,]? +status (?:<\*>|[0-9]+)(?::| -) ", re.I),
        # retry #<*> in <*> - , <*> after start:
        (r"retry #?(?:<\*>|[0-9]+) in [^ \n]{1,12} [\u2014\u2013-] ", re.I),
        (r"<\*>[a-z]{0,2} after start: ", 0),
        # Apr <*>, <*> <*> AM app.Handler handle SEVERE: , of Java's own logging
        (
            r"(?:[A-Z][a-z]{2} )?(?:<\*>|[0-9]{1,2}),? (?:<\*>,? ){1,3}[AP]M [\w.$]{1,120} [\w$<>]{1,60}\s+"
            r"(?:SEVERE|WARNING|INFO): ",
            0,
        ),
        # jobs.batch: , Error creating: , pod-<*>@<*>: , as Kubernetes tells of
        (r"(?:[a-z]{2,30}[.](?:batch|apps)(?:/v1)?|Error creating|[\w.<*>-]{1,120}@(?:<\*>|[0-9]+)): (?=[^ ])", 0),
        (r"Message [^ \n]{1,80} (?:was |has been )?moved to (?:the )?error queue: ", 0),
        (r"x-death: (?=\w+=)", 0),
        # tenant=eu shard=<*>: {"code": ..}
        (r"(?:[a-z_]\w{0,40}=[^\s{}:]{1,60}[ ,]{1,2}){0,6}[a-z_]\w{0,40}=[^\s{}:]{1,60}: (?=[{\[])", 0),
        # Error for batch element #<*>: , as Db2's driver says
        (r"Error for batch element #(?:<\*>|[0-9]+): ", 0),
        # delivery_tag=<*>
        (r"(?:[A-Za-z][\w.-]{1,40}=<\*>[ ,;]{1,2})+(?![\w.@-]{1,60}=)(?=[^ ,;])", 0),
        (r"[^\s:]{1,200}/\$DeadLetterQueue[ :,-]{1,3}", re.I),
        (r"[AP]M +(?=[A-Z\[])", 0),
        # Msg 515, Level <*>, State <*>, Line <*>, as SQL Server's clients print it
        (
            r"Msg (?:[0-9]+|<\*>), Level [^,\n]{1,8}, State [^,\n]{1,8}"
            r"(?:, (?:Server|Procedure|Line) [^,\n]{1,80}){0,3}[\s;]+",
            0,
        ),
        # fail: Category[<*>], as .NET logs to a console
        (r"(?:trce|dbug|info|warn|fail|crit): +[A-Za-z_][\w.+`]{1,100}\[(?:[0-9]+|<\*>)\]\s*", 0),
        # pid=<*> class=X LEVEL:
        (rf"(?:[A-Za-z_][\w.-]{{0,40}}=[^\s=\"]{{1,80}} +){{2,12}}(?=(?:{any_of('levels')})[: ])", 0),
        (r"[-\u2013\u2014:>*\u00b7] +(?=[^ ])", 0),
        (r"\((?:error|ERR)\) +", 0),
        # (name/<*>): as pino has it
        (r"\([\w.-]{1,60}/(?:<\*>|[0-9]+)\): ", 0),
        # (worker-<*>)
        (r"\([a-z][\w.]{1,40}-(?:<\*>|[0-9]+)\):? (?=[^ ])", 0),
        # Logger|, as NLog has it
        (r"(?:[A-Za-z_]\w{0,60}[.]){1,8}[A-Za-z_]\w{0,60}\|(?=[^ ])", 0),
        # Symfony's Messenger and Spring's error handler
        (r"Error thrown while handling message \S{1,200} (?:Removing|Sending)[^\n]{1,120}? Error: ", 0),
        (r"Backoff [^\n;]{0,160}exhausted for [^\s;]{1,120}[\s;]+", 0),
        # channel.LEVEL: as Monolog logs
        (rf"[A-Za-z_][\w-]{{0,40}}[.](?:{any_of('levels')}): ", 0),
        # LEVEL logger - , LEVEL service-name:
        (
            rf"(?:{any_of('levels')}) +(?:[A-Za-z_$](?:[\w.$/<*>-]|::){{1,100}} - |"
            r"(?![^ :]{0,100}"
            rf"{_RAISED}:)"
            r"(?=[^ ]{0,100}[._$-]|[^ ]{1,60}::|[a-z_]{2,40}: )[A-Za-z_$](?:[\w.$/<*>-]|::){1,100}: )(?=[^ ])",
            0,
        ),
        (r"(?:error|err|warning|fatal|exception|failed|failure|fehler|erreur)[:|] *", re.I),
        (r"<\*>(?:[/.:-]<\*>){0,4}(?: ?[,.:;|/\]-]{1,2}(?= )| ?\|)? *(?=[^ ,.:;/])", 0),
        (r"\(<\*>\): ", 0),
        # attempt <*>/<*>:
        (rf"\(?(?:(?:{any_of('counted')})\b[ #:=]*(?:<\*>[ /]*|[0-9]+[ /]*)*){{1,4}}(?:[:|](?!:)|[)\]]) *", re.I),
        # a logger's name
        (r"(?![A-Z_]+ )[A-Za-z_$][A-Za-z0-9_.$/<*>:-]{1,80} - (?=[^ ])", 0),
        (r"(?:[a-z_][a-z0-9_]{0,40}[.]){1,8}[A-Za-z_$][A-Za-z0-9_$]{0,60}(?<!Exception)(?<!Error):(?=[^ :])", 0),
        (r"(?:[a-z]{1,12}-){0,4}reason: (?=[a-z_]+(?: |$))", 0),
        # <*> error occurred: *, as many errors of Go are one
        (r"(?:(?:<\*>|[0-9]+) )?errors? occurred:\s*(?:\* *)?", 0),
        (r"[|] *", 0),
        (r"[^\s|]{1,60} {1,20}\| (?=[^ ])", 0),
        (r"PHP (?:Fatal error|Parse error|Warning|Notice|Recoverable fatal error): *", 0),
        (r"(?:Uncaught|Unhandled)(?: exception| rejection| error)?(?:[.] |:? (?=[A-Z]))", re.I),
    )
)
# How one maker's software says a thing: where a text has the literal, what to read instead.
_SDK: Final = tuple(
    (literal, re.compile(pattern), replacement)
    for literal, pattern, replacement in (
        (
            "An error occurred (",
            r"(?:(?:[\w.]{1,120}): )?An error occurred \(([\w.]{1,80})\) when calling the \w{1,60} operation"
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
            r"(?:\w{1,60}\[)?(?:Elasticsearch|OpenSearch) exception \[type=(\w{3,80}), reason=(.{1,1500}?)\]{1,3}$",
            r"\1: \2",
        ),
        (
            "Error(",
            r"^(?:[\w.]{1,80}: )?\w{3,40}\((?:[0-9]{3}|<\*>), '(\w{3,80})', ([\"'])(.{1,1500}?)\2\)$",
            r"\1: \3",
        ),
        # Azure: which request it was; and where to read on
        ("TrackingId:", r"[. ]*\bTrackingId:\S[^\n]*$", ""),
        (
            "://",
            r"[.,;:]? ?(?:[Ff]or (?:more )?(?:information|details|help)\b[^.;\n]{0,40}|[Ss]ee(?: also)?|"
            r"[Ll]earn more(?: at)?|[Mm]ore info(?:rmation)?:?|[Rr]ead more(?: at)?) https?://[^\s]+$",
            "",
        ),
        ("://", r"[;,] https?://[^\s]+$", ""),
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
            r"\{?[^{}()\n]{0,120}\(((?:[0-9]{3})|<\*>), b'([^\n]{3,1000}?)(?:'(?:, [^)\n]{0,80})?\)?\}?)?$",
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
        ("SQL [", r"(?:\w{1,40}; )?SQL \[[^\n]{1,2000}?\]; (?=[^ ])", ""),
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
        (" (", r"^(expired|rejected|maxlen|delivery_limit) \([^()\n]{1,200}\)$", r"\1"),
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
        # .NET: of what a generic exception is
        ("`", r"`(?:[0-9]|<\*>)\[[\w., `<*>]{1,200}\](?=:)", ""),
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
        ("error, data ", r"(AcceptSecurityContext error), data (\w{2,4})\b", r"\1 DATA_\2"),
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
_INNER: Final = re.compile(
    r"(?:Lost task [^ \n]{1,12} in stage [^\n]{1,80}?executor (?:<\*>|[0-9]{1,6})\):|"
    r"nested exception is|Write error: (?=WriteError)|[Ww]ith linked exception:?\s*\[|[Cc]aused by:?|"
    r"[( ,;][Cc]ause(?:d by)?[:=]|[Rr]oot cause:?|--->|"
    r"(?<!End of )[Ii]nner exception(?: is)?:?|[Ee]rror_?[Mm]essage[:=]|reply-text=|(?<=[{ ,])message=)\s*"
)
# What is said after the failure: what was done meanwhile, and that the text was cut short.
_WHILE: Final = re.compile(
    r"[:;,]? ?\b[Ww]hile (?:executing|processing|reading|writing|parsing|handling) [^:;]{1,200}$"
)
_LONGEST_END: Final = 60
_CUT_SIGNS: Final = ("...", "\u2026", "trunc", "cut", "snip", "more")
_CUT_SHORT: Final = re.compile(
    r"\s{0,9}(?:[(\[<]?(?:[.]{3}|\u2026)?\s?(?:truncated|trunc|cut|snip|more)(?:[.]{3}|\u2026)?[)\]>]?|[(\[<]?(?:\u2026|[.]{3})[)\]>]?)\s*$"
)
# What an object mapper says of the database's message, and the statement.
_MAPPED: Final = re.compile(
    r"(?:could not|cannot|unable to) (?:execute|prepare|extract|perform|insert|update) [\w ]{1,30} ?[\[(]"
    r"(?!\))(?=.{20})"
)
_SQL: Final = re.compile(r";? ?\[?SQL:? ?[\[(:].*$|;? SQL \[.*$", re.S)
# ValueError('unknown plan'): as Python prints an exception
_PRINTED = re.compile(r"\b((?=[A-Z])\w{0,60}(?:Error|Exception|Warning|Failure|Fault))\(([\"'])([^\n]{3,600}?)\2,?\)")
_PRINTED_BREAK = re.compile(r"(?:\\r)?\\n(?=[A-Z][a-z]+ )")
_STATEMENT = re.compile(r" ?[\[(](?:Connection: [\w ,:-]{1,60}, )?SQL: .*$", re.S)
_CLAUSE = re.compile(r"([^:\n\"'(){}=]{3,120}?)(?:: | - )(?=[^ ])")
_QUOTED = re.compile(r"([\"'])([^\"'\n]{3,1500})\1(?=$|[\s,;)\]}])")
_TRIES: Final = frozenset(WORDS["tries"])
_HAS_DIGIT = re.compile(r"[0-9]")
# (through reference chain: shop.Order["lines"]->java.util.ArrayList[0]->shop.Line["due"])
_REFERENCES = re.compile(r"through reference chain: ([^\n)]{1,600})")
_REFERENCE = re.compile(r"\[\"([A-Za-z_]\w{0,60})\"\]")
# - property iban has failed the following constraints: isIBAN, isNotEmpty
_REFUSED = re.compile(r"- property ([A-Za-z_][\w.]{0,80}) has failed the following constraints: (\w{1,40})")
_MOST_FIELDS = 3
# rpc error: code = PermissionDenied desc = …: but for those of which any failure may be
_RPC_STATUS = re.compile(r"rpc error: code = (?!Unknown|Internal|Unavailable)([A-Z][A-Za-z]{2,30}) desc = ")
_PLAIN = re.compile(r"(?<![\w<])[^\W\d_]{2,40}(?:_[^\W\d_]{2,40}){0,6}(?![\w*])")
_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
_DETAIL = re.compile(rf"\s*(?:{any_of('details')}|LINE [0-9<]|[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{{3,20}}(?: [0-9]+)? ?: )")
_ADDED = re.compile(r"\s*(?:ORA-06512: |[A-ZÄÖÜÀÂÇÉÈÊÍÓÚÑ]{4,20} ?: )")
# Of a stack of Oracle's errors the first is what failed.
_ADDED_BY_ORACLE = re.compile(rf"\s*ORA-[0-9<]|{_ADDED.pattern}")
# The way to a field, on a line of its own.
_WAY = re.compile(r"[a-z_]\w{0,40}(?:[.][A-Za-z_]\w{0,40}){1,4}")
_NESTED = re.compile(r" \| |[()]")
# Of an answer's names those that say what failed.
_NO_REASON = re.compile(
    r"(?<!\S)(?!\w*(?:code|reason|error|type|field|param|name|property|path|column)=)\w+=\S+ ?(?:\| )?"
)
_HTML = re.compile(r"[:;\s]\s{0,9}<(?:!doctype|html)\b.*", re.I | re.S)
# '{"urn:iso:std:iso:<*>":ChrgBr}'. One of '{..}' is expected: as SAX calls an element, and what could stand there
_OF_SCHEMA = re.compile(r"'\{\"[^\"\n]{1,200}\":([A-Za-z][\w.-]{0,80})\}'")
_COULD_STAND = re.compile(r"[.]? One of '\{[^'\n]{1,1500}(?:\}' is expected[.]?|$)")
_COMMAND = re.compile(r"(?:[A-Z]\w{0,30}: )?Command failed(?: with exit code [^:\n]{1,12})?: ")
_LINK = re.compile(r"\s*https?://\S+\s*$")
_COPIED = re.compile(r"\bCOPY [\w.\"]{1,120}, line [^ ,]{1,12}, column (\w{1,60})")
_OF_COLUMN = re.compile(r"\b(?:column|constraint|Spalte|colonne)\b")
_INDEX = re.compile(r"(?<=[a-z\]])[.]<\*>(?=[.]|$)|\[<\*>\](?=[.\[]|$)")


def template(masked: str) -> str:
    """The template of a masked text: what it says, and for a stack trace where, after :data:`FRAME`."""
    if may_tell_its_file(masked) and (found := with_its_file(without_front(masked))):
        return _said(found[0])[:MAX_TEMPLATE] + FRAME + found[1]
    if "\n" in masked:
        trace = Trace(without_front(masked).split("\n"))
        if trace.frames:
            words, frame = _traced(trace)
            return words[:MAX_TEMPLATE] + (FRAME + frame if frame else "")
    said, at, frame = (_line(masked) or masked).partition(FRAME)
    if (more := _told_apart_from_it(masked)) and more not in said:
        said = f"{said} ({more})"  # not every client tells it
    if not _TWO_LETTERS.search(said) and (told := _PLAIN.findall(masked[:_LONGEST])):
        said = " ".join(told)  # whatever it is, it is not what every other is
    frame, parted, others = frame.partition(BETWEEN)
    return (said + parted + others.replace(FRAME, " at "))[:MAX_TEMPLATE] + at + frame


def _told_apart_from_it(masked: str) -> str:
    """What some tell of a failure beside what it says: gRPC's status, the field that Jackson could not read or that a
    class-validator refused."""
    if status := _RPC_STATUS.search(masked):
        return status[1]
    if (chain := _REFERENCES.search(masked)) and (fields := _REFERENCE.findall(chain[1])):
        return f"field '{'.'.join(fields)}'"
    refused = _REFUSED.findall(masked)
    return ", ".join(f"field '{field}' {rules}" for field, rules in sorted(set(refused))[:_MOST_FIELDS])


def without_front(text: str) -> str:
    """``text`` without what loggers, retries and consumers put in front of it, as long as something is left."""
    for _ in range(_MAX_FRONT):
        end = _end_of_front(text)
        if not end:
            return text
        text = text[end:].lstrip()
    return text


def _end_of_front(text: str) -> int:
    """Where the first thing in front ends; 0 where there is none, or nothing behind it."""
    for pattern in _FRONT:
        match = pattern.match(text)
        if match is not None and match.end() and _TWO_LETTERS.search(text, match.end()):
            return match.end()
    # Handler Orders failed for <*>: , failed to process <*>: , Retry <*> exhausted:
    clause = _CLAUSE.match(text)
    if clause is not None and " " in clause[1] and _TWO_LETTERS.search(text, clause.end()):
        words = [word for word in PLAIN_WORD.findall(clause[1].replace("<*>", " ")) if not _HAS_DIGIT.search(word)]
        told = [word.lower() for word in words]
        if not _TRIES.isdisjoint(told) and all(map(is_of_consumer, words)):
            return clause.end()
    return 0


def _line(text: str) -> str:
    """The template of a text without frames."""
    text = without_front(text.strip())
    if "'{\"" in text:
        text = _COULD_STAND.sub("", _OF_SCHEMA.sub(r"'\1'", text))
    if "\n" in text and (trace := Trace(text.split("\n"))).frames:  # in a field
        words, frame = _traced(trace)
        return f"{words}{FRAME}{frame}" if frame else words
    # What was answered comes behind: 404 Not Found: {"code": ...}
    at = text.find('{"')
    if at > 0 and "{" not in text[:at] and len(_TWO_LETTERS.findall(text[:at])) >= _WORDS_BEFORE:
        before = _said(text[:at].rstrip(" [:=-\n"))
        # Of one that was cut short nobody knows what it said; that it failed is known.
        answer = _NO_REASON.sub("", error_fields.message_of(text[at:], _line)) if text.endswith(("}", "]", '"')) else ""
        return f"{before} ({_NESTED.sub(' ', answer.partition(FRAME)[0])})" if answer else before
    return error_fields.message_of(text, _line) or _said(text)


def _traced(trace: Trace) -> tuple[str, str]:
    """What the root of a trace says, and where."""
    root, frame = trace.root_and_frame()
    return error_fields.message_of(root, _line) or _said(root) or root, frame


def _said(text: str) -> str:
    """The template of prose: the innermost cause, without decoration."""
    if "\\n" in text:  # of a text that was printed
        text = _PRINTED_BREAK.sub("\n", text)
    if (page := _HTML.search(text)) and len(_TWO_LETTERS.findall(text[: page.start()])) >= _WORDS_BEFORE:
        text = text[: page.start()]
    text = printed_errors.told(text)
    text = _one_line(text)
    for match in reversed([*_INNER.finditer(text)][-_MAX_CAUSES:]):
        rest = text[match.end() :].strip()
        while rest.endswith(")") and rest.count(")") > rest.count("("):
            rest = rest[:-1]
        if len(_TWO_LETTERS.findall(rest[:200])) > 1:
            # What is quoted is a message here, however few its words are.
            quoted = _QUOTED.match(rest)
            text = quoted[2] if quoted and " " in quoted[2] else rest
            break
    if mapped := _MAPPED.search(text):
        text = _SQL.sub("", text[mapped.end() :]).rstrip(" ;)]")
    end = text[-_LONGEST_END:]
    cut = _CUT_SHORT.search(text, len(text) - len(end)) if any(map(end.__contains__, _CUT_SIGNS)) else None
    text = without_front(text[: cut.start()] if cut else text)
    if (
        "hile " in text
        and (meanwhile := _WHILE.search(text))
        and len(_TWO_LETTERS.findall(text[: meanwhile.start()])) > 3
    ):
        text = text[: meanwhile.start()]
    if "SQL: " in text:
        text = _STATEMENT.sub("", text)
    if "('" in text or '("' in text:
        text = _PRINTED.sub(r"\1: \3", text)
    for literal, pattern, replacement in _SDK:
        if literal in text:
            text = pattern.sub(replacement, text)
    return phrase(text[:_LONGEST]).strip(" :;,-|") + (CUT if cut else "")


def _one_line(text: str) -> str:
    """The lines of a message as one, without details and hints."""
    if "\n" not in text:
        return text
    lines = [line for line in text.split("\n")[:_MAX_LINES] if line.strip()]
    if len(lines) > 1 and _COMMAND.match(lines[0]):
        lines = lines[1:]  # why, as the command said
    # What a database adds comes last, and goes on over several lines.
    added = _ADDED_BY_ORACLE if lines and "ORA-" in lines[0] else _ADDED
    end = next((number for number, line in enumerate(lines) if number and added.match(line)), len(lines))
    kept = [
        line for number, line in enumerate(lines[:end]) if number == 0 or not (_DETAIL.match(line) or _LINK.match(line))
    ]
    if (copied := _COPIED.search(text)) and not _OF_COLUMN.search(kept[0]):
        kept.append(f"(column '{copied[1]}')")  # of a detail what is broken, where else nobody says it
    # A report of several errors of one kind says the same several times.
    whole = (_INDEX.sub("", " ".join(line.split())) for line in kept)
    return " ; ".join(dict.fromkeys(line.replace(".", "/") if _WAY.fullmatch(line) else line for line in whole))
