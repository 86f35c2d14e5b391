"""Botocore reads what it knows of AWS from files, for each session anew, which takes a tenth of a second of a core.
Tests open hundreds of sessions: here all share what one has read."""

from functools import cache

import botocore.session


def share() -> None:
    """From now on sessions with the same folders of models have one loader, which keeps what it read."""
    botocore.session.create_loader = cache(botocore.session.create_loader)
