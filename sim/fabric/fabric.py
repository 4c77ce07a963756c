"""The fabric: packets through a network, from Python.

A `Fabric` is built from a network, its routes and the tables of a scenario. `send` hands it messages, `run` advances it
and returns what was delivered. Between two calls its whole state rests in one array (see `layout`).
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scenarios.errors import GradwireError, ScenarioError
from scenarios.units import format_time
from sim import balancers, queues, transports
from sim.fabric import layout as at
from sim.fabric.draws import MASK, key_of, mix
from sim.fabric.memory import Memory, build, speed_of
from sim.fabric.specialise import Kernel, resolve, specialise
from sim.fabric.tables import Tables, collect_drops, collect_ports
from sim.transports.base import Context

CALL_SECONDS = 0.05  # a call of the compiled engine lasts about this long, so that Ctrl-C and progress get their turn
FLOW_ENTROPY = 3  # kind of the draws that give each message its path entropy
CLOSE_BATCH = 64


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message that its receiver has as far as it is going to.

    `missing`: bool per packet, True where the packet never arrived in time; None when nothing is missing.
    """

    message: int
    time_ps: int
    received_bytes: int
    lost_bytes: int
    missing: NDArray[np.bool_] | None


@dataclass(slots=True)
class _Message:
    src: int
    dst: int
    nbytes: int
    packets: int
    flow: int
    transport: int
    delivered: bool = False
    finished: bool = False


@dataclass(frozen=True)
class Bound:
    """One transport of a run: its class and the numbers a message needs."""

    owner: Any
    payload: int
    control_priority: int
    important: bool
    sender_bitmaps: int
    receiver_bitmaps: int


class Fabric:
    """A network that carries messages packet by packet, exactly.

    Parameters
    ----------
    network, routing : `sim.topology.Network` and the `sim.routing.Routing` of it.
    switch : table with `queues`, `buffer` (bytes per egress port), `thresholds()` (bytes per queue or None),
        `selective_drop`.
    transports : transport tables of the scenario (`kind`, `payload`, parameters); messages name one by its number.
    balancing : name of a load balancer, or "module:Class".
    host_latency_ps : after a delivery at c, `run` returns before c + host_latency_ps has passed.
    threads : how many threads advance the network; results do not depend on it.
    packet_log : keep every transmission (`packet_log` afterwards); for tests and packet captures.
    window_ps : shorter windows than the lookahead allows; for tests. Results do not depend on it.

    Raises
    ------
    ScenarioError
        An unknown transport or balancer, or a network too large for the engine.
    """

    def __init__(
        self,
        network: Any,
        routing: Any,
        *,
        switch: Any,
        transports: Sequence[Any],
        balancing: str = "ecmp",
        seed: int = 1,
        host_latency_ps: int = 2_000_000,
        threads: int = 1,
        packet_log: bool = False,
        window_ps: int | None = None,
    ) -> None:
        if network.host_count > at.MAX_HOSTS:
            raise ScenarioError(f"{network.host_count} hosts", "topology", f"at most {at.MAX_HOSTS}")
        if threads < 1:
            raise ScenarioError(f"{threads} threads", "threads", "at least 1")
        self.network = network
        self.routing = routing
        self.seed = seed
        self.threads = threads
        owners = [resolve(transport_kinds(), table.kind, "transport.kind") for table in transports]
        balancer = resolve(balancers.KINDS, balancing, "load_balancing")
        policy = resolve(queues.KINDS, "threshold", "switch")
        self._bound = [self._bind(owner, table) for owner, table in zip(owners, transports, strict=True)]
        frames = [bound.payload + bound.owner.data_overhead for bound in self._bound]
        base_rtt = base_round_trip(network, routing, max(frames))
        slowest = int(network.link_rate[network.up_link].max())
        parameters = [
            owner.parameters(
                table.model_dump(), Context(int(speed_of(slowest)), bound.payload, base_rtt)
            )
            for owner, table, bound in zip(owners, transports, self._bound, strict=True)
        ]
        started = time.perf_counter()
        self.kernel: Kernel = specialise(owners, balancer, policy)
        self.memory: Memory = build(
            network,
            routing,
            queues=switch.queues,
            buffer=switch.buffer,
            thresholds=switch.thresholds(),
            selective=switch.selective_drop,
            parameters=parameters,
            longest_frame=max(frames),
            host_latency=host_latency_ps,
            seed=seed,
            threads=threads,
            trace=packet_log,
            window=window_ps,
        )
        M = self.memory.M
        # an empty run compiles the engine, or loads it from the cache
        M[at.H_BUDGET] = 1
        self.kernel.advance(self.memory.address, threads, True)
        self.kernel.post(self.memory.address, int(self.memory.node_base[0]), 0, 0)
        M[self.memory.node_base[0] + at.N_HEAP_COUNT] = 0
        M[self.memory.next + self.memory.positions[0]] = at.FOREVER
        self.compile_s = time.perf_counter() - started
        M[at.H_NOW] = 0
        self._messages: list[_Message] = []
        self._flow_message = np.full(1024, -1, dtype=np.int64)
        self._flows = 0
        self._free_flows: list[int] = []
        self._active = np.zeros(network.host_count, dtype=np.int64)
        self._bits_next = self.memory.bits
        self._free_bits: dict[int, list[int]] = defaultdict(list)
        self._closing: list[int] = []
        self._dropped: dict[int, int] = defaultdict(int)
        self._sent: dict[int, tuple[int, int]] = {}
        self._drop_log: list[NDArray[np.int64]] = []
        self._packet_log: list[NDArray[np.int64]] = []
        self._undelivered = 0
        self._budget = 64
        self._alone = True
        self._quiet: tuple[int, int] = (0, -1)
        self.stalled = ""
        self.wall_s = 0.0
        self.on_progress: Callable[[int], None] | None = None
        self._team = _Team(M, self.kernel, threads)
        self._finalizer = weakref.finalize(self, self._team.quit)

    @staticmethod
    def _bind(owner: Any, table: Any) -> Bound:
        settings = table.model_dump()
        return Bound(
            owner, table.payload, settings.get("control_priority", 0), bool(owner.important(settings)),
            owner.sender_bitmaps, owner.receiver_bitmaps,
        )  # fmt: skip

    # --- messages -----------------------------------------------------------------------------------------------

    def send(
        self,
        at_ps: int,
        src: int,
        dst: int,
        nbytes: int,
        *,
        transport: int = 0,
        priority: int = 0,
        bound: float = 0.0,
        important: NDArray[Any] | bool | None = None,
    ) -> int:
        """Hand `nbytes` bytes to the network interface of host `src` at time `at_ps`. Returns the message's number.

        `bound`: fraction of the bytes that may be missing at delivery. `important`: one bool per packet or one for all;
        by default what the transport says (ECN-capable transports: all).

        Raises
        ------
        ValueError
            A time in the past, an empty message, the same host twice, or more packets than a message may have.
        """
        kind = self._bound[transport]
        packets = -(-nbytes // kind.payload)
        if at_ps < self.now:
            raise ValueError(f"a message cannot be sent at {at_ps} ps: it is {self.now} ps already")
        if nbytes <= 0 or src == dst or not 0 < packets <= at.MAX_PACKETS:
            raise ValueError(f"no message of {nbytes} bytes ({packets} packets) from host {src} to host {dst}")
        memory, M = self.memory, self.memory.M
        number = len(self._messages)
        flow = self._take_flow(number)
        f = memory.senders + flow * at.SENDER_WORDS
        r = memory.receivers + flow * at.RECEIVER_WORDS
        words = -(-packets // 32)
        tags, wanted = self._tags(important if important is not None else kind.important, packets, words)
        sender_bits = self._take_bits(words * kind.sender_bitmaps)
        receiver_bits = self._take_bits(words * kind.receiver_bitmaps)
        overhead = kind.owner.data_overhead
        last = max(nbytes - (packets - 1) * kind.payload + overhead, 60)
        entropy = mix.py_func((key_of(self.seed, FLOW_ENTROPY, number & MASK)) & MASK) & 0xFFFF
        control = kind.owner.control_bytes
        node = int(memory.node_base[src])
        up = int(memory.port_base[self.routing.up_link[src]])
        M[f : f + at.SENDER_WORDS] = 0
        M[f : f + at.S_USER] = [
            dst | (kind.payload + overhead) << at.A_SIZE | priority << at.A_PRIORITY | entropy << at.A_ENTROPY,
            packets, last, sender_bits, words, transport, node, -1, 0, 0, 0, 0, 0, 0, 0, 0,
            receiver_bits, M[up + at.P_SPEED], tags,
        ]  # fmt: skip
        M[r : r + at.RECEIVER_WORDS] = 0
        M[r : r + at.R_USER] = [
            src | control << at.A_SIZE | kind.control_priority << at.A_PRIORITY | 1 << at.A_IMPORTANT
            | entropy << at.A_ENTROPY,
            packets, nbytes, kind.payload, receiver_bits, words, transport, tags, int(bound * nbytes),
            0, 0, 0, 0, wanted,
        ]  # fmt: skip
        self._room_for_timers(src)
        self._active[src] += 1
        self.kernel.post(memory.address, node, at_ps, f << 2 | at.WHAT_START)
        self._messages.append(_Message(src, dst, nbytes, packets, flow, transport))
        self._undelivered += 1
        return number

    def _tags(self, important: NDArray[Any] | bool, packets: int, words: int) -> tuple[int, int]:
        """Where the importance bits of a message are (0 none, 1 all), and how many are set."""
        if isinstance(important, (bool, np.bool_)):
            return int(important), packets * int(important)
        flags = np.asarray(important, dtype=bool)
        if flags.shape != (packets,):
            raise ValueError(f"importance for {flags.shape} packets where the message has {packets}")
        base = self._take_bits(words)
        packed = np.zeros(4 * words, dtype=np.uint8)
        bits = np.packbits(flags, bitorder="little")
        packed[: len(bits)] = bits
        self.memory.M[base : base + words] = packed.view("<u4")
        return base, int(flags.sum())

    def _take_flow(self, number: int) -> int:
        if self._free_flows:
            flow = self._free_flows.pop()
        else:
            if len(self._closing) > 4096:
                self._close()
                if self._free_flows:
                    return self._take_flow(number)
            flow = self._flows
            self._flows += 1
            if flow >= at.MAX_FLOWS:
                raise GradwireError(f"more than {at.MAX_FLOWS} messages under way at once", "fabric", "fewer")
            if flow >= len(self._flow_message):
                self._flow_message = np.concatenate((self._flow_message, np.full(flow, -1, dtype=np.int64)))
        self._flow_message[flow] = number
        return flow

    def _take_bits(self, words: int) -> int:
        free = self._free_bits[words]
        if free:
            base = free.pop()
            self.memory.M[base : base + words] = 0
            return base
        base = self._bits_next
        self._bits_next += words
        if self._bits_next > self.memory.bits_end:
            raise GradwireError("the messages under way have too many packets together", "fabric", "fewer or larger")
        return base

    def _room_for_timers(self, host: int) -> None:
        """Three entries of the host's heap for each of its flows, and some to spare."""
        M = self.memory.M
        node = int(self.memory.node_base[host])
        base = int(M[node + at.N_HEAP])
        room = int(M[base - 1])
        need = 3 * (int(self._active[host]) + 1) + 8
        if need <= room:
            return
        size = 2 * need
        fresh = self.memory.heap_free + 8
        self.memory.heap_free = fresh + 2 * size
        if self.memory.heap_free > self.memory.heap_end:
            raise GradwireError("too many messages under way at one host", "fabric", "fewer")
        count = 2 * int(M[node + at.N_HEAP_COUNT])
        M[fresh : fresh + count] = M[base : base + count]
        M[fresh - 1] = size
        M[node + at.N_HEAP] = fresh

    # --- time ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> int:
        """Everything before this time has happened."""
        return int(self.memory.M[at.H_NOW])

    @property
    def packet_hops(self) -> int:
        """Transmissions so far: one packet crossing one link, lost on it or not."""
        ports = self.memory.port_base
        return int(sum(self.memory.M[ports + word].sum() for word in (at.P_TAIL, at.P_SPILL_TAIL, at.P_DROP_LINK)))

    @property
    def idle(self) -> bool:
        """Nothing is on the way anywhere and no timer is set."""
        M, nodes = self.memory.M, len(self.network.names)
        due = M[self.memory.next : self.memory.next + nodes]
        wake = int(M[at.H_WAKE])
        return bool(due.min() >= at.FOREVER and not M[wake : wake + 2 * nodes].any())

    def run(self, until_ps: int) -> list[Delivery]:
        """Advance to `until_ps`, or, after the first delivery at c, to at most c + host latency.

        Raises
        ------
        GradwireError
            More packets wait in queues than the engine has room for.
        """
        M = self.memory.M
        deliveries: list[Delivery] = []
        if until_ps <= self.now:
            return deliveries
        M[at.H_UNTIL] = until_ps
        started = time.perf_counter()
        while True:
            M[at.H_STATUS] = at.RUNNING
            M[at.H_BUDGET] = self._budget
            before = time.perf_counter()
            self._team.advance(self._alone)
            spent = time.perf_counter() - before
            self._harvest(deliveries)
            status = int(M[at.H_STATUS])
            if status == at.REACHED:
                break
            if status == at.POOL_FULL:
                raise GradwireError("more than 33 million packets wait in queues", "fabric", "smaller buffers")
            if status in (at.BUSY, at.QUIET):
                self._alone = status == at.QUIET
                M[at.H_STREAK] = 0
            if status == at.EXHAUSTED:
                factor = min(2.0, max(0.5, CALL_SECONDS / max(spent, 1e-6)))
                self._budget = max(16, int(self._budget * factor))
            if self.on_progress is not None:
                self.on_progress(self.now)
        self.wall_s += time.perf_counter() - started
        if not deliveries:
            self._watch()
        return deliveries

    def _watch(self) -> None:
        """Note when time passes and no byte arrives: then something will never end."""
        if not self._undelivered:
            return
        M, memory = self.memory.M, self.memory
        got = memory.receivers + at.RECEIVER_WORDS * np.arange(self._flows) + at.R_GOT
        total = int(M[got].sum()) + len(self._messages)
        since, seen = self._quiet
        if total != seen:
            self._quiet = (self.now, total)
        elif self.idle:
            self.stalled = "no packet is on its way and no timer is set"
        elif self.now - since >= 10_000_000_000_000:
            self.stalled = f"no new data has arrived anywhere since {format_time(since)}"

    def close(self) -> None:
        """End the worker threads."""
        self._finalizer()

    # --- what came out ------------------------------------------------------------------------------------------

    def _harvest(self, deliveries: list[Delivery]) -> None:
        """Empty the logs of all threads, in an order that does not depend on the threads."""
        M, bases = self.memory.M, self.memory.thread_base
        done = _take_logs(M, bases, at.T_DONE, at.T_DONE_BASE, at.DONE_WORDS)
        drops = _take_logs(M, bases, at.T_DROPS, at.T_DROPS_BASE, at.DROP_WORDS)
        traced = _take_logs(M, bases, at.T_TRACE, at.T_TRACE_BASE, at.TRACE_WORDS)
        if len(traced):
            traced = traced[np.lexsort((traced[:, 1], traced[:, 0]))]
            self._packet_log.append(np.column_stack((traced, self._flow_message[traced[:, 3] & at.MASK_FLOW])))
        if len(drops):
            drops = drops[np.lexsort((drops[:, 3], drops[:, 1], drops[:, 0]))]
            flows = drops[:, 3] & at.MASK_FLOW
            for flow, count in zip(*np.unique(flows, return_counts=True), strict=True):
                self._dropped[int(flow)] += int(count)
            self._drop_log.append(np.column_stack((drops, self._flow_message[flows])))
        if not len(done):
            return
        flows = np.where(done[:, 2] == at.FINISHED, done[:, 1], done[:, 1])
        for when, flow, what, got in done[np.lexsort((done[:, 2], flows, done[:, 0]))].tolist():
            message = self._messages[int(self._flow_message[flow])]
            if what == at.DELIVERED:
                message.delivered = True
                self._undelivered -= 1
                lost = message.nbytes - got
                missing = self._missing(message) if lost else None
                deliveries.append(Delivery(int(self._flow_message[flow]), when, got, lost, missing))
            else:
                message.finished = True
                self._active[message.src] -= 1
            if message.delivered and message.finished:
                self._closing.append(flow)
        if len(self._closing) > CLOSE_BATCH:
            self._close()

    def _missing(self, message: _Message) -> NDArray[np.bool_]:
        M = self.memory.M
        base = int(M[self.memory.receivers + message.flow * at.RECEIVER_WORDS + at.R_BITS])
        words = M[base : base + -(-message.packets // 32)].astype("<u4")
        return np.unpackbits(words.view(np.uint8), bitorder="little")[: message.packets] == 0

    def _counts(self, message: _Message) -> tuple[int, int]:
        """Packets sent (data and probes), and data packets that had been sent before."""
        M = self.memory.M
        f = self.memory.senders + message.flow * at.SENDER_WORDS
        owner = self._bound[message.transport].owner
        sent = int(M[f + at.S_SENT])
        probes = int(M[f + owner.probe_word]) if owner.probe_word else 0
        return sent, sent - probes - int(M[f + owner.fresh_word])

    def _close(self) -> None:
        """Free the records of flows of which no packet is left anywhere."""
        M, memory = self.memory.M, self.memory
        kept = []
        for flow in self._closing:
            f = memory.senders + flow * at.SENDER_WORDS
            r = memory.receivers + flow * at.RECEIVER_WORDS
            sent = M[f + at.S_SENT] + M[r + at.R_SENT]
            if sent != M[f + at.S_HEARD] + M[r + at.R_ARRIVED] + self._dropped.get(flow, 0) or M[f + at.S_LISTED]:
                kept.append(flow)
                continue
            number = int(self._flow_message[flow])
            message = self._messages[number]
            kind = self._bound[message.transport]
            self._sent[number] = self._counts(message)
            words = int(M[f + at.S_WORDS])
            self._free_bits[words * kind.sender_bitmaps].append(int(M[f + at.S_BITS]))
            self._free_bits[words * kind.receiver_bitmaps].append(int(M[r + at.R_BITS]))
            if M[f + at.S_TAGS] > 1:
                self._free_bits[words].append(int(M[f + at.S_TAGS]))
            self._dropped.pop(flow, None)
            self._free_flows.append(flow)
        self._closing = kept

    def finish(self) -> Tables:
        """What the network has counted so far, as columns."""
        self._close()
        counts = [self._sent.get(i) or self._counts(message) for i, message in enumerate(self._messages)]
        return Tables(
            ports=collect_ports(self.network, self.memory),
            drops=collect_drops(self.network, self._drop_log),
            sent_packets=[sent for sent, _ in counts],
            retransmitted=[again for _, again in counts],
            packet_hops=self.packet_hops,
        )

    def packet_log(self) -> NDArray[np.int64]:
        """Every transmission so far (with `packet_log=True`): rows of start (ps), directed link, A, B, lost, message."""
        if not self._packet_log:
            return np.zeros((0, at.TRACE_WORDS + 1), dtype=np.int64)
        return np.concatenate(self._packet_log)

    def drop_log(self) -> NDArray[np.int64]:
        """Every lost packet so far: rows of time (ps), directed link | cause << 32, A, B, message."""
        if not self._drop_log:
            return np.zeros((0, at.DROP_WORDS + 1), dtype=np.int64)
        return np.concatenate(self._drop_log)


def transport_kinds() -> dict[str, str]:
    """The registered transports."""
    return transports.KINDS


def base_round_trip(network: Any, routing: Any, frame: int) -> int:
    """Picoseconds there and back along the longest path, without queueing: full packets out, small ones back."""
    hops = 2 + max(0, int(routing.distance.max()))
    speed = int(speed_of(int(network.link_rate.min())))
    there = int(network.link_latency.max()) + (frame * speed >> at.SPEED_SHIFT)
    back = int(network.link_latency.max()) + (66 * speed >> at.SPEED_SHIFT)
    return hops * (there + back)


def _take_logs(M: NDArray[np.int64], bases: list[int], count: int, base: int, words: int) -> NDArray[np.int64]:
    parts = []
    for thread in bases:
        n = int(M[thread + count])
        if n:
            start = int(M[thread + base])
            parts.append(M[start : start + n * words].reshape(n, words).copy())
            M[thread + count] = 0
    if not parts:
        return np.zeros((0, words), dtype=np.int64)
    return np.concatenate(parts)


class _Team:
    """The threads that advance one fabric: the caller's, and workers that sleep while there is nothing to do."""

    def __init__(self, M: NDArray[np.int64], kernel: Kernel, threads: int) -> None:
        self.M = M
        self.kernel = kernel
        self.threads = threads
        self.events: list[threading.Event] = []

    def advance(self, alone: bool) -> None:
        """One call of the engine, by this thread for all of them or by all together."""
        if not alone:
            if not self.events:
                self._start()
            self.M[at.H_GO] += 1
            for event in self.events:
                event.set()
        self.kernel.advance(self.M.ctypes.data, self.threads, alone)

    def _start(self) -> None:
        for number in range(1, self.threads):
            event = threading.Event()
            self.events.append(event)
            epoch = int(self.M[at.H_GO])
            arguments = (self.M, self.kernel.work, number, self.threads, epoch, event)
            threading.Thread(target=_worker, args=arguments, name=f"fabric-{number}", daemon=True).start()

    def quit(self) -> None:
        """Let the workers end."""
        self.M[at.H_QUIT] = 1
        for event in self.events:
            event.set()


def _worker(
    M: NDArray[np.int64], work: Callable[..., int], number: int, threads: int, epoch: int, event: threading.Event
) -> None:
    while not M[at.H_QUIT]:
        epoch = work(M.ctypes.data, number, threads, epoch)
        event.wait()
        event.clear()
