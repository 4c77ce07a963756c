"""Bytes of a step of ResNet-20, derived from its table of layers alone, beside those that are sent and those published.

Published: GRACE's released results (ResNet-20, CIFAR-10, 8 workers, ratios of 1 %), bytes of a worker and step.
"""

from __future__ import annotations

import math
import struct

import pytest

torch = pytest.importorskip("torch")

from reducer_cases import drawn  # noqa: E402

from gradwire.traces.models import find_model  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import tensors_of  # noqa: E402

PUBLISHED = {"none": 1_077_868, "topk": 21_680, "randomk": 10_840}


def by_hand() -> list[int]:
    """Sizes of the tensors: three stages of three blocks of two convolutions (He et al. 2016, shortcuts without parameters), each
    with a batch norm, after a first one; a linear layer of 64 to 10."""
    sizes, width = [16 * 3 * 9, 16, 16], 16
    for stage in (16, 32, 64):
        for _ in range(6):
            sizes += [stage * width * 9, stage, stage]
            width = stage
    return [*sizes, 10 * 64, 10]


def theirs_by_hand() -> list[int]:
    """The same of their network (`resnet20_v2` of tf_cnn_benchmarks), with its 11 outputs: a norm that shifts before each block's
    first convolution and behind the last block, and one that scales and shifts before each second."""
    sizes, width = [16 * 3 * 9, 16, 16], 16
    for stage in (16, 32, 64):
        for _ in range(3):
            sizes += [width, stage * width * 9, stage, stage, stage * stage * 9]
            width = stage
    return [*sizes, 64, 11 * 64, 11]


def serialised(kind: str, sizes: list[int]) -> int:
    """Length of what one worker sends: a percent of each tensor, rounded down, at least one element; places of four bytes."""
    value, place = struct.calcsize("<f"), struct.calcsize("<i")
    of = {
        "none": lambda n: value * n,
        "topk": lambda n: (value + place) * max(1, n // 100),
        "randomk": lambda n: value * max(1, n // 100),
    }
    return sum(of[kind](n) for n in sizes)


def sent_by(reducer: Reducer, model: str = "resnet20", outputs: int = 10) -> int:
    infos = tensors_of(find_model(model).build(outputs))
    gradients = [drawn(info.shape, at) for at, info in enumerate(infos)]
    _, sent = Exchange(reducer, infos, 1).step([gradients], 0)
    return sent.nbytes[0]


def test_resnet20_layer_sizes_match_hand_computation() -> None:
    assert [info.numel for info in tensors_of(find_model("resnet20").build(10))] == by_hand()
    assert sum(by_hand()) == 269_722 and len(by_hand()) == 59


@pytest.mark.parametrize("reducer", [Dense(), TopK(ratio=0.01), RandomK(ratio=0.01)], ids=["none", "topk", "randomk"])
def test_sent_bytes_match_hand_count_and_published_within_one_percent(reducer: Reducer) -> None:
    mine = sent_by(reducer)
    assert mine == serialised(reducer.kind, by_hand())
    assert mine == pytest.approx(PUBLISHED[reducer.kind], rel=0.01)


def test_resnet20_v2_layer_sizes_match_hand_computation() -> None:
    assert [info.numel for info in tensors_of(find_model("resnet20-v2").build(11))] == theirs_by_hand()
    assert 4 * sum(theirs_by_hand()) == PUBLISHED["none"]


@pytest.mark.parametrize("reducer", [Dense(), TopK(ratio=0.01), RandomK(ratio=0.01)], ids=["none", "topk", "randomk"])
def test_sent_bytes_of_resnet20_v2_equal_published_bytes(reducer: Reducer) -> None:
    assert sent_by(reducer, "resnet20-v2", 11) == serialised(reducer.kind, theirs_by_hand()) == PUBLISHED[reducer.kind]


def test_dgc_bytes_are_within_threshold_tolerance() -> None:
    """DGC sends 0.8 to 1.3 times its target per tensor, both in the published results and here."""
    aimed = [max(1, n // 100) for n in by_hand()]
    least, most = sum(8 * math.ceil(0.8 * n) for n in aimed), sum(8 * math.floor(1.3 * n) for n in aimed)
    assert least <= 23_909 <= most and least <= sent_by(DGC(ratio=0.01)) <= most


@pytest.mark.parametrize(("reducer", "expected"), [
    (Half(), 538_804), (SignSGD(scale="none"), 33_676), (SignSGD(), 33_900), (TernGrad(), 67_599), (QSGD(), 277_994),
], ids=lambda each: getattr(each, "kind", ""))  # fmt: skip
def test_sent_bytes_of_quantizers_match_hand_count(reducer: Reducer, expected: int) -> None:
    """The network is GRACE's with ten outputs, as on the page. Elements take two bytes, a bit, two bits and a scale
    per packet, or a byte and a norm per 128."""
    sizes = [*theirs_by_hand()[:-2], 640, 10]
    packets = lambda n, per: -(-n // (4096 - per))
    of = {
        "fp16": lambda n: 2 * n, "signsgd": lambda n: -(-n // 8) + (4 * packets(-(-n // 8), 4) if reducer.scale == "mean" else 0),
        "terngrad": lambda n: -(-n // 4) + 4 * packets(-(-n // 4), 4), "qsgd": lambda n: -(-n // min(n, 128)) * (min(n, 128) + 4),
    }[reducer.kind]  # fmt: skip
    assert sent_by(reducer, "resnet20-v2") == expected == sum(map(of, sizes))
