"""`ParameterServers` builds an iteration's messages between workers, which push gradients and pull results, and
servers, which sum.

Tensors are cut into partitions, and every partition is stored on one server (`partition_tensors`). A worker pushes a
tensor's partitions as soon as its gradient is ready. When a server has the pushes of all workers for a partition it
sends the result to every worker, without a request: unlike the "pull" of the literature, since the request would only
be one more small packet [notes: P3 broadcasts right after aggregation]. So workers are synchronised by their data
alone: layerwise, the forward step of a layer waits for that layer's tensors; with a barrier, for all.

With `aggregation`, the pushes of a partition are one aggregation group to its server, and the pulls one from it: the
switches between workers and server sum the pushes, and multicast the pulls.

As events, per iteration and partition: gradient ready -> leave: push ... -> [adder ->] sum: pull ... -> gate.

Our choices: the server's optimiser step is part of `server_rate` (the captured optimiser time belongs to a worker that
updates the whole model and is not charged); pulls start with a different worker for each partition, so that none is
always last; a worker and a server on the same host exchange through memory, in no time and without a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gradwire.scenarios.arrays import Flags, Floats
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loss import LossAllowance
from gradwire.workload.collectives.common.base import (
    Exchange,
    ExchangedIteration,
    ImportancePatterns,
    JobContext,
    JobSetting,
    make_messages,
)
from gradwire.workload.collectives.common.buckets import count_pieces, cut_tensor
from gradwire.workload.collectives.exchanges.nonzero_blocks import NonzeroBlocks
from gradwire.workload.csr import CsrLists, csr_lists, select_lists, starts_of
from gradwire.workload.program import Ints, Messages, PacketImportance, Step
from gradwire.workload.scheduling import LAYER

if TYPE_CHECKING:
    from gradwire.traces.trace import TensorInfo
    from gradwire.workload.collectives.exchanges.parameter_server import ParameterServer

PS_PER_SECOND = 10**12
HOLD_BACK_DEADLOCK = "would deadlock: a host holds back packets that others are waiting to be summed with"


class Partition(NamedTuple):
    """A run of a tensor's elements that is pushed, summed and pulled as one message."""

    tensor: int
    part: int
    """index within the tensor"""
    first: int
    elements: int
    bytes: int
    layer: int
    server: int
    """index of its server"""
    card: int
    """number of its NIC, at both ends"""


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
            raise ScenarioError(HOLD_BACK_DEADLOCK, f"job[{context.number}].exchange.aggregation", 'order = "fifo"')
        workers, servers = np.array(context.workers), np.array(context.servers)
        cards = context.cards
        self._worker_node, self._server_node = cards.cards(
            workers[:, None], servers[self._server][None, :], self._card[None, :]
        )  # [W, P] both: a server's port depends on the worker's host
        self._home = np.array([cards.node(host, 0) for host in context.servers])[self._server]  # where it is summed
        self._local = workers[:, None] == servers[self._server][None, :]
        # partitions of a tensor that leave a worker together: those between two on the worker's own host
        several = np.cumsum(self._local, axis=1)
        runs = (np.arange(len(workers))[:, None] * len(context.trace.tensors) + self._tensor) * (len(self._tensor) + 1)
        self._run = runs + several
        self._returned, self._kept = self._bytes, np.zeros(len(self._bytes), dtype=np.bool_)
        self._blocks = NonzeroBlocks(context.trace, self.partitions) if table.skip_zeros else None
        self._patterns = ImportancePatterns()
        self._layers = [(layer,) for layer in range(len(context.trace.layers))]

    def set_answer_sizes(self, back: float | Sequence[int], reliable_tensors: Sequence[int] = ()) -> None:
        """Set the sizes of servers' answers, if these are not sums, and the tensors that must not be lost.

        back : bytes returned per byte pushed, or for each tensor; rounded to whole float32 values, at least one per
            partition.
        reliable_tensors : tensors that are lossless in both directions.
        """
        if back != 1:
            share: float | Floats = back  # type: ignore[assignment]
            if not isinstance(back, float | int):
                pushed = np.bincount(self._tensor, weights=self._bytes, minlength=len(back))
                share = (np.asarray(back, dtype=np.float64) / pushed.clip(min=1))[self._tensor]
            self._returned = np.maximum(4 * np.ceil(self._bytes * share / 4 - 1e-9), 4).astype(np.int64)
        self._kept = np.isin(self._tensor, np.array(reliable_tensors, dtype=np.int64))

    @property
    def tensors(self) -> Ints:
        """The tensor of every partition."""
        return self._tensor

    def remote_partitions(self, worker: int) -> Ints:
        """Return the partitions that a worker exchanges by messages: those not on a server on its own host."""
        return np.flatnonzero(~self._local[worker])

    def of_worker(self, iteration: int, worker: int, parts: Ints, pushed: bool) -> Messages:
        """Return the messages by which one worker pushes, or pulls, partitions, in this order."""
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
    def sum_times_ps(self) -> Ints:
        """Picoseconds for a server to sum a push of every partition; 0 if free."""
        if self._server_rate is None:
            return np.zeros(len(self.partitions), dtype=np.int64)
        return np.array([-(-piece.bytes * 8 * PS_PER_SECOND // self._server_rate) for piece in self.partitions])

    def iteration(self, number: int, ready: Ints, last: bool) -> ExchangedIteration:
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
        number_of = np.empty(len(order), dtype=np.int64)  # the number of every push, then of every pull
        number_of[order] = np.arange(len(order))
        return self._connected(number, last, worker, part, pushed, (push_w, push_p), (pull_w, pull_p), number_of)

    def _connected(
        self,
        iteration: int,
        last: bool,
        worker: Ints,
        part: Ints,
        pushed: Flags,
        pushes: tuple[Ints, Ints],
        pulls: tuple[Ints, Ints],
        number_of: Ints,
    ) -> ExchangedIteration:
        """Connect the events. `number_of`: numbers of the messages of `pushes`, then of `pulls`."""
        context, local, efforts = self.context, self._local, self.sum_times_ps
        workers, parts, tensors = len(context.workers), len(self.partitions), len(context.trace.tensors)
        push_no, pull_no = number_of[: len(pushes[0])], number_of[len(pushes[0]) :]
        own_w, own_p = np.nonzero(local)
        # the sum of every partition; asynchronous: of each worker's push alone: [workers, partitions]
        total = len(number_of) + np.arange(parts * (workers if self._alone else 1)).reshape(-1, parts)
        count = len(number_of) + total.size
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
        counted = np.where(adding >= 0, adding, total)  # the event that a push counts towards
        needs, host = np.ones(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        needs[total] = 1 if self._alone else workers
        gate_events = slice(int(total.max()) + 1, int(total.max()) + 1 + len(needs_of_gates))
        needs[gate_events] = needs_of_gates
        nodes = context.nodes
        host[push_no], host[pull_no] = self._server_node[pushes], self._worker_node[pulls]
        host[total] = self._home
        host[gate_events] = nodes[gate_of]
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
        away, own = (pushes[0][lead], pushes[1][lead], leave), (own_w, own_p, counted[own_w, own_p])
        fires = np.concatenate((away, own), axis=1)  # worker, partition, event
        fires = fires[:, np.lexsort(fires[1::-1])]
        step = Step(
            messages=self._messages(iteration, worker, part, pushed),
            needs=needs,
            host=host,
            station=station,
            effort=effort,
            after=csr_lists(after, count),
            posts=csr_lists(posts, count),
            contents=lambda: self._contents(worker, part, pushed, pushes, push_no),
            fans=self._fans(worker, part, pushed) if self._sums else None,
        )
        fired = csr_lists([(fires[0] * tensors + self._tensor[fires[1]], fires[2])], workers * tensors)
        return ExchangedIteration(step, fired, gates)

    def _fans(self, worker: Ints, part: Ints, pushed: Flags) -> Ints:
        """Return the aggregation groups: pushes of one partition to one NIC of its server, and pulls from it; -1 for
        single messages."""
        nodes = self._server_node.max() + 1
        keys = (part * 2 + pushed) * nodes + self._server_node[worker, part]
        _, fans, counts = np.unique(keys, return_inverse=True, return_counts=True)
        return np.where(counts[fans] > 1, fans, -1)

    def _column(self, part: Ints, last: bool) -> Ints:
        """Return the column of the gates that a partition counts towards."""
        return self._layer[part] if self.layerwise and not last else np.full(len(part), -1, dtype=np.int64)

    def _gates(self, first: int, last: bool) -> tuple[Ints, Ints, Ints]:
        """Return the gates, numbered from `first`; the firings that each needs, and its worker."""
        workers, layers = len(self.context.workers), len(self._pieces)
        gates = np.full((workers, layers + 1), -1, dtype=np.int64)
        count_pieces = np.array(self._pieces, dtype=np.int64)
        used = np.flatnonzero(count_pieces) if self.layerwise and not last else np.array([layers])
        needs = np.append(count_pieces, count_pieces.sum())[used]
        gates[:, used] = first + np.arange(workers * len(used)).reshape(workers, len(used))
        return gates, np.tile(needs, workers), np.repeat(np.arange(workers), len(used))

    def _messages(self, iteration: int, worker: Ints, part: Ints, pushed: Flags) -> Messages:
        context = self.context
        captured = np.array([context.captured(index, iteration) for index in range(len(context.workers))])
        own = np.where(self._local.any(axis=0), self._local.argmax(axis=0), -1)[part]  # worker on the server's host
        lossless = self._kept[part]
        loss = context.bounds.of(iteration, ~pushed, worker, self._layers, self._layer[part])
        if lossless.any():
            loss = LossAllowance(*(np.where(lossless, 0, value) for value in loss))
        ends = self._worker_node[worker, part], self._server_node[worker, part]
        return make_messages(
            context,
            np.where(pushed, "push", "pull"),
            self._importance(captured, worker, part, pushed),
            iteration=iteration,
            tensor=self._tensor[part],
            layer=self._layer[part],
            part=self._part[part],
            src=np.where(pushed, ends[0], ends[1]),
            dst=np.where(pushed, ends[1], ends[0]),
            nbytes=self._sizes(captured, worker, part, pushed),
            priority=np.array(context.priorities)[self._tensor[part]],
            loss=loss,
            rank=self._ranks[(~pushed).astype(np.int64), self._layer[part]],
            captured=np.where(pushed, captured[worker], np.where(own >= 0, captured[own], -1)),
            first=self._first[part],
        )

    def _sizes(self, captured: Ints, worker: Ints, part: Ints, pushed: Flags) -> Ints:
        """Return the bytes of messages. `captured`: the iteration of the trace that each worker replays."""
        if self._blocks is None:
            return np.where(pushed, self._bytes[part], self._returned[part])
        by_worker = np.array([self._blocks.sizes([each]) for each in captured.tolist()])
        return np.where(pushed, by_worker[worker, part], self._blocks.sizes(captured.tolist())[part])

    def _importance(self, captured: Ints, worker: Ints, part: Ints, pushed: Flags) -> PacketImportance:
        if self.context.tagger is None:
            return PacketImportance((), np.full(len(part), PacketImportance.AS_SENT))
        # The magnitudes of a sum were not captured; the first worker's gradient stands in for it.
        whose = np.where(pushed, captured[worker], captured[0])
        keys = whose * len(self.partitions) + part
        # For answers of other sizes the important packets are unknown.
        tag_pulls = not self.context.table.pull_important and self._returned is self._bytes
        tagged = (pushed | tag_pulls) & ~self._kept[part]
        unique_keys, inverse = np.unique(keys[tagged], return_inverse=True)
        numbers = [self._pattern(*divmod(key, len(self.partitions))) for key in unique_keys.tolist()]
        pattern = np.full(len(part), PacketImportance.ALL, dtype=np.int64)
        pattern[tagged] = np.array(numbers, dtype=np.int64)[inverse]
        return PacketImportance(self._patterns.found, pattern)

    def _pattern(self, captured: int, number: int) -> int:
        piece, context = self.partitions[number], self.context
        return self._patterns.of(
            (captured, number),
            lambda: context.tagger.important(captured, piece.tensor, piece.first, piece.elements, context.payload),
        )

    def _contents(
        self, worker: Ints, part: Ints, pushed: Flags, pushes: tuple[Ints, Ints], push_no: Ints
    ) -> tuple[CsrLists, Flags]:
        """Return the contents of messages.

        A pull carries the sum of its partition's pushes, by worker, plus that of the worker on the server's host; an
        asynchronous one is only known to contain its worker's push.
        """
        if self._alone:
            known = np.full(self._local.shape, -1, dtype=np.int64)
            known[pushes] = push_no
            return (starts_of(~pushed), known[worker, part][~pushed]), pushed.copy()
        order = np.lexsort(pushes)
        nothing = len(self.partitions)  # the number of one more list, an empty one
        by_part = csr_lists([(pushes[1][order], push_no[order])], nothing + 1)
        return select_lists(by_part, np.where(pushed, nothing, part)), pushed | self._local.any(axis=0)[part]


def _share(info: TensorInfo, table: ParameterServer, servers: int) -> tuple[bool, int]:
    """Return True if a tensor is split over all servers, and the elements per server, to be cut into partitions."""
    split = table.shards == "split" and info.bytes >= table.split_above
    return split, -(-info.numel // servers) if split else info.numel


def count_partitions(setting: JobSetting, table: ParameterServer) -> list[int]:
    """Return the number of partitions of every tensor, without creating them."""
    most, counts = setting.scheduling.cut or table.partition, []
    for info in setting.trace.tensors:
        _, share = _share(info, table, len(setting.servers))
        whole, rest = divmod(info.numel, share)
        pieces = [count_pieces(elements, info.element_bytes, most) for elements in (share, rest)]
        counts.append(whole * pieces[0] + pieces[1])
    return counts


def partition_tensors(context: JobContext, table: ParameterServer, most: int) -> list[Partition]:
    """Cut all tensors into partitions of at most `most` bytes and place them on servers, and on their NICs.

    Whole partitions first and the remainder last, in tensor order. By bytes, placement is greedy: by falling size (then
    tensor, part), each to the server with the fewest bytes (then the lowest index), and there to the NIC with the
    fewest bytes of that server, then with the fewest in all (then the lowest number). Round robin, the server follows
    that of the previous partition. With `split`, tensors of at least `split_above` are first cut into as many equal
    parts as there are servers, one for each, and the others placed in turn.
    """
    servers, cards = len(context.servers), context.rails
    cuts: list[Partition] = []
    turn = 0
    for tensor, info in enumerate(context.trace.tensors):
        split, share = _share(info, table, servers)
        begins = [
            (low + first, count, low // share)
            for low in range(0, info.numel, share)
            for first, count in cut_tensor(min(share, info.numel - low), info.element_bytes, most)
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
