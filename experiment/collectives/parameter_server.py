"""Parameter servers: workers push gradients, servers add them up, workers pull the result.

Tensors are cut into partitions, and every partition lives on one server: by bytes, the largest partitions are placed
first, each on the server with the fewest bytes so far; round robin; or large tensors split evenly over all.  Where
hosts have several network cards, a partition travels by one of them, chosen in the same turn: the card with the
fewest bytes of that server, then of all.  A worker pushes a tensor's partitions as soon as its gradient is ready.
When a server has the pushes of all workers for a partition it sends the result to every worker: nobody asks for it,
as the "pull" of the literature does, because the request would only be one more small packet [notes: P3 broadcasts
right after aggregation].  So workers are synchronised by their data alone: layer-wise, the forward step of a layer
waits for that layer's tensors; with a barrier, for all.

Where switches sum (`aggregation`), the pushes of a partition are one fan to its server, and the pulls one from it: the
switches that workers and server hang on add up the ones and make the others of one.

As events, per iteration and partition:  gradient ready -> leave: push ... -> [adder ->] sum: pull ... -> gate.

Our choices: the server's optimiser step is part of `server_rate` (the captured optimiser time belongs to a
worker that updates the whole model and is not charged); pulls to the workers start with another worker for
each partition, so that none is always last; a worker and a server on the same host exchange through memory,
in no time and without a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwire.experiment.collectives.base import Exchange, Exchanged, JobContext, Patterns, lists, messages
from gradwire.experiment.collectives.buckets import cut, pieces
from gradwire.experiment.collectives.kinds.parameter_server import ParameterServer
from gradwire.experiment.collectives.setting import JobSetting
from gradwire.experiment.program import Importance, Ints, Lists, Messages, Step
from gradwire.experiment.scheduling import LAYER
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import Allowance

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo

Floats = NDArray[np.float64]
PS_PER_SECOND = 10**12
HELD_BACK = "would wait for ever: a host holds back what other hosts' packets are to be added to"


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

    repeats = True

    def __init__(self, context: JobContext, table: ParameterServer) -> None:
        super().__init__(context)
        scheduling = context.scheduling
        self.layerwise = (scheduling.forward or table.pull) == "layerwise"
        self.staleness, self._alone = table.staleness, table.asynchronous
        self.partitions = partition_tensors(context, table, scheduling.cut or table.partition)
        layers = range(len(context.trace.layers))
        self._ranks = np.array([[scheduling.rank(back, layer) for layer in layers] for back in (False, True)])
        columns = np.array(self.partitions, dtype=np.int64).T
        self._tensor, self._part, self._first, _, self._bytes, self._layer, self._server, self._card = columns
        self._pieces = np.bincount(self._layer, minlength=len(context.trace.layers)).tolist()
        self._server_rate: int | None = table.server_rate
        self._sums = table.aggregation and context.sums
        if self._sums and scheduling.order == LAYER:
            raise ScenarioError(HELD_BACK, f"job[{context.number}].exchange.aggregation", 'order = "fifo"')
        workers, servers = np.array(context.workers), np.array(context.servers)
        cards = context.cards
        self._worker_node, self._server_node = cards.ends(
            workers[:, None], servers[self._server][None, :], self._card[None, :]
        )  # [W, P] both: which of its ports a server uses depends on where the worker is
        self._home = np.array([cards.node(host, 0) for host in context.servers])[self._server]  # where it is added up
        self._local = workers[:, None] == servers[self._server][None, :]
        # partitions of a tensor that leave a worker together: those between two that stay
        several = np.cumsum(self._local, axis=1)
        runs = (np.arange(len(workers))[:, None] * len(context.trace.tensors) + self._tensor) * (len(self._tensor) + 1)
        self._run = runs + several
        self._returned, self._kept = self._bytes, np.zeros(len(self._bytes), dtype=np.bool_)
        self._patterns = Patterns()
        self._layers = [(layer,) for layer in range(len(context.trace.layers))]

    def told(self, back: float | Sequence[int], kept: Sequence[int] = ()) -> None:
        """For who knows that servers send something else than what they add up, and what must not be lost.

        back : bytes that come back, whole float32 values and at least one of each partition: for each byte that is
            pushed, or of each tensor.
        kept : tensors of which nothing is lost, either way.
        """
        if back != 1:
            share: float | Floats = back  # type: ignore[assignment]
            if not isinstance(back, float | int):
                pushed = np.bincount(self._tensor, weights=self._bytes, minlength=len(back))
                share = (np.asarray(back, dtype=np.float64) / pushed.clip(min=1))[self._tensor]
            self._returned = np.maximum(4 * np.ceil(self._bytes * share / 4 - 1e-9), 4).astype(np.int64)
        self._kept = np.isin(self._tensor, np.array(kept, dtype=np.int64))

    @property
    def tensors(self) -> Ints:
        """The tensor of every partition."""
        return self._tensor

    def away(self, worker: int) -> Ints:
        """The partitions that a worker exchanges by messages: those that no server on its own host has."""
        return np.flatnonzero(~self._local[worker])

    def of_worker(self, iteration: int, worker: int, parts: Ints, pushed: bool) -> Messages:
        """The messages by which one worker pushes partitions, or pulls them, in this order."""
        return self._messages(iteration, np.full_like(parts, worker), parts, np.full(len(parts), pushed))

    @property
    def unit_bytes(self) -> int:
        return int(self._bytes.max())

    @property
    def bytes_per_iteration(self) -> int:
        return int(((self._bytes + self._returned) * (~self._local).sum(axis=0)).sum())

    @property
    def stations(self) -> Ints:
        if self._server_rate is None:
            return super().stations
        return np.array([self.context.cards.node(server, 0) for server in self.context.servers], dtype=np.int64)

    @property
    def efforts(self) -> Ints:
        """Picoseconds that a server takes to add up a push of every partition; 0 where that is free."""
        if self._server_rate is None:
            return np.zeros(len(self.partitions), dtype=np.int64)
        return np.array([-(-each.bytes * 8 * PS_PER_SECOND // self._server_rate) for each in self.partitions])

    def iteration(self, number: int, ready: Ints, last: bool) -> Exchanged:
        workers, parts, local = len(self.context.workers), len(self.partitions), self._local
        moment = ready[:, self._tensor]  # [W, P]
        push_w, push_p = np.nonzero(~local)
        order = np.lexsort((push_p, push_w, moment[push_w, push_p]))
        push_w, push_p = push_w[order], push_p[order]
        pull_p, turn = np.divmod(np.arange(parts * workers), workers)
        pull_w = (pull_p + turn) % workers
        away = ~local[pull_w, pull_p]
        pull_w, pull_p = pull_w[away], pull_p[away]
        due = np.concatenate((moment[push_w, push_p], moment.max(axis=0)[pull_p]))
        order = np.argsort(due, kind="stable")
        worker, part = np.concatenate((push_w, pull_w))[order], np.concatenate((push_p, pull_p))[order]
        pushed = order < len(push_w)
        place = np.empty(len(order), dtype=np.int64)  # the number of every push, then of every pull in turn
        place[order] = np.arange(len(order))
        return self._wired(number, last, worker, part, pushed, (push_w, push_p), (pull_w, pull_p), place)

    def _wired(
        self, iteration: int, last: bool, worker: Ints, part: Ints, pushed: NDArray[np.bool_],
        pushes: tuple[Ints, Ints], pulls: tuple[Ints, Ints], place: Ints,
    ) -> Exchanged:  # fmt: skip
        """What follows from what. `place`: numbers of the messages of `pushes`, then of `pulls`, by worker and
        partition."""
        context, local, efforts = self.context, self._local, self.efforts
        workers, parts, tensors = len(context.workers), len(self.partitions), len(context.trace.tensors)
        push_no, pull_no = place[: len(pushes[0])], place[len(pushes[0]) :]
        own_w, own_p = np.nonzero(local)
        # the sum of every partition; asynchronous, what each worker's push comes to: [workers, partitions]
        total = len(place) + np.arange(parts * (workers if self._alone else 1)).reshape(-1, parts)
        count = len(place) + total.size
        total = np.broadcast_to(total, (workers, parts))
        gates, needs_of_gates, gate_of = self._gates(count, last)
        count += len(needs_of_gates)
        run = self._run[pushes]
        leaving, lead, key = np.unique(run, return_index=True, return_inverse=True)
        leave = count + np.arange(len(leaving))
        count += len(leaving)
        adding = np.full((workers, parts), -1, dtype=np.int64)
        if self._server_rate is not None:
            adding[:] = count + np.arange(workers * parts).reshape(workers, parts)
            count += workers * parts
        counted = np.where(adding >= 0, adding, total)  # what a push counts towards
        needs, host = np.ones(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        needs[total] = 1 if self._alone else workers
        behind = slice(int(total.max()) + 1, int(total.max()) + 1 + len(needs_of_gates))
        needs[behind] = needs_of_gates
        nodes = context.nodes
        host[push_no], host[pull_no] = self._server_node[pushes], self._worker_node[pulls]
        host[total] = self._home
        host[behind] = nodes[gate_of]
        host[leave] = nodes[pushes[0][lead]]
        station, effort = np.full(count, -1, dtype=np.int64), np.zeros(count, dtype=np.int64)
        if self._server_rate is not None:
            host[adding], station[adding] = self._home[None, :], self._server[None, :]
            effort[adding] = efforts[None, :]
        after = [(push_no, counted[pushes]), (pull_no, gates[pulls[0], self._column(pulls[1], last)])]
        after.append((total[own_w, own_p], gates[own_w, self._column(own_p, last)]))
        if self._server_rate is not None:
            after.append((adding, total))
        by_tensor = np.lexsort((pushes[1], key))
        posts = [(leave[key[by_tensor]], push_no[by_tensor]), (total[pulls], pull_no)]
        fires = np.concatenate((  # worker, partition, event
            np.stack((pushes[0][lead], pushes[1][lead], leave)), np.stack((own_w, own_p, counted[own_w, own_p])),
        ), axis=1)  # fmt: skip
        fires = fires[:, np.lexsort(fires[1::-1])]
        step = Step(
            messages=self._messages(iteration, worker, part, pushed),
            needs=needs, host=host, station=station, effort=effort,
            after=lists(after, count),
            posts=lists(posts, count),
            contents=lambda: self._contents(worker, part, pushed, pushes, push_no),
            fans=self._fans(worker, part, pushed) if self._sums else None,
        )  # fmt: skip
        return Exchanged(step, lists([(fires[0] * tensors + self._tensor[fires[1]], fires[2])], workers * tensors),
        gates)

    def _fans(self, worker: Ints, part: Ints, pushed: NDArray[np.bool_]) -> Ints:
        """Pushes of one partition to one card of its server are of one fan, and so are pulls from there; none is of
        one message."""
        nodes = self._server_node.max() + 1
        _, fans, counts = np.unique(
            (part * 2 + pushed) * nodes + self._server_node[worker, part], return_inverse=True, return_counts=True
        )
        fans = fans.reshape(-1)
        return np.where(counts[fans] > 1, fans, -1)

    def _column(self, part: Ints, last: bool) -> Ints:
        """The column of the gates that a partition counts towards."""
        return self._layer[part] if self.layerwise and not last else np.full(len(part), -1, dtype=np.int64)

    def _gates(self, first: int, last: bool) -> tuple[Ints, Ints, Ints]:
        """Gates, numbered from `first`; what each of them needs, and whose it is."""
        workers, layers = len(self.context.workers), len(self._pieces)
        gates = np.full((workers, layers + 1), -1, dtype=np.int64)
        pieces = np.array(self._pieces, dtype=np.int64)
        used = np.flatnonzero(pieces) if self.layerwise and not last else np.array([layers])
        needs = np.append(pieces, pieces.sum())[used]
        gates[:, used] = first + np.arange(workers * len(used)).reshape(workers, len(used))
        return gates, np.tile(needs, workers), np.repeat(np.arange(workers), len(used))

    def _messages(self, iteration: int, worker: Ints, part: Ints, pushed: NDArray[np.bool_]) -> Messages:
        context = self.context
        captured = np.array([context.captured(each, iteration) for each in range(len(context.workers))])
        own, kept = self._own(part), self._kept[part]
        loss = context.bounds.of(iteration, ~pushed, worker, self._layers, self._layer[part])
        if kept.any():
            loss = Allowance(*(np.where(kept, 0, each) for each in loss))
        ends = self._worker_node[worker, part], self._server_node[worker, part]
        return messages(
            context, np.where(pushed, "push", "pull"), self._importance(captured, worker, part, pushed),
            iteration=iteration, tensor=self._tensor[part], layer=self._layer[part], part=self._part[part],
            src=np.where(pushed, ends[0], ends[1]), dst=np.where(pushed, ends[1], ends[0]),
            nbytes=np.where(pushed, self._bytes[part], self._returned[part]),
            priority=np.array(context.priorities)[self._tensor[part]],
            loss=loss,
            rank=self._ranks[(~pushed).astype(np.int64), self._layer[part]],
            captured=np.where(pushed, captured[worker], np.where(own >= 0, captured[own], -1)),
            first=self._first[part],
        )  # fmt: skip

    def _own(self, part: Ints) -> Ints:
        """The worker on the server's host, -1 where there is none."""
        return np.where(self._local.any(axis=0), self._local.argmax(axis=0), -1)[part]

    def _importance(self, captured: Ints, worker: Ints, part: Ints, pushed: NDArray[np.bool_]) -> Importance:
        if self.context.tagger is None:
            return Importance((), np.full(len(part), Importance.AS_SENT))
        # The magnitudes of a sum were not captured; those of the first worker's gradient stand for them.
        whose = np.where(pushed, captured[worker], captured[0])
        keys = whose * len(self.partitions) + part
        # Of what comes back in other lengths than it was pushed in nobody knows which packets matter.
        alike = not self.context.table.pull_important and self._returned is self._bytes
        wanted = (pushed | alike) & ~self._kept[part]
        found, inverse = np.unique(keys[wanted], return_inverse=True)
        numbers = [self._pattern(*divmod(key, len(self.partitions))) for key in found.tolist()]
        pattern = np.full(len(part), Importance.ALL, dtype=np.int64)
        pattern[wanted] = np.array(numbers, dtype=np.int64)[inverse]
        return Importance(self._patterns.found, pattern)

    def _pattern(self, captured: int, number: int) -> int:
        piece, context = self.partitions[number], self.context
        return self._patterns.of(
            (captured, number),
            lambda: context.tagger.important(captured, piece.tensor, piece.first, piece.elements, context.payload),
        )

    def _contents(
        self, worker: Ints, part: Ints, pushed: NDArray[np.bool_], pushes: tuple[Ints, Ints], push_no: Ints
    ) -> tuple[Lists, NDArray[np.bool_]]:
        """A pull carries the sum of its partition's pushes, by worker, and of what the worker beside the server has; of
        an asynchronous one only its worker's push is known to be in it."""
        if self._alone:
            known = np.full(self._local.shape, -1, dtype=np.int64)
            known[pushes] = push_no
            begins = np.concatenate([[0], np.cumsum(~pushed)])
            return (begins, known[worker, part][~pushed]), pushed.copy()
        order = np.lexsort(pushes)
        first, members = lists([(pushes[1][order], push_no[order])], len(self.partitions))
        counts = np.where(pushed, 0, first[part + 1] - first[part])
        begins = np.zeros(len(part) + 1, dtype=np.int64)
        np.cumsum(counts, out=begins[1:])
        inside = np.arange(begins[-1]) - np.repeat(begins[:-1], counts)
        return (begins, members[np.repeat(first[part], counts) + inside]), pushed | self._local.any(axis=0)[part]


def _share(info: TensorInfo, table: ParameterServer, servers: int) -> tuple[bool, int]:
    """Whether a tensor is split over all servers, and how many elements each gets, which are cut into partitions."""
    split = table.shards == "split" and info.bytes >= table.split_above
    return split, -(-info.numel // servers) if split else info.numel


def partitions_of(setting: JobSetting, table: ParameterServer) -> list[int]:
    """How many partitions every tensor has, without making them."""
    most, found = setting.scheduling.cut or table.partition, []
    for info in setting.trace.tensors:
        _, share = _share(info, table, len(setting.servers))
        whole, rest = divmod(info.numel, share)
        found.append(whole * pieces(share, info.element_bytes, most) + pieces(rest, info.element_bytes, most))
    return found


def partition_tensors(context: JobContext, table: ParameterServer, most: int) -> list[Partition]:
    """Cut all tensors into partitions of at most `most` bytes and place them on servers, and on their cards.

    Whole partitions first and the remainder last, in tensor order.  By bytes, placement is greedy: by falling size
    (then tensor, part), each to the server with the fewest bytes (then the lowest index), and there to the network
    card with the fewest bytes of that server, then with the fewest in all (then the lowest number). In turn, the
    server is that after the one before. Where tensors are split, those of at least `split_above` are first cut into
    as many equal parts as there are servers, one for each, and the others placed in turn.
    """
    servers, cards = len(context.servers), context.rails
    cuts: list[Partition] = []
    turn = 0
    for tensor, info in enumerate(context.trace.tensors):
        split, share = _share(info, table, servers)
        begins = [
            (low + first, count, low // share)
            for low in range(0, info.numel, share)
            for first, count in cut(min(share, info.numel - low), info.element_bytes, most)
        ]
        for part, (first, elements, owner) in enumerate(begins):
            server = -1
            if table.shards != "bytes":
                server = owner if split else turn % servers
                turn += not split
            cuts.append(Partition(tensor, part, first, elements, elements * info.element_bytes, info.layer, server, -1))
    load = [0] * servers
    of_server = [[0] * cards for _ in range(servers)]
    of_card = [0] * cards
    home = [(-1, -1)] * len(cuts)
    for number in sorted(range(len(cuts)), key=lambda number: -cuts[number].bytes):
        server = cuts[number].server if cuts[number].server >= 0 else load.index(min(load))
        card = min(range(cards), key=lambda card: (of_server[server][card], of_card[card]))
        load[server] += cuts[number].bytes
        of_server[server][card] += cuts[number].bytes
        of_card[card] += cuts[number].bytes
        home[number] = (server, card)
    return [piece._replace(server=server, card=card) for piece, (server, card) in zip(cuts, home, strict=True)]
