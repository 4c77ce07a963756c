"""The systems MP2, MIPD and Slim-DP beside dense training and reducers: the settings that their claims share.

Accuracy after so many steps does not depend on how fast a network is that loses nothing, where workers make their
steps together. So each arm is trained once for each seed, and `gradwire.pricing` says what its steps would take at
each rate: the packet simulator plays some with as many bytes as an arm's have in the mean. Where workers come one by
one, their order may depend on the rate, and little of it matters: they compute for equally long, so that each is as
many updates behind as there are others, at every rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf

from gradwire.analysis.claims.arms import COMPUTING, label_of
from gradwire.analysis.claims.claim import At, Claim, Expect, Setting
from gradwire.analysis.claims.measures import RATES
from gradwire.analysis.claims.tolerance import POINT, than
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay

TARGET, LONG_TARGET = 0.25, 0.70
"""Accuracies that times are to [ours]: three fifths of where dense training ends, where most others come to."""

SYSTEMS = "ResNet-8, 10,000 pictures, 2 epochs"
LONG_SYSTEMS = "ResNet-8, 50,000 pictures, 20 epochs"
CHECK = "ResNet-8, 20 steps, 1 Gbps"
CHECK_TURNS = "ResNet-8, 60 steps of workers that come one by one, 1 Gbps"

# Buffers hold a step of all workers, so that nothing is dropped, and connections are kept, with Linux's minimum
# time-out: how long a step takes is a matter of its bytes here. What time-outs do to it is that of other claims.
_BASE: Json = {
    "transport": {"kind": "dctcp", "connections": "persistent", "min_rto": "200ms"}, "switch": {"buffer": "4MiB"},
    "training": {
        "network": "ideal", "batch": 16, "augment": True, "optimizer": {"rate": 0.2}, "model": "resnet8", "size": 16,
        "samples": 10_000, "epochs": 2.0, "score_every": 26,
    },
}  # fmt: skip
_LONG: Json = overlay(_BASE, {"training": {"samples": 50_000, "epochs": 20.0, "score_every": 400}})
_CHECK: Json = overlay(_BASE, {"training": {
    "data": "synthetic", "samples": 400, "epochs": 1.0, "steps": 20, "score_every": 1_000_000,
    "checkpoint_every": 1_000_000,
}})  # fmt: skip
_CHECK_TURNS: Json = overlay(_CHECK, {"training": {"steps": 60}})

REDUCERS = ("dense", "topk-ef", "dgc", "qsgd", "terngrad", "powersgd")


def settings(*arms: str) -> tuple[Setting, ...]:
    """The settings of a set's arms, short and long, beside dense training and reducers."""
    return tuple(
        Setting(
            name, "train-tiny", (*REDUCERS, *arms), changes, full_only, data="pictures", baseline="dense",
            target=target, rates=RATES, computing=COMPUTING, shown="accuracy",
        )
        for name, changes, full_only, target in (
            (SYSTEMS, _BASE, False, TARGET), (LONG_SYSTEMS, _LONG, True, LONG_TARGET),
        )
    )  # fmt: skip


def points(
    arm: str, other: str, what: str, low: float | None = None, high: float | None = None, condition: str = ""
) -> tuple[Expect, ...]:  # fmt: skip
    """A difference of accuracy, judged by its interval, in the short and in the long setting."""
    return tuple(than(name, arm, other, what, low, high, condition) for name in (SYSTEMS, LONG_SYSTEMS))


OTHERS = "other settings, less that of dense"


def tried(id_: str, name: str, first: str, arms: tuple[str, ...]) -> Claim:
    """A claim about settings of ours that were tried beside the defaults, each of which should come within a point of
    dense training if it is a setting that is to blame."""
    return Claim(
        id_,
        "[ours]; papers' settings are not public",
        f"Other settings of {name} come within a point of dense training.",
        "nothing published",
        settings(first, *arms)[:1],
        tuple(than(SYSTEMS, arm, "dense", OTHERS, -POINT, None, label_of(arm)) for arm in arms),
        "accuracy",
        "One thing is changed at a time.",
    )  # fmt: skip


def share_saved(
    arm: str, over: str, measure: str, what: str, low: float | None = None, high: float | None = None,
    condition: str = "",
) -> tuple[Expect, ...]:  # fmt: skip
    """The share of another arm's cost that is saved, in the short and in the long setting."""
    return tuple(
        Expect(
            what, saved_or_not(name, arm, over, measure), (name,), low, high, "share",
            f"{condition}, {name}" if condition else name,
        )
        for name in (SYSTEMS, LONG_SYSTEMS)
    )  # fmt: skip


def saved_or_not(setting: str, arm: str, over: str, measure: str) -> Callable[[At], float]:
    """The share of another arm's figure that is saved; less than nothing without end where the other one comes to an
    accuracy and this one does not, and nothing where neither does."""

    def value(at: At) -> float:
        mine, theirs = at(setting, arm, measure), at(setting, over, measure)
        if isinf(mine) and isinf(theirs):
            return 0.0
        return 1.0 if isinf(theirs) else 1 - mine / theirs

    return value


def faster(arm: str, over: str, what: str, low: float = 0.0, worked: bool = False) -> tuple[Expect, ...]:
    """The share of another arm's time to the accuracy that is saved, at each rate."""
    name = "worked" if worked else "to"
    return tuple(
        each
        for rate in RATES
        for each in share_saved(arm, over, f"{name}_{rate}", what, low, condition=f"{rate.removesuffix('Gbps')} Gbps")
    )


CHECKED = {
    "dense": ("dense training", 0.001), "slimdp": ("Slim-DP", 0.1), "topk": ("Top-k, 1 %", 0.1),
    "terngrad": ("TernGrad", 0.1),
}  # fmt: skip
CHECKED_TURNS = {"asynchronous": ("the asynchronous server", 0.01), "mipd": ("MIPD", 0.1)}
"""Arms whose clocks are held against trainings over the simulator, their names, and how far they may be off."""


def _check(name: str, arms: Mapping[str, tuple[str, float]], changes: Json, computing: str) -> Setting:
    policies = tuple(f"{arm}{end}" for end in ("", "-simulated") for arm in arms)
    return Setting(name, "train-tiny", policies, changes, rates=("1Gbps",), computing=computing)


C = Claim(
    "C",
    "[ours], a check of how times are worked out",
    "A training over the packet simulator has the clock that is worked out from its bytes.",
    "nothing published",
    (_check(CHECK, CHECKED, _CHECK, "0ps"), _check(CHECK_TURNS, CHECKED_TURNS, _CHECK_TURNS, COMPUTING)),
    tuple(
        Expect(
            f"simulated time of a step of {words}, over what is worked out",
            lambda at, name=name, arm=arm: at(name, f"{arm}-simulated", "clock") / at(name, arm, "step_1Gbps"),  # type: ignore[misc]
            (name,), 1 - most, 1 + most, condition=words,
        )
        for name, arms in ((CHECK, CHECKED), (CHECK_TURNS, CHECKED_TURNS))
        for arm, (words, most) in arms.items()
    ),
    "clock",
    "Without computing, and with it where workers come one by one. Worked out is the mean of 20 steps, or of 60, with "
    "equally many bytes, in a message for each tensor, as dense training sends them. Slim-DP sends three for each, and "
    "more bytes when a core is new, MIPD two, and of either more at first; what comes back of Top-k hangs on its "
    "workers' places, tensor by tensor: their limits are wider.",
)  # fmt: skip
HOW = (
    f"Times are of {COMPUTING} of computing and of what the packet simulator takes for a step's mean bytes on eight "
    "workers and one server, one after the other. What servers send back are parameters, or a mean gradient in its "
    "shortest exact form; dense training pulls as much as it pushes."
)
"""What has to be known to read times and bytes."""
