"""The configuration: what ``config/redrive.yaml`` may say, read once, checked whole, frozen.

:func:`load` is the only I/O here: it reads one file. Secrets do not belong into that file; connections are
named by their Airflow id, and values can come from the environment as ``${VAR}`` or ``${VAR:-default}``.
``python -m redrive.settings`` writes docs/configuration.md from the models.
"""

from redrive.settings.file import POLICY_KEYS, Written, load, load_policy, parse, written
from redrive.settings.models import TAKEN, Broken, Settings
from redrive.settings.places import checkout, config_path, home
from redrive.settings.processed_check import CheckAnswer, ProcessedCheck
from redrive.settings.route import Route
from redrive.settings.route_parts import (
    Ages,
    Backoff,
    Breaker,
    Canary,
    CauseOverride,
    CauseRate,
    Deliver,
    Destination,
    Drain,
    Isolation,
    Notify,
    Rate,
    Rule,
    Source,
)
from redrive.settings.spark import SparkSettings
from redrive.settings.values import ANY_BROKER, LONGEST_LEASE, MOST_SEARCHED, BrokerName
from redrive.settings.words import format_duration, format_size, parse_duration, parse_size

__all__ = [
    "ANY_BROKER",
    "LONGEST_LEASE",
    "MOST_SEARCHED",
    "POLICY_KEYS",
    "TAKEN",
    "Ages",
    "Backoff",
    "Breaker",
    "Broken",
    "BrokerName",
    "Canary",
    "CauseOverride",
    "CauseRate",
    "CheckAnswer",
    "Deliver",
    "Destination",
    "Drain",
    "Isolation",
    "Notify",
    "ProcessedCheck",
    "Rate",
    "Route",
    "Rule",
    "Settings",
    "Source",
    "SparkSettings",
    "Written",
    "checkout",
    "config_path",
    "format_duration",
    "format_size",
    "home",
    "load",
    "load_policy",
    "parse",
    "parse_duration",
    "parse_size",
    "written",
]
