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


def test_the_table_of_layers() -> None:
    assert [info.numel for info in tensors_of(find_model("resnet20").build(10))] == by_hand()
    assert sum(by_hand()) == 269_722 and len(by_hand()) == 59


@pytest.mark.parametrize("reducer", [Dense(), TopK(ratio=0.01), RandomK(ratio=0.01)], ids=["none", "topk", "randomk"])
def test_bytes_are_those_by_hand_and_within_a_percent_of_those_published(reducer: Reducer) -> None:
    mine = sent_by(reducer)
    assert mine == serialised(reducer.kind, by_hand())
    assert mine == pytest.approx(PUBLISHED[reducer.kind], rel=0.01)


def test_the_table_of_their_layers() -> None:
    assert [info.numel for info in tensors_of(find_model("resnet20-v2").build(11))] == theirs_by_hand()
    assert 4 * sum(theirs_by_hand()) == PUBLISHED["none"]


@pytest.mark.parametrize("reducer", [Dense(), TopK(ratio=0.01), RandomK(ratio=0.01)], ids=["none", "topk", "randomk"])
def test_bytes_of_their_network_are_those_published(reducer: Reducer) -> None:
    """To the byte."""
    assert sent_by(reducer, "resnet20-v2", 11) == serialised(reducer.kind, theirs_by_hand()) == PUBLISHED[reducer.kind]


def test_dgcs_published_bytes_are_within_what_its_threshold_leaves_open() -> None:
    """0.8 to 1.3 times the elements that it aims at, tensor by tensor: theirs and ours."""
    aimed = [max(1, n // 100) for n in by_hand()]
    least, most = sum(8 * math.ceil(0.8 * n) for n in aimed), sum(8 * math.floor(1.3 * n) for n in aimed)
    assert least <= 23_909 <= most and least <= sent_by(DGC(ratio=0.01)) <= most


@pytest.mark.parametrize(("reducer", "expected"), [
    (Half(), 538_804), (SignSGD(scale="none"), 33_676), (SignSGD(), 33_900), (TernGrad(), 67_599), (QSGD(), 277_994),
], ids=lambda each: getattr(each, "kind", ""))  # fmt: skip
def test_bytes_of_the_others_are_those_by_hand(reducer: Reducer, expected: int) -> None:
    """Of their network with our ten outputs, as the page has them: two bytes, bits, two bits and a scale a packet, a byte and a norm for 128."""
    sizes = [*theirs_by_hand()[:-2], 640, 10]
    packets = lambda n, per: -(-n // (4096 - per))
    of = {
        "fp16": lambda n: 2 * n, "signsgd": lambda n: -(-n // 8) + (4 * packets(-(-n // 8), 4) if reducer.scale == "mean" else 0),
        "terngrad": lambda n: -(-n // 4) + 4 * packets(-(-n // 4), 4), "qsgd": lambda n: -(-n // min(n, 128)) * (min(n, 128) + 4),
    }[reducer.kind]  # fmt: skip
    assert sent_by(reducer, "resnet20-v2") == expected == sum(map(of, sizes))
