"""Which steps of a training loop are recorded, sampled, or used to measure what recording costs, and that cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.given import instance_of, unfit, whole_number
from gradwire.scenarios.json_data import Json

PS_PER_SECOND = 1e12
PHASE = "training"  # name of the only phase where none is given


class Plan:
    """`phases` maps a moment of training to step numbers from 0; every `every`-th step of a phase, the first
    included, is sampled. After the last of them come `overhead_pairs` pairs of steps, one with hooks and one
    without.

    TraceError for no step, a step in two phases, or counts that cannot be.
    """

    def __init__(self, phases: Mapping[str, Sequence[int]], every: int, overhead_pairs: int) -> None:
        self._steps = {phase: _numbers(phase, steps) for phase, steps in phases.items()}
        listed = [step for steps in self._steps.values() for step in steps]
        once = len(set(listed)) == len(listed)
        if not listed or not once or min(listed) < 0 or not all(self._steps.values()):
            expected = "at least one step, each in one phase only"
            raise TraceError(f"phases {dict(phases)}", "capture", expected)
        self._every = whole_number(every, "capture(every)", 1, TraceError)
        self._pairs = whole_number(overhead_pairs, "capture(overhead_pairs)", 0, TraceError)

    @property
    def first(self) -> int:
        """The first step that is recorded."""
        return min(steps[0] for steps in self._steps.values())

    @property
    def last(self) -> int:
        """The last step that is recorded."""
        return max(steps[-1] for steps in self._steps.values())

    def phase_of(self, step: int) -> str | None:
        """The phase in which the step is recorded; None if it is not."""
        return next((phase for phase, steps in self._steps.items() if step in steps), None)

    def samples(self, step: int) -> bool:
        """Whether magnitudes are recorded in the step."""
        phase = self.phase_of(step)
        return phase is not None and self._steps[phase].index(step) % self._every == 0

    def overhead_hooked(self, step: int) -> bool | None:
        """Whether a step of the overhead measurement has hooks; None outside of it."""
        position = step - self.last - 1
        if not 0 <= position < 2 * self._pairs:
            return None
        return position % 4 in (1, 2)  # plain, hooked, hooked, plain: a steady drift cancels

    def done(self, step: int) -> bool:
        """Nothing is left to do from this step on."""
        return step > self.last + 2 * self._pairs

    def postpone(self, step: int) -> None:
        """The step was none after all: the first free one after its phase's last takes its place."""
        phase = self.phase_of(step)
        if phase is None:
            return
        free = self._steps[phase][-1] + 1
        while self.phase_of(free) is not None:
            free += 1
        self._steps[phase] = [*(one for one in self._steps[phase] if one != step), free]


def _numbers(phase: str, steps: Sequence[int]) -> list[int]:
    instance_of(phase, str, "capture(phases)", "names of moments as text", TraceError)
    where = f"capture(phases), {phase}"
    if not isinstance(steps, Iterable):
        raise unfit(steps, where, "numbers of steps, such as range(3, 6)", TraceError)
    return sorted(whole_number(step, where, 0, TraceError) for step in steps)


def overhead(durations: Sequence[tuple[bool, int | None]]) -> Json:
    """Cost of the timing hooks from neighbouring steps, (hooked, picoseconds or None if unknown) in order;
    `fraction` is the median over pairs of hooked / plain - 1.
    """
    plain: list[float] = []
    hooked: list[float] = []
    for pair in zip(durations[::2], durations[1::2], strict=False):
        by_kind = dict(pair)
        if by_kind.get(False) is not None and by_kind.get(True) is not None:
            plain.append(float(by_kind[False] or 0) / PS_PER_SECOND)
            hooked.append(float(by_kind[True] or 0) / PS_PER_SECOND)
    if not plain:
        return {"pairs": 0}
    ratios = np.array(hooked) / np.array(plain) - 1
    return {
        "pairs": len(plain),
        "fraction": float(np.median(ratios)),
        "fraction_quartiles": [float(quartile) for quartile in np.quantile(ratios, [0.25, 0.75])],
        "plain_s": plain,
        "hooked_s": hooked,
    }
