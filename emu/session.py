"""`Session` keeps the testbed's network alive while a trainer runs a job's iterations one by one on real sockets.

Its counterpart in the simulator is `gradwire.sim.sessions.session`: a trainer provides the messages of a step, and
learns what arrived and how long it took before the next one. The network (namespaces and switches, or a virtual machine
with all of it) is made once (`gradwire.emu.control.session_supervisor`). Agents are started anew for every step, so
that no state of pairs of hosts remains, and connections are made before a step begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.emu.agent.payload.magnitudes import prepare
from gradwire.emu.agent.payload.values import write_values
from gradwire.emu.control.session_supervisor import LongLivedNetwork
from gradwire.emu.control.supervisor import ProgressCallback
from gradwire.emu.planning.planner import check_scenario
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.testbed import LIMIT_S, choose_backend, content_errors
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json
from gradwire.workload.incremental.iteration_player import (
    AnswerBytes,
    IterationJobs,
    PlayedIteration,
    message_workers,
    single_iteration_scenario,
)
from gradwire.workload.program_export import export_program
from gradwire.workload.resolve import resolve, tag_untagged

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.emu.system.raw_outcome import RawResults
    from gradwire.emu.testbed import ChosenPlan
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace
    from gradwire.workload.resolve import Resolved

SEEDS_APART = 1_000_003


class Session:
    """The testbed's network of a scenario with one job, for that job's iterations one by one.

    Attributes
    ----------
    built : how often the network has been made.
    disturbed : reasons for disturbed steps on the wall clock.
    takes_contents : True: messages have the given contents.
    """

    takes_contents = True

    def __init__(
        self,
        scenario: Scenario | str | Path,
        *,
        clock: str | None = None,
        switch: str | None = None,
        limit_s: float = LIMIT_S,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        """Check a scenario, given or named; nothing is made yet.

        Parameters
        ----------
        clock, switch : as in `gradwire.emu.testbed.Request`.
        limit_s : time limit of a step in seconds on the wall clock.
        on_progress : called with progress of the runner, from another thread.

        Raises
        ------
        ScenarioError
            The testbed cannot run it step by step.
        """
        self.scenario = single_iteration_scenario(scenario, "Session(scenario)")
        check_scenario(self.scenario)
        if self.scenario.emulation.hosts:
            raise ScenarioError("not supported in sessions", "emulation.hosts", "none, for namespaces of this machine")
        self._steps = IterationJobs(self.scenario)
        self._clock = clock or self.scenario.emulation.clock
        self._switch = switch or self.scenario.emulation.switch
        self._limit_s, self._heard = limit_s, on_progress
        self.built, self.disturbed = 0, list[str]()
        self._held: LongLivedNetwork | None = None
        self._chosen: ChosenPlan | None = None
        self._resolved: Resolved | None = None

    @property
    def engine(self) -> Json:
        """Return the backend, and its departures from the scenario as far as they are known."""
        engine: Json = {"kind": "emulation", "clock": self._clock, "disturbed": self.disturbed}
        if self._chosen is not None:
            plan = self._chosen.plan
            engine |= {"switch": plan.switch, "substitutions": list(self._chosen.substitutions)}
        return engine

    def step(
        self,
        trace: Trace,
        back: AnswerBytes = 1.0,
        contents: Sequence[Sequence[bytes]] = (),
        numbers: bool = True,
        reliable_tensors: Sequence[int] = (),
    ) -> PlayedIteration:
        """Run one iteration with the times and tags of the trace, called "step": of rank w for worker w.

        back : bytes returned from servers, per pushed byte or per tensor: the sum, truncated or padded to that length.
        contents : the workers' values, by worker and tensor, in whole words of 4 bytes; if absent, drawn to the trace's
            magnitudes.
        numbers : True if they are float32 values, which servers can add.
        reliable_tensors : tensors that must not lose anything, whatever the job's bounds.

        Raises
        ------
        TraceError, ScenarioError
            The job cannot send it, or returned values of other lengths may be lost.
        TestbedError
            The testbed cannot run it, or failed; or the received bytes differ from those sent.
        """
        if self._held is None:
            self._make(trace)
        held, resolved = self._held, self._resolved
        assert held is not None and resolved is not None and self._chosen is not None
        job = self._steps.job(trace, resolved.places[0], resolved.network.cards, back, reliable_tensors)
        program = tag_untagged(export_program([job.part]), self.scenario)
        resolved = resolved._replace(traces=[trace], program=program)
        values_folder = held.folder / f"values-{self._steps.done}"
        folders = (write_values(values_folder, contents, numbers),) if contents else prepare([trace], values_folder)
        try:
            plan, raw = held.step(program, folders, self._limit_s)
            self._judge(raw, content_errors(plan, raw, resolved))
        except BaseException:
            self.close()
            raise
        shutil.rmtree(values_folder)
        self._steps.done += 1
        buckets, segments = job.exchange.buckets_and_segments
        end_ps = max(row.end_ps for row in raw.reports.iterations)
        missing = {message: ~np.asarray(have, np.bool_) for message, have in raw.reports.have.items()}
        missing = {message: mask for message, mask in sorted(missing.items()) if mask.any()}
        return PlayedIteration(
            end_ps, program.messages, missing, message_workers(job, program.messages), buckets, segments
        )

    def come_to_rest(self) -> tuple[int, int, int]:
        """End the state that the next step depends on; return the arguments of `resume`. In virtual time the next step
        uses a new machine, so that resumed runs are identical. On the wall clock no two runs are, and the network
        stays."""
        if self._clock == "virtual":
            self.close()
        self._steps.reset()
        return self.built, self._steps.done, 0

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Resume where another session rested, after `built` networks and `steps` steps; time does not continue."""
        self.close()
        self.built, self._steps.done = built, steps

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
        self._steps.reset()

    def _make(self, trace: Trace) -> None:
        scenario = self.scenario
        seed = (scenario.seed + self.built * SEEDS_APART) % 2**31  # different random numbers each time
        scenario = scenario.model_copy(update={"seed": seed})
        self._resolved = resolve(scenario, trace)
        self._chosen = choose_backend(scenario, self._resolved, self._clock, self._switch, on_progress=self._heard)
        self._held = LongLivedNetwork(self._chosen.plan, self._heard)
        self.built += 1

    def _judge(self, raw: RawResults, errors: list[str]) -> None:
        if raw.reports.ended_by != "done":
            raise TestbedError(f"a step ended by {raw.reports.ended_by}", "testbed", usage=False)
        if errors:
            raise TestbedError(f"contents are wrong: {'; '.join(errors[:3])}", "verification", usage=False)
        self.disturbed += [f"step {self._steps.done}: {why}" for why in raw.complaints[:1]]
