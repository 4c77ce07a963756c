"""`TimeAdvance` advances a fabric in time: it runs scheduled actions, loads programs' steps and calls the engine.

A call advances the engine by a number of windows, its budget. The budget follows the measured speed, so that a call
takes about `CALL_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gradwire.jit.records import constants as at
from gradwire.jit.records import view
from gradwire.jit.records.header import State, Thread
from gradwire.jit.records.network import Host, Port
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.inner_units import Ps
from gradwire.sim.engine.deadlock import DeadlockWatch
from gradwire.sim.engine.deliveries import Deliveries
from gradwire.sim.engine.events import Event
from gradwire.sim.engine.fast_forward.fast_forward import FastForward
from gradwire.sim.engine.guarded_rules import check_recorded, rule_error
from gradwire.sim.engine.memory.engine_memory import EngineMemory, tighten_heaps
from gradwire.sim.engine.memory.flows import Flows
from gradwire.sim.engine.program.program import Programs
from gradwire.sim.engine.scheduled_actions import Schedule
from gradwire.sim.engine.specialization import Combination, CompiledEngine
from gradwire.sim.engine.thread_choice import ThreadChoice
from gradwire.sim.engine.worker_threads import WorkerThreads
from gradwire.topology import Network

CALL_SECONDS = 0.05  # approximate length of a call of the compiled engine; Ctrl-C and progress are handled in between
CLOSE_BATCH = 64
LEAST_BUDGET, MOST_BUDGET = 16, 1 << 40  # windows of one call


def warm_up(kernel: CompiledEngine, memory: EngineMemory, threads: int) -> None:
    """Compile the engine, or load it from the cache, by an empty run."""
    state = memory.state
    state[State.budget.offset] = 1
    kernel.run(memory.address, 0, threads, True)
    kernel.post(memory.address, int(memory.node_base[0]), 0, 0)
    view(Host, state, memory.node_base[0]).timer_count = 0
    state[memory.next + memory.positions[0]] = at.FOREVER
    state[State.next_timer.offset] = at.FOREVER
    state[State.now.offset] = 0


class TimeAdvance:
    """The advance of one fabric in time.

    Attributes
    ----------
    budget : windows of the engine's next call.
    choice : decides how many threads make a call.
    workers : the threads.
    forward : skips iterations, if they are to be skipped.
    on_progress : called with the time about every `CALL_SECONDS`; if it returns True, `run` returns where it is.
    """

    def __init__(
        self,
        combination: Combination,
        kernel: CompiledEngine,
        threads: int,
        memory: EngineMemory,
        network: Network,
        flows: Flows,
        programs: Programs,
        deliveries: Deliveries,
        agenda: Schedule,
        deadlocks: DeadlockWatch,
    ) -> None:
        self._combination, self._threads = combination, threads
        self._memory, self._network, self._flows = memory, network, flows
        self._programs, self._deliveries = programs, deliveries
        self._agenda, self._deadlocks = agenda, deadlocks
        self.budget = 64
        self._budgets = LEAST_BUDGET, MOST_BUDGET
        self._close_batch = CLOSE_BATCH
        self._has_tight_heaps = False
        self.choice = ThreadChoice(threads)
        self.workers = WorkerThreads(memory.state, kernel, threads)
        self.forward: FastForward | None = None
        self.on_progress: Callable[[Ps], bool] | None = None
        self._asked = 0.0

    @property
    def now(self) -> Ps:
        """Time before which everything has happened."""
        return Ps(int(self._memory.state[State.now.offset]))

    def run(self, until_ps: Ps) -> list[Event]:
        """Advance as `Fabric.run` does, and return the events."""
        programs, agenda = self._programs, self._agenda
        events: list[Event] = []
        known_deadlock = self._deadlocks.description
        while not events and self.now < until_ps:
            agenda.act(self.now, self._bytes_begun)
            if self._deadlocks.description != known_deadlock:
                break
            programs.fill(self.now)
            if self.forward is not None and self.forward.skip_if_repeated():
                continue  # time has moved on
            until = Ps(min(until_ps, programs.next_python_time(), agenda.next_action))
            if self.forward is not None:
                until = min(until, self.forward.soonest)
            if agenda.next_observer < until:
                until = self._until_observed(until)
            if programs.timer < self.now:
                # A part begins up to one host latency before now: play it up to now in an empty window, since its
                # first messages enter the network within the next window.
                until = self.now
            must_return = self._advance(until, events)
            while programs.starved():
                must_return |= self._advance(self.now, events)  # an empty window: only programs continue
            events += programs.finished()
            if must_return:
                break
        return events

    def _until_observed(self, until: Ps) -> Ps:
        """Return the time to run to when observers are due on the way. That is the next observer's time, unless nothing
        waits at any port and nothing happens before; then it is the time of the next event, or of the next observer
        that has not seen the present state."""
        state, nodes = self._memory.state, len(self._network.names)
        wake, soon = int(state[State.wake.offset]), self._agenda.next_observer
        due = min(int(state[self._memory.next : self._memory.next + nodes].min()), self._programs.timer)
        if (
            state[wake : wake + 2 * nodes].any()
            or due < soon
            or (view(Port, state, self._memory.port_base).queue >> 8).any()
        ):
            return soon
        return Ps(min(until, due, self._agenda.next_unseen(self._bytes_begun())))

    def _bytes_begun(self) -> int:
        """Return the bytes of all packets whose transmission has begun."""
        return int(view(Port, self._memory.state, self._memory.port_base).bytes_sent.sum())

    def _advance(self, until: Ps, events: list[Event]) -> bool:
        """Run the engine to `until`, or to where it has to stop; return True if `on_progress` ended it earlier."""
        state = self._memory.state
        state[State.until.offset] = until
        while True:
            state[State.status.offset] = at.RUNNING
            state[State.budget.offset] = self.budget
            state[State.holds.offset] = 2 * self.choice.is_alone_for_long or self.choice.is_forced
            packets, before, used = self._packets_handled(), time.perf_counter(), time.process_time()
            try:
                self.workers.advance(self.choice.is_single_threaded)
            except Exception as error:  # Raised; or a rule's own exception if Numba compiled it in this process
                raise rule_error(self._combination.owners, error) or error from error
            spent, used = time.perf_counter() - before, time.process_time() - used
            check_recorded(state, self._combination.transports, self._combination.balancer, self._combination.queue)
            self._deliveries.harvest(events)
            self._programs.closed(self._flows.close(self._close_batch))
            if self._has_tight_heaps:
                tighten_heaps(self._memory, self._network.host_count)
            status = int(state[State.status.offset])
            self._flows.arena.check()
            if status == at.POOL_FULL:
                raise GradwireError("more than 33 million packets are queued", "fabric", "smaller buffers")
            if status in (at.BUSY, at.QUIET):
                state[State.streak.offset] = 0
            is_trial = self.choice.note(status, self._packets_handled() - packets, spent, used)
            if status == at.EXHAUSTED:
                factor = min(2.0, max(0.5, CALL_SECONDS / max(spent, 1e-6)))
                least = self._budgets[0] if factor < 1 else 1  # a short call is followed by one twice as long
                self.budget = min(max(least, int(self.budget * factor)), self._budgets[1])
            if is_trial:  # a measurement of one thread ends soon, and so does a call of threads without processors
                self.budget = max(1, self.budget // 16)
            if self.is_stop_requested():
                return True
            if status == at.REACHED:
                return False

    def _packets_handled(self) -> int:
        """Return the packets that all threads have handled, over all windows."""
        state = self._memory.state
        first = int(state[State.thread_records.offset])
        end = first + self._threads * Thread.WORDS
        return int(state[first + Thread.total_work.offset : end : Thread.WORDS].sum())

    def is_stop_requested(self) -> bool:
        """Call `on_progress` about every `CALL_SECONDS`, however short the calls of the engine are. They are very short
        between samples of queues, for example."""
        now = time.perf_counter()
        if self.on_progress is None or now - self._asked < CALL_SECONDS:
            return False
        self._asked = now
        return self.on_progress(self.now)

    def reuse_records_at_once(self) -> None:
        """Free message records every few windows and sweep heaps as often as possible, for tests.

        Neither may affect results. Runs free records in batches of `CLOSE_BATCH`, so short ones never reuse a record;
        and heaps have spare room, so few are ever swept.
        """
        self.budget, self._budgets = 4, (4, 4)
        self._close_batch = 1
        self._has_tight_heaps = True
