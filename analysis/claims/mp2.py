"""MP2 (Computer Networks 255, 2024, 110883) beside its abstract, of which alone is public what it claims."""

from __future__ import annotations

from gradwire.analysis.claims.claim import Claim
from gradwire.analysis.claims.systems import HOW, C, faster, points, settings, share_saved, tried
from gradwire.analysis.claims.tolerance import POINT

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
    "An eighth of the parameters is pushed, all of them every 50 steps, and biases and normalisations always. With a "
    "server that predicts alone all parameters come back, so that no more than half of both ways can be saved: the "
    "published figure must be of what is pushed, or workers predict as well.",
)
M2 = Claim(
    "M2",
    SOURCE,
    "It comes to an accuracy faster than dense training.",
    "training up to 47.32 % faster",
    _SETTINGS,
    (
        *faster("mp2", "dense", "time to the accuracy saved"),
        *faster("mp2-both", "dense", "time to the accuracy saved, workers predict too"),
    ),
    "to_1Gbps",
    HOW,
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
    "It beats Top-k, DGC and weight nowcasting, and prediction is what does it.",
    "against Baseline, Top-k, DGC and WNN; figures not public",
    _SETTINGS,
    (
        *points("mp2", "topk-ef", "MP2, less that of Top-k", low=0.0, condition="Top-k"),
        *points("mp2", "dgc", "MP2, less that of DGC", low=0.0, condition="DGC"),
        *points("mp2", "wnn", "MP2, less that of weight nowcasting", low=0.0, condition="weight nowcasting"),
        *points("mp2", "mp2-none", "MP2, less that without prediction", low=0.0, condition="prediction"),
    ),
    "accuracy",
    "Without prediction what is not pushed stays where it is, and workers keep their momentum. Weight nowcasting sends "
    "as much as dense training; it jumps after every 65 steps, where its authors have 5 epochs.",
)
M5 = tried("M5", "MP2", "mp2", ("mp2-often",))
CLAIMS = [M1, M2, M3, M4, M5, C]
