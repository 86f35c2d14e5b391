# ruff: noqa: RUF001 - texts stand here as systems write them
"""Dress and values are taken off a failure text; the names of what is broken stay."""

import time
from itertools import combinations

import pytest
from failure_families import FAMILIES, texts
from failure_samples import SAMPLES
from pace import in_time

from redrive.classification import failure_text, grouping, normalization, similarity
from redrive.classification.cases import Case
from redrive.classification.explain import compare, explain, explain_cases
from redrive.classification.templates import KnownGroup


def template(text: str) -> str:
    return grouping.templates([masked := grouping.mask(text)])[masked]


def groups_of(*lines: str) -> list[str]:
    return [line["group"] for line in explain({"text": text} for text in lines)]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        pytest.param(
            "2026-03-01T10:00:07Z ERROR [pool-3] shop.Worker - KeyError: 'sku'", "KeyError: 'sku'", id="log prefix"
        ),
        pytest.param("Mar 11 10:00:07 node-7 app[431]: queue is full", "queue is full", id="syslog"),
        pytest.param(
            "2026-03-01 10:00:07.001 ERROR 7 --- [pool-3-thread-1] shop.orders.Worker     : queue is full",
            "queue is full",
            id="spring boot",
        ),
        pytest.param("10:00:07.001 [pool-3] ERROR shop.Worker - queue is full", "queue is full", id="logback"),
        pytest.param("[2026-03-01T10:00:07+00:00] shop.CRITICAL: queue is full", "queue is full", id="monolog"),
        pytest.param("Handler OrderListener failed for a1b2c3d4: queue is full", "queue is full", id="handler"),
        pytest.param("Task shop.tasks.ship[7f3a] raised unexpected: queue is full", "queue is full", id="celery"),
        pytest.param("delivery_tag=7 queue is full", "queue is full", id="setting in front"),
        pytest.param("<14>1 2026-03-01T10:00:07Z node-7 app 431 - - queue is full", "queue is full", id="rfc 5424"),
        pytest.param("fail: Shop.Orders.Worker[9]\n      queue is full", "queue is full", id="console of .net"),
        pytest.param("[Nest] 7  - 03/01/2026, 9:00:07 AM   ERROR [Hats] queue is full", "queue is full", id="nest"),
        pytest.param("2026-03-01T10:00:07Z ERROR shop::hats: queue is full", "queue is full", id="path of a module"),
        pytest.param("Fehler bei Versuch 2 von 7: queue is full", "queue is full", id="try in German"),
        pytest.param("retry 8 of 7 - queue is full", "queue is full", id="try and a dash"),
        pytest.param(
            "2026-03-01 10:00:07.001 | ERROR    | app.hats:run:7 - queue is full", "queue is full", id="loguru"
        ),
        pytest.param("2026-03-01 10:00:07.0|ERROR|Shop.Hats|queue is full", "queue is full", id="nlog"),
        pytest.param(
            "2026-03-01 10:00:07.001  WARN [hats,a1b2c3d4e5f60718] 1 --- [pool-3] shop.Hats : queue is full",
            "queue is full",
            id="spring boot with spans",
        ),
        pytest.param("[10:00:07.001] ERROR (hats/88): queue is full", "queue is full", id="pino"),
        pytest.param(
            "queue is full. For more information, see https://shop.test/help/hats", "queue is full", id="read on"
        ),
        pytest.param("<14>1 2026-03-01T10:00:07Z node7 queue is full", "queue is full", id="syslog cut short"),
        pytest.param("2026-03-01T10:00:07Z 7 queue is full", "queue is full", id="a time and a number"),
        pytest.param("(worker-3) queue is full", "queue is full", id="a worker in parentheses"),
        pytest.param("queue is full; https://shop.test/help/hats?id=7", "queue is full", id="a link behind"),
        pytest.param("queue is full [10.0.0.7:6379]", "queue is full", id="a server behind"),
        pytest.param(
            'shop.AccessException: I/O error on POST request for "https://hats.test/v1/hats/7": queue is full',
            "AccessException: queue is full",
            id="a request in front",
        ),
        pytest.param(
            '{"code": "hat_bad", "location": ["Line 7, Col 6"]}', "code=hat_bad", id="a line of what was sent"
        ),
        pytest.param("pid=7 tid=x1 class=HatJob WARN: queue is full", "queue is full", id="settings and a level"),
        pytest.param("1 error occurred:\n\t* queue is full\n\n", "queue is full", id="many errors in one"),
        pytest.param("Msg 515, Level 16, State 2, Line 85\nqueue is full", "queue is full", id="sql server"),
        pytest.param("queue is full (truncated...)", "queue is full\u2026", id="cut short in parentheses"),
        pytest.param("queue is full seq=7 dest=8 node=9", "queue is full", id="what was at hand"),
        pytest.param("hat is locked by hpark", "hat is locked by <*>", id="who did it"),
        pytest.param("connection closed by peer", "connection closed by peer", id="who did it, in the trade's words"),
        pytest.param("no hats in depot Nantes", "no hats in depot <*>", id="what a place is called"),
        pytest.param("hat nicht vorhanden im Werk DE01", "hat nicht vorhanden im Werk <*>", id="code of a place"),
        pytest.param("no hat for postal code 91547", "no hat for postal code <*>", id="code that is no failure's"),
        pytest.param("hat sorter ended with exit code 137", "hat sorter ended with exit code 137", id="exit code"),
        pytest.param("hat must be a Map, found: java.lang.String", "hat must be a Map, found: <*>", id="what came"),
        pytest.param("hat not found: head 7 left", "hat not found: head <*> left", id="not found"),
        pytest.param(
            "\u5e3d\u5b50 7 \u5728\u897f\u85cf16\u533a\u7f3a\u8d27",
            "\u5e3d\u5b50 <*> \u5728\u897f\u85cf<*>\u533a\u7f3a\u8d27",
            id="no blanks between words",
        ),
        pytest.param(
            '404 Not Found from hat shop seven: {"code": "no_hat", "trace": "a81"}',
            "404 Not Found from hat shop seven (code=no_hat)",
            id="answer behind",
        ),
        pytest.param(
            "hat shop seven gave 503 Service Unavailable:\n<html><head><title>503</title></head>",
            "hat shop seven gave 503 Service Unavailable",
            id="page behind",
        ),
        pytest.param('{"errors": ["one\\n\\tshoe is lost"]}', "one ; shoe is lost", id="escaped line break"),
        pytest.param("queue is full [truncated]", "queue is full\u2026", id="cut short"),
        pytest.param("ValueError('bad hat size')", "ValueError: bad hat size", id="printed exception"),
        pytest.param("seat of guest Ada Blorentz is taken", "seat of guest <*> is taken", id="person"),
        pytest.param("hat of customer Ada Blorentz is lost", "hat of customer <*> is lost", id="person behind a noun"),
        pytest.param("seat answered Bad Gateway twice", "seat answered Bad Gateway twice", id="words of the trade"),
        pytest.param("patient Patient/77 has no name", "patient Patient has no name", id="reference"),
        pytest.param(
            '{"code": "bad_type", "path": ["hats", 7, "size"], "message": "Required"}',
            "code=bad_type path=hats.size | Required",
            id="path in a list",
        ),
        pytest.param("[{'count': 7, 'reason': 'expired', 'queue': 'a'}]", "reason=expired", id="printed map"),
        pytest.param(
            "DeadLetterReason=HatLost; DeadLetterErrorDescription=the hat is gone",
            "HatLost: the hat is gone",
            id="settings of several words",
        ),
        pytest.param("attempt 3/5: printer is out of paper", "printer is out of paper", id="attempt"),
        pytest.param(
            'null value in column "tin" of relation "firms"',
            "null value in column 'tin' of relation 'firms'",
            id="names",
        ),
        pytest.param("no stock of item 'AB-7' for user 'ana'", "no stock of item <*> for user <*>", id="values"),
        pytest.param("paid 12.50 EUR on 3 March 2026", "paid <*>", id="amount"),
        pytest.param("HTTP 404 for url https://api.shop.test/v2/carts/7?x=1", "HTTP 404 for url /carts", id="resource"),
        pytest.param(
            '{"code": "no_stock", "message": "No stock of 7", "requestId": "a81"}',
            "code=no_stock | No stock of <*>",
            id="json",
        ),
        pytest.param('ts=1 level=error err="pool is closed" order=77', "pool is closed", id="logfmt"),
        pytest.param(
            "<Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>",
            "code=SlowDown | Reduce your rate",
            id="xml",
        ),
        pytest.param(
            "A failed; nested exception is shop.LateException: too late", "LateException: too late", id="cause"
        ),
    ],
)
def test_what_is_left(text: str, left: str) -> None:
    assert template(text) == left


@pytest.mark.parametrize(
    "tellings",
    [
        pytest.param(
            ("shop.PrinterException: printer is out of paper", "printer is out of paper"), id="class in front"
        ),
        pytest.param(("voucher already used", "voucher already used (by ana@acme.test)"), id="optional part"),
        pytest.param(
            ("row refused by gate", "row refused by gate\nDETAIL:  Row 7 has (a, b).", "ROW refused by gate"),
            id="detail and case",
        ),
        pytest.param(("load cart: pool is closed", "handle Paid: load cart: pool is closed"), id="wrapper"),
        pytest.param(
            (
                "could not execute statement [duplicate key in 'ux_hat']; SQL [insert into hats (a) values (?)]",
                "save hat: shop.DupException: duplicate key in 'ux_hat'",
                "retry 2 exhausted: duplicate key in 'ux_hat'",
            ),
            id="who tells what is named",
        ),
        pytest.param(("hat 7 does not fit any head", "hat 8 does not fit any he\u2026"), id="cut short"),
        pytest.param(("3 items missing: A-1, A-2, A-3", "1 items missing: B-7"), id="length of a list"),
        pytest.param(("hat does not fit head", "hat does not fit head while adding brims"), id="told on"),
        pytest.param(("hat is lost. Look on: 7", "hat is lost"), id="sentence after a value"),
        pytest.param(
            ("(shop.err.HatError) (1452, 'hat has no head in `shop`.`heads`')", "hat has no head in `shop_eu`.`heads`"),
            id="driver and schema",
        ),
        pytest.param(
            (
                "TypeError: no hat\n    at wear (/app/hats.js:7:1)",
                "Handler hats failed: TypeError: no hat\n    at wear (/srv/hats.js:9:1)",
            ),
            id="who caught it",
        ),
        pytest.param(
            (
                "panic: no hat\n\ngoroutine 7 [running]:\nshop.test/hats.Wear(0x1)\n\t/src/hats.go:7 +0x1",
                "panic: no hat\n\ngoroutine 9 [running]:\nshop.test/hats.Wear(0x2)\n\t/src/hats.go:7 +0x1\n"
                "created by main.main\n\t/src/main.go:7 +0x1",
            ),
            id="end of a go trace",
        ),
        pytest.param(
            ("HatError: SQLCODE=-407", "HatDataError: SQLCODE=-407"),
            id="class beside a code",
        ),
        pytest.param(
            ("load claim 7: hat not there", "settle: load claim 8: hat not there"), id="what is in front of the front"
        ),
        pytest.param(
            (
                "rpc error: code = NotFound desc = hat not there",
                "hat not there",
                "shop.HatException: SQL [select 1 from hats]; hat not there",
            ),
            id="status of gRPC and statement of jOOQ",
        ),
        pytest.param(
            (
                "HatException[Elasticsearch exception [type=no_hat_exception, reason=no hat in 7]]",
                "NotFoundError: NotFoundError(404, 'no_hat_exception', 'no hat in 9')",
            ),
            id="clients of elasticsearch",
        ),
        pytest.param(
            ("DeadLetterReason=hat id is null", "DeadLetterReason=hat id is null (entity=hats)"), id="one setting"
        ),
        pytest.param(("expired", "x-death-reason: expired", "reason=expired (queue=a.b, count=7)"), id="one word"),
        pytest.param(
            (
                "1 validation error for Hat\nsize\n  Input should be a date, too short [type=hat_date, input_value=7]",
                "1 validation error for Hat\nsize\n  Input should be a date, month is 13 [type=hat_date]",
            ),
            id="check of pydantic",
        ),
        pytest.param(
            ("550 5.7.26 no hat on a.test here", "smtplib.HatRefused: (550, b'5.7.26 no hat on b.test here', 'ana')"),
            id="tuple of an smtp client",
        ),
        pytest.param(
            (
                "no hat for type int.",
                "pyodbc.DataError: ('22003', '[22003] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]"
                "no hat for type int. (8115) (SQLExecDirectW)')",
            ),
            id="layers of odbc",
        ),
        pytest.param(
            (
                "app.HatError: no hat here at all",
                "app.HatError: no hat here at all\nRequestId:7\nTime:2026-03-01\nErrorCode:NoHat",
            ),
            id="lines of azure",
        ),
        pytest.param(
            ('{"level": "error", "msg": "handler failed", "err": "no hat here"}', "no hat here"),
            id="a consumer of itself",
        ),
        pytest.param(
            ('{"err": "no hat here", "msg": "wear the hat"}', '{"msg": "wear the hat", "err": "no hat here"}'),
            id="order of fields",
        ),
        pytest.param(
            (
                "HatReason: NoHat\nHatDescription: no hat here",
                "HatReason=NoHat; HatDescription=no hat here",
            ),
            id="a line each",
        ),
        pytest.param(
            (
                "TypeError: no hat\n    at wear (/app/hats.js:7:1)",
                '{"level": "error", "msg": "TypeError: no hat\\n    at wear (/srv/hats.js:9:1)"}',
            ),
            id="trace in a field",
        ),
        pytest.param(('{"reason": "NoHat"}', '{"status": 400, "reason": "NoHat"}'), id="status beside a reason"),
        pytest.param(
            (
                "hat lost; nobody was told of hat 7 by hat 8",
                "hat lost; nobody was told of hat 9 by hat 1; see shop.test/7",
            ),
            id="told on in a sentence",
        ),
        pytest.param(
            ("2026-03-01T10:00:07Z ERROR shop.hats.HatException: no hat", "HatException: no hat"),
            id="an exception is no logger",
        ),
        pytest.param(
            ("hat is lost in the shop", "grizzly: hat is lost in the shop", "walrus: hat is lost in the shop"),
            id="names of programs in front",
        ),
        pytest.param(
            (
                "sending hat 7 to Dead Letter Address DLQ.hats from shop.hats after maximum delivery attempts",
                "sending hat 8 to Dead Letter Address shoes.dead from shop.eu.shoes after maximum delivery attempts",
            ),
            id="queues that a broker names",
        ),
        pytest.param(
            (
                "discarded: Max Redelivery Count Exceeded; queue q/hats/red; msg-id 7",
                "discarded: Max Redelivery Count Exceeded; queue zyxhats; msg-id 8",
                "discarded: Max Redelivery Count Exceeded; endpoint #DEAD_HATS; msg-id 9",
            ),
            id="ways to name a queue",
        ),
        pytest.param(
            ('{"type": "hats.lost", "id": "a1"}', '{"type": "hats.lost", "id": "a2", "domain": "hub"}'),
            id="a field that not every client tells",
        ),
        pytest.param(
            ("选课失败：课程 PH354 人数已满（容量 54）", "选课失败：课程 MA157 人数已满（容量 159）"),
            id="numbered values in Chinese",
        ),
        pytest.param(
            (
                "帽子は更新できません（番号: 12690、対象月: 2024年5月）",
                "帽子は更新できません（番号: 80355、対象月: 2025年1月、拠点: 名古屋）",
            ),
            id="what was at hand in Japanese",
        ),
        pytest.param(
            (
                "Le chapeau n'est plus disponible pour la Dre van der Berg (site de Lille)",
                "Le chapeau n'est plus disponible pour le Dr Brandt",
            ),
            id="people with titles",
        ),
        pytest.param(
            ("hat of Kenji van der Berg is lost today", "hat of Łukasz Nguyen is lost today"), id="names of people"
        ),
        pytest.param(
            ("no hat for company code 2100 today", "no hat for company code DE01 today"), id="codes of companies"
        ),
        pytest.param(
            ("Hut 7: das rote Band fehlt, Mandant retail", "Hut 8: das rote Band fehlt, Mandant north"),
            id="a tenant at the end",
        ),
        pytest.param(
            ("帽子番号 7 はすでに紛失しています", "帽子番号 8 はすでに紛失しています。担当: Zyx Wvut"),
            id="who is in charge in Japanese",
        ),
        pytest.param(("the hat needs 14754 kWh of light", "the hat needs 7 of light"), id="units of energy"),
        pytest.param(
            (
                "2026-01-20T05:21:11.263Z\tERROR\thats/pool.go:171\thatband 7 is torn at the seam",
                "2026-01-20T05:21:12.263Z\tERROR\tshoes/flush.go:9\thatband 8 is torn at the seam",
                "hatband 9 is torn at the seam",
            ),
            id="zap",
        ),
        pytest.param(
            (
                "2026-01-20T05:21:11.263907493Z stderr F hatband 7 is torn at the seam",
                "13:59:10,182 WARN  [Camel (camel-1) thread #33] (Router) hatband 8 is torn at the seam",
                "hats-in-2  | hatband 9 is torn at the seam",
                "2026-01-20T05:21:11.263+09:00 error relay: hatband 1 is torn at the seam",
            ),
            id="containers, JBoss, compose, a relay",
        ),
        pytest.param(
            (
                'Post "https://a.example/v2/hats": tls: failed to verify certificate: x509: unknown authority',
                'Post "https://a.example/v2/shoes": tls: failed to verify certificate: x509: unknown authority',
            ),
            id="what nobody could be asked for",
        ),
        pytest.param(
            (
                'NullPointerException: Cannot invoke "a.b.Hat.brim()" because "<local4>" is null\n\tat a.b.C.d(C.java)',
                'NullPointerException: Cannot invoke "a.b.Hat.brim()" because "hat" is null\n\tat a.b.C.d(C.java)',
            ),
            id="locals without a name",
        ),
        pytest.param(
            ("Hutband fehlt für 王伟 in der Kiste", "Hutband fehlt für 山田 太郎 in der Kiste"),
            id="names in another script",
        ),
        pytest.param(
            ("caller svc-hats lacks role hat.writer", "caller svc-shoes lacks role hat.writer"), id="who was refused"
        ),
        pytest.param(
            (
                '{"detail":[{"type":"missing","loc":["body","hat"],"msg":"required","input":{"name":"Ana Lima"}}]}',
                '{"detail":[{"type":"missing","loc":["body","hat"],"msg":"required","input":{"name":"Bo Li GmbH"}}]}',
            ),
            id="what was sent beside what is wrong",
        ),
        pytest.param(
            (
                "hatband of a customer is torn today at noon because no identity-based hat allows it",
                "hatband of a customer is torn today at noon because no identity-ba",
                "hatband of a customer is torn today at noon because no identity-based ha",
            ),
            id="cut in a word",
        ),
        pytest.param(
            (
                "hat 7 is torn at the brim (partner Sommer & Söhne AS)",
                "hat 8 is torn at the brim (partner Bo Tools Ltd.)",
                "hat 9 is torn at the brim (sending shop B2)",
                "hat 9 is torn at the brim (Verkäuferin: vogt)",
                "hat 9 is torn at the brim (acheteur : Jan de Vries)",
            ),
            id="whose it was",
        ),
        pytest.param(
            (
                "帽子番号が一致しません（注文番号: 7）",
                "帽子番号が一致しません。郵便番号: 748",
                "帽子番号が一致しません",
            ),
            id="values with labels behind a Japanese sentence",
        ),
        pytest.param(
            ("帽子 7 校验失败，购方：Acme 商事", "帽子 8 校验失败，订单 77", "帽子 9 校验失败"),
            id="values with labels behind a Chinese clause",
        ),
        pytest.param(
            ("le chapeau n° 7 est perdu depuis longtemps", "le chapeau 8 est perdu depuis longtemps"),
            id="sign of a number",
        ),
        pytest.param(
            ("hat kHjAdCyiHP has lost its brim", "hat qiusluQVHJS0 has lost its brim", "hat 7 has lost its brim"),
            id="ids of letters",
        ),
        pytest.param(("no brim found for postcode 30291", "no brim found for postcode 77136"), id="codes of places"),
        pytest.param(("not allowed for hat D", "not allowed for hat U", "not allowed for hat 7"), id="one letter"),
        pytest.param(
            ("Unexpected token < in JSON at position 0", "Unexpected token '<', \"<html>\" is not valid JSON"),
            id="versions of V8",
        ),
        pytest.param(
            ("HatError{code=LOST, message='hat is lost'}", 'HatError { code: "LOST", message: "hat is lost" }'),
            id="printed errors",
        ),
        pytest.param(
            (
                "Lost task 3.0 in stage 1.0 (TID 5) (10.0.0.1 executor 2): shop.HatException: hat has lost its brim",
                "Lost task 9.2 in stage 4.0 (TID 8) (10.0.0.9 executor 17): shop.HatException: hat has lost its brim",
                "shop.HatException: hat has lost its brim",
            ),
            id="tasks of Spark",
        ),
        pytest.param(
            (
                "hats of ward 7 are all torn",
                "hats of ward ICU are all torn",
                "hats of ward Den Haag Nord are all torn",
                "hats of ward Sommer & Lind are all torn",
            ),
            id="a value by its place",
        ),
        pytest.param(("hat costs PLN 7 more now", "hat costs SEK 8 more now", "hat costs 9 more now"), id="currencies"),
        pytest.param(
            ("Hut 7 wurde am 3.3.2026 verloren", "Hut 8 wurde am 4.3.2026 verloren, Ersatz bis 7 nicht möglich"),
            id="told on behind values",
        ),
        pytest.param(("hat has a self-signed certificate", "hat has a self signed certificate"), id="hyphens"),
        pytest.param(("司机 王芳 的帽子已丢失", "司机 佐々木 翔 的帽子已丢失"), id="people in a Chinese text"),
        pytest.param(
            (
                'Get "https://a.test/hats": dial tcp: lookup a.test: no such host',
                'Post "https://b.test/bands/7": dial tcp: lookup b.test: no such host',
            ),
            id="who could not be asked, in whatever way",
        ),
        pytest.param(
            (
                "503 Server Error: Service Unavailable for url: https://a.test/hats/7",
                "Server error '503 Service Unavailable' for url 'https://a.test/hats/8'",
            ),
            id="clients of Python",
        ),
        pytest.param(("the old hat is torn again seq=7", "the old hat is torn again"), id="one value at the end"),
        pytest.param(
            (
                "** (HatError) the hat is lost\n    (hats 1.11.1) lib/hats/brim.ex:11: Hats.Brim.fit/2",
                "** (HatError) the hat is lost\n    (hats) lib/hats/brim.ex:12: Hats.Brim.fit/2",
            ),
            id="frames of Elixir",
        ),
        pytest.param(
            tuple(
                f"KeyNotFoundException: The given key '{key}' was not present in the table.\n   at Hats.Find(String)"
                for key in ("79", "trial", "default")
            ),
            id="keys of a table at one place",
        ),
        pytest.param(
            ("予約できません：Priya Raman さんは帽子がありません", "予約できません：王芳 さんは帽子がありません"),
            id="people in a Japanese text",
        ),
        pytest.param(
            ("GET /hats/7 answered 503 Service Unavailable", "PATCH /hats/8 answered 503 Service Unavailable"),
            id="methods",
        ),
        pytest.param(("hat refused by BNPAFRPP today", "hat refused by COBADEFF today"), id="banks"),
        pytest.param(("SQLSTATE[HY000] [1040] Too many hats", "ERROR 1040 (HY000): Too many hats"), id="PDO"),
        pytest.param(
            (
                "Failed password for mira from 10.0.0.7 port 4 ssh2",
                "Failed password for root from 10.0.0.8 port 5 ssh2",
            ),
            id="who tried to sign in",
        ),
        pytest.param(
            ("invalid user mira 10.0.0.7 port 4 left", "invalid user oskar 10.0.0.8 port 5 left"), id="who is unknown"
        ),
        pytest.param(
            ('hat refused: identity="mira" method=hatband', 'hat refused: identity="oskar" method=hatband'),
            id="an identity",
        ),
        pytest.param(
            ("user mira authenticated by the hat rack", "user oskar authenticated by the hat rack"), id="who signed in"
        ),
        pytest.param(
            (
                "rpc error: code = PermissionDenied desc = hat rack is not for mira",
                "store: hat rack is not for mira",
            ),
            id="with and without gRPC",
        ),
        pytest.param(
            (
                '{"errors":[{"source":{"pointer":"/hats/3/brim"},"detail":"can\'t be blank"}]}',
                '{"errors":[{"source":{"pointer":"/hats/12/brim"},"detail":"can\'t be blank"}]}',
            ),
            id="places in a list",
        ),
    ],
)
def test_one_failure_however_it_is_told(tellings: tuple[str, ...]) -> None:
    assert len(set(groups_of(*tellings))) == 1


@pytest.mark.parametrize(
    "lookalikes",
    [
        pytest.param(("KeyError: 'sku'", "KeyError: 'email'"), id="names"),
        pytest.param(('null value in column "a_id"', 'null value in column "b_id"'), id="columns"),
        pytest.param(
            ("GET https://a.test/carts/7 gave 404 Not Found", "GET https://a.test/users/7 gave 404 Not Found"),
            id="resources",
        ),
        pytest.param(
            ('{"code": "a_b", "path": ["hat", "size"]}', '{"code": "a_b", "path": ["hat", "brim"]}'),
            id="ways to a field",
        ),
        pytest.param(
            ('status=404 msg="lookup failed" path=/v2/hats/7', 'status=404 msg="lookup failed" path=/v2/heads/7'),
            id="what was asked for",
        ),
        pytest.param(("Undefined index: ean in x.php", "Undefined index: brand in x.php"), id="name before a place"),
        pytest.param(("load cart: pool is closed", "load user: pool is closed"), id="wrappers"),
        pytest.param(("sync stopped (pool is closed)", "sync stopped (disk is full)"), id="what is in parentheses"),
        pytest.param(('{"code": "a_b", "status": 400}', '{"code": "a_c", "status": 400}'), id="codes"),
        pytest.param(("update hat 7: version conflict", "update shoe 7: version conflict"), id="kinds in a wrapper"),
        pytest.param(("GET /Hats/7 gave 404", "GET /Shoes/7 gave 404"), id="resources with capitals"),
        pytest.param(
            (
                "Client error: `GET https://a.test/hats/7` gave 404",
                "Client error: `GET https://a.test/shoes/7` gave 404",
            ),
            id="requests in quotes",
        ),
        pytest.param(
            ('{"type": "shop.hat.v1.lost", "id": 7}', '{"type": "shop.hat.v1.found", "id": 7}'),
            id="types with versions",
        ),
        pytest.param(
            ("load claim 7: hat not there", "load claim 7: holder 8: hat not there"), id="what is next to the failure"
        ),
        pytest.param(
            ('ParseInt: parsing "7": bad hat size', 'ParseFloat: parsing "7": bad hat size'), id="names of functions"
        ),
        pytest.param(
            ('{"error_type": "a_b", "error_codes": ["c"]}', '{"error_type": "a_b", "error_codes": ["d"]}'),
            id="codes in a list",
        ),
        pytest.param(
            (
                "outcome=error cause=brim_missing brim=wide tries=7",
                "outcome=error cause=brim_missing brim=small tries=9",
            ),
            id="what a cause is about",
        ),
        pytest.param(
            (
                '{"message": "Hats were not valid: [{\\"error\\": \\"BAD_HAT\\", \\"name\\": \\"brim_size\\"}]"}',
                '{"message": "Hats were not valid: [{\\"error\\": \\"BAD_HAT\\", \\"name\\": \\"lace_size\\"}]"}',
            ),
            id="names in an answer within a message",
        ),
        pytest.param(
            ("HAT_STATE=LostForever; HAT_TRIES=7", "HAT_STATE=FoundAgain; HAT_TRIES=9"),
            id="where no field names anything",
        ),
        pytest.param(
            (
                "hat refused, with the error:\nORA-12541, TNS:no listener",
                "hat refused, with the error:\nORA-12505, TNS:no sid",
            ),
            id="codes on the second line",
        ),
        pytest.param(
            ("hat does not fit head", "hat does not fit head of ana", "hat does not fit head as brims are wide"),
            id="told on differently",
        ),
        pytest.param(
            ("hat is lost here now", "load: hat is lost here now", "save: hat is lost here now"),
            id="what was done in front",
        ),
        pytest.param(
            ('{"code": "400", "message": "no hat"}', '{"code": "400", "field": "brim", "message": "bad brim"}'),
            id="codes with other words",
        ),
        pytest.param(('{"code": "hat_bad"}', '{"code": "hat_bad", "field": "brim"}'), id="codes with a field"),
        pytest.param(
            (
                "The hat refused: {'ok': False, 'error': 'hat_lost'}",
                "The hat refused: {'ok': False, 'error': 'hat_torn'}",
            ),
            id="what a driver prints",
        ),
        pytest.param(("帽子丢失，错误码 HT354 请重试", "帽子丢失，错误码 HT355 请重试"), id="codes in Chinese"),
        pytest.param(
            (
                '{"resourceType": "Outcome", "issue": [{"code": "required", "diagnostics": "Hat.brim: minimum is one",'
                ' "location": ["Hat", "Line 7, Col 6"]}]}',
                '{"resourceType": "Outcome", "issue": [{"code": "required", "diagnostics": "Hat.band: minimum is one",'
                ' "location": ["Hat", "Line 8, Col 6"]}]}',
            ),
            id="what diagnostics name",
        ),
        pytest.param(
            (
                '{"code": "invalid", "path": ["order", "line", "qty"]}',
                '{"code": "invalid", "path": ["order", "head", "qty"]}',
            ),
            id="a field that is called line",
        ),
        pytest.param(("hat refused by Visby", "hat refused by Amdex"), id="who refused"),
        pytest.param(("hat refused, decline code 51", "hat refused, decline code 05"), id="short codes"),
        pytest.param(("[HAT_LOST] no head for hat 7", "[HAT_TORN] no head for hat 7"), id="codes in front"),
        pytest.param(("missing role hats.admin", "missing role shoes.admin"), id="roles"),
        pytest.param(("AccessDenied: hat:GetBrim", "AccessDenied: hat:PutBrim"), id="actions"),
        pytest.param(
            ("template hat_lost.html not found", "template hat_found.html not found"), id="templates of pages"
        ),
        pytest.param(
            ('{"type": "about:blank", "status": 404}', '{"type": "about:blank", "status": 409}'), id="statuses alone"
        ),
        pytest.param(
            ("Hat 7 has no valid price list yet", "Shoe 8 has no valid price list yet in this shop"),
            id="told on of another kind",
        ),
        pytest.param(
            ("no valid price list for hat 7 found here", "no valid price list for shoe 8 found here since today"),
            id="told on for another kind",
        ),
        pytest.param(
            (
                "RangeError: bad hat\n    at Date.toISOString (<anonymous>)\n    at wear (/app/hats.js:7:1)",
                "RangeError: bad hat\n    at Date.toISOString (<anonymous>)\n    at tie (/app/shoes.js:7:1)",
            ),
            id="places below the runtime",
        ),
        pytest.param(
            (
                """ORA-01400: impossible d'insérer NULL dans ("MODE"."CHAPEAU"."TAILLE_TETE")""",
                """ORA-01400: impossible d'insérer NULL dans ("MODE"."CHAPEAU"."COULEUR")""",
            ),
            id="a name whose form says nothing beside one whose form does",
        ),
        pytest.param(
            (
                'HatError: server said message="Undefined hat brim_width"',
                'HatError: server said message="Undefined hat crown_height"',
            ),
            id="a short message in quotes is no value",
        ),
        pytest.param(("MSA|AE|7\nERR||PID^1^8|103", "MSA|AE|8\nERR||PV1^1^19|103"), id="fields of HL7"),
        pytest.param(("field missing: PID-3", "field missing: PV1-19"), id="fields of HL7, spoken"),
        pytest.param(
            (
                "E11000 duplicate key error collection: shop.hats index: brim_1_crown_1 dup key: { brim: 7 }",
                "E11000 duplicate key error collection: shop.hats index: maker_1_year_1 dup key: { maker: 8 }",
            ),
            id="indexes of MongoDB",
        ),
        pytest.param(
            (
                "No query results for model [App\\Models\\Hat] 7",
                "No query results for model [App\\Models\\Shoe] 8",
            ),
            id="models of Laravel",
        ),
        pytest.param(
            (
                'level=error msg="feature missing" feature=brim_width_30d store=online',
                'level=error msg="feature missing" feature=days_of_rain store=online',
            ),
            id="fields that a message is about",
        ),
        pytest.param(
            (
                "Hat is not worn: (error=INVALID name=brim is wrong for hat_id)",
                "Hat is not worn: (error=INVALID name=crown_height is wrong for hat_id)",
            ),
            id="names behind the word",
        ),
        pytest.param(
            (
                "bind failed: [LDAP: error code 49 - 80090308: LdapErr: DSID-0C09044E, comment: AcceptSecurityContext"
                " error, data 775, v2580]",
                "bind failed: [LDAP: error code 49 - 80090308: LdapErr: DSID-0C09044E, comment: AcceptSecurityContext"
                " error, data 52e, v2580]",
            ),
            id="why a directory refused",
        ),
        pytest.param(
            ("hats of this shop need field brim", "hats of this shop need field brimless too"),
            id="a name that another one begins with",
        ),
        pytest.param(
            (
                "process of a customer of the old hat factory at the river exited today with code 4",
                "process of a customer of the old hat factory at the river exited today with code 42 again",
            ),
            id="a number that another one begins with",
        ),
        pytest.param(
            (
                "process of a customer of the old hat factory at the river has lost column brim",
                "process of a customer of the old hat factory at the river has lost column brimless again",
            ),
            id="a name that another one begins with, told at length",
        ),
        pytest.param(
            ("ts=7 evt=hat_rejected why=brim_torn hat=7", "ts=8 evt=hat_rejected why=band_lost hat=8"),
            id="fields that nobody knows",
        ),
        pytest.param(
            ("ts=7 pdu=resp command_status=0x00000058 dest=7", "ts=7 pdu=resp command_status=0x0000000B dest=7"),
            id="codes in hexadecimal",
        ),
        pytest.param(
            (
                "hat is not loaded. (Exception from HRESULT: 0x8007000B)",
                "hat is not loaded. (Exception from HRESULT: 0x80040154)",
            ),
            id="results of Windows",
        ),
        pytest.param(("IDoc 7: status 51, message ME 083", "IDoc 7: status 51, message VL 150"), id="messages of SAP"),
        pytest.param(("hat stopped (signal KILL)", "hat stopped (signal TERM)"), id="signals"),
        pytest.param(("hat stopped (Schritt: laden)", "hat stopped (Schritt: nähen)"), id="steps"),
        pytest.param(
            (
                'value too long for type character varying(7)\nCONTEXT:  COPY hats, line 7, column brim: "x"',
                'value too long for type character varying(7)\nCONTEXT:  COPY hats, line 7, column band: "x"',
            ),
            id="columns that a detail names",
        ),
        pytest.param(
            (
                'KafkaError{code=_TIMED_OUT,val=-185,str="hat late"}',
                'KafkaError{code=_ALL_DOWN,val=-1,str="hats gone"}',
            ),
            id="printed errors",
        ),
        pytest.param(
            (
                'hats::Error { kind: Connect, source: Os { code: 111, kind: Refused, message: "hat refused" } }',
                'hats::Error { kind: Connect, source: Os { code: 113, kind: Unreachable, message: "no way to hat" } }',
            ),
            id="printed errors of Rust",
        ),
        pytest.param(
            (
                '%Hat.Error{message: nil, hat: %{code: :band_lost, message: "band is lost"}}',
                '%Hat.Error{message: nil, hat: %{code: :brim_torn, message: "brim is torn"}}',
            ),
            id="printed errors of Elixir",
        ),
        pytest.param(("HatError(code=LOST, id=7)", "HatError(code=TORN, id=7)"), id="printed errors of Python"),
        pytest.param(
            ("[{field=brim, message=must not be null}]", "[{field=band, message=must not be null}]"), id="printed lists"
        ),
        pytest.param(
            (
                "HatErrors([{'index': 0, 'code': 121, 'errmsg': 'hat is invalid'}])",
                "HatErrors([{'index': 0, 'code': 11000, 'errmsg': 'hat is there already'}])",
            ),
            id="lists of errors",
        ),
        pytest.param(
            ("user 7 of the old shop is locked", "user account of the old shop is locked"),
            id="a word of failures is no value",
        ),
        pytest.param(
            ("GET /hats/7 answered 403 Forbidden", "PATCH /hats/8 answered 403 Forbidden"),
            id="methods that are refused",
        ),
        pytest.param(
            ("step 7 of the old hat failed", "step Ironing of the old hat failed"), id="a named step is no value"
        ),
        pytest.param(
            ("hats lost column 7 of the table", "hats lost column brim of the table"), id="a named column is no value"
        ),
        pytest.param(
            (
                "could not load 7 in time today",
                "could not load hat 7 in time today",
                "could not load shoe 7 in time today",
            ),
            id="kinds of things are no values",
        ),
        pytest.param(
            (
                "java.lang.ArithmeticException: / by zero\n\tat shop.Hats.share(Hats.java:7)",
                "java.lang.ArithmeticException: Non-terminating decimal expansion; no exact representable result"
                "\n\tat shop.Hats.share(Hats.java:9)",
            ),
            id="messages of a runtime at one place",
        ),
        pytest.param(
            ("Rejeição 204: Duplicidade de hat", "Rejeição 539: Duplicidade de hat"), id="numbers of rejections"
        ),
        pytest.param(
            (
                "HAT2_ERR_BRIM_LOST while ironing",
                "HAT2_ERR_LACE_TORN while ironing",
                "HAT2_ERR_SELF_IRONED while ironing",
            ),
            id="constants of words with a number in one",
        ),
        pytest.param(
            ("pressing ended with Hat2BrimMissing today", "pressing ended with Hat2LaceRevoked today"),
            id="names that say what is wrong, with a number in them",
        ),
        pytest.param(
            ("No hats for model [App\\Models\\Hat] 7", "No hats for model [App\\Models\\HatBand] 7"),
            id="a name in quotes is whole",
        ),
        pytest.param(
            ("** (HatError) nothing in Hats.Press.iron/2", "** (HatError) nothing in Hats.Rack.hang/1"),
            id="functions with their arity",
        ),
        pytest.param(("hat refused with reason '2035'", "hat refused with reason '2085'"), id="a reason in quotes"),
        pytest.param(("the hat machine has status 51", "the hat machine has status 56"), id="short statuses"),
        pytest.param(
            ('Scan error on column index 4, name "brim": NULL', 'Scan error on column index 5, name "lace": NULL'),
            id="columns that Go scans",
        ),
        pytest.param(
            ("no hat made. Path: $.hats[3].brim | Line: 0", "no hat made. Path: $.hats[3].lace | Line: 0"),
            id="ways through JSON",
        ),
        pytest.param(
            ('hat failed at path "brim" for model "Hat"', 'hat failed at path "lace" for model "Hat"'),
            id="paths of a model",
        ),
        pytest.param(
            ('campo "Minha aba" inválido no chapéu 7', 'campo "Sua aba" inválido no chapéu 7'),
            id="fields of several words",
        ),
        pytest.param(
            ("No hats. 'Press' claim(s) are required for 7", "No hats. 'Wear' claim(s) are required for 7"),
            id="claims that are lacking",
        ),
        pytest.param(
            (
                "rpc error: code = NotFound desc = hat rack: hat QX118",
                "rpc error: code = PermissionDenied desc = hat rack: hat QX118",
            ),
            id="statuses of gRPC",
        ),
        pytest.param(
            (
                "cannot unmarshal string into Go struct field Hat.c2 of type int",
                "cannot unmarshal string into Go struct field Hat.d2 of type int",
            ),
            id="fields with a number at their end",
        ),
        pytest.param(
            (
                '{"title":"Hats are wrong.","status":400,"errors":{"Brim":["The Brim is too wide."]}}',
                '{"title":"Hats are wrong.","status":400,"errors":{"Lace":["The Lace is too long."]}}',
            ),
            id="fields of an answer, each with what is wrong",
        ),
        pytest.param(
            ('{"errors":{"brim":"must be wider than 7"}}', '{"errors":{"lace":"must be wider than 7"}}'),
            id="the same with one text each",
        ),
        pytest.param(
            (
                '{"errors":[{"source":{"pointer":"/data/brim"},"detail":"can\'t be blank"}]}',
                '{"errors":[{"source":{"pointer":"/data/lace"},"detail":"can\'t be blank"}]}',
            ),
            id="pointers of JSON:API",
        ),
        pytest.param(
            (
                '[{"instancePath":"/hats/3/brim","message":"must be wide"}]',
                '[{"instancePath":"/hats/3/lace","message":"must be wide"}]',
            ),
            id="pointers of JSON Schema",
        ),
        pytest.param(
            ("'Hat Brim' must not be empty.", "'Hat Lace' must not be empty."), id="properties in front of their rule"
        ),
        pytest.param(
            ("required hat fields are missing: ['Brim']", "required hat fields are missing: ['Lace']"),
            id="fields that are missing",
        ),
        pytest.param(
            ("HatError: rack.hats[0].brim: must be wide", "HatError: rack.hats[0].lace: must be wide"),
            id="ways with an index",
        ),
        pytest.param(
            (
                'Cannot read Hat from "7"\n at (through reference chain: Rack["hats"]->Hat["brim"])',
                'Cannot read Hat from "7"\n at (through reference chain: Rack["hats"]->Hat["lace"])',
            ),
            id="fields that Jackson could not read",
        ),
        pytest.param(
            (
                "An instance of Hat has failed the validation:\n"
                " - property brim has failed the following constraints: isWide ",
                "An instance of Hat has failed the validation:\n"
                " - property lace has failed the following constraints: isWide ",
            ),
            id="properties that a class-validator refused",
        ),
        pytest.param(
            (
                '{"errors":[{"code":"WRONG","field":["hats","0","brim"],"message":"must be 7 or more"}]}',
                '{"errors":[{"code":"WRONG","field":["hats","0","lace"],"message":"must be 7 or more"}]}',
            ),
            id="ways as lists",
        ),
        pytest.param(("ended by HT2_HAT_LOST now", "ended by HT2_HAT_UNKNOWN now"), id="the same in capitals"),
        pytest.param(
            ("HatPress.Iron failed for 7", "ShoePress.Iron failed for 7"), id="methods of classes, with a capital"
        ),
        pytest.param(
            ("could not read user hats from 10.0.0.7", "could not read user shoes from 10.0.0.7"),
            id="what a user has is no name of one",
        ),
    ],
)
def test_look_alikes_stay_apart(lookalikes: tuple[str, ...]) -> None:
    assert len(set(groups_of(*lookalikes))) == len(lookalikes)


KINDS = ["hat", "shoe", "glove", "scarf", "brim", "lace", "sock"]


@pytest.mark.parametrize(
    "failure",
    [
        'null value in column "{}" of relation "wardrobe"',
        "required field {} is missing in wardrobe",
        "'{}' is a required property",
        "{} 7 was not found",
        "could not load {} with id 7",
        "No {} exists for id 7",
        "not allowed to edit {} #7",
        "failed to save {} 7: row was changed by another",
        "GET /api/v1/{}s/7 answered 404",
        '{{"error": "NOT_FOUND", "message": "{} 7 does not exist"}}',
    ],
)
def test_however_many_kinds_of_things_fail_alike_they_stay_apart(failure: str) -> None:
    """Where many words occur in one place, the place is a value: but not where the word names what is broken."""
    for kinds in (KINDS, [kind.capitalize() for kind in KINDS]):
        assert len(set(groups_of(*map(failure.format, kinds)))) == len(kinds)


def test_what_is_told_on_of_one_kind_joins_no_other() -> None:
    found = groups_of(
        "Hat 7 has no valid price list yet",
        "Shoe 8 has no valid price list yet",
        "Shoe 9 has no valid price list yet today",
    )
    assert found[0] != found[1] == found[2]


def test_what_numbers_tell_apart_need_not_be_told_apart_by_who_says_it() -> None:
    found = groups_of("AError: HAT-CODE=407", "BError: HAT-CODE=407", "CError: HAT-CODE=803")
    assert found[0] == found[1] != found[2]


@pytest.mark.timeout(60)
def test_failures_that_name_each_other_are_told_apart_in_time() -> None:
    """Each is the first clause of the other: nobody goes round in that circle."""
    assert len(set(groups_of("hat lost its head: shoe lost its foot", "shoe lost its foot: hat lost its head"))) == 2


def test_that_it_failed_makes_no_group_of_all_failures() -> None:
    hat, shoe = "hat does not fit head", "shoe does not fit foot"
    found = groups_of(*(f'{{"status": "FAILED", "cause": "{said}"}}' for said in (hat, shoe)), hat, shoe)
    assert found[:2] == found[2:]
    assert found[0] != found[1]


def test_what_ends_with_the_end_of_an_inner_exception_is_named_by_what_it_says() -> None:
    """Else all texts that end so were one failure."""
    text = (
        "HatException: lost\n ---> BandException: the old band is torn\n   --- End of inner exception stack trace ---"
    )
    assert template(text) == "BandException: the old band is torn"


def test_who_lacks_what_tells_others_apart_stands_alone() -> None:
    found = groups_of("sync stopped (pool is closed)", "sync stopped (disk is full)", "sync stopped")
    assert len(set(found)) == 3


def test_a_template_of_a_template_is_itself() -> None:
    """A group that is known by its template is found again by its template."""
    for masked in {grouping.mask(text) for text in [*(text for _, text in SAMPLES), *(text for text, _ in texts())]}:
        once = grouping.templates([masked])[masked]
        known = KnownGroup(grouping.fingerprint("throttled", once), "throttled", once)
        assert grouping.spots([masked], [known])[masked].known == {"throttled": known}


def test_a_group_of_another_release_keeps_its_name() -> None:
    old = KnownGroup("0123456789abcdef", "throttled", "<*> ERROR [pool-<*>] shop.Worker - HTTP 429 for <*> hats")
    line = {"text": "2026-03-01T10:00:07Z ERROR [pool-3] shop.Worker - HTTP 429 for 7 hats"}
    (answer,) = explain([line], known_groups=[old])
    assert answer["group"] == old.fingerprint


def test_what_says_more_than_a_known_group_makes_a_group_that_is_then_merged() -> None:
    (short,) = explain([{"text": "sync of shelves stopped"}])
    known = KnownGroup(short["group"], short["cause"], short["template"])
    (long,) = explain([{"text": "sync of shelves stopped (disk is full)"}], known_groups=[known])
    assert long["group"] != short["group"]
    later = KnownGroup(long["group"], short["cause"], long["template"])
    assert grouping.merges([known, later]) == {later.fingerprint: known.fingerprint}
    other = KnownGroup("v3other000000000", short["cause"], "sync of shelves stopped (pool is closed)")
    assert grouping.merges([known, later, other]) == {}


def test_a_guess_does_not_outweigh_what_the_broker_says() -> None:
    (guessed,) = explain([{"text": "gnome gateway closed"}])
    assert guessed["rule"].startswith("learned")
    (told,) = explain([{"text": "gnome gateway closed", "reason": "HeaderSizeExceeded"}])
    assert (told["cause"], told["rule"]) == ("oversized", "broker.header_size")
    (tired,) = explain([{"text": "gnome gateway closed", "reason": "MaxDeliveryCountExceeded"}])
    assert tired["cause"] == guessed["cause"]


def test_a_rule_that_knows_one_telling_knows_the_others() -> None:
    plain, known = Case("the shelf is locked by a gnome"), Case("the shelf is locked by a gnome (ORA-00060)")
    found = explain_cases({plain: 1, known: 1})
    assert found[plain].cause is found[known].cause is explain_cases({known: 1})[known].cause
    assert found[plain].fingerprint == found[known].fingerprint


def test_families_are_groups_and_no_two_are_one() -> None:
    made = list(texts())
    found = groups_of(*(text for text, _ in made))
    groups: dict[str, set[str]] = {}
    members: dict[str, set[str]] = {}
    for (_, family), group in zip(made, found, strict=True):
        groups.setdefault(family.name, set()).add(group)
        members.setdefault(group, set()).add(family.name)
    merged = [names for names in members.values() if len(names) > 1]
    assert merged == []
    assert sum(len(some) > 1 for some in groups.values()) <= 0.25 * len(FAMILIES)


@pytest.mark.parametrize("told", ["fit {} on head: hat is lost here", "hat is lost here ({} of ana)"])
def test_what_tells_very_many_failures_apart_is_found_in_time(told: str) -> None:
    """Each is held against those only that have a word of it: 8,000 took a quarter of a minute."""
    templates = [told.format("".join("bcdfglnprst"[int(digit)] for digit in f"{number:05}")) for number in range(8_000)]
    started = time.process_time()
    assert len(set(similarity.clusters(templates).values())) == len(templates)
    assert time.process_time() - started < 8


@pytest.mark.parametrize("told", ["HatError{a=", "HatError{message='", 'HatError{x="', "a Error {b: "])
def test_however_many_errors_are_printed_in_a_text_it_is_read_in_time(told: str) -> None:
    text = grouping.mask(failure_text.cut(told * 1_000))
    seconds = []
    for _ in range(3):
        began = time.process_time()
        normalization.template(text)
        seconds.append(time.process_time() - began)
    assert in_time(min(seconds), 0.1)


def test_likeness_does_not_depend_on_the_order() -> None:
    templates = [f"sync stopped ({why})" for why in ("pool is closed", "disk is full", "pool is closed twice")]
    once = similarity.clusters(templates)
    for some in combinations(templates, 3):
        assert similarity.clusters(reversed(some)) == once


def test_a_comparison_says_why() -> None:
    apart = compare("load cart: pool is closed", "load user: pool is closed")
    assert not apart["same"]
    assert apart["because"] == [
        "both say: pool closed",
        "what is in front differs (load cart / load user), which tells them apart",
    ]
    one = compare("attempt 2/3: sync of 7 stopped (by ana@acme.test)", "sync of 8 stopped")
    assert one["same"]
    assert one["because"] == ["both say: sync stopped"]
    assert [line["text"] for line in one["texts"]] == [
        "attempt 2/3: sync of 7 stopped (by ana@acme.test)",
        "sync of 8 stopped",
    ]
    other = compare("GET https://a.test/carts gave HTTP 404", "KeyError: 'sku'")
    assert any("different things" in reason for reason in other["because"])
