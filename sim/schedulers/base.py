"""What a tensor scheduler is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from gradwire.sim.coupling import Message

Release = Callable[[Message], None]
"""Gives a message to the network interface, now."""


class Scheduler(ABC):
    """The messages of one job at one sending host; at one of its network cards if it has several."""

    def __init__(self, release: Release, partition: int) -> None:
        """`partition` is the size in bytes of the job's largest messages, the natural unit of a credit."""
        self.release = release
        self.partition = partition

    @abstractmethod
    def offer(self, message: Message) -> None:
        """A message is ready: release it now or later."""
