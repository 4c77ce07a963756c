"""Slim-DP (Sun et al., arXiv 1709.09393; AAMAS '18) compared with its abstract."""

from __future__ import annotations

from gradwire.studies.reproduce.claim import Claim
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

_SETTINGS = settings("slimdp", "slimdp-core", "slimdp-explorer")
SOURCE = "[abstract]; shares [recalled]; limits [ours]"

P1 = Claim(
    "P1",
    SOURCE,
    "Pushing and pulling a part of the parameters learns as well as all of them.",
    "no accuracy loss at 45 % of the bytes",
    _SETTINGS,
    points("slimdp", "dense", "Slim-DP, less that of dense", low=-POINT),
    "accuracy",
)
P2 = Claim(
    "P2",
    "[derived] 4 beta n + 8 (alpha - beta) n bytes each way",
    "With 30 % of the parameters, half of them core, 45 % of the bytes remain.",
    "45 % of dense",
    _SETTINGS,
    share_saved("slimdp", "dense", "traffic", "bytes saved, both ways", 0.53, 0.57),
    "accuracy",
    "New cores transmit their indices, once in 20 steps.",
)
P3 = Claim(
    "P3",
    SOURCE,
    "Both parts are needed: a core alone loses accuracy, and an explorer alone learns more slowly.",
    "[notes] core only loses accuracy; random only is slower",
    _SETTINGS,
    (
        *points("slimdp", "slimdp-core", "both, less that of a core alone", low=0.0, condition="core alone"),
        *points("slimdp", "slimdp-explorer", "both, less that of an explorer alone", 0.0, condition="explorer alone"),
    ),
    "accuracy",
    "Explorers alone also transmit 30 % of the indices, and so twice the bytes.",
)
P4 = Claim(
    "P4",
    SOURCE,
    "It reaches an accuracy faster than dense and than quantised training.",
    "better acceleration than plain data parallelism and its quantised version",
    _SETTINGS,
    (
        *faster("slimdp", "dense", "time to the accuracy saved, against dense"),
        *faster("slimdp", "qsgd", "time to the accuracy saved, against QSGD"),
    ),
    "to_1Gbps",
    TIMES_REMARK,
)
P5 = tried_settings("P5", "Slim-DP", "slimdp", ("slimdp-half",))
CLAIMS = [P1, P2, P3, P4, P5, CLOCK_CLAIM]
