"""What a run is limited to."""

from redrive.ledger.selecting import Selection

__all__ = ["Selection"]
