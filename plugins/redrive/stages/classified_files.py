"""What staging holds and Spark found out, as the ledger loads it: groups, and copies column by column from Arrow.

For a portion of batches: :func:`described` reads what staging says, :class:`Answers` what Spark says, and :func:`load`
brings both together and hands them to :mod:`redrive.ledger.drain.loading`, which decides what each copy is.
:func:`repeated` comes first, for a broker that gives copies no identity.

Apart from :mod:`redrive.stages.classify`, because Arrow takes longer to import than an idle run may last.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from redrive.classification import explain
from redrive.classification.arrow_numpy import has_nul
from redrive.classification.case_finder import CaseFinder, CaseSettings
from redrive.classification.row_groups import RowGroup
from redrive.errors import BrokerError, BrokerUnavailable, ClassificationFailed, StagingError
from redrive.ledger.delivery import lanes
from redrive.ledger.drain import batches, groups, loading, repeats
from redrive.ledger.drain.batches import Batch
from redrive.ledger.drain.groups import Group
from redrive.ledger.drain.keys import Selectors
from redrive.ledger.drain.loading import Classified, Loaded
from redrive.ledger.drain.repeats import Copy, Evidence, Repeat, StagedBatch
from redrive.ledger.drain.strangers import Behind
from redrive.ledger.schema import ledger_id
from redrive.message import (
    MAX_INDEXED,
    MAX_ROWS,
    REDRIVE_ID_DIGITS,
    ROW_BITS,
    Tracking,
    headers_hash,
    index_key,
    message_id_of,
)
from redrive.policy.aims import LONGEST_ORIGIN
from redrive.redaction import Redactor, redactor
from redrive.stages import aiming
from redrive.stages.context import Context, not_sent_on
from redrive.staging import file_schemas
from redrive.staging.batch_files import Staging

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


def described(context: Context, some: Sequence[Batch]) -> list[tuple[Batch, pa.Table]]:
    """Those batches of the portion whose file can be read, with what the ledger keeps of their copies.

    A file that is damaged, or holds something else than was recorded, stops only its own messages: they wait.
    """
    found = []
    for batch in some:
        try:
            table = context.staging.described(batch.uri)
        except StagingError:
            if not context.staging.is_damaged(batch.uri):
                raise
            continue
        ids = pc.unique(table.column("batch_id")).to_pylist()
        if len(table) != batch.copies or ids != [batch.batch_id] * bool(batch.copies):
            continue
        found.append((batch, table))
    return found


class Answers:
    """What the job found out, to be looked up by message; its distinct cases are in memory, its messages are not."""

    def __init__(self, context: Context, output: str) -> None:
        """Make the job's groups known to the ledger. Raises :class:`ClassificationFailed` when files are missing."""
        self._staging = context.staging
        self._output = output
        cases = self._read(
            file_schemas.CASES_FILE, ["case_key", "messages", "cause", "fingerprint", "template", "example", "telling"]
        )
        ids = _make_groups(context, cases)
        self._cases = cases.select(["case_key", "cause"])  # texts and templates are not needed any more
        # Of a million cases nearly all may be of one group.
        fingerprints = cases.column("fingerprint").combine_chunks().dictionary_encode()
        names = pa.array([ids[one] for one in fingerprints.dictionary.to_pylist()], pa.int64())
        self._group_ids = names.take(fingerprints.indices)
        shared = pc.is_in(cases.column("fingerprint"), value_set=pa.array(sorted(explain.overflow_groups())))
        #: Messages whose failures were too many to tell them apart.
        self.overflowed = int(pc.sum(cases.column("messages").filter(shared)).as_py() or 0)

    def columns(self, some: Sequence[Batch], message_ids: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
        """Keys, ``fields``, ``cause`` and ``group_id`` of a portion's messages, in the ids' order.

        Raises :class:`ClassificationFailed` unless the job answered for each of them, once, and says why each failed.
        """
        names = [f"{file_schemas.MESSAGES_DIR}/{file_schemas.messages_file(batch.batch_id)}" for batch in some]
        table = pa.concat_tables([self._read(name, file_schemas.MESSAGES.names) for name in names])
        if not table.column("message_id").equals(message_ids):
            raise ClassificationFailed(
                f"the Spark job answered for {len(table)} messages of batches {some[0].batch_id} to "
                f"{some[-1].batch_id}, where {len(message_ids)} are staged; classify them again"
            )
        case = pc.index_in(table.column("case_key"), value_set=self._cases.column("case_key"))
        # Nothing failed where there is no case: such a message would go back at once, past cause and canary.
        if unsaid := case.null_count - table.column("case_key").null_count:
            raise ClassificationFailed(
                f"the Spark job says of {unsaid} messages of batches {some[0].batch_id} to {some[-1].batch_id} which"
                " failure they have, and not what it is: two tries of it wrote at a time; classify them again"
            )
        return {
            "message_key": table.column("message_key"),
            "order_key": table.column("order_key"),
            "fields": table.column("fields"),
            "cause": self._cases.column("cause").take(case),
            "group_id": pa.chunked_array([self._group_ids]).take(case),
        }

    def left_out(self, batch: Batch) -> bool:
        """Whether the job could not read the batch, because its file is damaged: its answer has no rows then."""
        name = f"{file_schemas.MESSAGES_DIR}/{file_schemas.messages_file(batch.batch_id)}"
        try:
            answered = len(self._read(name, []))
        except ClassificationFailed:
            return False  # told where it is read
        return bool(not answered and batch.copies and self._staging.is_damaged(batch.uri))

    def _read(self, name: str, columns: list[str]) -> pa.Table:
        path = self._staging.full_path(f"{self._output}/{name}")
        try:
            with self._staging.filesystem.open_input_file(path) as stream:
                return pq.read_table(stream, columns=columns, page_checksum_verification=True)
        except MemoryError:
            raise
        except (OSError, pa.ArrowException) as error:
            raise ClassificationFailed(f"the Spark job left no {name} in {path}: {error}") from error


def _make_groups(context: Context, cases: pa.Table) -> dict[str, int]:
    """Fingerprint -> group id, known to the ledger."""
    mask = redactor(context.route)
    found: dict[str, Group] = {}
    tellings: dict[str, set[str]] = {}
    columns = ["fingerprint", "cause", "template", "example", "telling"]
    for some in cases.select(columns).to_batches(max_chunksize=10_000):
        for row in some.to_pylist():
            # PostgreSQL has no text with a NUL in it.
            if telling := row.pop("telling"):
                tellings.setdefault(row["fingerprint"], set()).add(telling.replace("\0", "\ufffd"))
            if row["example"] is not None or row["fingerprint"] not in found:
                shown = {name: text and text.replace("\0", "\ufffd") for name, text in row.items()}
                found[row["fingerprint"]] = Group(**shown | {"example": shown["example"] and mask(shown["example"])})
    told = [one._replace(tellings=frozenset(tellings.get(fingerprint, ()))) for fingerprint, one in found.items()]
    return groups.ensure_groups(context.ledger, context.lease, told, context.now())


def load(
    context: Context,
    readable: Sequence[tuple[Batch, pa.Table]],
    answers: Answers | None,
    known: Mapping[int, Repeat] | None,
    keyed_by: Selectors = Selectors(),  # noqa: B008 - immutable
) -> Loaded:
    """Take a portion of batches into the ledger, each once; what their copies turned out to be. ``keyed_by`` is what
    the job was told to find keys by."""
    others = _other_routes(context, readable)
    return loading.load(
        context.ledger,
        context.lease,
        [batch.batch_id for batch, _ in readable],
        _copies(context, readable, answers),
        context.now(),
        repeats=known,
        elsewhere=_elsewhere(context, readable, others),
        behind=_behind(context, readable, others),
        keyed_by=keyed_by,
    )


def staged_keys(staging: Staging, batch: Batch, selectors: Selectors) -> Iterator[list[tuple[Any, ...]]]:
    """The keys of the copies of a staged batch as the job would find them: by copy its id and those keys that the
    ``selectors`` ask for, a row group at a time. Raises :class:`StagingError` where the file can't be read."""
    finder = CaseFinder(CaseSettings.by(selectors._asdict()))
    for file, group in staging.row_groups(batch.uri):
        table = finder.keys(RowGroup(file, group))
        ids = table.column("message_id").to_pylist()
        if any(copy_id >> ROW_BITS != batch.batch_id for copy_id in ids):
            return  # the file holds something else than was recorded
        yield list(zip(ids, *(_indexable(table.column(one)).to_pylist() for one in selectors.asked), strict=True))


def _instants(column: pa.Array, zone: str) -> list[str | None]:
    """As :func:`~redrive.ledger.engine.instant_text` writes them, with the database's ``zone`` behind them: a
    ``datetime`` of each, which PostgreSQL takes too, took a quarter of a load."""
    if column.null_count == len(column):
        return [None] * len(column)
    distinct = column.dictionary_encode()
    if len(distinct.dictionary) * 2 < len(column):  # thousands of copies are received at one moment
        texts = _instants(distinct.dictionary, zone)
        return [None if i is None else texts[i] for i in distinct.indices.to_pylist()]
    return list(pc.binary_join_element_wise(column.cast(pa.timestamp("us")).cast(pa.string()), zone, "").to_pylist())


def _copies(context: Context, some: Sequence[tuple[Batch, pa.Table]], answers: Answers | None) -> Iterator[Classified]:
    """The portion's copies, in message id order; without ``answers`` with no cause, no group and no keys."""
    table = pa.concat_tables([table for _, table in some])
    message_ids = pc.add(pc.shift_left(table.column("batch_id"), ROW_BITS), pc.cast(table.column("row"), pa.int64()))
    found = (
        answers.columns([batch for batch, _ in some], message_ids)
        if answers is not None
        else {
            name: pa.chunked_array([pa.nulls(len(table), kind)])
            for name, kind in (
                ("message_key", pa.string()),
                ("order_key", pa.string()),
                ("fields", pa.string()),
                ("cause", pa.string()),
                ("group_id", pa.int64()),
            )
        }
    )
    table = table.append_column("message_id", message_ids)
    for name, column in found.items():
        table = table.append_column(name, column)
    # One message with a text that the database can't hold or index must not keep the others out.
    for name, clean in (
        *((name, _indexable) for name in ("broker_message_id", "order_key", "message_key")),
        ("origin", _origins),
        ("redrive_id", _without_nul),  # bounded where it is read
        *((("fields", _findable(redactor(context.route))),) if context.route.search else ()),
    ):
        table = table.set_column(table.schema.get_field_index(name), name, clean(table.column(name)))
    hashes = _headers_hashes(context, [batch for batch, _ in some], table)
    where_to = aiming.aims(context, table.column("source").unique().to_pylist())
    zone = context.ledger.dialect.zone
    for part in table.to_batches(max_chunksize=10_000):
        column = {name: part.column(name) for name in part.schema.names}
        plain = {
            name: column[name].to_pylist()
            for name in (
                "message_id", "batch_id", "source", "kind", "broker_message_id", "body_hash", "body_bytes",
                "deliveries", "origin", "redrive_id", "redrive_attempt", "message_key", "order_key", "cause",
                "group_id", "fields",
            )
        }  # fmt: skip
        told = list(zip(plain["source"], plain["origin"], strict=True))
        aimed = {(source, origin): where_to.of(source).at(origin) for source, origin in set(told)}
        yield from zip(
            plain["message_id"],
            plain["batch_id"],
            plain["source"],
            plain["kind"],
            map(aimed.__getitem__, told),
            plain["broker_message_id"],
            plain["body_hash"],
            plain["body_bytes"],
            _instants(column["enqueued_at"], zone),
            _instants(column["dead_lettered_at"], zone),
            _instants(column["received_at"], zone),
            plain["deliveries"],
            plain["redrive_id"],
            plain["redrive_attempt"],
            plain["message_key"],
            plain["order_key"],
            plain["cause"],
            plain["group_id"],
            plain["origin"],
            map(hashes.get, plain["message_id"]),
            plain["fields"],
            strict=True,
        )


def _headers_hashes(context: Context, some: Sequence[Batch], table: pa.Table) -> dict[int, bytes]:
    """Of the copies with our headers, by message id, the hash of what else their headers say."""
    tracked = table.filter(pc.field("redrive_id").is_valid()).column("message_id").to_pylist()
    rows: dict[int, list[int]] = {}
    for message_id in tracked:
        rows.setdefault(message_id >> ROW_BITS, []).append(message_id & (MAX_ROWS - 1))
    strip = not_sent_on(context.route, context.broker.capabilities)
    found: dict[int, bytes] = {}
    for batch in some:
        if batch.batch_id not in rows:
            continue
        try:
            for row, headers in context.staging.headers(batch.uri, rows[batch.batch_id]):
                found[message_id_of(batch.batch_id, row)] = headers_hash(headers, strip)
        except StagingError:
            if not context.staging.is_damaged(batch.uri):
                raise
    return found


def _without_nul(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """PostgreSQL has no text with a NUL in it."""
    return pc.replace_substring(texts, "\0", "\ufffd") if any(map(has_nul, texts.chunks)) else texts


def _findable(mask: Redactor) -> Callable[[pa.ChunkedArray], pa.ChunkedArray]:
    """What keeps of the fields those that people may see: what is masked is not found either."""

    def shown(texts: pa.ChunkedArray) -> pa.ChunkedArray:
        found = []
        for text in texts.to_pylist():
            fields = {
                name: value.lower().replace("\0", "\ufffd")[: loading.SEARCHED]
                for name, value in (json.loads(text) if text else {}).items()
                if mask.shows(name, value)
            }
            found.append(json.dumps(fields, ensure_ascii=False) if fields else None)
        return pa.chunked_array([found], texts.type)

    return shown


def _indexable(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Every text as :func:`redrive.message.index_key` has it; hardly any is another then."""
    unusual = pc.or_(pc.greater(pc.binary_length(texts), MAX_INDEXED), pc.match_substring(texts, "~"))
    if any(map(has_nul, texts.chunks)):
        unusual = pc.or_(unusual, pc.match_substring(texts, "\0"))
    if not pc.any(unusual).as_py():
        return texts
    keys = [index_key(text) for text in texts.filter(unusual).to_pylist()]
    return pc.replace_with_mask(_one(texts), _one(pc.fill_null(unusual, False)), pa.array(keys, texts.type))


def _origins(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.utf8_slice_codeunits(_without_nul(texts), 0, LONGEST_ORIGIN)


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    return whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole


def _elsewhere(context: Context, some: Sequence[tuple[Batch, pa.Table]], others: Sequence[str]) -> set[tuple[str, str]]:
    """Pairs of a destination of the route, or of the ``others`` whose ids came in, and an origin that a copy of the
    portion tells of, beside our headers, where what failed there can't have been sent there."""
    tables = [table.select(["origin", "redrive_id"]) for _, table in some]
    tracked = pa.concat_tables(tables).filter(pc.field("redrive_id").is_valid() & pc.field("origin").is_valid())
    origins = _origins(tracked.column("origin")).unique().to_pylist()
    if not origins:
        return set()
    with context.ledger.read() as connection:
        destinations = {to for route in (context.name, *others) for to in lanes.sent_to(connection, route)}
    return {(to, origin) for to in destinations for origin in _not_behind(context, to, origins)}


def _behind(context: Context, some: Sequence[tuple[Batch, pa.Table]], others: Sequence[str]) -> Behind:
    """Destinations of the ``others`` whose ids came in, each with a source of the portion in which lands what fails
    there, by the broker's word, and with the origin of letters that prove theirs. Not those that others read too:
    what fails there may be theirs. Where the broker can't be asked now, its sources are told: nothing else of the
    portion waits for that."""
    if not others:
        return Behind()
    with context.ledger.read() as connection:
        destinations = {to for route in others for to in lanes.sent_to(connection, route)}
    try:
        alone = [to for to in sorted(destinations) if _is_alone(context, to)]
    except BrokerUnavailable:
        return Behind(untold={batch.source for batch, _ in some})
    if not alone:
        return Behind()
    letters: dict[str, list[pa.Table]] = {}
    for batch, table in some:
        letters.setdefault(batch.source, []).append(table.select(["origin", "redrive_id"]))
    found, untold = set[tuple[str, str, str | None]](), set[str]()
    for source, tables in letters.items():
        proved = context.broker.capabilities_for(source).proves_origin
        if proved:
            tracked = pa.concat_tables(tables).filter(pc.field("redrive_id").is_valid() & pc.field("origin").is_valid())
            origins = _origins(tracked.column("origin")).unique().to_pylist()
        else:
            try:
                origins = sorted(_vouched(context, source))
            except BrokerUnavailable:
                untold.add(source)
                continue
        for to in alone:
            found.update((to, source, origin if proved else None) for origin in _leading(context, to, origins))
    return Behind(found, untold)


def _vouched(context: Context, source: str) -> frozenset[str]:
    one = next((one for one in context.route.sources if one.queue == source), None)
    try:
        return frozenset() if one is None else aiming.vouched(context, one) or frozenset()
    except BrokerUnavailable:
        raise
    except BrokerError:
        return frozenset()


def _is_alone(context: Context, destination: str) -> bool:
    """Whether nobody else gets what is sent there than the one for whom it is meant, as far as the broker says."""
    try:
        alone = context.broker.capabilities_for(destination).single_target
        return alone or context.broker.describe(destination).subscribers == 1
    except BrokerUnavailable:
        raise
    except BrokerError:
        return False


def _other_routes(context: Context, some: Sequence[tuple[Batch, pa.Table]]) -> list[str]:
    """The other routes whose ids copies of the portion carry."""
    ids = pa.concat_tables([table.select(["redrive_id"]) for _, table in some]).column("redrive_id").drop_null()
    if not len(ids):
        return []
    with context.ledger.read() as connection:
        return _routes_of(connection, context.name, ids)


def _routes_of(connection: "Connection", route: str, redrive_ids: pa.ChunkedArray) -> list[str]:
    """The other routes whose batches these ids of the ledger are of: what begins an id says which batch."""
    prefix = f"{ledger_id(connection)}-"
    begin = len(prefix) + REDRIVE_ID_DIGITS
    heads = pc.utf8_slice_codeunits(redrive_ids, 0, begin - ROW_BITS // 4).unique().to_pylist()
    told = [head.removeprefix(prefix) for head in heads if head.startswith(prefix)]
    batch_ids = {int(head, 16) for head in told if head and not set(head) - set("0123456789abcdef")}
    return sorted(batches.routes_of(connection, batch_ids) - {route})


def _leading(context: Context, destination: str, origins: Sequence[str]) -> list[str]:
    """Those of ``origins`` at which fails what is sent to ``destination``, as far as the broker knows."""
    away = set(_not_behind(context, destination, origins))
    return [
        origin for origin in origins if origin not in away and context.broker.leads_to(destination, origin) is not None
    ]


def _not_behind(context: Context, destination: str, origins: Sequence[str]) -> list[str]:
    """Those of ``origins`` at which nothing fails that is sent to ``destination``, as far as the broker knows."""
    found = [origin for origin in origins if context.broker.leads_to(destination, origin) is False]
    if not found:
        return []
    try:  # a queue in which messages wait before the broker moves them on to where they are worked on
        onward = context.broker.describe(destination).dead_letter_queue
    except BrokerError:
        onward = None
    return [origin for origin in found if onward is None or context.broker.leads_to(onward, origin) is False]


def repeated(context: Context, waiting: Sequence[Batch]) -> dict[int, Repeat]:
    """Which waiting copies were staged before, for a broker that gives them no identity.

    In memory are the copies of batches in doubt, those that were delivered before, and those with the body of such a
    one, also in batches that were settled lately: no other can be a repeat or have one, and a backlog may be long.
    """
    evidence, redelivered = context.staging.evidence, context.staging.redelivered
    again = [one for batch in waiting if (one := _unless_damaged(context, redelivered, batch.uri)) is not None]
    if not any(map(len, again)):
        return {}  # what was never delivered before was never staged before
    bodies = pa.chunked_array([chunk for one in again for chunk in one.chunks]).unique()
    with context.ledger.read() as connection:
        leased_for, now = context.route.drain.lease, context.now()
        doubtful = repeats.doubtful(context.ledger, connection, context.name, leased_for=leased_for)
        settled = repeats.lately_settled(context.ledger, connection, context.name, leased_for=leased_for, now=now)
        gone = repeats.let_go(connection, [one for one, batch in doubtful.items() if not batch.of_another])
    of_bodies = pc.field("body_hash").isin(bodies)
    tables = {
        batch.batch_id: table if batch.batch_id in doubtful else table.filter(pc.field("redelivered") | of_bodies)
        for batch in waiting
        if (table := _unless_damaged(context, evidence, batch.uri)) is not None
    }
    earlier = {
        batch_id: _unless_damaged(context, evidence, uri)
        for batch_id, (uri, *_) in doubtful.items()
        if batch_id not in tables
    }
    lately = {
        batch_id: table.filter(of_bodies)
        for batch_id, uri in settled.items()
        if batch_id not in tables and (table := _unless_damaged(context, evidence, uri)) is not None
    }
    staged = [
        StagedBatch(
            batch_id,
            batch_id in doubtful,
            batch_id in tables,
            _evidence(batch_id, table),
            batch_id in settled,
            batch_id in doubtful and doubtful[batch_id].of_another,
        )
        for batch_id, table in (tables | earlier | lately).items()
        if table is not None
    ]
    came_again = [copy for batch in staged if batch.waiting for copy in batch.copies if copy.redelivered]
    known = repeats.known(context.ledger, context.name, (copy.evidence for copy in came_again))
    found = repeats.decide(staged, known, gone)
    if lost := [batch_id for batch_id, table in earlier.items() if table is None]:
        # Nobody can tell whether these are what is in a file that can't be read.
        first = message_id_of(min(lost), 0)
        found |= {
            copy.copy_id: Repeat("suspected", first)
            for copy in came_again
            if copy.tracking is None and copy.copy_id not in found
        }
    return found


def _unless_damaged(context: Context, read: Callable[[str], Any], uri: str) -> Any:
    """What ``read`` finds in a batch file; None when it is damaged."""
    try:
        return read(uri)
    except StagingError:
        if not context.staging.is_damaged(uri):
            raise
        return None


def _evidence(batch_id: int, table: pa.Table) -> list[Copy]:
    column = {name: table.column(name).to_pylist() for name in table.column_names}
    return [
        Copy(
            message_id_of(batch_id, row),
            Evidence(source, broker_id, enqueued, dead, body),
            again,
            None if redrive_id is None else Tracking(redrive_id, attempt),
        )
        for row, source, broker_id, enqueued, dead, body, again, redrive_id, attempt in zip(
            column["row"],
            column["source"],
            column["broker_message_id"],
            column["enqueued_at"],
            column["dead_lettered_at"],
            column["body_hash"],
            column["redelivered"],
            column["redrive_id"],
            column["redrive_attempt"],
            strict=True,
        )
    ]
