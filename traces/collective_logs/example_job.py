"""`example_job` makes the log of an invented training job with a known fault, to try monitoring and `diagnose` on.

A node has 8 accelerators with a NIC each. Ranks compute forward and backward, layer by layer, with noise; collectives
of a layer's tensor-parallel group stop the computing, those of gradients overlap it on a stream of their own; an
iteration ends with an all-reduce of one number among all ranks. Every collective is a ring (`ring_times`); one among
all ranks has 8 rings, one per rail. Durations hold the waiting for others, as in a real log. The model is ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.lazily import np
from gradwire.traces.collective_logs.records import KINDS, STATES, UNKNOWN, CollectiveLog, LogBuilder
from gradwire.traces.collective_logs.ring_times import Outage, RingChannel, ring_ends

FAULTS = ("healthy", "straggler", "slow_link", "flapping_nic")
LAYOUTS = ("data", "tensor_data", "sharded")
"""One gradient group of all ranks; tensor groups in a node and a gradient group per rail; sharding in a node, and a
replica group per rail."""
PER_NODE = 8
NVLINK, NVLINK_LATENCY = 200e9, 2e-6
"""Bytes/s and seconds of a hop inside a node; our choice, near an H100's ring."""
NIC_LATENCY = 8e-6
FLAPS = 0.3
"""Part of the iterations in which a flapping NIC fails during a transfer."""
EPOCH_S = 1_760_000_000.0
SMALL = 4
"""Bytes of the all-reduce that ends an iteration."""


class Fault(NamedTuple):
    """A fault of one rank: a slow accelerator, or the NIC beside it. `severity` : the factor by which
    computing takes longer or the link is slower, or the seconds of an outage; `onset` : iteration in which it begins;
    `direction` : "in", "out" or "both" for a link."""

    kind: str
    rank: int = -1
    severity: float = 1.0
    onset: int = 0
    direction: str = "both"
    on_host: bool = False


@dataclass(frozen=True)
class JobShape:
    """Sizes and noise of an invented job.

    compute_s : of an iteration. buckets : bytes of the gradient collectives, in backward order.
    noise, network_noise : relative standard deviations. clock_s : standard deviation of the hosts' clocks."""

    ranks: int = 64
    layout: str = "data"
    iterations: int = 30
    layers: int = 4
    compute_s: float = 0.2
    buckets: tuple[int, ...] = (100_000_000, 100_000_000, 60_000_000, 30_000_000)
    tensor_bytes: int = 32_000_000
    nic: float = 42e9
    noise: float = 0.02
    network_noise: float = 0.05
    clock_s: float = 5e-4
    has_times: bool = False
    missing: tuple[int, ...] = ()
    buffer: int = 2000


@dataclass
class _State:
    """Clocks of all ranks in seconds: of computing, of the gradients' stream, of the CPU; and the next sequences."""

    compute: Floats
    stream: Floats
    cpu: Floats
    sequence: dict[str, int] = field(default_factory=dict)


def random_shape(rng: np.random.Generator, ranks: int = 64) -> JobShape:
    """Return a job with drawn layout, sizes and noise."""
    count = int(rng.integers(2, 7))
    return JobShape(
        ranks=ranks,
        layout=str(rng.choice(LAYOUTS)),
        iterations=int(rng.integers(20, 41)),
        layers=int(rng.integers(3, 7)),
        compute_s=float(rng.uniform(0.08, 0.4)),
        buckets=tuple(int(size) * 4 for size in rng.integers(5_000_000, 50_000_000, count)),
        tensor_bytes=int(rng.integers(2_000_000, 16_000_000)) * 4,
        nic=float(rng.choice([10e9, 20e9, 42e9])),
        noise=float(rng.uniform(0.005, 0.03)),
        network_noise=float(rng.uniform(0.02, 0.1)),
        clock_s=float(rng.choice([2e-5, 5e-4, 5e-3])),
        has_times=bool(rng.integers(2)),
    )


def random_fault(kind: str, shape: JobShape, rng: np.random.Generator) -> Fault:
    """Return a fault of a kind at a drawn rank, strong enough to matter to the job."""
    if kind not in FAULTS:
        raise TraceError(f"fault {kind!r}", "example job", ", ".join(FAULTS))
    rank = int(rng.integers(shape.ranks))
    if kind == "straggler":
        onset = int(rng.integers(0, shape.iterations // 2))
        return Fault(kind, rank, float(rng.uniform(1.15, 1.8)), onset, on_host=bool(rng.integers(2)))
    if kind == "slow_link":
        return Fault(kind, rank, float(rng.uniform(2.0, 8.0)), direction=str(rng.choice(["in", "out", "both"])))
    if kind == "flapping_nic":
        return Fault(kind, rank, float(rng.uniform(0.1, 0.8)))
    return Fault(kind)


def example_job(shape: JobShape, fault: Fault, seed: int) -> CollectiveLog:
    """Return the log of a job with a fault; the same arguments give the same log."""
    if shape.layout not in LAYOUTS or shape.ranks % PER_NODE or shape.ranks < 2 * PER_NODE:
        what = f"layout {shape.layout!r} of {shape.ranks} ranks"
        raise TraceError(what, "example job", f"{', '.join(LAYOUTS)}; whole nodes of {PER_NODE} ranks, at least 2")
    return _ExampleJob(shape, fault, np.random.default_rng(seed)).run()


class _ExampleJob:
    def __init__(self, shape: JobShape, fault: Fault, rng: np.random.Generator) -> None:
        self.shape, self.fault, self.rng = shape, fault, rng
        ranks = np.arange(shape.ranks)
        self.world = [tuple(range(shape.ranks))]
        self.nodes = [tuple(range(first, first + PER_NODE)) for first in range(0, shape.ranks, PER_NODE)]
        self.rails = [tuple(range(rail, shape.ranks, PER_NODE)) for rail in range(PER_NODE)]
        self.speed = rng.normal(1.0, 0.004, shape.ranks)  # accelerators differ a little for good
        self.offset = rng.normal(0.0, shape.clock_s, shape.ranks // PER_NODE)[ranks // PER_NODE]
        self.outages: list[Outage] = []
        self.state = _State(np.zeros(shape.ranks), np.zeros(shape.ranks), np.zeros(shape.ranks))
        self.calls: list[tuple[str, tuple[int, ...], int, str, int, Floats, Floats, Floats]] = []
        self.is_active, self.breaking = False, -1

    def run(self) -> CollectiveLog:
        shape = self.shape
        for iteration in range(shape.iterations):
            self.is_active = iteration >= self.fault.onset
            is_broken = self.fault.kind == "flapping_nic" and self.rng.random() < FLAPS and iteration > 1
            self.breaking = int(self.rng.integers(len(shape.buckets))) if is_broken else -1
            self._iteration()
        return self._log()

    # --- computing

    def _compute(self, seconds: float) -> None:
        factor = self.rng.lognormal(0.0, self.shape.noise, self.shape.ranks) * self.speed
        if self.fault.kind == "straggler" and self.is_active and not self.fault.on_host:
            factor[self.fault.rank] *= self.fault.severity
        self.state.compute = np.maximum(self.state.compute, self.state.cpu) + seconds * factor
        self.state.cpu = self.state.cpu + seconds * 0.3  # launching runs ahead

    def _iteration(self) -> None:
        shape, state = self.shape, self.state
        state.cpu = state.compute + 1e-4  # the loss is read, so the CPU has waited
        hiccups = self.rng.random(shape.ranks) < 0.001
        state.cpu = state.cpu + np.where(hiccups, self.rng.uniform(0.02, 0.2, shape.ranks) * shape.compute_s, 0.0)
        if self.fault.kind == "straggler" and self.is_active and self.fault.on_host:
            state.cpu[self.fault.rank] += (self.fault.severity - 1) * shape.compute_s
        forward = shape.compute_s * 0.3 / shape.layers
        for _ in range(shape.layers):
            self._compute(forward)
            self._layer_collective("all_gather" if shape.layout == "sharded" else "all_reduce")
        backward = shape.compute_s * 0.65 / len(shape.buckets)
        for bucket, size in enumerate(shape.buckets):
            self._compute(backward)
            self._layer_collective("reduce_scatter" if shape.layout == "sharded" else "all_reduce")
            groups = self.world if shape.layout == "data" else self.rails
            for number, members in enumerate(groups):
                name = "gradients" if shape.layout == "data" else f"gradients{number}"
                is_broken = bucket == self.breaking and self.fault.rank in members
                self._collective(name, members, "all_reduce", size, blocking=False, is_broken=is_broken)
        state.compute = np.maximum(state.compute, state.stream)
        self._compute(shape.compute_s * 0.05)
        self._collective("default", self.world[0], "all_reduce", SMALL, blocking=True)

    def _layer_collective(self, kind: str) -> None:
        if self.shape.layout == "data":
            return
        for number, members in enumerate(self.nodes):
            self._collective(f"tensor{number}", members, kind, self.shape.tensor_bytes, blocking=True)

    # --- communication

    def _collective(
        self, name: str, members: tuple[int, ...], kind: str, nbytes: int, *, blocking: bool, is_broken: bool = False
    ) -> None:
        state, where = self.state, np.array(members)
        queued = state.cpu[where] + 2e-5
        start = np.maximum(state.compute[where] if blocking else np.maximum(state.stream, state.compute)[where], queued)
        begin = float(start.max())
        ends = ring_ends(kind, nbytes, self._channels(members), begin)
        if is_broken:  # a link fails while it carries data, anywhere in the transfer
            first = float(self.rng.uniform(begin, ends.max()))
            self.outages = [(first, first + self.fault.severity * float(self.rng.uniform(0.5, 1.5)))]
            ends = ring_ends(kind, nbytes, self._channels(members), begin)
        stretch = float(self.rng.lognormal(0.0, self.shape.network_noise))
        if self.rng.random() < 0.02:  # congestion now and then
            stretch *= float(self.rng.uniform(1.2, 2.0))
        ends = begin + (ends - begin) * max(stretch, 0.7) + np.abs(self.rng.normal(0.0, 3e-6, len(members)))
        ends = np.maximum(ends, start + 1e-6)
        if blocking:
            state.compute[where] = ends
        else:
            state.stream[where] = ends
        number = state.sequence[name] = state.sequence.get(name, 0) + 1
        self.calls.append((name, members, number, kind, nbytes, queued, start, ends))

    def _channels(self, members: tuple[int, ...]) -> list[RingChannel]:
        if members in self.nodes:
            n = len(members)
            return [RingChannel(range(n), [NVLINK] * n, [NVLINK_LATENCY] * n, [()] * n)]
        if members in self.rails:
            return [self._channel(range(len(members)), members, [rank % PER_NODE for rank in members])]
        channels = []
        for rail in range(PER_NODE):
            turned = [(rail + hop) % PER_NODE for hop in range(PER_NODE)]
            order = [node + local for node in range(0, len(members), PER_NODE) for local in turned]
            channels.append(self._channel(order, members, [rail] * len(members)))
        return channels

    def _channel(self, order: range | list[int], members: tuple[int, ...], rails: list[int]) -> RingChannel:
        """Return a ring whose links between nodes are those of a rail's NICs."""
        rates, latencies, outages = [], [], []
        ranks = [members[position] for position in order]
        for index, rank in enumerate(ranks):
            before = ranks[index - 1]
            spans: list[Outage] = []
            rate, latency = NVLINK, NVLINK_LATENCY
            if before // PER_NODE != rank // PER_NODE:
                rate, latency = self.shape.nic, NIC_LATENCY
                ends = [end // PER_NODE * PER_NODE + rails[index] for end in (before, rank)]
                if self.fault.rank in ends and self.fault.kind == "slow_link" and self.is_active:
                    is_out = ends[0] == self.fault.rank
                    if self.fault.direction in ("both", "out" if is_out else "in"):
                        rate /= self.fault.severity
                if self.fault.rank in ends and self.fault.kind == "flapping_nic":
                    spans = self.outages
            rates.append(rate)
            latencies.append(latency)
            outages.append(spans)
        return RingChannel(order, rates, latencies, outages)

    # --- the log

    def _log(self) -> CollectiveLog:
        shape = self.shape
        builder = LogBuilder("flight_recorder")
        for rank in range(shape.ranks):
            if rank not in shape.missing:
                builder.add_rank(rank, f"rank {rank}")
                builder.hosts[rank] = f"node{rank // PER_NODE}"
        rows: dict[int, list[tuple[int, ...]]] = {rank: [] for rank in builder.ranks}
        for name, members, number, kind, nbytes, queued, start, ends in self.calls:
            group = builder.group(name, name, "", members, "example job")
            times = np.stack([queued, start, ends]) + EPOCH_S
            for index, rank in enumerate(members):
                if rank in rows:
                    clock = [round((moment + self.offset[rank]) * 1e9) for moment in times[:, index].tolist()]
                    seen = clock if shape.has_times else [clock[0], UNKNOWN, UNKNOWN]
                    duration = round((ends[index] - start[index]) * 1e9)
                    rows[rank].append(
                        (rank, group, number, KINDS.index(kind), nbytes, *seen, duration, STATES.index("completed"))
                    )
        for calls in rows.values():
            for row in calls[-shape.buffer :]:
                builder.add(*row)
        return builder.finish("example job")
