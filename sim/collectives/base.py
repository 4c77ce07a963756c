"""What an exchange is, what it is given, and the inbox through which a worker waits for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import simpy

from gradwire.experiment.topology import Cards
from gradwire.sim.coupling import Coupling, Importance, Message
from gradwire.traces.trace import Trace

ALL_LAYERS = -1
"""In place of a layer index: everything."""

Arrived = Callable[[Message], None]
"""What happens when a message is delivered."""


class Inbox:
    """What one worker still misses of one iteration's result, counted per layer.

    The worker asks for a gate with `wait`; the exchange reports pieces with `arrive`.  There is at most one
    gate at a time, since a worker is one process.
    """

    __slots__ = ("_gate", "_layer", "missing", "total")

    def __init__(self, pieces: Sequence[int]) -> None:
        """`pieces[layer]` pieces are to come."""
        self.missing = list(pieces)
        self.total = sum(pieces)
        self._gate: simpy.Event | None = None
        self._layer = ALL_LAYERS

    def lacks(self, layer: int) -> bool:
        """Whether something of `layer` (or ALL_LAYERS) is still to come."""
        return (self.total if layer == ALL_LAYERS else self.missing[layer]) > 0

    def wait(self, env: simpy.Environment, layer: int) -> simpy.Event:
        """An event that happens when nothing of `layer` (or ALL_LAYERS) is missing any more."""
        gate = env.event()
        if self.lacks(layer):
            self._gate, self._layer = gate, layer
        else:
            gate.succeed()
        return gate

    def arrive(self, layer: int) -> None:
        """One piece of a layer is here."""
        self.missing[layer] -= 1
        self.total -= 1
        if self._gate is not None and not self.lacks(self._layer):
            gate, self._gate = self._gate, None
            gate.succeed()


@dataclass(frozen=True, eq=False)
class JobContext:
    """What an exchange may use of its job.

    Attributes
    ----------
    table : the scenario's [[job]] table.
    workers, servers : numbers of their hosts.
    cards : the hosts, and which nodes are their network cards; a message goes from card to card.
    post : hands a message to the scheduler of its sending host.
    coupling : takes blocks of messages that start each other (`Block`); None where messages have to pass through the
        schedulers one by one, or the network takes no blocks.
    priorities : the switch queue of every tensor's packets.
    captured : (worker, iteration) -> the iteration of the trace that is replayed.
    ready_order : tensors in the order in which their gradients become ready.
    tagger : `gradwire.traces.messages.Tagger`, or None where the job does not tag by magnitude.
    payload : data bytes of a full packet.
    transport : the fabric's number of the job's transport.
    """

    name: str
    env: simpy.Environment
    trace: Trace
    table: Any
    workers: Sequence[int]
    servers: Sequence[int]
    cards: Cards
    post: Callable[[Message], None]
    coupling: Coupling | None
    priorities: Sequence[int]
    captured: Callable[[int, int], int]
    ready_order: Sequence[int]
    tagger: Any
    payload: int
    transport: int = 0

    @property
    def rails(self) -> int:
        """Network cards of the host of the job that has the most: into so many shares an exchange is divided."""
        hosts = [*self.workers, *self.servers]
        return int(self.cards.counts[hosts].max())


class Exchange(ABC):
    """One job's exchange of gradients.

    The job calls `gradient_ready` for every worker, iteration and tensor, waits on `inbox`, and calls
    `forget` when it needs an inbox no longer.

    Attributes
    ----------
    layerwise : forward of a layer waits for this layer only; otherwise for everything.
    worker_optimizes : the workers run the captured optimiser step once everything is there (in a parameter
        server the servers do).
    """

    layerwise = False
    worker_optimizes = False

    def __init__(self, context: JobContext) -> None:
        self.context = context
        self._inboxes: list[dict[int, Inbox]] = [{} for _ in context.workers]

    @abstractmethod
    def gradient_ready(self, worker: int, iteration: int, tensor: int) -> None:
        """A worker's gradient of one tensor is final."""

    @abstractmethod
    def pieces(self) -> list[int]:
        """Per layer: what a worker's inbox counts."""

    @property
    @abstractmethod
    def unit_bytes(self) -> int:
        """Bytes of the largest message."""

    @property
    @abstractmethod
    def bytes_per_iteration(self) -> int:
        """Bytes of all messages of one iteration."""

    @abstractmethod
    def explain(self, worker: int, iteration: int, layer: int) -> list[str]:
        """For the report of a stall: what this worker misses of a layer (or ALL_LAYERS), and why."""

    def inbox(self, worker: int, iteration: int) -> Inbox:
        """What the worker is to receive as the result of `iteration`."""
        inboxes = self._inboxes[worker]
        if iteration not in inboxes:
            inboxes[iteration] = Inbox(self.pieces())
        return inboxes[iteration]

    def forget(self, worker: int, iteration: int) -> None:
        """The worker has used this result up."""
        self._inboxes[worker].pop(iteration, None)

    def important(self, captured: int, tensor: int, first: int, elements: int) -> Importance:
        """The important packets of a run of elements: bool[packets]; None without tagging."""
        context = self.context
        if context.tagger is None:
            return None
        return context.tagger.important(captured, tensor, first, elements, context.payload)  # type: ignore[no-any-return]
