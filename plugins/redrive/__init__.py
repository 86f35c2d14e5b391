"""Redrive brings dead messages back in batches."""

__version__ = "0.1.0"
