"""What a claim is made of.

A claim is data. What is run: arrangements (`Setting`) times policies times seeds. What is expected: a list of `Expect`,
each with one number computed per seed and the range it should be in. The verdict follows from these alone: see
`gradwire.analysis.claims.judge`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gradwire.scenarios.json_data import JsonView

At = Callable[[str, str, str], float]
"""(setting, policy, measure) -> its figure, of one seed."""


@dataclass(frozen=True)
class Setting:
    """An arrangement in which policies are compared.

    Attributes
    ----------
    name : for people and for `Expect.value`, such as "fan-in 16".
    scenario : of the library.
    changes : laid over it, in the shape of a policy's `set`.
    policies : those of `gradwire.analysis.claims.policies` that are run.
    full_only : left out of a quick run.
    shown : the measure in its panel of the plot, if not the claim's.
    data : what is learned from, "pictures" or "text", where it is a training; whoever reproduces says where it is.
    baseline : of `policies`, the one that the others are compared with, seed by seed, if there is one.
    target : of a training, the accuracy that its time is measured to; 0: none.
    lossless : arms that lose nothing, as the baseline does, and so learn what it learns: each with the name of the
        setting, of fewer steps, that has their clock.
    rates : of links, at which it is worked out what its steps would take, of which computing takes `computing`.
    """

    name: str
    scenario: str
    policies: tuple[str, ...]
    changes: JsonView = field(default_factory=dict)
    full_only: bool = False
    shown: str = ""
    data: Literal["", "pictures", "text"] = ""
    baseline: str = ""
    target: float = 0.0
    lossless: Mapping[str, str] = field(default_factory=dict)
    rates: tuple[str, ...] = ()
    computing: str = "0ps"


@dataclass(frozen=True)
class Expect:
    """One number that a claim comes down to.

    Attributes
    ----------
    text : what it is.
    value : computed from the measures of one seed.
    low, high : where its median should be, or the 95 % interval of its mean; None: no limit.
    unit : "share", "ratio", "time" (picoseconds), "count", or "points" (of a hundred): how it is printed.
    condition : under which it is looked at, such as "minimum RTO 10 ms"; what is said if others do not hold.
    settings : names of what it needs; with one of them left out it is not looked at.
    blame : (setting, policy) of a baseline whose time-outs may be the reason, to be said if they are.
    interval : whether seeds differ by chance as much as by what is looked at, so that the interval of the mean over
        them decides and not their median; a limit inside of it leaves the figure unresolved.
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


@dataclass(frozen=True)
class Claim:
    """A sentence that somebody has published, or a goal of ours.

    Attributes
    ----------
    id : such as "S1".
    source : where it is from, with its mark (abstract, notes, ours).
    sentence : what is claimed. `published`: its numbers.
    settings, expects : what is run, and what should come out.
    shown : the measure that the plot shows ("p99", "mean", "iteration", ...), over settings and policies.
    remark : what a reader must know to read the figures.
    """

    id: str
    source: str
    sentence: str
    published: str
    settings: tuple[Setting, ...]
    expects: tuple[Expect, ...]
    shown: str
    remark: str = ""


def ratio(setting: str, policy: str, to: str, measure: str) -> Callable[[At], float]:
    """A policy's figure over another one's."""
    return lambda at: at(setting, policy, measure) / at(setting, to, measure)


def difference(setting: str, policy: str, than: str, measure: str = "accuracy") -> Callable[[At], float]:
    """By how much a policy's figure is above another one's, of the same seed."""
    return lambda at: at(setting, policy, measure) - at(setting, than, measure)


def gain(setting: str, policy: str, over: str, measure: str = "iteration") -> Callable[[At], float]:
    """How much faster: the other one's time over the policy's, less one (0.84 is "84 % faster")."""
    return lambda at: at(setting, over, measure) / at(setting, policy, measure) - 1


def more(small: str, large: str, policy: str, over: str, measure: str = "iteration") -> Callable[[At], float]:
    """By how much the gain in setting `large` exceeds that in `small`."""
    return lambda at: gain(large, policy, over, measure)(at) - gain(small, policy, over, measure)(at)


def saved(setting: str, policy: str, over: str, measure: str = "iteration") -> Callable[[At], float]:
    """The share of the other one's time that is saved (0.9 is "-90 %")."""
    return lambda at: 1 - at(setting, policy, measure) / at(setting, over, measure)
