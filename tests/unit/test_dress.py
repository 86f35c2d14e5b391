"""What loggers, retries and consumers put round a failure makes no other failure of it, whatever layout a team has."""

import pytest

from redrive.classification.dress import without_end, without_front
from redrive.classification.explain import explain

FAILURES = [
    "Warehouse 12 has no stock of hat 88121 left",
    "java.lang.IllegalStateException: Hatbox 4711 is already closed",
    'duplicate key value violates unique constraint "hats_key"',
    "Error 1452 (23000): Cannot add or update a child row: a foreign key constraint fails",
    '{"code":"hat_lost","message":"The hat was lost"}',
    "connect ECONNREFUSED 10.2.3.4:5432",
    "rpc error: code = NotFound desc = hat 17 not found",
    "timeout of 5000ms exceeded while waiting",
    "Invalid brim width in field 'brimWidth'",
]
#: Ways to tell a failure, of logging libraries, runtimes, containers and consumers; {m} is what failed.
LAYOUTS = [
    "2024-05-02 06:11:09,118 - hats.worker - ERROR - {m}",
    "ERROR:hats.worker:{m}",
    "[2024-05-02 06:11:09 +0000] [118] [ERROR] {m}",
    "2024-05-02 06:11:09.118 | ERROR    | hats.worker:handle:42 - {m}",
    "[2024-05-02 06:11:09,118: ERROR/ForkPoolWorker-3] {m}",
    "ERROR 2024-05-02 06:11:09,118 worker 118 140213 {m}",
    "2024-05-02 06:11:09 ERROR hats.worker worker.py:42 {m}",
    "2024-05-02 06:11:09.118 [pool-3-thread-7] ERROR com.hats.Worker - {m}",
    "06:11:09.118 [main] ERROR c.a.Worker - {m}",
    "2024-05-02 06:11:09.118 ERROR 1 --- [ntainer#0-0-C-1] com.hats.Worker                  : {m}",
    "2024-05-02T06:11:09.118Z ERROR 1 --- [orders] [ntainer#0-0-C-1] com.hats.Worker : {m}",
    "SEVERE: {m}",
    "02-May-2024 06:11:09.118 SEVERE [worker-1] com.hats.Worker.handle {m}",
    "2024-05-02 06:11:09,118 ERROR [com.hats.Worker] (executor-thread-1) {m}",
    "ERROR [2024-05-02 06:11:09,118] com.hats.Worker: {m}",
    "118 [main] ERROR com.hats.Worker  - {m}",
    "2024-05-02 06:11:09,118 ERROR [Worker] {m}",
    "2024-05-02 06:11:09 [ERROR] Worker - {m}",
    "ERROR  o.a.c.Worker - {m}",
    "2024-05-02T06:11:09.118Z error: {m}",
    "2024-05-02T06:11:09.118Z [error]: {m}",
    "[Nest] 118  - 05/02/2024, 6:11:09 AM   ERROR [OrdersConsumer] {m}",
    "error [OrdersConsumer] {m}",
    "[error] {m}",
    "2024-05-02T06:11:09.118Z error [worker]: {m}",
    "error: {m}",
    "[2024-05-02T06:11:09.118Z] ERROR: worker/118 on host-7: {m}",
    "[2024-05-02T06:11:09.118Z] ERROR (worker/118): {m}",
    "[06:11:09.118] ERROR (118): {m}",
    "2024/05/02 06:11:09 worker.go:42: {m}",
    "2024/05/02 06:11:09 {m}",
    "2024/05/02 06:11:09 ERROR {m}",
    "E0502 06:11:09.118009       1 worker.go:42] {m}",
    "2024-05-02T06:11:09.118Z\tERROR\tworker/worker.go:42\t{m}",
    "2024-05-02T06:11:09.118Z\terror\tworker\t{m}",
    "6:11AM ERR {m}",
    "2024-05-02T06:11:09Z ERR {m}",
    "2024-05-02T06:11:09Z ERR worker.go:42 > {m}",
    "ERRO[0118] {m}",
    "fail: Hats.Worker[0]\n      {m}",
    "[06:11:09 ERR] {m}",
    "2024-05-02 06:11:09.118 +00:00 [ERR] {m}",
    "2024-05-02 06:11:09.118 [ERR] [Hats.Worker] {m}",
    "2024-05-02 06:11:09.1180|ERROR|Hats.Worker|{m}",
    "2024-05-02 06:11:09,118 [17] ERROR Hats.Worker - {m}",
    "2024-05-02 06:11:09,118 [17] ERROR Hats.Worker [(null)] - {m}",
    "[2024-05-02 06:11:09] [Error] [Hats.Worker] {m}",
    "E, [2024-05-02T06:11:09.118 #118] ERROR -- : {m}",
    "E, [2024-05-02T06:11:09.118118 #118] ERROR -- worker: {m}",
    "2024-05-02T06:11:09.118Z pid=118 tid=abc class=HatJob jid=1f2e3d4c5b6a ERROR: {m}",
    "[5a5b1c8e-3f02-4f53-9e2f-7a1c0be0f0aa] {m}",
    "[ActiveJob] [HatJob] [5a5b1c8e-3f02-4f53-9e2f-7a1c0be0f0aa] {m}",
    "[2024-05-02 06:11:09] production.ERROR: {m}",
    "[2024-05-02T06:11:09.118118+00:00] messenger.CRITICAL: {m}",
    "06:11:09 CRITICAL  [messenger] {m}",
    "PHP Fatal error:  Uncaught {m}",
    "06:11:09.118 [error] {m}",
    "06:11:09.118 request_id=F1a2b3c4d5 [error] {m}",
    "2024-05-02 06:11:09.118 [error] pid=<0.412.0> {m}",
    "[2024-05-02T06:11:09Z ERROR hats::worker] {m}",
    "2024-05-02T06:11:09.118118Z ERROR hats::worker: {m}",
    "2024-05-02T06:11:09.118118Z ERROR handle{{order_id=17}}: hats::worker: {m}",
    " ERROR hats_worker > {m}",
    "May  2 06:11:09 host-7 worker[118]: {m}",
    "<14>1 2024-05-02T06:11:09Z host-7 worker 118 - - {m}",
    "<14>May  2 06:11:09 host-7 worker[118]: {m}",
    "2024-05-02T06:11:09.118118+00:00 host-7 worker[118]: {m}",
    "2024-05-02T06:11:09.118Z stderr F {m}",
    "orders-worker-1  | {m}",
    "2024-05-02T06:11:09.118Z\t5a5b1c8e-3f02-4f53-9e2f-7a1c0be0f0aa\tERROR\t{m}",
    "[ERROR]\t2024-05-02T06:11:09.118Z\t5a5b1c8e-3f02-4f53-9e2f-7a1c0be0f0aa\t{m}",
    "app[worker.1]: {m}",
    "2024-05-02T06:11:09.118Z app[worker.1]: {m}",
    "[worker-3] {m}",
    "(worker-3) {m}",
    "{{worker-3}} {m}",
    "worker-3: {m}",
    "worker-3 | {m}",
    "worker#3: {m}",
    "<worker-3> {m}",
    "#3 {m}",
    "orders-consumer: {m}",
    "orders.worker: {m}",
    "OrdersWorker: {m}",
    "[OrdersWorker] {m}",
    "[orders] {m}",
    "[orders-worker] ERROR {m}",
    "[orders][3] {m}",
    "orders/3: {m}",
    "Failed to process message 5a5b1c8e: {m}",
    "failed to process message 5a5b1c8e after 5 attempts: {m}",
    "Message 4711 failed: {m}",
    "message 4711 rejected: {m}",
    "Processing failed: {m}",
    "processing failed after 3 retries: {m}",
    "Error processing message: {m}",
    "Error while processing message 4711: {m}",
    "Error handling event OrderCreated: {m}",
    "Handler OrderCreated failed: {m}",
    "handler error: {m}",
    "consumer error: {m}",
    "Consumer exception: {m}",
    "Unhandled exception in consumer: {m}",
    "unhandled error: {m}",
    "Exception in handler: {m}",
    "attempt 3/5: {m}",
    "attempt 3/5 failed: {m}",
    "[attempt 3/5] {m}",
    "(attempt 3 of 5) {m}",
    "attempt=3 {m}",
    "retry 3: {m}",
    "retry #3: {m}",
    "retry 3 of 5: {m}",
    "retries exhausted: {m}",
    "Retries exhausted (5/5): {m}",
    "max retries exceeded: {m}",
    "Max retries exceeded, last error: {m}",
    "giving up after 5 attempts: {m}",
    "giving up: {m}",
    "last error: {m}",
    "dead-letter: {m}",
    "dead-lettered: {m}",
    "DLQ: {m}",
    "dead lettered after 5 deliveries: {m}",
    "delivery 5/5 | {m}",
    "delivery #5 failed: {m}",
    "job 4711 failed: {m}",
    "Job HatJob failed: {m}",
    "Job 4711 (HatJob) failed: {m}",
    "task hats.tasks.hat[5a5b1c8e] failed: {m}",
    "order 4711: {m}",
    "order=4711 {m}",
    "order_id=4711 tenant=hats {m}",
    "tenant=hats: {m}",
    "trace_id=4bf92f3577b34da6a3ce929d0e0e4736 {m}",
    "[trace=4bf92f3577b34da6] {m}",
    "[4bf92f3577b34da6a3ce929d0e0e4736,00f067aa0ba902b7] {m}",
    "offset 118 partition 3: {m}",
    "partition=3 offset=118: {m}",
    "orders-3@118: {m}",
    "Caused by: {m}",
    "caused by: {m}",
    "Reason: {m}",
    "reason: {m}",
    "exception: {m}",
    "Exception: {m}",
    "Uncaught exception: {m}",
    "panic: {m}",
    "{m} (attempt 3/5)",
    "{m} [attempt 3 of 5]",
    "{m} trace_id=4bf92f3577b34da6",
    "{m} (request id 5a5b1c8e-3f02)",
    "{m}; retrying",
    "{m} (correlation id: 5a5b1c8e-3f02-4f53)",
    "{m} ...",
    "{m}\u2026",
    "{m} [truncated]",
    "2024-05-02 06:11:09 worker ERROR {m}",
    "2024-05-02 06:11:09 host-7 worker: {m}",
    "2024-05-02T06:11:09Z worker[3] ERROR {m}",
    "2024-05-02 06:11:09 (worker-3) {m}",
    "2024-05-02 06:11:09 - {m}",
    "20240502 061109 ERROR {m}",
    "1714630269 ERROR {m}",
    "1714630269.118 {m}",
    "[1714630269118] {m}",
    "02/05/2024 06:11:09 {m}",
    "Thu May 02 06:11:09 UTC 2024 ERROR {m}",
    "Thu, 02 May 2024 06:11:09 GMT: {m}",
    "ts=2024-05-02T06:11:09Z {m}",
    "at=error {m}",
    "level=error {m}",
    "!! {m}",
    "*** {m}",
    ">>> {m}",
    "=> {m}",
    "** {m}",
    "WARN  {m}",
    "Warning: {m}",
    "[WARN] {m}",
    "ERR {m}",
    "err: {m}",
    "CRITICAL - {m}",
    "ERROR - {m}",
    "ERROR | {m}",
    "ERROR -- {m}",
    "ERROR :: {m}",
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_whatever_is_put_round_it_it_is_the_same_failure(layout: str) -> None:
    for failure in FAILURES:
        plain, dressed = explain([{"text": failure}, {"text": layout.format(m=failure)}])
        assert plain["group"] == dressed["group"], (plain["template"], dressed["template"])


@pytest.mark.parametrize(
    "text",
    [
        "ERROR 1452 (23000): Cannot add a row",
        "[HAT_LOST] no head",
        "404 Not Found: hat",
        "[503] Service Unavailable",
        '{"code": "hat_lost"}',
        "code=hat_lost reason=torn",
        "order: brim is missing",
        "Retry limit reached for hats",
    ],
)
def test_what_may_be_the_failure_is_no_front(text: str) -> None:
    assert without_front(text) == text


@pytest.mark.parametrize("text", ["Message moved to dead letter queue", "hat was lost, giving it up", "retrying"])
def test_what_may_be_the_failure_is_no_end(text: str) -> None:
    assert without_end(text) == text


def test_the_number_of_a_process_is_no_status() -> None:
    cause, same = explain(
        {"text": f"2024-01-16 02:45:40,207 [{pid}] ERROR hats.worker: Server disconnected"} for pid in (407, 654)
    )
    assert cause["cause"] == same["cause"] == "transient_network"


@pytest.mark.parametrize(
    "front",
    [
        "com.hats.RateLimitFilter - ",
        "2024-05-02 06:11:09 ERROR timeout-handler - ",
        "tenant=timeout-corp ",
        "[403] ERROR auth-worker: ",
    ],
)
def test_what_a_logger_or_a_tenant_is_called_is_no_cause(front: str) -> None:
    plain, dressed = explain([{"text": "hat is too small for head"}, {"text": f"{front}hat is too small for head"}])
    assert (plain["cause"], plain["rule"]) == (dressed["cause"], dressed["rule"])


@pytest.mark.parametrize(
    "front",
    [
        "[retry 2 of 5] ",
        "(Camel (hats) thread #14 - HatConsumer) ",
        "[traceId=716b0ae9c25d spanId=902201a1] ",
        "06:11:09 hats: ",
    ],
)
def test_brackets_that_say_who_tells_it_are_a_front(front: str) -> None:
    plain, dressed = explain([{"text": "Hatbox is closed for today"}, {"text": f"{front}Hatbox is closed for today"}])
    assert plain["group"] == dressed["group"]


@pytest.mark.parametrize("text", ["(Invalid Message) No hat came", "(error code 49) hat refused"])
def test_brackets_that_may_be_the_failure_are_no_front(text: str) -> None:
    assert without_front(text) == text
