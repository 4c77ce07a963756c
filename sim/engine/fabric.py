"""`Fabric` is the packet engine's Python interface; it builds the engine's state, takes messages and programs, and
advances it.

A `Fabric` is built from a network, its routes and the tables of a scenario. `send` hands it messages; `run` advances it
and returns deliveries. Between two calls its whole state rests in one array (`gradwire.jit.records.constants`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State
from gradwire.jit.records.network import DropEntry, Port, PortExtra, TraceEntry
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.loss import LossAllowance
from gradwire.scenarios.units import format_rounded_time
from gradwire.scenarios.wire import ps_per_byte
from gradwire.sim.engine.deadlock import DeadlockWatch
from gradwire.sim.engine.deliveries import Deliveries
from gradwire.sim.engine.events import Event
from gradwire.sim.engine.fast_forward.fast_forward import FastForward
from gradwire.sim.engine.fast_forward.step_recorder import StepRecorder
from gradwire.sim.engine.logs import Logs, concatenate_rows
from gradwire.sim.engine.memory.aggregation_groups import write_group
from gradwire.sim.engine.memory.engine_memory import EngineMemory, build_memory
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.memory.parameters import BoundTransport, ParameterSets, check_settings
from gradwire.sim.engine.memory.regions import RegionSizes
from gradwire.sim.engine.network_control import NetworkControl
from gradwire.sim.engine.program.completed_step import CompletedStep, StepTaker
from gradwire.sim.engine.program.open_messages import describe_open_messages, summarize_open_messages
from gradwire.sim.engine.program.program import Programs
from gradwire.sim.engine.program.track import Track
from gradwire.sim.engine.scheduled_actions import Schedule
from gradwire.sim.engine.specialization import (
    CompiledEngine,
    features_of,
    load_engine,
    make_combination,
    take_compile_seconds,
)
from gradwire.sim.engine.tables import FabricTables, collect_ports, collect_sums
from gradwire.sim.engine.time_advance import TimeAdvance, warm_up
from gradwire.sim.stall_timeout import MIN_STALL_TIMEOUT
from gradwire.topology import Network
from gradwire.topology.base_rtt import RoundTrips
from gradwire.topology.routing import Routing
from gradwire.workload.program import ProgramPart

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.scenarios.schema.network.transport_base import Transport

MAX_THREADS = 128  # beyond, threads mostly wait at the barrier


class Fabric:
    """A network that carries messages packet by packet, exactly.

    Parameters
    ----------
    network, routing : `gradwire.topology.Network` and its `gradwire.topology.routing.Routing`.
    switch : the scenario's `Switch`: `queues`, `buffer` (bytes per egress port), `thresholds()` (bytes per queue or
        None), `ramp()`, `shared()`, `quanta()`, `selective_drop`, `flowlet_gap` (ps), `path_entropies`.
    transports : transport tables of the scenario (`kind`, `payload`, parameters); messages name one by its number.
    balancing : name of a load balancer, or "module:Class".
    host_latency_ps : after a delivery at c, `run` returns before c + host_latency_ps has passed.
    threads : number of threads that advance the network; results do not depend on it.
    faults : hosts may stop and routes may change.
    delays : count waiting times at every port (for the table `delays`).
    missing : record the packets that messages are delivered without (see `finish`).
    packet_log : log every transmission (`packet_log` afterwards), for tests and packet captures.
    folder : folder searched first for user-defined modules; by default the working directory.
    patience_ps : time without new data anywhere after which `stalled` is set.
    window_ps : windows shorter than the lookahead, for tests; results do not depend on it.
    compiled : False for an engine of plain Python in one thread, in which debuggers work; results do not depend on it.

    Raises ScenarioError for an unknown transport or balancer, or a network too large for the engine.
    """

    def __init__(
        self,
        network: Network,
        routing: Routing,
        *,
        switch: Switch,
        transports: Sequence[Transport],
        balancing: str = "ecmp",
        seed: int = 1,
        host_latency_ps: Ps = Ps(2_000_000),
        threads: int = 1,
        packet_log: bool = False,
        faults: bool = False,
        delays: bool = False,
        missing: bool = False,
        window_ps: Ps | None = None,
        folder: Path | None = None,
        patience_ps: Ps = MIN_STALL_TIMEOUT,
        compiled: bool = True,
    ) -> None:
        if network.host_count > at.MAX_HOSTS:
            raise ScenarioError(f"{network.host_count} hosts", "topology", f"at most {at.MAX_HOSTS}")
        if not 1 <= threads <= MAX_THREADS:
            raise ScenarioError(f"{threads} threads", "threads", f"1 to {MAX_THREADS}")
        self.network = network
        self.routing = routing
        self.seed = seed
        self.threads = threads = threads if compiled else 1
        self.patience = patience_ps
        self._slots = switch.aggregation_slots
        combination = make_combination(transports, balancing, switch, folder, features_of(switch, faults, delays))
        owners, balancer = combination.transports, combination.balancer
        self._combination = combination
        self.transports = [BoundTransport.bind(owner, table) for owner, table in zip(owners, transports, strict=True)]
        line = ps_per_byte(network.link_rate[routing.up_link].astype(object)).astype(np.int64)
        trips = RoundTrips(network, routing)
        check_settings(self.transports, line, trips)  # reports mistakes before anything is compiled
        started = time.perf_counter()
        self.kernel: CompiledEngine = load_engine(combination, compiled)
        self.compile_s = take_compile_seconds(self.kernel) + time.perf_counter() - started
        self.memory: EngineMemory = build_memory(
            network,
            routing,
            switch,
            RegionSizes(
                threads,
                packet_log,
                delays,
                reroutes=faults,
                streams=combination.features.streams,
                balancer_words=getattr(balancer, "table_words", 0),
            ),
            longest_frame=max(bound.frame for bound in self.transports),
            host_latency=host_latency_ps,
            seed=seed,
            window=window_ps,
        )
        started = time.perf_counter()
        warm_up(self.kernel, self.memory, threads)  # compiles what is not cached
        self.compile_s += time.perf_counter() - started
        sets = ParameterSets(self.memory, self.transports, trips, line)
        keep = partial(self.kernel.keep, self.memory.address)
        self.flows = Flows(self.memory, keep, self.transports, sets, line, seed)
        self._programs = Programs(self.flows, self._post)
        self._logs = Logs(self.memory, self.flows)
        self._deliveries = Deliveries(self.memory, self.flows, self._logs, missing)
        self._quiet: tuple[int, int] = (0, -1)
        self.stalled = ""
        self.agenda = Schedule()
        self.control = NetworkControl(self.memory, network)
        self._deadlocks = DeadlockWatch(self.memory, network, self.agenda)
        if switch.pfc:
            self._deadlocks.start()
        self.wall_s = 0.0
        self.advance = TimeAdvance(
            combination,
            self.kernel,
            threads,
            self.memory,
            self.network,
            self.flows,
            self._programs,
            self._deliveries,
            self.agenda,
            self._deadlocks,
        )
        self._finalizer = weakref.finalize(self, self.advance.workers.stop)

    # --- messages -----------------------------------------------------------------------------------------------

    def send(
        self,
        at_ps: Ps,
        src: int,
        dst: int,
        nbytes: Bytes,
        *,
        transport: int = 0,
        priority: int = 0,
        bound: float = 0.0,
        important: Flags | bool | None = None,
        settled: bool = False,
        logged: bool = True,
        number: int | None = None,
        share: float | None = None,
        pool: int = 0,
        turn: int | None = None,
        fan: tuple[int, int] | None = None,
        since: Ps = Ps(0),
    ) -> int:
        """Hand `nbytes` bytes to the NIC of host `src` at time `at_ps`, and return the message's number.

        Parameters
        ----------
        bound : fraction of the bytes that may be missing at delivery.
        important : one bool per packet or one for all; by default the transport decides (ECN-capable transports: all).
        settled : `run` also reports when the sender has nothing more to send.
        logged : log its packets, if packets are logged.
        number : a reserved number.
        share, pool, turn : see `gradwire.workload.program.Messages`.
        fan : an aggregation group made by `fan`, and the message's position in it.
        since : origin of time for breaking ties between simultaneous packets.

        Raises ValueError for a past time, an empty message, equal hosts, or more packets than a message may have.
        """
        packets = -(-nbytes // self.transports[transport].payload)
        if at_ps < self.now:
            raise ValueError(f"cannot send a message at {at_ps} ps: the network has reached {self.now} ps")
        if nbytes <= 0 or src == dst or not 0 < packets <= at.MAX_PACKETS:
            raise ValueError(f"invalid message of {nbytes} bytes ({packets} packets) from host {src} to host {dst}")
        number = self.flows.open(
            at_ps, src, dst, nbytes, packets, transport=transport, priority=priority, important=important,
            loss=LossAllowance(bound, bound if share is None else share, pool), settled=settled, logged=logged,
            number=number, turn=turn, fan=fan, since=since,
        )  # fmt: skip
        self._deliveries.expected += 1
        return number

    def fan(self, src: Sequence[int], dst: Sequence[int], nbytes: Bytes, transport: int = 0) -> int:
        """Create an aggregation group: switches sum messages from many hosts to one, or copy one from one host to many.
        The messages have `nbytes` bytes each and are sent one by one. `src`, `dst`: their hosts. The group lasts for
        the whole run."""
        packets = -(-nbytes // self.transports[transport].payload)
        ends = np.array([src, dst], dtype=np.int64)
        return write_group(self.memory, self.flows.arena.allocate, ends[0], ends[1], packets)

    def reserve(self, many: int) -> int:
        """Reserve numbers for `many` messages that are sent later (`number`), and return the first."""
        return self.flows.book.enter(many)

    def take_missing(self) -> Ints:
        """Return the packets missing from deliveries since the last call (`Deliveries.take_missing`)."""
        return self._deliveries.take_missing()

    def missing_of(self, first: int, many: int) -> Ints:
        """Return and forget the missing packets of `many` messages from `first` on."""
        return self._deliveries.missing_of(first, many)

    def forget(self, track: Track) -> None:
        """Forget a part that has ended."""
        self._programs.forget(track)

    def hand_over(self, step_taker: StepTaker) -> None:
        """Hand over completed steps to `step_taker` from now on, and forget them. `finish`, the logs and `Track.steps`
        then cover only the rest."""

        def take(track: Track, over: CompletedStep) -> None:
            first, count = int(over.numbers[0]) if len(over.numbers) else 0, len(over.numbers)
            counts, missing = self.flows.counts(first, count), self._deliveries.missing_of(first, count)
            self.flows.book.forget(first, count)
            recorder.step(track.part, track.handed.steps, over, counts, missing)

        self._recorder = recorder = StepRecorder(step_taker)
        self._programs.take, self._logs.taker = take, recorder.drops

    @property
    def forward(self) -> FastForward | None:
        """The part that skips repeated iterations; None if all are simulated."""
        return self.advance.forward

    def fast_forward(self, limit: Ps, why: str = "") -> None:
        """Skip iterations that repeat exactly from now on, up to the end of the run (see `FastForward`). Needs
        `hand_over`. `why`: a reason not to skip any, if there is one."""
        self.advance.forward = FastForward(
            self.memory,
            self.flows,
            self._programs,
            self._logs,
            self._deliveries,
            self.agenda,
            self._recorder,
            combination=self._combination,
            limit=limit,
            why=why,
            stopped=self.advance.is_stop_requested,
        )

    def play(self, part: ProgramPart, logged: bool = True, begin: Ps | None = None) -> Track:
        """Start to play a part of a program, whose messages start by themselves.

        `run` does not return for their deliveries, only for the end of the part.

        Parameters
        ----------
        logged : log its packets, if packets are logged.
        begin : start, if not now: up to one host latency earlier, since nothing of the part enters the network before
            that has passed.

        Raises ValueError if a message has more packets than can be numbered.
        """
        return self._programs.play(part, self.now if begin is None else begin, logged)

    def _post(self, node: int, time_ps: Ps, key: int) -> None:
        self.kernel.post(self.memory.address, node, time_ps, key)

    # --- time ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Ps:
        """Time before which everything has happened."""
        return self.advance.now

    @property
    def deadlock(self) -> str:
        """Description of a flow-control deadlock; empty if there is none."""
        return self._deadlocks.description

    @property
    def undelivered(self) -> int:
        """Messages that were handed over and have not been delivered."""
        return self._deliveries.expected + sum(track.undelivered for track in self._programs.tracks)

    @property
    def jobs_left(self) -> int:
        """Known undelivered messages of jobs; 0 while any job computes."""
        if self._programs.timer < at.FOREVER:
            return 0
        return sum(track.undelivered for track in self._programs.tracks if len(track.part.hosts))

    @property
    def settled_bytes(self) -> Bytes:
        """Payload bytes of all delivered messages, plus those that have arrived of the others."""
        return Bytes(self.flows.all_delivered_bytes())

    def delivered_bytes_of(self, first: int, count: int) -> Bytes:
        """Return the same for `count` messages from `first` on, of which none has been handed over."""
        return Bytes(self.flows.delivered_total(first, first + count))

    @property
    def packet_hops(self) -> int:
        """Transmissions so far: one packet crossing one link, lost on it or not."""
        state, ports = self.memory.state, self.memory.port_base
        words = (ports + Port.sent.offset, ports + Port.spill_tail.offset, ports + Port.drops.offset + 2)
        down = view(Port, state, ports).extra.base + PortExtra.drops_by_cause.offset + at.CAUSE_DOWN - at.CAUSE_EVICTED
        return int(sum(state[where].sum() for where in (*words, down)))

    @property
    def idle(self) -> bool:
        """True if no packet is under way and no timer is set."""
        state, nodes = self.memory.state, len(self.network.names)
        due = state[self.memory.next : self.memory.next + nodes]
        wake = int(state[State.wake.offset])
        quiet = due.min() >= at.FOREVER and not state[wake : wake + 2 * nodes].any()
        soon = min(self._programs.next_python_time(), self._programs.timer, self.agenda.next_action)
        return bool(quiet and soon >= at.FOREVER)

    def run(self, until_ps: Ps) -> list[Event]:
        """Advance to `until_ps`, or after the first event at c to at most c + host latency, and return the events.
        Events are deliveries of messages passed to `send`, ends of their senders if requested, and ends of parts.
        Returns early, once, when `deadlock` reports that flow control has stopped ports for good. Raises GradwireError
        if more packets are queued than the engine has room for."""
        if until_ps <= self.now:
            return []
        started = time.perf_counter()
        events = self.advance.run(until_ps)
        self.wall_s += time.perf_counter() - started
        if not events:
            self._watch()
        return events

    def _watch(self) -> None:
        """Set `stalled` if time passes without new data."""
        if not self.undelivered:
            return
        total = self.flows.received() + self.flows.book.count
        since, last_total = self._quiet
        if total != last_total or self._programs.timer < at.FOREVER:
            self._quiet = (self.now, total)
        elif self.idle:
            self.stalled = "no pending events"
        elif self.now - since >= self.patience:
            silent, summary = format_rounded_time(self.now - since), summarize_open_messages(self, self.undelivered)
            self.stalled = f"no new data has arrived anywhere for {silent}: {summary}"

    def describe_open(self) -> list[str]:
        """Return descriptions of the undelivered messages for a stall report (`open_messages`)."""
        return describe_open_messages(self, self._programs.tracks)

    def forget_packets(self) -> None:
        """Empty the log of packets, if it serves only stall reports."""
        self._logs.packets.clear()

    def close(self) -> None:
        """End the worker threads."""
        self._finalizer()

    # --- results ------------------------------------------------------------------------------------------------

    def finish(self) -> FabricTables:
        """Return the counters so far as columns, without what was handed over."""
        first = self.flows.book.first
        return FabricTables(
            network=self.network,
            ports=collect_ports(self.network, self.memory),
            drop_log=[*self._logs.drops],
            missing=self._deliveries.missing(),
            packet_hops=self.packet_hops,
            **vars(self.flows.counts(first, self.flows.book.count - first)),
        )

    @property
    def sums(self) -> dict[str, dict[str, int]]:
        """Aggregation counters by name of the switch. `slots_peak`: most slots in use at a time. Data packets:
        `summed_packets` were absorbed into a sum, `unsummed_packets` found no slot or came again, `copied_packets` are
        copies made of packets for all."""
        return collect_sums(self.network, self.memory, self._slots)

    def packet_log(self) -> Ints:
        """Return every logged transmission: rows of start (ps), directed link, A, B, lost, message."""
        return concatenate_rows(self._logs.packets, TraceEntry.WORDS + 1)

    def drop_log(self) -> Ints:
        """Return every lost packet that was not handed over. Rows of time (ps), directed link | cause << 32, A, B,
        message."""
        return concatenate_rows(self._logs.drops, DropEntry.WORDS + 1)
