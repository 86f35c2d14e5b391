"""One failure in the words of several makers, or of several versions of one, is one; and their codes stay apart."""

import pytest

from redrive.classification.explain import explain


def groups(*texts: str) -> set[str]:
    return {answer["group"] for answer in explain({"text": text} for text in texts)}


@pytest.mark.parametrize(
    "texts",
    [
        (
            "rpc error: code = InvalidArgument desc = invalid brim 7: must be 17 wide",
            "io.grpc.StatusRuntimeException: INVALID_ARGUMENT: invalid brim 8: must be 17 wide",
            "grpc.aio._call.AioRpcError: <AioRpcError of RPC that terminated with:\n"
            "\tstatus = StatusCode.INVALID_ARGUMENT\n"
            '\tdetails = "invalid brim 9: must be 17 wide"\n>',
            "Error: 3 INVALID_ARGUMENT: invalid brim 7: must be 17 wide",
        ),
        (
            "MISCONF Hats are configured to save, but it's currently unable to persist to disk",
            "ReplyError: MISCONF Hats are configured to save, but it is currently not able to persist on disk",
        ),
        (
            "READONLY You can't write against a read only replica.",
            "redis.exceptions.ReadOnlyError: You can't write against a read only slave.",
        ),
        ("Reason: 2085 MQRC_UNKNOWN_OBJECT_NAME", "MQDLH Reason=2085 (MQRC_UNKNOWN_OBJECT_NAME) of queue HATS.IN"),
        (
            "pain.002 status RJCT EndToEndId=H7 reason AC04 ClosedAccountNumber",
            "pain.002 RJCT OrgnlEndToEndId H8 reason AC04 (ClosedAccountNumber) amount 7.00 EUR",
        ),
        (
            "User: arn:aws:iam::1:user/hat is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:a:1:key/7"
            " because no identity-based policy allows the kms:Decrypt action",
            "User: arn:aws:iam::1:user/hat is not authorized to perform: kms:Decrypt on resource: arn:aws:kms:a:1:key/8"
            " because no resource-based policy allows the kms:Decrypt action",
        ),
        (
            "Request failed with status code 409 PUT https://hats.example/hats/7/brim",
            "AxiosError: Request failed with status code 409 (PUT https://hats.example/hats/8/brim)",
        ),
        (
            "422 Unprocessable Entity for url: https://hats.example/hats",
            "422 Unprocessable Content for url: https://hats.example/hats",
        ),
        (
            "java.net.SocketTimeoutException: timeout\n\tat shop.hats.HatClient.fetch(HatClient.java:7)",
            "java.net.SocketTimeoutException: Read timed out\n\tat shop.hats.HatClient.fetch(HatClient.java:9)",
        ),
        (
            '[{"code":"invalid_type","path":["hat","brim"],"message":"Required"}]',
            '[{"code":"invalid_type","path":["hat","brim"],"message":"Expected string, received undefined"}]',
        ),
        (
            "** (DBConnection.ConnectionError) connection not available and request was dropped from queue after 85ms."
            " This means requests are coming in.",
            "** (DBConnection.ConnectionError) connection not available and request was dropped from queue after 62ms."
            " You can configure how long requests wait.",
        ),
        (
            "__connect.errors.topic=hats __connect.errors.connector.name=sink __connect.errors.exception.message="
            "java.sql.BatchUpdateException: value too long for brim",
            "__connect.errors.topic=hats __connect.errors.connector.name=sink-2 __connect.errors.exception.message="
            "java.sql.BatchUpdateException: value too long for brim",
        ),
        (
            "** (FunctionClauseError) no function clause matching in Hats.Brim.parse/1\n"
            '    (hats 0.5.2) lib/hats/brim.ex:87: Hats.Brim.parse("B-89")',
            "** (FunctionClauseError) no function clause matching in Hats.Brim.parse/1\n"
            "    lib/hats/brim.ex:89: Hats.Brim.parse(nil)",
        ),
    ],
)
def test_one_failure_in_the_words_of_several(texts: tuple[str, ...]) -> None:
    assert len(groups(*texts)) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ("MISCONF Hats are not saved", "READONLY Hats are not written", "NOSCRIPT No matching hat"),
        ("Reason: 2085 MQRC_UNKNOWN_OBJECT_NAME", "Reason: 2035 MQRC_NOT_AUTHORIZED"),
        ("pain.002 RJCT reason AC04 ClosedAccountNumber", "pain.002 RJCT reason AM04 InsufficientFunds"),
        ("MT103 NAK {1:F21HATDDEFF}{4:{451:1}{405:T27}} ref 7", "MT103 NAK {1:F21HATDDEFF}{4:{451:1}{405:T50}} ref 8"),
        (
            'Grpc.Core.RpcException: Status(StatusCode="NotFound", Detail="no hat to update")',
            'Grpc.Core.RpcException: Status(StatusCode="NotFound", Detail="no shoe to update")',
        ),
        (
            "The JSON value could not be converted to System.Nullable`1[System.Date]. Path: $.brimDate",
            "The JSON value could not be converted to System.Nullable`1[System.Date]. Path: $.bandDate",
        ),
        ("io.grpc.StatusRuntimeException: NOT_FOUND: no hat", "io.grpc.StatusRuntimeException: ABORTED: no hat"),
    ],
)
def test_codes_and_fields_stay_apart(texts: tuple[str, ...]) -> None:
    assert len(groups(*texts)) == len(texts)


def test_a_value_in_the_place_of_a_code_is_none() -> None:
    widths = (536, 655, 503)
    assert len(groups(*(f"ValidationError: {width} is greater than the maximum of 300" for width in widths))) == 1


def test_the_code_of_a_country_is_none_of_a_failure() -> None:
    texts = (
        f"<Fault><code>Server</code><countryCode>{one}</countryCode><text>hat lost</text></Fault>"
        for one in ("IT", "ES")
    )
    assert len(groups(*texts)) == 1


@pytest.mark.parametrize(
    "texts",
    [
        (
            "0/32 nodes are available: 8 Insufficient cpu. preemption: 0/32 nodes are available: 32 No victims found.",
            "0/31 nodes are available: 7 Insufficient cpu, 1 node(s) had untolerated taint {hats: }.",
        ),
        (
            "remaining connection slots are reserved for roles with the SUPERUSER attribute",
            "remaining connection slots are reserved for non-replication superuser connections",
        ),
        ("permission denied for table hats", "permission denied for relation hats"),
        (
            '{"DeadLetterQueueSourceArn":"arn:aws:sqs:a:1:hats","SentTimestamp":"1729201189096"}',
            '{"ApproximateReceiveCount":"9","DeadLetterQueueSourceArn":"arn:aws:sqs:a:1:hats"}',
        ),
        (
            "Hat is locked by user ana since 7 May",
            "Hat is locked by user ilse.brandt since 8 May",
            "Hat is locked by user batch01 since 9 May",
        ),
        ("Hat booking WHHXVQ was lost", "Hat booking BJXAWN was lost", "Hat booking GGUFDMQC was lost"),
        ("Hat 7 on shelf EE is torn", "Hat 8 on shelf TR is torn", "Hat 9 on shelf SK is torn"),
        ("予約番号 PYUSDPHJ は既にキャンセルされています", "予約番号 JAJFPFEM は既にキャンセルされています"),
    ],
)
def test_values_and_what_was_added_tell_nothing(texts: tuple[str, ...]) -> None:
    assert len(groups(*texts)) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ("permission denied for table hats", "permission denied for table shoes"),
        ("hat refused with reason SMALL", "hat refused with reason TORN"),
        ("0/3 nodes are available: 3 Insufficient cpu.", "0/3 nodes are available: 3 Insufficient memory."),
        ("missing segment PID in hat", "missing segment OBX in hat"),
    ],
)
def test_names_in_capitals_stay_apart(texts: tuple[str, ...]) -> None:
    assert len(groups(*texts)) == len(texts)


@pytest.mark.parametrize(
    "texts",
    [
        (
            "[2026-06-20, 12:02:15 UTC] {taskinstance.py:2549} ERROR - Hat is torn at the brim",
            "Hat is torn at the brim",
        ),
        (
            "hats.rest.ApiException: (422)\nReason: Unprocessable Entity\n"
            'HTTP response body: {"code":"hat_bad","message":"The hat is bad"}',
            '{"code":"hat_bad","message":"The hat is bad"}',
        ),
        (
            "redshift_connector.error.ProgrammingError: {'S': 'ERROR', 'C': '42P01',"
            " 'M': 'relation \"hats\" does not exist', 'F': '../h.c'}",
            'ProgrammingError: relation "hats" does not exist',
        ),
        (
            "80090308: LdapErr: DSID-0C090446, comment: AcceptSecurityContext error, data 775, v4f7c",
            "javax.naming.AuthenticationException: [LDAP: error code 49 - 80090308: LdapErr: DSID-0C090569, comment:"
            " AcceptSecurityContext error, data 775, v4f7c",
        ),
        ("missing field `brim` at line 1 column 276", "missing field `brim`"),
        (
            "Code: 60. DB::Exception: Table hats.brims does not exist. (UNKNOWN_TABLE)",
            "Received exception from server (version 24.5.7):\n"
            "Code: 60. DB::Exception: Table hats.brims does not exist. (UNKNOWN_TABLE)",
        ),
    ],
)
def test_what_clients_print_of_an_answer_is_that_answer(texts: tuple[str, ...]) -> None:
    assert len(groups(*texts)) == 1


def test_errors_of_one_client_are_not_one_failure() -> None:
    told = "redshift_connector.error.ProgrammingError: {{'S': 'ERROR', 'C': '42P01', 'M': '{}', 'F': '../h.c'}}"
    assert len(groups(told.format('relation "hats" does not exist'), told.format("permission denied for hats"))) == 2
    told = "MsalServiceException: {}: The hat was refused. Trace ID: 9d192f8d-cd18-67fa-c5aa-1c2d3e4f5a6b"
    assert len(groups(told.format("AADSTS7000222"), told.format("AADSTS7000215"))) == 2
