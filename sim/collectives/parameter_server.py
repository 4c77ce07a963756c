"""Parameter servers: workers push gradients, servers add them up, workers pull the result.

Tensors are cut into partitions, and every partition lives on one server; the largest partitions are placed first,
each on the server with the fewest bytes so far.  Where hosts have several network cards, a partition travels by one
of them, chosen in the same turn: the card with the fewest bytes of that server, then of all.  A worker pushes a
tensor's partitions as soon as its gradient is ready.  When a server has the pushes of all workers for a partition
it sends the result to every worker: nobody asks for it, as the "pull" of the literature does, because the request
would only be one more small packet [notes: P3 broadcasts right after aggregation].  So workers are synchronised by
their data alone: layer-wise, the forward step of a layer waits for that layer's tensors; with a barrier, for all.

Our choices: the server's optimiser step is part of `server_rate` (the captured optimiser time belongs to a
worker that updates the whole model and is not charged); pulls to the workers start with another worker for
each partition, so that none is always last; a worker and a server on the same host exchange through memory,
in no time and without a message.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from gradwire.sim.collectives.base import ALL_LAYERS, Arrived, Exchange, JobContext
from gradwire.sim.coupling import Importance, Message

PS_PER_SECOND = 10**12


class Partition(NamedTuple):
    """A run of a tensor's elements that is pushed, summed and pulled as one message."""

    tensor: int
    part: int
    """number within the tensor"""
    first: int
    elements: int
    bytes: int
    layer: int
    server: int
    """index of the server it lives on"""
    card: int
    """number of the network card that it travels by, at both ends"""


class ParameterServers(Exchange):
    """The exchange of one job with its servers."""

    def __init__(self, context: JobContext) -> None:
        super().__init__(context)
        table = context.table.exchange
        self.layerwise = table.pull == "layerwise"
        self.partitions = partition_tensors(context, table.partition, len(context.servers), context.rails)
        self._of_tensor: list[list[int]] = [[] for _ in context.trace.tensors]
        self._pieces = [0] * len(context.trace.layers)
        for number, piece in enumerate(self.partitions):
            self._of_tensor[piece.tensor].append(number)
            self._pieces[piece.layer] += 1
        self._server_rate: int | None = table.server_rate
        self._busy_until = [0] * len(context.servers)
        self._summed: dict[int, list[int]] = {}  # iteration -> pushes added up, per partition
        self._to_send: dict[int, int] = {}  # iteration -> partitions without their pulls

    def pieces(self) -> list[int]:
        return self._pieces

    @property
    def unit_bytes(self) -> int:
        return max(piece.bytes for piece in self.partitions)

    @property
    def bytes_per_iteration(self) -> int:
        context = self.context
        hosts = [context.servers[piece.server] for piece in self.partitions]
        away = [len(context.workers) - context.workers.count(host) for host in hosts]  # workers on other hosts
        return 2 * sum(piece.bytes * count for piece, count in zip(self.partitions, away, strict=True))

    def of_tensor(self, tensor: int) -> list[int]:
        """Numbers of the partitions of a tensor."""
        return self._of_tensor[tensor]

    def effort(self, number: int) -> int:
        """Picoseconds that a server takes to add up a push of a partition; 0 where that is free."""
        if self._server_rate is None:
            return 0
        return -(-self.partitions[number].bytes * 8 * PS_PER_SECOND // self._server_rate)

    def turns(self, number: int) -> list[int]:
        """The workers in the order in which they are sent a partition."""
        count = len(self.context.workers)
        return [(number + turn) % count for turn in range(count)]

    def push(self, iteration: int, number: int, worker: int, arrived: Arrived) -> Message:
        """A worker's gradient of a partition, to its server."""
        context, piece = self.context, self.partitions[number]
        bits = self.important(context.captured(worker, iteration), piece.tensor, piece.first, piece.elements)
        ends = context.workers[worker], context.servers[piece.server]
        return self._message("push", iteration, piece, ends, context.table.push_bound, bits, arrived)

    def pull(self, iteration: int, number: int, worker: int, arrived: Arrived) -> Message:
        """The sum of a partition, from its server to a worker."""
        context, piece = self.context, self.partitions[number]
        bits: Importance = None if context.tagger is None else True
        if not context.table.pull_important:
            # The sum's magnitudes were not captured; those of one worker's gradient stand for them.
            bits = self.important(context.captured(0, iteration), piece.tensor, piece.first, piece.elements)
        ends = context.servers[piece.server], context.workers[worker]
        return self._message("pull", iteration, piece, ends, context.table.pull_bound, bits, arrived)

    def gradient_ready(self, worker: int, iteration: int, tensor: int) -> None:
        context = self.context
        for number in self._of_tensor[tensor]:
            if context.servers[self.partitions[number].server] == context.workers[worker]:
                self._add(iteration, number)
            else:
                context.post(self.push(iteration, number, worker, partial(self._pushed, number)))

    def explain(self, worker: int, iteration: int, layer: int) -> list[str]:
        context = self.context
        lines = []
        for number, piece in enumerate(self.partitions):
            if layer not in (ALL_LAYERS, piece.layer):
                continue
            summed = self._summed.get(iteration, [len(context.workers)] * len(self.partitions))[number]
            if summed < len(context.workers):
                lines.append(
                    f"{context.trace.tensors[piece.tensor].name} part {piece.part}: server "
                    f"{context.cards.hosts[context.servers[piece.server]]} has {summed} of "
                    f"{len(context.workers)} pushes"
                )
        return lines or ["pulls that its servers have sent"]

    def _message(
        self,
        kind: str,
        iteration: int,
        piece: Partition,
        ends: tuple[int, int],
        bound: float,
        important: Importance,
        arrived: Arrived,
    ) -> Message:
        context = self.context
        src, dst = (context.cards.node(host, piece.card) for host in ends)
        return Message(
            context.name, kind, iteration, piece.tensor, piece.part, src, dst, piece.bytes,
            context.priorities[piece.tensor], bound, important, piece.layer, arrived,
        )  # fmt: skip

    def _pushed(self, number: int, message: Message) -> None:
        self._add(message.iteration, number)

    def _add(self, iteration: int, number: int) -> None:
        """A worker's push of a partition is at its server: add it up; after the last one, send the result."""
        context = self.context
        summed = self._summed.get(iteration)
        if summed is None:
            summed = self._summed[iteration] = [0] * len(self.partitions)
            self._to_send[iteration] = len(self.partitions)
        summed[number] += 1
        last = summed[number] == len(context.workers)
        if self._server_rate is None:
            if last:
                self._broadcast(iteration, number)
            return
        server = self.partitions[number].server
        free = max(int(context.env.now), self._busy_until[server])
        end = self._busy_until[server] = free + self.effort(number)
        if last:
            done = context.env.timeout(end - context.env.now)
            assert done.callbacks is not None
            done.callbacks.append(lambda _event: self._broadcast(iteration, number))

    def _broadcast(self, iteration: int, number: int) -> None:
        context, piece = self.context, self.partitions[number]
        server = context.servers[piece.server]
        for worker in self.turns(number):
            if context.workers[worker] == server:
                self.inbox(worker, iteration).arrive(piece.layer)
            else:
                arrived = partial(self._pulled, worker, piece.layer)
                context.post(self.pull(iteration, number, worker, arrived))
        self._to_send[iteration] -= 1
        if not self._to_send[iteration]:
            del self._to_send[iteration], self._summed[iteration]

    def _pulled(self, worker: int, layer: int, message: Message) -> None:
        self.inbox(worker, message.iteration).arrive(layer)


def partition_tensors(context: JobContext, partition: int, servers: int, cards: int = 1) -> list[Partition]:
    """Cut all tensors into partitions of at most `partition` bytes and place them on servers, and on their `cards`.

    Whole partitions first and the remainder last, in tensor order.  Placement is greedy: by falling size
    (then tensor, part), each to the server with the fewest bytes (then the lowest index), and there to the
    network card with the fewest bytes of that server, then with the fewest in all (then the lowest number).
    """
    cuts = []
    for tensor, info in enumerate(context.trace.tensors):
        step = max(1, partition // info.element_bytes)
        for part, first in enumerate(range(0, info.numel, step)):
            elements = min(step, info.numel - first)
            cuts.append(
                Partition(tensor, part, first, elements, elements * info.element_bytes, info.layer, -1, -1)
            )
    load = [0] * servers
    of_server = [[0] * cards for _ in range(servers)]
    of_card = [0] * cards
    home = [(-1, -1)] * len(cuts)
    for number in sorted(range(len(cuts)), key=lambda number: -cuts[number].bytes):
        server = load.index(min(load))
        card = min(range(cards), key=lambda card: (of_server[server][card], of_card[card]))
        load[server] += cuts[number].bytes
        of_server[server][card] += cuts[number].bytes
        of_card[card] += cuts[number].bytes
        home[number] = (server, card)
    return [
        piece._replace(server=server, card=card) for piece, (server, card) in zip(cuts, home, strict=True)
    ]
