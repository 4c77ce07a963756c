"""Communication hooks: two real processes over gloo on loopback do what the trainer does with two workers in one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import GradwireError  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.dgc import DGC  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback, MomentumCorrection  # noqa: E402
from gradwire.training.reducers.fp16 import Half  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
STEPS, SEED = 4, 3
REDUCERS: dict[str, Reducer] = {
    "none": Dense(),
    "fp16": Half(),
    "topk": ErrorFeedback(reducer=TopK(ratio=0.1)),
    "randomk": ErrorFeedback(reducer=RandomK(ratio=0.2)),
    "powersgd": ErrorFeedback(reducer=PowerSGD(rank=2)),
    "momentum": MomentumCorrection(reducer=ErrorFeedback(reducer=PowerSGD(rank=1)), momentum=0.5),
    "dgc": DGC(ratio=0.05, momentum=0.5),
    "qsgd": QSGD(levels=4, bucket=33),
    "terngrad": TernGrad(),
    "signsgd": ErrorFeedback(reducer=SignSGD()),
}
RECIPE = Recipe(workers=2, batch=8, steps=STEPS, rate=0.05, schedule="constant", momentum=0.0, seed=SEED)


class Changing(TopK):
    """Halves what it is given."""

    def compress(self, tensor, info, state):
        return super().compress(tensor.mul_(0.5), info, state)


class Short(TopK):
    """Forgets the last element."""

    def decode(self, encoded, info, received=None):
        return super().decode(encoded, info, received)[:-1]


class Late(TopK):
    """Forgets it when it is asked a third time, which is for error feedback: of two processes each decodes both."""

    def decode(self, encoded, info, received=None):
        asked = self.__dict__.setdefault("asked", {})
        asked[info.name] = asked.get(info.name, 0) + 1
        found = super().decode(encoded, info, received)
        return found if asked[info.name] < 3 else found[:-1]


class Mute(TopK):
    """Sends nothing that could be sent."""

    def compress(self, tensor, info, state):
        return tensor


class Wide(Dense):
    """Sends what cannot be added up in float32."""

    def compress(self, tensor, info, state):
        return Encoded((tensor.double(),))


STRANGE: dict[str, tuple[Reducer, str]] = {
    "changing": (Changing(ratio=0.1), r"compress of Changing \(.*test_hooks.py:\d+\) changes the gradient of "),
    "short": (
        ErrorFeedback(reducer=Short(ratio=0.1)),
        r"decode of Short .* returns a tensor of float32, \(\d+,\) for ",
    ),
    "late": (ErrorFeedback(reducer=Late(ratio=0.1)), r"decode of Late .* returns a tensor of float32, \(\d+,\) for "),
    "mute": (Mute(ratio=0.1), r"compress of Mute .* returns a tensor of float32"),
    "wide": (Wide(), r"compress of Wide .* adds up, and returns float64 for "),
}
"""Reducers of a user's own, and what is said of them."""


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(288, 40), torch.nn.Tanh(),
        torch.nn.Linear(40, 10),
    )  # fmt: skip


def worker(rank: int, folder: Path) -> None:
    """One of two processes: trains with every reducer, and writes what came of it."""
    import torch.distributed as dist
    from torch.nn.functional import cross_entropy
    from torch.nn.parallel import DistributedDataParallel

    from gradwire.training.data import Dealer
    from gradwire.training.exchange.ddp_hooks import register

    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    data, results = images("synthetic", 8, limit=400), {}
    for name, reducer in REDUCERS.items():
        ddp = DistributedDataParallel(model(), bucket_cap_mb=0.02)  # several buckets
        reduced = register(ddp, reducer, SEED)
        optimizer = torch.optim.SGD(ddp.parameters(), RECIPE.rate, weight_decay=RECIPE.weight_decay)
        dealer = Dealer(data, 2, RECIPE.batch, 0)
        for number in range(STEPS):
            inputs, targets = dealer.step(number)
            optimizer.zero_grad()
            cross_entropy(ddp(inputs[0].chunk(2)[rank]), targets.chunk(2)[rank]).backward()
            optimizer.step()
        results[name] = ([each.detach() for each in ddp.parameters()], reduced.sent_bytes, reduced.state_dict())
    for name, (reducer, _) in STRANGE.items():
        ddp = DistributedDataParallel(model())
        register(ddp, reducer, SEED)
        inputs, targets = dealer.step(0)
        try:
            cross_entropy(ddp(inputs[0].chunk(2)[rank]), targets.chunk(2)[rank]).backward()
        except GradwireError as error:
            results[name] = str(error)
    torch.save(results, folder / f"{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("gloo")
    code = "import sys, pathlib; sys.path.insert(0, {!r}); import test_hooks; test_hooks.worker(int(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    line = [sys.executable, "-c", code.format(str(Path(__file__).parent))]
    where = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen([*line, str(rank), str(folder)], cwd=folder, env=where, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        for each in started:
            _, said = each.communicate(timeout=240)
            assert each.returncode == 0, said
    finally:
        for each in started:
            each.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUCERS)
def test_ddp_hooks_in_two_processes_equal_trainer_with_two_workers(found: list[dict], name: str) -> None:
    """Parameters after four steps are the same in both processes and in the trainer. The trainer reduces tensor by
    tensor as well; fp16 is added up in 16 bits."""
    trainer = Trainer(model(), images("synthetic", 8, limit=400), RECIPE, REDUCERS[name])
    sent = [trainer.step().sent_bytes for _ in range(STEPS)]
    one, other = (each[name] for each in found)
    assert all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    near = 1e-3 if name == "fp16" else 1e-6
    start = list(model().parameters())
    for mine, theirs, before in zip(one[0], trainer.model.parameters(), start, strict=True):
        assert torch.allclose(mine, theirs, atol=near * float((theirs - before).detach().abs().max()) + 1e-7, rtol=0)
    heads = 8 * STEPS * 2 * 6 if name in ("terngrad", "signsgd") else 0  # the trainer's packets repeat heads
    assert abs(one[1] + other[1] - sum(sent)) <= heads
    assert one[2]["step"] == STEPS


@pytest.mark.parametrize("name", STRANGE)
def test_faulty_user_defined_reducers_are_reported_in_ddp_hooks(found: list[dict], name: str) -> None:
    """Every process raises an error that names the reducer's method."""
    for each in found:
        assert re.search(STRANGE[name][1], each[name]), each.get(name)


def test_reducers_lead_to_different_parameters(found: list[dict]) -> None:
    ends = [found[0][name][0][2] for name in REDUCERS]
    assert all(not torch.equal(a, b) for at, a in enumerate(ends) for b in ends[:at])


def test_encodings_are_packed_and_unpacked_as_one_buffer() -> None:
    """Encodings of different lengths follow each other without gaps."""
    from gradwire.training.exchange.ddp_hooks import _in_one_piece, _layout_of, _size, _unpack

    mine = [
        Encoded((torch.tensor([1.0, 2.0]), torch.tensor([4, 7], dtype=torch.int32))),
        Encoded((torch.ones(3, 2),), (torch.tensor([9.0]),)),
    ]
    box = torch.cat([*map(_in_one_piece, mine), torch.zeros(5, dtype=torch.uint8)])
    assert len(box) == 16 + 28 + 5 == sum(map(_size, mine)) + 5
    layout = [_layout_of(Encoded((torch.zeros(5), torch.zeros(5, dtype=torch.int32))), 2), mine[1]]
    read = _unpack(box, layout)
    assert all(
        torch.equal(a, b)
        for x, y in zip(read, mine, strict=True)
        for a, b in zip(x.fields + x.head, y.fields + y.head, strict=True)
    )
