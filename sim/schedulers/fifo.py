"""Messages in the order in which they become ready, each released at once.

This is wait-free back-propagation [notes: Poseidon]: a layer's communication starts when its backward step
ends.  Messages that are under way together share the network interface as the transport has it.
"""

from __future__ import annotations

from gradwire.sim.coupling import Message
from gradwire.sim.schedulers.base import Scheduler


class Fifo(Scheduler):
    """No queue of its own."""

    def offer(self, message: Message) -> None:
        self.release(message)
