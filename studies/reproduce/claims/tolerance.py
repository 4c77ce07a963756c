"""Tolerance of lost gradients, by how many, which and where: shape checks S6 and S7, and claims of ours.

Figures are differences of accuracy, or of loss, between training runs with the same initial parameters, order of data
and, if both lose something, random streams. Limits in points are ours: the papers say "unchanged".
"""

from __future__ import annotations

from typing import Literal

from gradwire.scenarios.json_data import Json
from gradwire.scenarios.readable import exact_percent_text
from gradwire.studies.reproduce.claim import Claim, Expect, Setting, difference
from gradwire.studies.reproduce.variants import FILLS, SHARES

POINT = 0.01
"""Largest difference that counts as "unchanged": a point of accuracy [ours]."""

PICTURES = "ResNet-8, 10,000 pictures, 3 epochs"
LONG = "ResNet-8, 50,000 pictures, 6 epochs"
DEEP = "ResNet-20, 50,000 pictures, 20 epochs"
VGG = "VGG-11 at a quarter of its width, 10,000 pictures, 1 epoch"
VGG_LONG = "VGG-11 at a quarter of its width, 50,000 pictures, 6 epochs"
TEXT = "LSTM of characters, 300 steps"
GPT = "GPT of two layers, 180 steps"
GPT_LONG = "GPT of two layers, 3,000 steps"
LONG_TEXT = "LSTM of characters, 3,000 steps"

_BASE: Json = {"network": "ideal", "batch": 16, "augment": True, "score_every": 1_000_000, "optimizer": {"rate": 0.2}}
CHECKPOINTS = 500
"""Steps between checkpoints of a long training run; a short one is restarted."""
PAYLOAD: Json = {"transport": {"kind": "dctcp", "payload": "512B"}}
"""Small packets: nets this small then have as many as real ones have of 4096 bytes."""


def _training(**more: object) -> Json:
    return {**PAYLOAD, "training": {**_BASE, **more}}


RESNET8 = _training(model="resnet8", size=16, samples=10_000, epochs=3.0)
RESNET8_LONG = _training(model="resnet8", size=16, samples=50_000, epochs=6.0, score_every=CHECKPOINTS)
RESNET20 = _training(
    model="resnet20", size=32, samples=50_000, epochs=20.0, score_every=CHECKPOINTS, precision="bfloat16"
)
_VGG_RECIPE: Json = {"rate": 0.1}
VGG11 = _training(model="vgg11-quarter", size=32, samples=10_000, epochs=1.0, optimizer=_VGG_RECIPE)
VGG11_LONG = _training(
    model="vgg11-quarter", size=32, samples=50_000, epochs=6.0, optimizer=_VGG_RECIPE, score_every=CHECKPOINTS
)
_TEXT_RECIPE: Json = {"rate": 2.0, "clip": 1.0, "weight_decay": 0.0}
LSTM = _training(model="char-lstm", size=32, batch=8, steps=300, optimizer=_TEXT_RECIPE)
LSTM_LONG = _training(model="char-lstm", size=32, batch=8, steps=3000, optimizer=_TEXT_RECIPE, score_every=CHECKPOINTS)
_GPT_RECIPE: Json = {"rate": 0.5, "clip": 1.0, "weight_decay": 0.0}
CHAR_GPT = _training(model="char-gpt", size=32, batch=8, steps=180, optimizer=_GPT_RECIPE)
CHAR_GPT_LONG = _training(
    model="char-gpt", size=32, batch=8, steps=3000, optimizer=_GPT_RECIPE, score_every=CHECKPOINTS
)

ARMS_OF_S6 = ("lossless", *(f"p{share:g}" for share in SHARES))


def pictures(*arms: str, full_only: bool = False) -> Setting:
    """Return the short or long setting on pictures, with these arms and the lossless one."""
    name, changes = (LONG, RESNET8_LONG) if full_only else (PICTURES, RESNET8)
    return Setting(name, "train-tiny", ("lossless", *arms), changes, full_only, data="pictures", baseline="lossless")


def _text(*arms: str, full_only: bool = False) -> Setting:
    name, changes = (LONG_TEXT, LSTM_LONG) if full_only else (TEXT, LSTM)
    return Setting(name, "train-tiny", ("lossless", *arms), changes, full_only, data="text", baseline="lossless")


def accuracy_difference(
    setting: str,
    policy: str,
    other: str,
    what: str,
    low: float | None = None,
    high: float | None = None,
    condition: str = "",
) -> Expect:
    """Return a difference of accuracy between two arms of a setting, judged by its interval."""
    return Expect(
        f"accuracy with {what}",
        difference(setting, policy, other),
        (setting,),
        low,
        high,
        "points",
        f"{condition}, {setting}" if condition else setting,
        interval=True,
    )


def _by_share(setting: str, flat: tuple[float, ...], slower: tuple[float, ...]) -> tuple[Expect, ...]:
    limits = [(p, -POINT, None, "is harmless") for p in flat] + [(p, None, 0.0, "is slower") for p in slower]
    return tuple(
        accuracy_difference(
            setting, f"p{p:g}", "lossless", f"{share} lost, less that without", low, high, f"{share} {words}"
        )
        for p, low, high, words in limits
        for share in (exact_percent_text(p),)
    )


def _family(name: str, changes: Json, data: Literal["pictures", "text"], full_only: bool) -> Setting:
    """Return the setting of another family of networks."""
    return Setting(name, "train-tiny", ARMS_OF_S6, changes, full_only, data=data, baseline="lossless")


_FAMILIES = (
    _family(VGG, VGG11, "pictures", False),
    _family(GPT, CHAR_GPT, "text", False),
    _family(VGG_LONG, VGG11_LONG, "pictures", True),
    _family(GPT_LONG, CHAR_GPT_LONG, "text", True),
)
_FAMILY_NAMES = tuple(family.name for family in _FAMILIES)

S6 = Claim(
    "S6",
    "[notes] on DLCP's and MLT's profiles, and on APNet '19; a point as the limit [ours]",
    "Losing a few percent of the gradients at random leaves accuracy unchanged; 10 % still reach the same accuracy, 20 "
    "to 30 % need more steps.",
    "bounds of 0.6 to 3.5 % by model leave accuracy and rounds unchanged; 10 % fine with more rounds, "
    "20 to 30 % need more epochs",
    (
        pictures(*ARMS_OF_S6[1:]),
        _text(*ARMS_OF_S6[1:]),
        pictures(*ARMS_OF_S6[1:], full_only=True),
        _text(*ARMS_OF_S6[1:], full_only=True),
        *_FAMILIES,
        Setting(DEEP, "train-tiny", ("lossless", "p0.1", "p0.3"), RESNET20, True, data="pictures", baseline="lossless"),
    ),
    (
        *(
            expect
            for name in (PICTURES, TEXT, *_FAMILY_NAMES, LONG, LONG_TEXT)
            for expect in _by_share(name, (0.01, 0.03, 0.1), (0.2, 0.3))
        ),
        *_by_share(DEEP, (0.1,), (0.3,)),
    ),
    "accuracy",
    "Accuracy after a fixed number of steps, far from convergence in the short settings: slower learning shows there "
    "as lower accuracy. Packets hold 512 bytes, so that these small nets have some hundreds of them.",
)


def _pairs(pairs: tuple[tuple[str, str, str, str], ...]) -> tuple[Expect, ...]:
    """Return expectations for (better, worse, words, condition), in the short and in the long setting."""
    return tuple(
        accuracy_difference(setting, better, worse, what, low=0.0, condition=condition)
        for setting in (PICTURES, LONG)
        for better, worse, what, condition in pairs
    )


_OF_S7 = ("front", "back", "few-back", "small", "large", "p0.2")
S7 = Claim(
    "S7",
    "[notes] on DLCP's observations 2a and 2b",
    "Front layers tolerate more loss than back layers, and small gradients far more than large ones.",
    "1.1 % in front, 0.4 % in the back; small 1.6 % and more, large 0.1 %",
    (pictures(*_OF_S7), pictures(*_OF_S7, full_only=True)),
    _pairs(
        (
            ("front", "back", "50 % lost in front, less that with 50 % lost in the back", "layers, same share"),
            (
                "front",
                "few-back",
                "50 % lost in front, less that with as many packets lost in the back",
                "layers, as many",
            ),
            ("small", "large", "20 % lost of the smaller half, less that of the larger half", "magnitudes"),
        )
    ),
    "accuracy",
    "The back half of the layers has 87 % of the parameters: half of the packets in front are 6.5 % of all, half of "
    "those in the back 43 %. By magnitude, both arms lose a fifth of all packets.",
)

T1 = Claim(
    "T1",
    "[ours]; that tolerance was profiled by independent losses [notes]",
    "Losses in runs of packets cost no more than the same share of independent losses.",
    "nothing published",
    (pictures("p0.2", "bursts"), pictures("p0.2", "bursts", full_only=True)),
    tuple(
        accuracy_difference(
            setting, "bursts", "p0.2", "20 % lost in runs of 16, less that with 20 % independently", low=-POINT
        )
        for setting in (PICTURES, LONG)
    ),
    "accuracy",
)

T2 = Claim(
    "T2",
    "[notes] on an independent group's measurement of eager Stop",
    "A receiver that stops an in-order sender always lacks the same tail, which costs more than varying losses of the "
    "same size.",
    "eager Stop spends the whole bound, always on the same tail; no accuracy published",
    (pictures("exactly", "tail"), _text("tail"), pictures("exactly", "tail", full_only=True)),
    (
        *_pairs((("exactly", "tail", "20 % lost anywhere, less that with the last 20 % lost", "rotating"),)),
        accuracy_difference(
            TEXT, "tail", "lossless", "the last 20 % lost, less that without", high=0.0, condition="tail"
        ),
    ),
    "accuracy",
)

_GATHERED = ("gather-zero", "gather-stale")
_RING = (*(f"{where}-{fill}" for where in ("even", "scatter", "one") for fill in FILLS), *_GATHERED, "gather-resync")
_QUICK_RING = (
    "even-zero",
    "even-rescaled",
    "scatter-zero",
    "scatter-rescaled",
    "scatter-stale",
    "one-zero",
    "one-rescaled",
    *_GATHERED,
    "gather-resync",
)
_UNEVEN = (
    ("even-{0}", "scatter-{0}", "5 % lost everywhere, less that with all of it in reduce-scatter, {0}"),
    ("even-{0}", "one-{0}", "5 % lost everywhere, less that with all of it behind one worker, {0}"),
)
T3 = Claim(
    "T3",
    "[ours]; nobody has published it",
    "In a ring the place of losses matters: evenly spread ones are better than all in reduce-scatter, where every loss "
    "affects a sum, or all behind one worker.",
    "nothing published",
    (pictures(*_QUICK_RING), pictures(*_RING, full_only=True)),
    _pairs(
        tuple(
            (good.format(fill), bad.format(fill), words.format(fill), f"{fill}: {bad.partition('-')[0]}")
            for fill in ("zero", "rescaled")
            for good, bad, words in _UNEVEN
        )
    ),
    "accuracy",
    "5 % of all packets of the ring are lost in each arm: 10 % on half of the hops, or 40 % behind one worker of "
    "eight. Sums lost in the all-gather cannot be rescaled: the last step's mean is kept.",
)

T4 = Claim(
    "T4",
    "[ours]; [notes] on the options for a ring",
    "The replacement of a lost sum matters: dividing by the number of included workers is better than zero.",
    "no measurement published",
    (pictures(*_QUICK_RING), pictures(*_RING, full_only=True)),
    _pairs(
        (
            ("scatter-rescaled", "scatter-zero", "rescaled, less that with zero", "reduce-scatter"),
            ("even-rescaled", "even-zero", "rescaled, less that with zero", "everywhere"),
            ("one-rescaled", "one-zero", "rescaled, less that with zero", "behind one worker"),
            ("gather-stale", "gather-zero", "the last step's mean, less that with zero", "all-gather"),
        )
    ),
    "accuracy",
    "In the all-gather workers get different means and drift apart; the measures include the distance.",
)

T5 = Claim(
    "T5",
    "[ours], said after the first runs for T3",
    "Losses in the all-gather of gradients cost more than losses in the reduce-scatter, because workers with different "
    "means drift apart; resynchronising them helps.",
    "nothing published",
    (pictures(*_QUICK_RING), pictures(*_RING, full_only=True)),
    _pairs(
        (
            ("scatter-zero", "gather-zero", "10 % lost in reduce-scatter, less that in all-gather, zero", "zero"),
            ("scatter-stale", "gather-stale", "10 % lost in reduce-scatter, less that in all-gather, stale", "stale"),
            ("gather-resync", "gather-stale", "workers brought together every 20 steps, less that without", "together"),
        )
    ),
    "accuracy",
    "Accuracy is the mean over the workers, each with its own parameters. Resynchronisation is one more all-reduce "
    "every 20 steps.",
)

CLAIMS = [S6, S7, T1, T2, T3, T4, T5]
