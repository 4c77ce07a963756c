"""The fabric: packets through a network, from Python.

A `Fabric` is built from a network, its routes and the tables of a scenario. `send` hands it messages, `run` advances it
and returns what was delivered. Between two calls its whole state rests in one array (see `layout`).
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gradwire.components import layout as at
from gradwire.components.find import file_of
from gradwire.experiment.program import Part
from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network
from gradwire.experiment.trips import RoundTrips
from gradwire.scenarios.arrays import Flags, Ints
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.inner_units import Bytes, Ps
from gradwire.scenarios.loss import Allowance
from gradwire.scenarios.units import format_about, format_time
from gradwire.scenarios.wire import speed_of
from gradwire.sim.fabric.agenda import Agenda
from gradwire.sim.fabric.control import Control
from gradwire.sim.fabric.deadlock import find_deadlock
from gradwire.sim.fabric.deliveries import Deliveries
from gradwire.sim.fabric.events import Delivery, Event
from gradwire.sim.fabric.fans import lay_one
from gradwire.sim.fabric.flows import Flows
from gradwire.sim.fabric.forward import FastForward
from gradwire.sim.fabric.logs import Logs, joined
from gradwire.sim.fabric.memory import Memory, build, tighten_heaps
from gradwire.sim.fabric.open_messages import describe_open_messages
from gradwire.sim.fabric.over import Over, Taker
from gradwire.sim.fabric.parameters import Bound, ParameterSets, check_settings
from gradwire.sim.fabric.program import Programs
from gradwire.sim.fabric.recorder import Recorder
from gradwire.sim.fabric.regions import Wanted
from gradwire.sim.fabric.specialise import Kernel, combine, features_of, specialise, spent_ahead
from gradwire.sim.fabric.tables import Tables, collect_drops, collect_ports, collect_sums
from gradwire.sim.fabric.thread_choice import ThreadChoice
from gradwire.sim.fabric.track import Track
from gradwire.sim.fabric.watched import check_watched, stopped
from gradwire.sim.fabric.workers import WorkerThreads
from gradwire.sim.patience import LEAST_PS

if TYPE_CHECKING:
    from gradwire.scenarios.schema.network import Switch
    from gradwire.scenarios.schema.transport_base import Transport

__all__ = ["Delivery", "Event", "Fabric"]

CALL_SECONDS = 0.05  # of a call of the compiled engine, about: Ctrl-C and progress get their turn between two
CLOSE_BATCH = 64
LEAST_BUDGET, MOST_BUDGET = 16, 1 << 40  # windows of one call
DEADLOCK_PS = Ps(1_000_000_000)  # how often it is looked for
MOST_THREADS = 128  # more take turns at the barrier rather than work


class Fabric:
    """A network that carries messages packet by packet, exactly.

    Parameters
    ----------
    network, routing : `gradwire.experiment.topology.Network` and the `gradwire.experiment.routing.Routing` of it.
    switch : the scenario's `Switch`: `queues`, `buffer` (bytes per egress port), `thresholds()` (bytes per queue or
        None), `ramp()`, `shared()`, `quanta()`, `selective_drop`, `flowlet_gap` (ps),
        `path_entropies`.
    transports : transport tables of the scenario (`kind`, `payload`, parameters); messages name one by its number.
    balancing : name of a load balancer, or "module:Class".
    host_latency_ps : after a delivery at c, `run` returns before c + host_latency_ps has passed.
    threads : how many threads advance the network; results do not depend on it.
    faults : hosts may be told to stand still and routes to change.
    delays : count how long packets wait at every port (`delays` afterwards).
    missing : note which packets messages are delivered without (`finish` tells).
    packet_log : keep every transmission (`packet_log` afterwards); for tests and packet captures.
    folder : where modules of the user's own are looked for first; the working directory by default.
    patience_ps : how long nothing new may arrive anywhere until `stalled` says so.
    window_ps : shorter windows than the lookahead allows; for tests. Results do not depend on it.

    Raises
    ------
    ScenarioError
        An unknown transport or balancer, or a network too large for the engine.
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
        patience_ps: Ps = LEAST_PS,
    ) -> None:
        if network.host_count > at.MAX_HOSTS:
            raise ScenarioError(f"{network.host_count} hosts", "topology", f"at most {at.MAX_HOSTS}")
        if not 1 <= threads <= MOST_THREADS:
            raise ScenarioError(f"{threads} threads", "threads", f"1 to {MOST_THREADS}")
        self.network = network
        self.routing = routing
        self.seed = seed
        self.threads = threads
        self.patience = patience_ps
        self._slots = switch.aggregation_slots
        combination = combine(transports, balancing, switch, folder, features_of(switch, faults, delays))
        owners, balancer = combination.transports, combination.balancer
        self._combination = combination
        self.transports = [Bound.to(owner, table) for owner, table in zip(owners, transports, strict=True)]
        line = speed_of(network.link_rate[routing.up_link].astype(object)).astype(np.int64)
        trips = RoundTrips(network, routing)
        check_settings(self.transports, line, trips)  # what is wrong with them shows before anything is compiled
        started = time.perf_counter()
        self.kernel: Kernel = specialise(combination)
        self.compile_s = spent_ahead(self.kernel) + time.perf_counter() - started
        self.memory: Memory = build(
            network, routing, switch,
            Wanted(
                threads, packet_log, delays, reroutes=faults, streams=combination.features.streams,
                balancer_words=getattr(balancer, "table_words", 0),
            ),
            longest_frame=max(bound.frame for bound in self.transports), host_latency=host_latency_ps, seed=seed,
            window=window_ps,
        )  # fmt: skip
        started = time.perf_counter()
        self._warm_up()  # compiles what could not be kept
        self.compile_s += time.perf_counter() - started
        sets = ParameterSets(self.memory, self.transports, trips, line)
        keep = partial(self.kernel.keep, self.memory.address)
        self.flows = Flows(self.memory, keep, self.transports, sets, line, seed)
        self._programs = Programs(self.flows, self._post)
        self._logs = Logs(self.memory, self.flows)
        self._deliveries = Deliveries(self.memory, self.flows, self._logs, missing)
        self._budget = 64
        self._budgets = LEAST_BUDGET, MOST_BUDGET
        self._close_batch = CLOSE_BATCH
        self._has_tight_heaps = False
        self.choice = ThreadChoice(threads)
        self.forward: FastForward | None = None
        self._quiet: tuple[int, int] = (0, -1)
        self.stalled = ""
        self.deadlock = ""
        self.agenda = Agenda()
        self.control = Control(self.memory, network)
        if switch.pfc:
            self.agenda.add(DEADLOCK_PS, self._look_for_deadlock, observer=True)
        self.wall_s = 0.0
        self._asked = 0.0
        self.on_progress: Callable[[Ps], bool] | None = None  # true: `run` returns where it is
        self._workers = WorkerThreads(self.memory.M, self.kernel, threads)
        self._finalizer = weakref.finalize(self, self._workers.quit)

    def _warm_up(self) -> None:
        """An empty run: it compiles the engine, or loads it from the cache."""
        M, memory = self.memory.M, self.memory
        M[at.H_BUDGET] = 1
        self.kernel.run(memory.address, 0, self.threads, True)
        self.kernel.post(memory.address, int(memory.node_base[0]), 0, 0)
        M[memory.node_base[0] + at.N_HEAP_COUNT] = 0
        M[memory.next + memory.positions[0]] = at.FOREVER
        M[at.H_TIMER_NEXT] = at.FOREVER
        M[at.H_NOW] = 0

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
        """Hand `nbytes` bytes to the NIC of host `src` at time `at_ps`. Returns the message's number.

        `bound`: fraction of the bytes that may be missing at delivery. `important`: one bool per packet or one for all;
        by default what the transport says (ECN-capable transports: all). `settled`: `run` tells also when the sender
        has nothing more to send. `logged`: its packets are noted, if any are. `number`: one that was reserved.
        `share`, `pool`, `turn`: see `gradwire.experiment.program.Messages`. `fan`: one that `fan` has made, and which
        of it the message is. `since`: from when on time counts where its packets arrive at the same time as others.

        Raises
        ------
        ValueError
            A time in the past, an empty message, the same host twice, or more packets than a message may have.
        """
        packets = -(-nbytes // self.transports[transport].payload)
        if at_ps < self.now:
            raise ValueError(f"a message cannot be sent at {at_ps} ps: it is {self.now} ps already")
        if nbytes <= 0 or src == dst or not 0 < packets <= at.MAX_PACKETS:
            raise ValueError(
                f"no message of {nbytes} bytes ({packets} packets) from host {src} to host {dst}"
            )
        number = self.flows.open(
            at_ps, src, dst, nbytes, packets, transport=transport, priority=priority, important=important,
            loss=Allowance(bound, bound if share is None else share, pool), settled=settled, logged=logged,
            number=number, turn=turn, fan=fan, since=since,
        )  # fmt: skip
        self._deliveries.expected += 1
        return number

    def fan(self, src: Sequence[int], dst: Sequence[int], nbytes: Bytes, transport: int = 0) -> int:
        """Have switches sum up messages of so many bytes from many hosts to one, or make them of one from one host to
        many; they are sent one by one. `src`, `dst`: the hosts of each. It is kept for the whole run."""
        packets = -(-nbytes // self.transports[transport].payload)
        ends = np.array([src, dst], dtype=np.int64)
        return lay_one(self.memory, self.flows.arena.allocate, ends[0], ends[1], packets)

    def reserve(self, many: int) -> int:
        """Numbers for so many messages, which they are given when they are sent (`number`); returns the first."""
        return self.flows.book.enter(many)

    def take_missing(self) -> Ints:
        """Which packets messages were delivered without since the last time (`Deliveries.take_missing`)."""
        return self._deliveries.take_missing()

    def missing_of(self, first: int, many: int) -> Ints:
        """The same of so many messages from one on; of those it is told no more."""
        return self._deliveries.missing_of(first, many)

    def forget(self, track: Track) -> None:
        """A part that has come to its end is not asked any more."""
        self._programs.forget(track)

    def hand_over(self, taker: Taker) -> None:
        """Hand over what is over from now on, and keep nothing of it: `finish`, the logs and `Track.steps` tell of the
        rest only."""

        def take(track: Track, over: Over) -> None:
            first, many = int(over.numbers[0]) if len(over.numbers) else 0, len(over.numbers)
            counts, missing = self.flows.counts(first, many), self._deliveries.missing_of(first, many)
            self.flows.book.forget(first, many)
            recorder.step(track.part, track.handed.steps, over, counts, missing)

        self._recorder = recorder = Recorder(taker)
        self._programs.take, self._logs.taker = take, recorder.drops

    def fast_forward(self, limit: Ps, why: str = "", approximate: float | None = None) -> None:
        """From now on iterations of what is played that repeat themselves exactly are not simulated again (see
        `FastForward`), up to where the run ends. What is over is handed over. `why`: why not, if there is a reason.
        `approximate`: nor are those that are alike on average, with so large a relative error (see `Steady`)."""
        self.forward = FastForward(
            self.memory, self.flows, self._programs, self._logs, self._deliveries, self.agenda, self._recorder,
            combination=self._combination, limit=limit, why=why, approximate=approximate, stopped=self._asks_to_stop,
        )  # fmt: skip

    def play(self, part: Part, logged: bool = True, begin: Ps | None = None) -> Track:
        """Begin to play a part of a program: its messages start by themselves. `run` does not return for their
        deliveries, only for the end of the part.

        Parameters
        ----------
        logged : its packets are noted, if any are.
        begin : when, if not now: up to a host's latency before, which is how far the network may have run since, as
            nothing of it enters any earlier.

        Raises
        ------
        ValueError
            A message has more packets than can be numbered.
        """
        return self._programs.play(part, self.now if begin is None else begin, logged)

    def _post(self, node: int, time_ps: Ps, key: int) -> None:
        self.kernel.post(self.memory.address, node, time_ps, key)

    # --- time ---------------------------------------------------------------------------------------------------

    @property
    def now(self) -> Ps:
        """Everything before this time has happened."""
        return Ps(int(self.memory.M[at.H_NOW]))

    @property
    def undelivered(self) -> int:
        """Messages that were handed over and have not been delivered."""
        return self._deliveries.expected + sum(track.left for track in self._programs.tracks)

    @property
    def jobs_left(self) -> int:
        """The same of the messages of jobs, as far as they are known; 0 while any of them computes."""
        if self._programs.timer < at.FOREVER:
            return 0
        return sum(track.left for track in self._programs.tracks if len(track.part.hosts))

    @property
    def settled_bytes(self) -> Bytes:
        """Payload bytes of all messages that were delivered, and those that have arrived of the others."""
        return Bytes(self.flows.settled_in_all())

    def settled_of(self, first: int, count: int) -> Bytes:
        """The same of so many messages from one on, of which none has been handed over."""
        return Bytes(self.flows.settled(first, first + count))

    @property
    def packet_hops(self) -> int:
        """Transmissions so far: one packet crossing one link, lost on it or not."""
        M, ports = self.memory.M, self.memory.port_base
        words = (ports + at.P_TAIL, ports + at.P_SPILL_TAIL, ports + at.P_DROP_LINK)
        down = M[ports + at.P_MORE] + at.X_CAUSES + at.CAUSE_DOWN - at.CAUSE_EVICTED
        return int(sum(M[where].sum() for where in (*words, down)))

    @property
    def idle(self) -> bool:
        """Nothing is on the way anywhere and no timer is set."""
        M, nodes = self.memory.M, len(self.network.names)
        due = M[self.memory.next : self.memory.next + nodes]
        wake = int(M[at.H_WAKE])
        quiet = due.min() >= at.FOREVER and not M[wake : wake + 2 * nodes].any()
        soon = min(self._programs.soonest(), self._programs.timer, self.agenda.next_action)
        return bool(quiet and soon >= at.FOREVER)

    def run(self, until_ps: Ps) -> list[Event]:
        """Advance to `until_ps`, or, after the first event at c - a delivery of a message that was `send`, its sender's
        end where that was asked for, the end of a part - to at most c + host latency. It returns early, once, when
        `deadlock` has come to say that flow control has stopped ports for good.

        Raises
        ------
        GradwireError
            More packets wait in queues than the engine has room for.
        """
        M, programs, agenda = self.memory.M, self._programs, self.agenda
        events: list[Event] = []
        if until_ps <= self.now:
            return events
        started = time.perf_counter()
        blocked = self.deadlock
        while not events and self.now < until_ps:
            agenda.act(self.now, self._bytes_begun)
            if self.deadlock != blocked:
                break
            programs.fill(self.now)
            if self.forward is not None and self.forward.look():
                continue  # time has moved on
            until = Ps(min(until_ps, programs.soonest(), agenda.next_action))
            if self.forward is not None:
                until = min(until, self.forward.soonest)
            if agenda.next_observer < until:
                until = self._until_seen(until)
            if programs.timer < self.now:
                # A part begins up to one host latency before now: play it up to now in a window of no length, since
                # its first messages enter the network within the next window.
                until = self.now
            M[at.H_UNTIL] = until
            told = self._advance(events)
            while programs.starved():
                M[at.H_UNTIL] = self.now  # a window of no length, in which nothing is done but playing on
                told |= self._advance(events)
            events += programs.finished()
            if told:
                break
        self.wall_s += time.perf_counter() - started
        if not events:
            self._watch()
        return events

    def _until_seen(self, until: Ps) -> Ps:
        """How far to run when somebody wants to look on the way: to then, unless nothing waits at any port and nothing
        happens before; then to where something does, or to where somebody looks who has not seen what there was."""
        M, nodes = self.memory.M, len(self.network.names)
        wake, soon = int(M[at.H_WAKE]), self.agenda.next_observer
        due = min(int(M[self.memory.next : self.memory.next + nodes].min()), self._programs.timer)
        if (
            M[wake : wake + 2 * nodes].any()
            or due < soon
            or (M[self.memory.port_base + at.P_QUEUE] >> 8).any()
        ):
            return soon
        return Ps(min(until, due, self.agenda.next_unseen(self._bytes_begun())))

    def _bytes_begun(self) -> int:
        """Bytes of all packets whose transmission has begun, anywhere."""
        return int(self.memory.M[self.memory.port_base + at.P_BYTES].sum())

    def _advance(self, events: list[Event]) -> bool:
        """Run the engine to where it was told to go, or where it has to stop for what it found; true if `on_progress`
        ended it earlier."""
        M = self.memory.M
        while True:
            M[at.H_STATUS] = at.RUNNING
            M[at.H_BUDGET] = self._budget
            M[at.H_HOLDS] = self.choice.holds
            packets, before, used = self._packets_handled(), time.perf_counter(), time.process_time()
            try:
                self._workers.advance(self.choice.alone)
            except Exception as error:  # Raised; where Numba compiles in this process, what a rule has raised
                raise stopped(self._combination.owners, error) or error from error
            spent, used = time.perf_counter() - before, time.process_time() - used
            check_watched(M, self._combination.transports, self._combination.balancer, self._combination.queue)
            self._deliveries.harvest(events)
            self._programs.closed(self.flows.close(self._close_batch))
            if self._has_tight_heaps:
                tighten_heaps(self.memory, self.network.host_count)
            status = int(M[at.H_STATUS])
            self.flows.arena.check()
            if status == at.POOL_FULL:
                raise GradwireError(
                    "more than 33 million packets wait in queues", "fabric", "smaller buffers"
                )
            if status in (at.BUSY, at.QUIET):
                M[at.H_STREAK] = 0
            is_trial = self.choice.note(status, self._packets_handled() - packets, spent, used)
            if status == at.EXHAUSTED:
                factor = min(2.0, max(0.5, CALL_SECONDS / max(spent, 1e-6)))
                least = self._budgets[0] if factor < 1 else 1  # a short call is followed by one twice as long
                self._budget = min(max(least, int(self._budget * factor)), self._budgets[1])
            if is_trial:  # a measurement of one thread ends soon, and so does a call of threads without processors
                self._budget = max(1, self._budget // 16)
            if self._asks_to_stop():
                return True
            if status == at.REACHED:
                return False

    def _packets_handled(self) -> int:
        """Return the packets that all threads have handled, over all windows."""
        first = int(self.memory.M[at.H_THREAD])
        return int(self.memory.M[first + at.T_TOTAL : first + self.threads * at.THREAD_WORDS : at.THREAD_WORDS].sum())

    def reuse_records_at_once(self) -> None:
        """Free the records of messages every few windows, and have heaps swept as often as can be, for tests.

        Neither must show. A run frees records in batches of `CLOSE_BATCH`, so that a run of fewer messages never uses
        one twice; and its heaps have room to spare, so that few of them are ever swept.
        """
        self._budget, self._budgets = 4, (4, 4)
        self._close_batch = 1
        self._has_tight_heaps = True

    def _asks_to_stop(self) -> bool:
        """Ask `on_progress`, about every `CALL_SECONDS` however short the calls of the engine are: between samples of
        queues, for one, there is next to nothing to do."""
        now = time.perf_counter()
        if self.on_progress is None or now - self._asked < CALL_SECONDS:
            return False
        self._asked = now
        return self.on_progress(self.now)

    def _watch(self) -> None:
        """Note when time passes and no byte arrives: then something will never end."""
        if not self.undelivered:
            return
        total = self.flows.received() + self.flows.book.count
        since, seen = self._quiet
        if total != seen or self._programs.timer < at.FOREVER:
            self._quiet = (self.now, total)
        elif self.idle:
            self.stalled = "no packet is on its way and no timer is set"
        elif self.now - since >= self.patience:
            silent = format_about(self.now - since)
            self.stalled = f"no new data has arrived anywhere for {silent}: {self._still_open()}"

    def describe_open(self) -> list[str]:
        """Return the messages that are not delivered in words, for the report of a stall (`open_messages`)."""
        return describe_open_messages(self, self._programs.tracks)

    def forget_packets(self) -> None:
        """Empty the log of packets, where it is for reports of stalls only."""
        self._logs.packets.clear()

    def _still_open(self) -> str:
        """The messages that have not been delivered, in a few words: how many, and of the one that lacks most what it
        is, which does not hang on where records lie."""
        M, records = self.memory.M, self.flows.records
        r = records.receiver(np.arange(records.used))
        open_ = r[(M[r + at.R_DONE] == 0) & (M[r + at.R_PACKETS] > 0)]
        if not len(open_):
            return f"{self.undelivered} messages are not delivered"
        lacks, had, kinds = M[open_ + at.R_BYTES] - M[open_ + at.R_GOT], M[open_ + at.R_GOT], M[open_ + at.R_KIND]
        first = int(open_[np.lexsort((kinds, had, -lacks))[0]])
        owner = self.transports[int(M[first + at.R_KIND]) & ((1 << at.SET_SHIFT) - 1)].owner
        got, size = int(M[first + at.R_GOT]), int(M[first + at.R_BYTES])
        name = kind_of(owner) or f"{owner.__name__} ({file_of(owner)})"
        return f"of {self.undelivered} messages one has {got} of {size} bytes, over the transport {name}"

    def _look_for_deadlock(self, now: Ps) -> Ps | None:
        """Say so when flow control has stopped ports for good. Looks now and then until it has found one, but not
        while something is still to happen to the network that could set them going again."""
        if self.agenda.next_action < at.FOREVER:
            return Ps(now + DEADLOCK_PS)
        cycle = find_deadlock(self.memory, self.network)
        if not cycle:
            return Ps(now + DEADLOCK_PS)
        ports = " waits for ".join([*cycle, cycle[0]])
        self.deadlock = f"flow control has come to a deadlock at {format_time(now)} or before: {ports}"
        return None

    def close(self) -> None:
        """End the worker threads."""
        self._finalizer()

    # --- what came out ------------------------------------------------------------------------------------------

    def finish(self) -> Tables:
        """What the network has counted so far and not handed over, as columns."""
        first = self.flows.book.first
        return Tables(
            ports=collect_ports(self.network, self.memory),
            drops=collect_drops(self.network, self._logs.drops),
            missing=self._deliveries.missing(),
            packet_hops=self.packet_hops,
            **vars(self.flows.counts(first, self.flows.book.count - first)),
        )

    @property
    def sums(self) -> dict[str, dict[str, int]]:
        """What switches have added up so far, by name: `slots_peak`, the most slots in use at a time, and data packets:
        `summed_packets`, which went no further, `unsummed_packets`, which found no slot or came once more, and
        `copied_packets`, which were made of those for all."""
        return collect_sums(self.network, self.memory, self._slots)

    def packet_log(self) -> Ints:
        """Every transmission so far, if asked for: rows of start (ps), directed link, A, B, lost, message."""
        return joined(self._logs.packets, at.TRACE_WORDS + 1)

    def drop_log(self) -> Ints:
        """Every lost packet so far that was not handed over: rows of time (ps), directed link | cause << 32, A, B,
        message."""
        return joined(self._logs.drops, at.DROP_WORDS + 1)
