"""Which brokers there are: what packages offer under the entry point group ``redrive.brokers``, ours like any other.

An entry point's name is what ``broker:`` in a route says; it names a :class:`~redrive.brokers.base.BrokerKind`. Kinds
are loaded when they are asked for, and adapters with their client libraries when a route is opened.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from redrive.brokers.base import Broker, BrokerKind
from redrive.classification import causes
from redrive.classification.causes import Cause
from redrive.errors import SettingsError
from redrive.extras import needing

GROUP: Final = "redrive.brokers"


def names() -> tuple[str, ...]:
    """What ``broker:`` may say here, sorted."""
    return tuple(sorted(_offers()))


def ours() -> tuple[str, ...]:
    """Those that come with redrive itself, sorted."""
    return tuple(name for name in names() if {_package(offer) for offer in _offers()[name]} == {"redrive"})


@cache
def kind(name: str) -> BrokerKind:
    """The kind of that name.

    Raises :class:`~redrive.errors.SettingsError` where nobody offers it, several packages do, or it can't be loaded.
    """
    offers = _offers().get(name)
    if not offers:
        raise SettingsError(f"broker: {name!r} is unknown; {known()}")
    if len(offers) > 1:
        packages = " and ".join(sorted(_package(offer) for offer in offers))
        raise SettingsError(f"broker: {name!r} is offered by {packages}; uninstall all of them but one")
    try:
        found = offers[0].load()
    except Exception as error:  # whatever a package does when it is imported, the file's reader has to know which
        raise SettingsError(f"broker: {name!r} of {_package(offers[0])} can't be loaded: {error}") from error
    if not isinstance(found, BrokerKind):
        raise SettingsError(f"broker: {name!r} of {_package(offers[0])} is no BrokerKind: {offers[0].value}")
    return found


def open_broker(name: str, connection_id: str, **options: Any) -> Broker:
    """The adapter for ``name``, connected as the Airflow connection ``connection_id`` says.

    ``options`` go to the adapter (see its constructor). Client libraries are imported here, not before, so
    that a run that needs no broker pays for none. Raises :class:`~redrive.errors.SettingsError` for an
    unknown broker, :class:`~redrive.errors.ExtraMissing` where its client library isn't installed, and
    :class:`~redrive.errors.ConnectionMissing` for an undefined connection.
    """
    opened: Broker = adapter(name).open(connection_id, **options)
    return opened


def adapter(name: str) -> Any:
    """The adapter's class, which imports the client library; raises as :func:`open_broker` where there is none."""
    found = kind(name)
    module, _, attribute = found.adapter.partition(":")
    with needing(found.extra, f"broker: {name}"):
        return getattr(import_module(module), attribute)


def advice(cause: Cause, name: str = "") -> str:
    """How to make a cause not happen again, with the names of the knobs of the broker ``name``.

    One that is not known, or not here any more, adds nothing.
    """
    general = causes.advice(cause)
    knobs = kind(name).advice.get(cause) if name in _offers() else None
    return f"{general} {knobs}" if knobs else general


def with_own_ids() -> tuple[str, ...]:
    """The brokers that give each send an id of its own: see ``Capabilities.ids_of_sends``."""
    return tuple(name for name in names() if kind(name).capabilities.ids_of_sends)


def words(key: str) -> str:
    """What our own brokers add to the description of a route's ``key``: for docs/configuration.md."""
    return " ".join(found for name in ours() if (found := kind(name).words.get(key)))


def known() -> str:
    """The rest of a sentence that tells a reader which brokers there are."""
    if not names():
        return "no broker is registered: install redrive as a package, with its entry points (`make setup`)"
    return f"installed are {', '.join(names())}"


def forget() -> None:
    """Look anew at what is installed, the next time that somebody asks."""
    _offers.cache_clear()
    kind.cache_clear()


@cache
def _offers() -> Mapping[str, list[EntryPoint]]:
    found: dict[str, list[EntryPoint]] = {}
    for offer in entry_points(group=GROUP):
        found.setdefault(offer.name, []).append(offer)
    return found


def _package(offer: EntryPoint) -> str:
    return offer.dist.name if offer.dist is not None else "a package without a name"
