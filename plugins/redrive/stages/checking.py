"""A route's processed check, as its stages ask it: about messages, by all keys that each of them has.

A broker id is a key only where the consumer knew a dead letter by the same one; and as a redelivery may give a message
another, it is asked about by every id that it ever had.

The ledger holds a beginning and a hash of what is too long for an index, or what a database can't hold. No consumer
knows it by that: such a key can't be asked about. Nor can one that another selector made than the check's, which is a
key of something else (:mod:`redrive.stages.keys` takes those anew, as far as the files can be read).
"""

from collections.abc import Iterable, Sequence

from redrive.brokers.base import Capabilities
from redrive.connections.processed_check import Checker
from redrive.errors import SettingsError
from redrive.ledger.drain import broker_ids
from redrive.ledger.drain import keys as ledger_keys
from redrive.ledger.drain.keys import Selectors
from redrive.message import batch_and_row, is_hashed
from redrive.selectors import Kind
from redrive.settings import Route
from redrive.stages.context import Context


class Check:
    """Asks the route's processed check. Close it when done; it holds a connection.

    ``refused`` are those of the last messages whose key it can't be asked about: whether they were processed nobody can
    tell, so they are for people.
    """

    def __init__(self, context: Context) -> None:
        check = context.route.processed_check
        if check is None:
            raise ValueError(f"route {context.name} has no processed check")
        refuse_broker_id(context)
        self._ledger = context.ledger
        self._by_broker_id = check.key.kind is Kind.BROKER_ID
        self._key = Selectors(message_key=str(check.key))
        self._keyed: dict[int, bool] = {}  # by batch: whether its keys are the check's
        self._checker = Checker(check)
        self.refused = set[int]()

    def processed(self, messages: Iterable[tuple[int, str | None]]) -> set[int]:
        """Ids of those messages that were processed; each comes with its key, and without one isn't asked about.

        Raises :class:`~redrive.errors.CheckFailed`; nothing is known of any of them then.
        """
        asked = list(messages)
        otherwise = self._keyed_otherwise([message for message, _ in asked])
        keys = {message: {key} for message, key in asked if key and message not in otherwise}
        if self._by_broker_id and keys:
            with self._ledger.read() as connection:
                known = broker_ids.of_messages(connection, list(keys))
            keys = {message: own | known.get(message, set()) for message, own in keys.items()}
        unasked = {key for own in keys.values() for key in own if is_hashed(key)}
        done = self._checker.processed(
            key for own in keys.values() for key in sorted(filter(None, own)) if key not in unasked
        )
        found = {message for message, own in keys.items() if not own.isdisjoint(done)}
        odd = self._checker.refused | unasked
        self.refused = {one for one, own in keys.items() if not own.isdisjoint(odd)} - found if odd else set()
        self.refused |= otherwise
        return found

    def _keyed_otherwise(self, messages: Sequence[int]) -> set[int]:
        """Those whose keys another selector made, or none though the check has one."""
        if new := {batch_and_row(message)[0] for message in messages} - self._keyed.keys():
            with self._ledger.read() as connection:
                otherwise = ledger_keys.made_otherwise(connection, new, self._key)
            self._keyed.update((batch_id, batch_id not in otherwise) for batch_id in new)
        if all(self._keyed.values()):
            return set()
        return {message for message in messages if not self._keyed[batch_and_row(message)[0]]}

    def close(self) -> None:
        """Give the connection back."""
        self._checker.close()


#: Why people are asked about what the check can't be asked about.
REFUSED = "The processed_check can't be asked about its key, so nobody knows whether it was processed."


def open_check(context: Context) -> Check | None:
    """The route's check; None where it has none."""
    return None if context.route.processed_check is None else Check(context)


def refuse_broker_id(context: Context) -> None:
    """:class:`~redrive.errors.SettingsError` where the check's key is the broker's id and that tells nothing."""
    # Most routes have another key, and then nobody has to connect to a broker for this.
    if _by_broker_id(context.route) and (why := objection(context.route, context.broker.capabilities)):
        raise SettingsError(f"routes.{context.name}.processed_check.key: {why}")


def objection(route: Route, capabilities: Capabilities) -> str | None:
    """Why the route's check can't go by its key."""
    if not _by_broker_id(route) or capabilities.consumer_ids is not None:
        return None
    return (
        f"broker_id can't be used with {route.broker}: a dead letter there has another id than the one that its"
        " consumer saw; write attribute:NAME, body:$.path or key"
    )


def vouches_for_unknown(route: Route, capabilities: Capabilities) -> bool:
    """Whether the check can deny that a send of unknown fate arrived: not by ids of which that send's isn't known."""
    return route.processed_check is not None and not (_by_broker_id(route) and capabilities.consumer_ids != "kept")


def _by_broker_id(route: Route) -> bool:
    return route.processed_check is not None and route.processed_check.key.kind is Kind.BROKER_ID
