"""Shared settings of the claims on MP2, MIPD and Slim-DP, compared with dense training and reducers.

Accuracy after a number of steps does not depend on the speed of a lossless network if workers make their steps
together. So each arm is trained once for each seed, and `gradwire.studies.training.step_time_model` computes step times
at each rate: the packet simulator runs some steps with the arm's mean bytes. With asynchronous workers their order may
depend on the rate, with little effect: they compute equally long, so each is as many updates behind as there are
others, at every rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay
from gradwire.studies.reproduce.claim import At, Claim, Expect, Setting
from gradwire.studies.reproduce.claims.tolerance import POINT, accuracy_difference
from gradwire.studies.reproduce.measures import RATES
from gradwire.studies.reproduce.variants import COMPUTING, label_of

TARGET, LONG_TARGET = 0.25, 0.70
"""Target accuracies [ours]: three fifths of dense training's final accuracy, which most others reach."""

SYSTEMS = "ResNet-8, 10,000 pictures, 2 epochs"
LONG_SYSTEMS = "ResNet-8, 50,000 pictures, 20 epochs"
CHECK = "ResNet-8, 20 steps, 1 Gbps"
CHECK_ASYNCHRONOUS = "ResNet-8, 60 steps of workers that come one by one, 1 Gbps"

# Buffers hold a step of all workers, so nothing is dropped; connections are persistent, with Linux's minimum time-out.
# A step's time is then a matter of its bytes; other claims cover time-outs.
_BASE: Json = {
    "transport": {"kind": "dctcp", "connections": "persistent", "min_rto": "200ms"},
    "switch": {"buffer": "4MiB"},
    "training": {
        "network": "ideal",
        "batch": 16,
        "augment": True,
        "optimizer": {"rate": 0.2},
        "model": "resnet8",
        "size": 16,
        "samples": 10_000,
        "epochs": 2.0,
        "score_every": 26,
    },
}
_LONG: Json = overlay(_BASE, {"training": {"samples": 50_000, "epochs": 20.0, "score_every": 400}})
_CHECK: Json = overlay(
    _BASE,
    {
        "training": {
            "data": "synthetic",
            "samples": 400,
            "epochs": 1.0,
            "steps": 20,
            "score_every": 1_000_000,
            "checkpoint_every": 1_000_000,
        }
    },
)
_CHECK_TURNS: Json = overlay(_CHECK, {"training": {"steps": 60}})

REDUCERS = ("dense", "topk-ef", "dgc", "qsgd", "terngrad", "powersgd")


def settings(*arms: str) -> tuple[Setting, ...]:
    """Return the settings of a set's arms, short and long, with dense training and reducers."""
    return tuple(
        Setting(
            name,
            "train-tiny",
            (*REDUCERS, *arms),
            changes,
            full_only,
            data="pictures",
            baseline="dense",
            target=target,
            rates=RATES,
            computing=COMPUTING,
            shown="accuracy",
        )
        for name, changes, full_only, target in (
            (SYSTEMS, _BASE, False, TARGET),
            (LONG_SYSTEMS, _LONG, True, LONG_TARGET),
        )
    )


def points(
    arm: str, other: str, what: str, low: float | None = None, high: float | None = None, condition: str = ""
) -> tuple[Expect, ...]:
    """Return a difference of accuracy, judged by its interval, in the short and in the long setting."""
    return tuple(accuracy_difference(name, arm, other, what, low, high, condition) for name in (SYSTEMS, LONG_SYSTEMS))


OTHERS = "other settings, less that of dense"


def tried_settings(id_: str, name: str, first: str, arms: tuple[str, ...]) -> Claim:
    """Return a claim about other settings of ours than the defaults. Each should be within a point of dense training if
    the default settings are to blame."""
    return Claim(
        id_,
        "[ours]; papers' settings are not public",
        f"Other settings of {name} come within a point of dense training.",
        "nothing published",
        settings(first, *arms)[:1],
        tuple(accuracy_difference(SYSTEMS, arm, "dense", OTHERS, -POINT, None, label_of(arm)) for arm in arms),
        "accuracy",
        "One thing is changed at a time.",
    )


def share_saved(
    arm: str,
    over: str,
    measure: str,
    what: str,
    low: float | None = None,
    high: float | None = None,
    condition: str = "",
) -> tuple[Expect, ...]:
    """Return the share of another arm's cost that is saved, in the short and in the long setting."""
    return tuple(
        Expect(
            what,
            saved_or_not(name, arm, over, measure),
            (name,),
            low,
            high,
            "share",
            f"{condition}, {name}" if condition else name,
        )
        for name in (SYSTEMS, LONG_SYSTEMS)
    )


def saved_or_not(setting: str, arm: str, over: str, measure: str) -> Callable[[At], float]:
    """Return the share of another arm's figure that is saved. It is minus infinity if only the other arm reaches the
    accuracy, and zero if neither does."""

    def value(at: At) -> float:
        mine, theirs = at(setting, arm, measure), at(setting, over, measure)
        if isinf(mine) and isinf(theirs):
            return 0.0
        return 1.0 if isinf(theirs) else 1 - mine / theirs

    return value


def faster(arm: str, over: str, what: str, low: float = 0.0, worked: bool = False) -> tuple[Expect, ...]:
    """Return the share of another arm's time to the accuracy that is saved, at each rate."""
    name = "worked" if worked else "to"
    return tuple(
        expect
        for rate in RATES
        for expect in share_saved(arm, over, f"{name}_{rate}", what, low, condition=f"{rate.removesuffix('Gbps')} Gbps")
    )


CHECKED = {
    "dense": ("dense training", 0.001),
    "slimdp": ("Slim-DP", 0.1),
    "topk": ("Top-k, 1 %", 0.1),
    "terngrad": ("TernGrad", 0.1),
}
CHECKED_ASYNCHRONOUS = {"asynchronous": ("the asynchronous server", 0.01), "mipd": ("MIPD", 0.1)}
"""Arms whose computed clocks are compared with training over the simulator: label, and permitted deviation."""


def _check(name: str, arms: Mapping[str, tuple[str, float]], changes: Json, computing: str) -> Setting:
    policies = tuple(f"{arm}{end}" for end in ("", "-simulated") for arm in arms)
    return Setting(name, "train-tiny", policies, changes, rates=("1Gbps",), computing=computing)


CLOCK_CLAIM = Claim(
    "C",
    "[ours], a check of the computed times",
    "A training run over the packet simulator has the clock that is computed from its bytes.",
    "nothing published",
    (_check(CHECK, CHECKED, _CHECK, "0ps"), _check(CHECK_ASYNCHRONOUS, CHECKED_ASYNCHRONOUS, _CHECK_TURNS, COMPUTING)),
    tuple(
        Expect(
            f"simulated time of a step of {words}, over what is worked out",
            lambda at, name=name, arm=arm: at(name, f"{arm}-simulated", "clock") / at(name, arm, "step_1Gbps"),  # type: ignore[misc]
            (name,),
            1 - most,
            1 + most,
            condition=words,
        )
        for name, arms in ((CHECK, CHECKED), (CHECK_ASYNCHRONOUS, CHECKED_ASYNCHRONOUS))
        for arm, (words, most) in arms.items()
    ),
    "clock",
    "Without computing, except for asynchronous workers. The computed time is the mean of 20 steps, or of 60, with as "
    "many bytes, in one message per tensor, like dense training. Slim-DP sends three per tensor, and more bytes for a "
    "new core, MIPD two, and both send more at first; the bytes that Top-k pulls depend on its workers' indices, per "
    "tensor: their limits are wider.",
)
TIMES_REMARK = (
    f"Times are {COMPUTING} of computing plus the packet simulator's time for a step's mean bytes on eight workers and "
    "one server, in sequence. Servers send parameters, or a mean gradient in its shortest exact form; dense training "
    "pulls as much as it pushes."
)
"""Remark on how times and bytes are computed."""
