"""MIPD (Zhang and Wang, IEEE TPDS 33(11), 2022) compared with its abstract; only its abstract is public."""

from __future__ import annotations

from gradwire.scenarios.json_data import Json
from gradwire.studies.reproduce.claim import Claim, Expect, Setting, saved
from gradwire.studies.reproduce.claims.tolerance import POINT
from gradwire.studies.reproduce.system_settings import (
    CLOCK_CLAIM,
    TIMES_REMARK,
    faster,
    points,
    settings,
    share_saved,
    tried_settings,
)

_SETTINGS = settings("asynchronous", "mipd", "mipd-all", "mipd-magnitude", "mipd-unsmoothed")
SOURCE = "[abstract]; limits [ours]"
IN_TURN = (
    " Asynchronous workers compute equally long, and push and pull one by one; the mean is over 60 steps with as many "
    "pushes each as there are workers."
)

SERVER, SAVED = "ResNet-18, 4 steps", "processor time of the server saved"
_SERVER: Json = {
    "training": {
        "model": "resnet18",
        "data": "synthetic",
        "size": 32,
        "samples": 200,
        "batch": 2,
        "steps": 4,
        "augment": False,
        "network": "ideal",
        "score_every": 1_000_000,
    }
}

I1 = Claim(
    "I1",
    SOURCE,
    "It reaches an accuracy faster than an asynchronous server with dense gradients, and than Top-k.",
    "training up to 36.2 % faster",
    _SETTINGS,
    (
        *faster("mipd", "asynchronous", "time to the accuracy saved"),
        *faster("mipd", "topk-ef", "time to the accuracy saved, against Top-k"),
    ),
    "to_1Gbps",
    TIMES_REMARK + IN_TURN,
)
I2 = Claim(
    "I2",
    SOURCE,
    "Updating half of the parameters per push reduces the server's work.",
    "server CPU up to -42.0 %",
    (*_SETTINGS, Setting(SERVER, "train-tiny", ("asynchronous", "mipd-cold"), _SERVER, rates=("10Gbps",))),
    (
        *share_saved("mipd", "asynchronous", "server", SAVED, 0.2, condition="small net"),
        Expect(
            SAVED,
            saved(SERVER, "mipd-cold", "asynchronous", "server"),
            (SERVER,),
            0.2,
            unit="share",
            condition="large net",
        ),
    ),
    "accuracy",
    "Time of decoding, updating and copying pulled values, in torch on one thread. A net of 75,290 parameters takes a "
    "server tens of small operations, whose number matters and not their size; ResNet-18 has 11.2 million parameters.",
)
I3 = Claim(
    "I3",
    SOURCE,
    "It sends less.",
    "network -32.7 %",
    _SETTINGS,
    (
        *share_saved("mipd", "asynchronous", "traffic", "bytes saved, both ways", 0.327, condition="both ways"),
        *share_saved("mipd", "asynchronous", "step_bytes", "pushed bytes saved", 0.327, condition="pushed"),
    ),
    "accuracy",
)
I4 = Claim(
    "I4",
    SOURCE,
    "It loses no accuracy against dense gradients, asynchronous or not.",
    "nothing said of a loss",
    _SETTINGS,
    (
        *points("mipd", "asynchronous", "MIPD, less that of the asynchronous server", -POINT, condition="asynchronous"),
        *points("asynchronous", "dense", "the asynchronous server, less that of dense", -POINT, condition="order"),
        *points("mipd-all", "mipd", "all parameters updated, less that of half", low=0.0, condition="halves cost"),
    ),
    "accuracy",
)
I5 = Claim(
    "I5",
    SOURCE,
    "Significance by |w g| is better than by magnitude, smoothing is better than none, and both are better than Top-k.",
    "better than magnitude-based sparsification; figures not public",
    _SETTINGS,
    (
        *points("mipd", "mipd-magnitude", "|w g|, less that by magnitude", low=0.0, condition="significance"),
        *points("mipd", "mipd-unsmoothed", "smoothing, less that without", low=0.0, condition="smoothing"),
        *points("mipd", "topk-ef", "MIPD, less that of Top-k", low=0.0, condition="Top-k"),
    ),
    "accuracy",
)
I6 = tried_settings("I6", "MIPD", "mipd", ("mipd-most",))
CLAIMS = [I1, I2, I3, I4, I5, I6, CLOCK_CLAIM]
