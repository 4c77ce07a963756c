"""The systems MP2, MIPD and Slim-DP beside dense training and reducers: the settings that their claims share.

Accuracy after so many steps does not depend on how fast a network is that loses nothing, where workers make their
steps together. So each arm is trained once for each seed, and `gradwire.pricing` says what its steps would take at
each rate: the packet simulator plays one with as many bytes as an arm's have in the mean. Where workers come one by
one, the order in which they come may depend on the rate. Here it does not: they compute for equally long, and take
turns at the server's link, so that they come in turn at every rate.
"""

from __future__ import annotations

from gradwire.analysis.claims.arms import COMPUTING
from gradwire.analysis.claims.claim import Claim, Expect, Setting
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.schema.policy import overlay

RATES = ("1Gbps", "10Gbps", "100Gbps")
TARGET, LONG_TARGET = 0.30, 0.70
"""Accuracies that times are to [ours]: some points below where dense training ends."""

SYSTEMS = "ResNet-8, 10,000 pictures, 3 epochs"
LONG_SYSTEMS = "ResNet-8, 50,000 pictures, 20 epochs"
CHECK = "ResNet-8, 20 steps, 1 Gbps"

_BASE: Json = {
    "transport": {"kind": "dctcp"},
    "training": {
        "network": "ideal", "batch": 16, "augment": True, "optimizer": {"rate": 0.2}, "model": "resnet8", "size": 16,
        "samples": 10_000, "epochs": 3.0, "score_every": 26,
    },
}  # fmt: skip
_LONG: Json = overlay(_BASE, {"training": {"samples": 50_000, "epochs": 20.0, "score_every": 400}})
_CHECK: Json = overlay(
    _BASE, {"training": {"data": "synthetic", "samples": 400, "epochs": 1.0, "steps": 20, "score_every": 1_000_000}}
)

REDUCERS = ("dense", "topk-ef", "dgc", "qsgd", "terngrad", "powersgd")


def settings(*arms: str) -> tuple[Setting, ...]:
    """The settings of a set's arms, short and long, beside dense training and reducers."""
    return tuple(
        Setting(
            name, "train-tiny", (*REDUCERS, *arms), changes, full_only, data="pictures", baseline="dense",
            target=target, rates=RATES, computing=COMPUTING,
        )
        for name, changes, full_only, target in (
            (SYSTEMS, _BASE, False, TARGET), (LONG_SYSTEMS, _LONG, True, LONG_TARGET),
        )
    )  # fmt: skip
