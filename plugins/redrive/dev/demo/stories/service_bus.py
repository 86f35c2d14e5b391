"""A dead-letter queue grows and its reason says only that deliveries ran out: look first, then one cause at a time."""

from collections import Counter
from typing import Any

from redrive.dev.demo.play import Play, Story

QUEUE, DEAD = "orders", "orders/$DeadLetterQueue"
REFUSED = "System.Net.Sockets.SocketException: Connection refused (billing:443)\n   at Shop.Billing.Charge(Order order)"
BUG = (
    "System.NullReferenceException: Object reference not set to an instance of an object.\n"
    "   at Shop.Cancel.Handler.Handle(Order order) in /src/Handler.cs:line 17"
)
#: By type of message: how many, and what its consumer does; None: it gives up without a word, until deliveries run out.
TYPES = {
    "Shop.OrderPlaced": (6, None),
    "Shop.PriceChanged": (4, ("ProcessingFailed", REFUSED)),
    "Shop.OrderCancelled": (3, ("UnhandledException", BUG)),
}
TYPE = "NServiceBus.EnclosedMessageTypes"


class Shop:
    """A producer and a consumer on Microsoft's own library."""

    def __init__(self, connection_string: str) -> None:
        from azure.servicebus import ServiceBusClient  # noqa: PLC0415 - only this story needs it

        self._client = ServiceBusClient.from_connection_string(connection_string)
        self.done: Counter[str] = Counter()

    def buy(self) -> None:
        """Some messages of each type."""
        from azure.servicebus import ServiceBusMessage  # noqa: PLC0415

        with self._client.get_queue_sender(QUEUE) as sender:
            for name, (count, _) in TYPES.items():
                for number in range(count):
                    sender.send_messages(
                        ServiceBusMessage(
                            b'{"order": %d}' % number,
                            message_id=f"{name}-{number}",
                            application_properties={TYPE: f"{name}, Shop.Messages, Version=1.0.0.0"},
                        )
                    )

    def work(self, *, broken: tuple[str, ...] = ()) -> None:
        """Until nothing is left; messages of the ``broken`` types fail."""
        with self._client.get_queue_receiver(QUEUE) as receiver:
            while receiver.peek_messages(1, sequence_number=1):  # from the first on, each time
                for message in receiver.receive_messages(50, max_wait_time=0.5):
                    self._handle(receiver, message, broken)

    def _handle(self, receiver: Any, message: Any, broken: tuple[str, ...]) -> None:
        name = _text(message.application_properties[TYPE.encode()]).partition(",")[0]
        if name not in broken:
            self.done[name] += 1
            receiver.complete_message(message)
        elif (why := TYPES[name][1]) is None:
            receiver.abandon_message(message)
        else:
            receiver.dead_letter_message(message, reason=why[0], error_description=why[1])

    def told(self) -> str:
        """How many of each type are done, in words."""
        return ", ".join(f"{count} {name}" for name, count in self.done.items())

    def dead(self) -> Counter[str]:
        """How many lie in the dead-letter queue, by the broker's reason."""
        from azure.servicebus import ServiceBusSubQueue  # noqa: PLC0415

        with self._client.get_queue_receiver(QUEUE, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
            return Counter(str(one.dead_letter_reason) for one in receiver.peek_messages(100))

    def close(self) -> None:
        self._client.close()


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def tell(play: Play) -> bool:
    """Looked at, sent one cause at a time, and the bug left to people."""
    shop = Shop(play.served.connection["schema"])
    try:
        return _tell(play, shop)
    finally:
        shop.close()


def _tell(play: Play, shop: Shop) -> bool:
    everything = sum(count for count, _ in TYPES.values())
    play.act("What the team saw: the dead-letter queue grows")
    shop.buy()
    shop.work(broken=tuple(TYPES))
    play.table("In a portal, one at a time", ("the broker's reason", "messages"), sorted(shop.dead().items()))
    well = play.check(shop.dead().total() == everything, f"all {everything} are dead")

    play.act("Look first: nothing can be put back into a dead-letter queue of Service Bus")
    well &= play.redrive("doctor", "orders") == 0
    well &= play.redrive("run", "orders", "--dry-run") == 0
    well &= play.check(shop.dead().total() == everything, "they lie there as before, and nothing counts as delivered")

    play.act("Billing is up again: what failed to reach it goes back, and nothing else")
    well &= play.redrive("run", "orders", "--cause", "transient_network") == 0
    shop.work(broken=("Shop.OrderPlaced", "Shop.OrderCancelled"))
    well &= play.check(shop.done == {"Shop.PriceChanged": 4}, f"processed: {shop.told()}")

    play.act("Then the rest: what gave no reason by a canary, the bug to people")
    well &= play.redrive("run", "orders", brief=True) == 0
    shop.work(broken=("Shop.OrderCancelled",))
    well &= play.check(shop.done["Shop.OrderPlaced"] == 6, f"processed: {shop.told()}")
    well &= play.redrive("review", "list") == 0
    [(asked,)] = play.rows("select count(*) from escalated_messages where status = 'open'")
    well &= play.check(asked == 3, "three messages with one bug are one question to a person")

    play.act("The bug is fixed: a person lets its group go")
    [(group,)] = play.rows("select distinct group_id from escalated_messages where status = 'open'")
    well &= play.redrive("review", "redeliver", "--group", str(group), "--by", "you", "--note", "fixed in 1.4.2") == 0
    well &= play.redrive("review", "apply") == 0
    well &= play.redrive("run", "orders", brief=True) == 0
    shop.work()
    return bool(well & play.check(shop.done.total() == everything, f"processed: {shop.told()}; each once"))


STORY = Story(page="azure_service_bus", tell=tell, shorter={"drain": {"wait": "1s"}})
