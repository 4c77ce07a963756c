"""A session: a scenario's network on real sockets that stays, on which a job's iterations are played one at a time.

As `gradwire.sim.session` is in the simulator: whoever trains says what is sent in a step, and hears what arrived and
how long it took before the next one. The network - namespaces and switches, or a virtual machine with all of it - is
made once (`gradwire.emu.control.held`); agents are started anew for every step, so that nothing is remembered of pairs
of hosts from one to the next, and connections are made before a step begins.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gradwire.emu.agent.magnitudes import prepare
from gradwire.emu.agent.values import give
from gradwire.emu.control.held import Held
from gradwire.emu.control.supervise import Heard
from gradwire.emu.planning.prepare import check_scenario
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.testbed import LIMIT_S, choose_backend, contents_wrong
from gradwire.experiment.resolve import resolve, tagged
from gradwire.experiment.stepwise import Back, Played, Steps, played_scenario, workers_of
from gradwire.experiment.written import written_out
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from pathlib import Path

    from gradwire.emu.system.raw import Raw
    from gradwire.emu.testbed import Chosen
    from gradwire.experiment.resolved import Resolved
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.traces.trace import Trace

SEEDS_APART = 1_000_003


class Session:
    """The testbed's network of a scenario with one job, for that job's iterations one by one.

    Attributes
    ----------
    built : how often the network has been made.
    disturbed : of steps on the wall clock with which the machine did not keep up, why.
    takes_contents : what is sent is what is sent.
    """

    takes_contents = True

    def __init__(
        self, scenario: Scenario | str | Path, *, clock: str | None = None, switch: str | None = None,
        limit_s: float = LIMIT_S, heard: Heard | None = None,
    ) -> None:  # fmt: skip
        """Of a scenario, or of one that is named; nothing is made yet.

        Parameters
        ----------
        clock, switch : as `gradwire.emu.testbed.Request` has them.
        limit_s : seconds on the wall clock that a step may take.
        heard : called with news of the runner, from another thread.

        Raises
        ------
        ScenarioError
            The testbed cannot play it step by step.
        """
        self.scenario = played_scenario(scenario, "Session(scenario)")
        check_scenario(self.scenario)
        if self.scenario.emulation.hosts:
            raise ScenarioError(
                "are not kept between steps", "emulation.hosts", "namespaces of this machine, so none of them"
            )
        self._steps = Steps(self.scenario)
        self._clock = clock or self.scenario.emulation.clock
        self._switch = switch or self.scenario.emulation.switch
        self._limit_s, self._heard = limit_s, heard
        self.built, self.disturbed = 0, list[str]()
        self._held: Held | None = None
        self._chosen: Chosen | None = None
        self._resolved: Resolved | None = None

    @property
    def engine(self) -> Json:
        """What it runs on, and what is otherwise than the scenario says, as far as there is anything yet."""
        found: Json = {"kind": "emulation", "clock": self._clock, "disturbed": self.disturbed}
        if self._chosen is not None:
            plan = self._chosen.plan
            found |= {"switch": plan.switch, "substitutions": list(self._chosen.substitutions)}
        return found

    def step(
        self, trace: Trace, back: Back = 1.0, contents: Sequence[Sequence[bytes]] = (), numbers: bool = True,
        kept: Sequence[int] = (),
    ) -> Played:  # fmt: skip
        """Play one iteration, whose times and tags are those of the trace, called "step": of rank w for worker w.

        back : bytes that come back from servers, for each that is pushed or of every tensor: what was added up, cut off
            or filled up to that length.
        contents : what workers send, by worker and tensor, in whole words of 4 bytes; numbers that are drawn to the
            trace's magnitudes, if absent.
        numbers : whether they are float32 values, which servers can add up.
        kept : tensors of which nothing may be lost, whatever the job's bounds.

        Raises
        ------
        TraceError, ScenarioError
            It is none that the job can send, or something may be lost of what comes back in other lengths.
        TestbedError
            The testbed cannot run it, or failed; or what arrived is not what was sent.
        """
        if self._held is None:
            self._make(trace)
        held, resolved = self._held, self._resolved
        assert held is not None and resolved is not None and self._chosen is not None
        job = self._steps.job(trace, resolved.places[0], resolved.network.cards, back, kept)
        program = tagged(written_out([job.part]), self.scenario)
        resolved = resolved._replace(traces=[trace], program=program)
        place = held.folder / f"values-{self._steps.done}"
        folders = (give(place, contents, numbers),) if contents else prepare([trace], place)
        try:
            plan, raw = held.step(program, folders, self._limit_s)
            self._judge(raw, contents_wrong(plan, raw, resolved))
        except BaseException:
            self.close()
            raise
        shutil.rmtree(place)
        self._steps.done += 1
        buckets, segments = job.exchange.buckets_and_segments
        ended = max(row.end_ps for row in raw.reports.iterations)
        missing = {message: ~np.asarray(have, np.bool_) for message, have in raw.reports.have.items()}
        missing = {message: mask for message, mask in sorted(missing.items()) if mask.any()}
        return Played(ended, program.messages, missing, workers_of(job, program.messages), buckets, segments)

    def rest(self) -> tuple[int, int, int]:
        """Let the network rest: under virtual time the next step is in a machine of its own, which begins as any does,
        so that whoever goes on from here goes on alike. On the wall clock no two runs are, and it stays. Returns what
        `resume` wants."""
        if self._clock == "virtual":
            self.close()
        self._steps.rest()
        return self.built, self._steps.done, 0

    def resume(self, built: int, steps: int, now_ps: int = 0) -> None:
        """Go on where another session rested: so often its network had been made, so many steps it had played; no time
        goes on from one to the next."""
        self.close()
        self.built, self._steps.done = built, steps

    def close(self) -> None:
        """Take the network down."""
        if self._held is not None:
            self._held.close()
            self._held = None
        self._steps.rest()

    def _make(self, trace: Trace) -> None:
        scenario = self.scenario
        seed = (scenario.seed + self.built * SEEDS_APART) % 2**31  # other random numbers each time
        scenario = scenario.model_copy(update={"seed": seed})
        self._resolved = resolve(scenario, trace)
        self._chosen = choose_backend(
            scenario, self._resolved, self._clock, self._switch, heard=self._heard
        )
        self._held = Held(self._chosen.plan, self._heard)
        self.built += 1

    def _judge(self, raw: Raw, wrong: list[str]) -> None:
        if raw.reports.ended_by != "done":
            raise TestbedError(f"a step ended by {raw.reports.ended_by}", "testbed", usage=False)
        if wrong:
            raise TestbedError(f"contents are wrong: {'; '.join(wrong[:3])}", "verification", usage=False)
        self.disturbed += [f"step {self._steps.done}: {why}" for why in raw.complaints[:1]]
