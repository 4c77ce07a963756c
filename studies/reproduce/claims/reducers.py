"""Reducers compared with GRACE's released results (Xu et al., ICDCS '21): ResNet-20, CIFAR-10, 8 workers [data].

Bytes are of the same network and directly comparable. Accuracies are theirs after a full training run of ResNet-20,
ours after a short one of a smaller net, and in full after 20 epochs of the same: only their order and large
differences are comparable.
"""

from __future__ import annotations

from gradwire.scenarios.json_data import Json
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claims.tolerance import (
    DEEP,
    LONG,
    PICTURES,
    RESNET8,
    RESNET8_LONG,
    RESNET20,
    accuracy_difference,
)

SOURCE = "[data] GRACE's released results, mostly single runs (half a point either way)"

STEP = "one step of ResNet-20 v2, 8 workers"
NETWORK: Json = {
    "training": {
        "model": "resnet20-v2",
        "data": "synthetic",
        "size": 8,
        "samples": 200,
        "batch": 2,
        "steps": 5,
        "network": "ideal",
        "augment": False,
        "score_every": 1_000_000,
    }
}
"""Bytes depend neither on the data nor on the size of pictures."""
PUBLISHED = {"lossless": 1_077_868, "topk": 21_680, "dgc": 23_909, "randomk": 10_840}
"""Bytes that a worker sends in a step, by arm; ratios of 1 %."""

G1 = Claim(
    "G1",
    SOURCE,
    "A worker sends as many bytes per step of ResNet-20 as in GRACE, to one percent.",
    "dense 1,077,868, Top-k 21,680, DGC 23,909, Random-k 10,840 bytes, ratios of 1 %",
    (Setting(STEP, "train-tiny", tuple(PUBLISHED), NETWORK),),
    tuple(
        Expect(
            f"bytes of {words} over theirs",
            lambda at, arm=arm: at(STEP, arm, "step_bytes") / PUBLISHED[arm],  # type: ignore[misc]
            (STEP,),
            0.99,
            1.01,
            condition=words,
        )
        for arm, words in (("lossless", "dense"), ("topk", "Top-k"), ("dgc", "DGC"), ("randomk", "Random-k"))
    ),
    "step_bytes",
    "Payload alone. The network is theirs with 10 outputs instead of 11, 269,402 parameters of 269,467; with 11 "
    "outputs all but DGC's bytes are equal. DGC sends values beyond a threshold, which it stops adapting between 0.8 "
    "and 1.3 times its target count: its bytes depend on the gradients.",
)

_ARMS = ("topk", "topk-ef", "dgc", "sgd", "randomk", "randomk-ef")


def _setting(name: str, changes: Json, full_only: bool) -> Setting:
    return Setting(name, "train-tiny", ("lossless", *_ARMS), changes, full_only, data="pictures", baseline="lossless")


_SETTINGS = (_setting(PICTURES, RESNET8, False), _setting(LONG, RESNET8_LONG, True), _setting(DEEP, RESNET20, True))


def _each(rows: tuple[tuple[str, str, str, float | None, float | None, str], ...]) -> tuple[Expect, ...]:
    return tuple(
        accuracy_difference(setting, arm, other, words, low, high, condition)
        for setting in (PICTURES, LONG, DEEP)
        for arm, other, words, low, high, condition in rows
    )


G2 = Claim(
    "G2",
    SOURCE,
    "Sending the largest percent of the gradients costs no accuracy if the rest is kept for later, and several points "
    "if it is dropped.",
    "Top-k 1 %: 90.97 % with and 84.77 % without error feedback, dense 90.97 %",
    _SETTINGS,
    _each(
        (
            ("topk-ef", "topk", "error feedback, less that without", 0.0, None, "feedback helps"),
            ("topk", "lossless", "Top-k without feedback, less that of dense", None, -0.03, "lower without"),
            ("topk-ef", "lossless", "Top-k with feedback, less that of dense", -0.03, None, "close with"),
        )
    ),
    "accuracy",
    "The limit of 3 points is ours: in a short training run much of the rest has not been sent by the end.",
)

G3 = Claim(
    "G3",
    SOURCE,
    "A random percent of the gradients learns with error feedback, and collapses without it.",
    "Random-k 1 %, SGD without momentum: 88.25 % with and 55.39 % without error feedback, dense 89.13 %",
    _SETTINGS,
    _each(
        (
            ("randomk", "sgd", "Random-k without feedback, less that of dense", None, -0.10, "collapses without"),
            ("randomk-ef", "randomk", "error feedback, less that without", 0.0, None, "feedback helps"),
        )
    ),
    "accuracy",
    "Without momentum, like theirs; the limit of 10 points is ours.",
)

G4 = Claim(
    "G4",
    SOURCE,
    "Deep gradient compression to one percent comes close to dense gradients.",
    "DGC 1 %, 90.69 %; dense 90.97 % with momentum and 89.13 % without",
    _SETTINGS,
    _each((("dgc", "lossless", "DGC, less that of dense", -0.03, None, "close"),)),
    "accuracy",
    "The limit of 3 points is ours. No warm-up.",
)

CLAIMS = [G1, G2, G3, G4]
