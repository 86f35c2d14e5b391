"""A broker in memory that passes the same contract as the others, for tests and benchmarks."""

from redrive.brokers.memory.adapter import MemoryBroker
from redrive.brokers.memory.clock import ManualClock
from redrive.brokers.memory.kind import MEMORY_CAPABILITIES
from redrive.brokers.memory.world import Faults, MemoryWorld, forget_worlds, register_world

__all__ = [
    "MEMORY_CAPABILITIES",
    "Faults",
    "ManualClock",
    "MemoryBroker",
    "MemoryWorld",
    "forget_worlds",
    "register_world",
]
