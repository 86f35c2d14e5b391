"""Broker adapters: the port in ``base.py``, which there are in ``registry.py``, and a package for each of ours."""

from redrive.brokers.registry import open_broker

__all__ = ["open_broker"]
