"""`CapturePlan` lists the training steps to record, to sample, and to use for measuring the overhead of recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from gradwire.scenarios.errors import TraceError
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer, wrong_type_error

PS_PER_SECOND = 1e12
PHASE = "training"  # default phase name


class CapturePlan:
    """Steps to record, sample and measure. `phases` maps names to step numbers from 0; every `every`-th step of a
    phase, the first included, is sampled. After the last recorded step come `overhead_pairs` pairs of steps, one with
    hooks and one without. TraceError for no step, a step in two phases, or invalid counts."""

    def __init__(self, phases: Mapping[str, Sequence[int]], every: int, overhead_pairs: int) -> None:
        self._steps = {phase: _numbers(phase, steps) for phase, steps in phases.items()}
        listed = [step for steps in self._steps.values() for step in steps]
        once = len(set(listed)) == len(listed)
        if not listed or not once or min(listed) < 0 or not all(self._steps.values()):
            expected = "at least one step, each in one phase only"
            raise TraceError(f"phases {dict(phases)}", "capture", expected)
        self._every = require_integer(every, "capture(every)", 1, TraceError)
        self._pairs = require_integer(overhead_pairs, "capture(overhead_pairs)", 0, TraceError)

    @property
    def first(self) -> int:
        """First recorded step."""
        return min(steps[0] for steps in self._steps.values())

    @property
    def last(self) -> int:
        """Last recorded step."""
        return max(steps[-1] for steps in self._steps.values())

    def phase_of(self, step: int) -> str | None:
        """Return the phase in which the step is recorded; None if it is not."""
        return next((phase for phase, steps in self._steps.items() if step in steps), None)

    def samples(self, step: int) -> bool:
        """Return True if magnitudes are recorded in the step."""
        phase = self.phase_of(step)
        return phase is not None and self._steps[phase].index(step) % self._every == 0

    def overhead_hooked(self, step: int) -> bool | None:
        """Return True if a step of the overhead measurement has hooks; None outside of the measurement."""
        position = step - self.last - 1
        if not 0 <= position < 2 * self._pairs:
            return None
        return position % 4 in (1, 2)  # plain, hooked, hooked, plain: a steady drift cancels

    def done(self, step: int) -> bool:
        """Return True if nothing is left to do from this step on."""
        return step > self.last + 2 * self._pairs

    def postpone(self, step: int) -> None:
        """Replace a skipped step by the first free one after its phase's last."""
        phase = self.phase_of(step)
        if phase is None:
            return
        free = self._steps[phase][-1] + 1
        while self.phase_of(free) is not None:
            free += 1
        self._steps[phase] = [*(other for other in self._steps[phase] if other != step), free]


def _numbers(phase: str, steps: Sequence[int]) -> list[int]:
    require_instance(phase, str, "capture(phases)", "phase names as text", TraceError)
    where = f"capture(phases), {phase}"
    if not isinstance(steps, Iterable):
        raise wrong_type_error(steps, where, "numbers of steps, such as range(3, 6)", TraceError)
    return sorted(require_integer(step, where, 0, TraceError) for step in steps)


def hook_overhead(durations: Sequence[tuple[bool, int | None]]) -> Json:
    """Return the cost of the timing hooks from neighbouring steps, (hooked, picoseconds or None if unknown) in order.
    `fraction` is the median over pairs of hooked / plain - 1."""
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
