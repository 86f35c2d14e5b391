"""The ledger's tables, by room. Migrations build them (``migrations/``); a test proves that both are the same.

On PostgreSQL everything lives in schema ``redrive``, which the connection's search path names.
Times are UTC. A message id is ``batch_id << 20 | row`` of the copy that made it, so an insert that is
repeated hits the primary key, and messages in id order are payloads in file order.

Import tables from here: only then does :data:`metadata` have all of them.
"""

from redrive.ledger.tables.account import audit_events, notification_sends, notifications
from redrive.ledger.tables.columns import metadata
from redrive.ledger.tables.delivery import (
    breakers,
    consumer_health,
    delivery_slices,
    queue_observations,
    redelivery_attempts,
)
from redrive.ledger.tables.drain import former_sources, repeat_copies, returned_elsewhere, source_state, staging_batches
from redrive.ledger.tables.groups import failure_groups, group_aliases, group_rulings
from redrive.ledger.tables.message import finished_counts, message_fields, messages
from redrive.ledger.tables.review import (
    escalated_messages,
    failure_issues,
    issue_comments,
    page_visits,
    saved_filters,
    standing_decisions,
)
from redrive.ledger.tables.routes import configurations, ledger_identity, route_state, runs

__all__ = [
    "audit_events",
    "breakers",
    "configurations",
    "consumer_health",
    "delivery_slices",
    "escalated_messages",
    "failure_groups",
    "failure_issues",
    "finished_counts",
    "former_sources",
    "group_aliases",
    "group_rulings",
    "issue_comments",
    "ledger_identity",
    "message_fields",
    "messages",
    "metadata",
    "notification_sends",
    "notifications",
    "page_visits",
    "queue_observations",
    "redelivery_attempts",
    "repeat_copies",
    "returned_elsewhere",
    "route_state",
    "runs",
    "saved_filters",
    "source_state",
    "staging_batches",
    "standing_decisions",
]
