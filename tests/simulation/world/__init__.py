"""The world outside of Redrive: systems of queues that misbehave as real brokers do. Nothing here knows the product.

A :class:`World` has a clock, dice, systems by name and a book. A :class:`System` is one broker with one connection; two
systems may have queues of the same name. A client (the simulation's own adapter, or a stand-in for a client library)
talks to a system by these verbs only; all of them bring the queue up to the clock first:

``send(queue, body, headers, …)``        lays a message down; its broker id, or that of the one that it repeats: within
                                         the system's duplicate window the second of a ``dedup_id`` is swallowed
``receive(queue, limit, lease)``         copies with receipts; each delivery is counted
``settle(queue, receipts)``              those that were gone or whose lease was over are not settled (returned)
``release(queue, receipts)``             back at once, marked as redelivered
``extend(queue, receipts, lease)``
``reject(queue, receipt, reason, text)`` the consumer gives up: to the queue's dead-letter queue, with the broker's note
``depth(queue)``                         what the system tells: exact, late, about, or None
``fate(action)``                         what happens to the next request of Redrive: ``ok``, ``lost`` (done, the answer
                                         is lost), ``error`` (not done, nobody can say), ``retry`` (certainly not done),
                                         ``down`` (no connection)
``restart()``                            what was in flight comes back

``by`` says who acts (``producer``, ``consumer``, ``redrive``, ``person``); the :class:`Book` writes down what happened.
Headers are ``(name, type, value)``; times are microseconds since the epoch.
"""

from tests.simulation.world.book import Book
from tests.simulation.world.systems import Clock, Copy, Queue, System, Traits, World

__all__ = ["Book", "Clock", "Copy", "Queue", "System", "Traits", "World"]
