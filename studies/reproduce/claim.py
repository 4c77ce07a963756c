"""Declares the data types of claims, namely settings, expected figures and claims; `verdicts` judges them.

A claim is data: the runs are settings (`Setting`) times policies times seeds; the expectations are a list of `Expect`,
each a number computed per seed and the range it should be in. The verdict follows from these alone, see
`gradwire.studies.reproduce.verdicts`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gradwire.scenarios.json_data import JsonView
from gradwire.studies.reproduce.published import PublishedNumber

At = Callable[[str, str, str], float]
"""(setting, policy, measure) -> figure of one seed."""


@dataclass(frozen=True)
class Setting:
    """A setting in which policies are compared.

    name : label, also used by `Expect.value`, such as "fan-in 16".
    scenario : name in the library.
    changes : overlay of the scenario, in the shape of a policy's `set`.
    policies : keys of `gradwire.studies.reproduce.policies` to run.
    full_only : omitted from a quick run.
    quick_policies : of `policies`, those of a quick run; all if empty.
    shown : measure in its panel of the plot, if not the claim's.
    data : of a training run, "pictures" or "text"; the user gives its location.
    baseline : of `policies`, the one that the others are compared with, seed by seed, if any.
    target : of a training run, the accuracy that its time is measured to; 0: none.
    lossless : arms without loss, which train like the baseline: each with the name of the shorter setting that has
        their clock.
    rates : link rates for which step times are computed, with `computing` per step.
    testbed : overlay, after that of the policy, that makes it small and slow enough for real sockets.
    testbed_policies : of `policies`, those that the testbed has. `testbed_words` : what the overlay makes of it.
    """

    name: str
    scenario: str
    policies: tuple[str, ...]
    changes: JsonView = field(default_factory=dict)
    full_only: bool = False
    quick_policies: tuple[str, ...] = ()
    shown: str = ""
    data: Literal["", "pictures", "text"] = ""
    baseline: str = ""
    target: float = 0.0
    lossless: Mapping[str, str] = field(default_factory=dict)
    rates: tuple[str, ...] = ()
    computing: str = "0ps"
    testbed: JsonView = field(default_factory=dict)
    testbed_policies: tuple[str, ...] = ()
    testbed_words: str = ""


@dataclass(frozen=True)
class Expect:
    """One number that a claim is reduced to.

    text : its label.
    value : function of the measures of one seed.
    published : the paper's number, if it has one; the verdict compares the figure with it.
    low, high : our limits [ours], for its median or for the 95 % interval of its mean; None: no limit.
    unit : "share", "ratio", "time" (picoseconds), "count", or "points" (percentage points): its format.
    condition : label of the condition, such as "minimum RTO 10 ms"; named in the verdict if others do not hold.
    settings : names of the settings it needs; it is skipped if one of them is left out.
    blame : (setting, policy) of a baseline whose time-outs may be the cause, named if they are.
    interval : true if seeds vary as much as the effect, so that the interval of the mean over them decides and not
        their median; a limit inside of it leaves the figure unresolved.
    """

    text: str
    value: Callable[[At], float]
    settings: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    unit: Literal["share", "ratio", "time", "count", "points"] = "ratio"
    condition: str = ""
    blame: tuple[str, str] | None = None
    interval: bool = False
    published: PublishedNumber | None = None


@dataclass(frozen=True)
class Claim:
    """A published sentence, or a goal of ours.

    id : such as "S1".
    source : origin, with its mark (abstract, notes, ours).
    sentence : the claim. `published` : its numbers.
    settings, expects : the runs, and their expected outcome.
    shown : measure of the plot ("p99", "mean", "iteration", ...), over settings and policies.
    remark : facts needed to read the figures.
    """

    id: str
    source: str
    sentence: str
    published: str
    settings: tuple[Setting, ...]
    expects: tuple[Expect, ...]
    shown: str
    remark: str = ""
