"""MP2 (Computer Networks 255, 2024, 110883) compared with its abstract; only its abstract is public."""

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

_SETTINGS = settings("mp2", "mp2-both", "mp2-none", "wnn")
SOURCE = "[abstract]; limits [ours]"

M1 = Claim(
    "M1",
    SOURCE,
    "Pushing some of the parameters and predicting the others saves most of the traffic.",
    "traffic up to -88.98 %",
    _SETTINGS,
    (
        *share_saved("mp2", "dense", "step_bytes", "pushed bytes saved", 0.8, condition="pushed"),
        *share_saved("mp2", "dense", "traffic", "bytes saved, both ways", 0.8, condition="server predicts"),
        *share_saved("mp2-both", "dense", "traffic", "bytes saved, both ways", 0.8, condition="workers predict too"),
    ),
    "accuracy",
    "An eighth of the parameters is pushed, all of them every 50 steps, and biases and normalisations always. If only "
    "the server predicts, all parameters are pulled, so at most half of the traffic can be saved: the published figure "
    "must cover pushes only, or workers predict as well.",
)
M2 = Claim(
    "M2",
    SOURCE,
    "It reaches an accuracy faster than dense training.",
    "training up to 47.32 % faster",
    _SETTINGS,
    (
        *faster("mp2", "dense", "time to the accuracy saved"),
        *faster("mp2-both", "dense", "time to the accuracy saved, workers predict too"),
    ),
    "to_1Gbps",
    TIMES_REMARK,
)
M3 = Claim(
    "M3",
    SOURCE,
    "It loses no accuracy.",
    "no accuracy loss",
    _SETTINGS,
    points("mp2", "dense", "MP2, less that of dense", low=-POINT),
    "accuracy",
)
M4 = Claim(
    "M4",
    SOURCE,
    "It beats Top-k, DGC and weight nowcasting, because of the prediction.",
    "against Baseline, Top-k, DGC and WNN; figures not public",
    _SETTINGS,
    (
        *points("mp2", "topk-ef", "MP2, less that of Top-k", low=0.0, condition="Top-k"),
        *points("mp2", "dgc", "MP2, less that of DGC", low=0.0, condition="DGC"),
        *points("mp2", "wnn", "MP2, less that of weight nowcasting", low=0.0, condition="weight nowcasting"),
        *points("mp2", "mp2-none", "MP2, less that without prediction", low=0.0, condition="prediction"),
    ),
    "accuracy",
    "Without prediction, parameters that are not pushed stay unchanged, and workers keep their momentum. Weight "
    "nowcasting sends as much as dense training; it jumps every 65 steps, while its authors use 5 epochs.",
)
M5 = tried_settings("M5", "MP2", "mp2", ("mp2-often",))
CLAIMS = [M1, M2, M3, M4, M5, CLOCK_CLAIM]
