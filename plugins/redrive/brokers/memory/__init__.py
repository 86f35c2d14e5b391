"""A broker in memory that passes the same contract as the others, for tests and benchmarks."""

from redrive.brokers.memory.adapter import (
    Faults,
    ManualClock,
    MemoryBroker,
    MemoryWorld,
    forget_worlds,
    register_world,
)
from redrive.brokers.memory.kind import MEMORY_CAPABILITIES

__all__ = [
    "MEMORY_CAPABILITIES",
    "Faults",
    "ManualClock",
    "MemoryBroker",
    "MemoryWorld",
    "forget_worlds",
    "register_world",
]
