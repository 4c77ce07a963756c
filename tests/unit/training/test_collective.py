"""Reduced gradients around a ring: what servers would make of them where nothing is lost, by hand where something is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.exchange.exchange import Exchange  # noqa: E402
from gradwire.training.exchange.lossy_ring import lossless_all_reduce  # noqa: E402
from gradwire.training.exchange.ring_allreduce import HopMasks  # noqa: E402
from gradwire.training.networks.builtin_networks import Answer, Ideal, Memoryless, Random, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD, orthonormal  # noqa: E402
from gradwire.training.reducers.qsgd import QSGD  # noqa: E402
from gradwire.training.reducers.randomk import RandomK  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.simulated_cases import LOSSY, RING, scenario  # noqa: E402
from tests.support.training_cases import resnet  # noqa: E402
from tests.unit.training.test_asynchronous import DATA  # noqa: E402

INFOS = [TensorInfo("m", (12, 10), 120, "float32", 0), TensorInfo("b", (7,), 7, "float32", 1)]
EVERY = [
    RandomK(ratio=0.25), PowerSGD(rank=2), ErrorFeedback(reducer=RandomK(ratio=0.25)),
    ErrorFeedback(reducer=PowerSGD(rank=1)),
]  # fmt: skip
NAMES = [f"{type(each).__name__}-{each.kind}" for each in EVERY]
ZERO = {"collective": "ring", "pull_fill": "zero", "payload": 16}


def gradients(workers: int, seed: int = 0) -> list[list[torch.Tensor]]:
    draws = torch.Generator().manual_seed(seed)
    return [[torch.randn(info.shape, generator=draws) for info in INFOS] for _ in range(workers)]


class Loses(Memoryless):
    """Loses what a function says, by round and bucket."""

    def __init__(self, lost) -> None:
        self.lost, self.pushed = lost, []

    def carry(self, pushed) -> Answer:
        self.pushed.append(pushed)
        layout, masks = pushed.layout, []
        for bucket in range(len(layout.buckets)):
            mask = torch.ones(2 * layout.workers - 2, layout.workers, layout.packets(bucket), dtype=torch.bool)
            self.lost(pushed.round, mask)
            masks.append(None if bool(mask.all()) else mask)
        return Answer([[None] * len(pushed.infos)] * layout.workers, hops=HopMasks(layout.buckets, masks))


@pytest.mark.parametrize("reducer", EVERY, ids=NAMES)
def test_lossless_ring_equals_parameter_server(reducer) -> None:
    """Results are bit-identical over several steps, including reducer state; bytes are those of a ring of as many
    values."""
    servers, ring = Exchange(reducer, INFOS, 4, payload=16), Exchange(reducer, INFOS, 4, **ZERO)
    for step in range(3):
        (expected, theirs), (found, sent) = (each.step(gradients(4, step), step) for each in (servers, ring))
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert not sent.views and sent.lost == theirs.lost and sent.pulled_bytes == 0
        values = theirs.nbytes[0] // 4
        assert 2 * 3 / 4 * 4 * values <= sent.nbytes[0] <= 2 * 3 * 4 * (values / 4 + 2 * reducer.rounds)
    assert servers.state_dict()["states"][1][0]["values"].keys() == ring.state_dict()["states"][1][0]["values"].keys()


def test_all_gather_loss_zeroes_lost_segment_of_later_workers() -> None:
    """Random-k loses what worker 2 sends worker 3 in the first all-gather hop, segment 3. Workers behind it have no
    better copy."""

    def lost(round_: int, mask: torch.Tensor) -> None:
        mask[3, 2] = False

    reducer, mine = RandomK(ratio=0.25), gradients(4)
    network = Loses(lost)
    found, sent = Exchange(reducer, INFOS, 4, **ZERO).step(mine, 0, network)
    whole, _ = Exchange(reducer, INFOS, 4, payload=16).step(mine, 0)
    (pushed,) = network.pushed
    first, second = (each.known["indices"] for each in pushed.encoded[0])
    assert [each.fields[0].numel() for each in pushed.encoded[0]] == [30, 1] == list(pushed.layout.numels)
    order = torch.cat([second, first])  # the last tensor is first in a bucket
    gone = order[pushed.layout.segment(0) * 3 :]
    for worker in range(4):
        expected = [each.clone() for each in whole]
        if worker != 2:
            expected[0].view(-1)[gone] = 0.0
        assert all(torch.equal(a, b) for a, b in zip(sent.views[worker], expected, strict=True)), worker
    assert sent.lost[2][0] > 0 == sent.lost[0][0] and torch.equal(found[0], sent.views[0][0])


def test_mean_after_reduce_scatter_loss_follows_fill_rule() -> None:
    """Worker 0's packets are lost in the first hop of reduce-scatter: segment 0's mean lacks its values."""

    def lost(round_: int, mask: torch.Tensor) -> None:
        mask[0, 0] = False

    mine = gradients(3)
    for fill in ("zero", "rescaled"):
        network = Loses(lost)
        found, sent = Exchange(RandomK(ratio=1.0), INFOS, 3, fill=fill, **ZERO).step(mine, 0, network)
        (pushed,) = network.pushed
        indices = pushed.encoded[0][0].known["indices"]
        size = pushed.layout.segment(0)
        places = indices[: size - 7]  # in segment 0, behind the seven values of the bias
        total = sum(each[0].view(-1) for each in mine)
        expected = total / 3
        expected[places] = (total - mine[0][0].view(-1))[places] / (3 if fill == "zero" else 2)
        torch.testing.assert_close(found[0].view(-1), expected)
        assert not sent.views, "all have the same"


def test_powersgd_workers_continue_with_different_lossy_factors() -> None:
    """Workers 1 and 2 lack a part of P: they continue with another P. Every worker continues with the sum of all
    Q."""

    def lost(round_: int, mask: torch.Tensor) -> None:
        if round_ == 0:
            mask[2, 0, :1] = False  # of three workers: the first hop of the all-gather, to worker 1

    mine, network = gradients(3), Loses(lost)
    exchange = Exchange(PowerSGD(rank=2), INFOS, 3, **ZERO)
    found, sent = exchange.step(mine, 0, network)
    first, second = network.pushed
    p = sum(each[0].fields[0] for each in first.encoded) / 3
    segment = first.layout.segment(0)
    theirs = torch.cat([sum(each[1].fields[0] for each in first.encoded) / 3, p.reshape(-1)])
    theirs = torch.nn.functional.pad(theirs, (0, 3 * segment - len(theirs))).view(3, -1).clone()
    theirs[1, : 16 // 4] = 0.0  # worker 0 has finished segment 1, and sends it
    lacking = theirs.view(-1)[7 : 7 + 24].view(12, 2)
    views = [orthonormal(p), orthonormal(lacking), orthonormal(lacking)]
    q = sum(each[0].T @ view for each, view in zip(mine, views, strict=True)) / 3
    for worker, view in enumerate(views):
        torch.testing.assert_close(sent.views[worker][0], view @ q.T)
        torch.testing.assert_close(exchange.states[worker][0].values["q"], q)
    assert second.layout.numels == (20, 0), "the bias has been sent"
    torch.testing.assert_close(found[0], views[0] @ q.T)


@pytest.mark.parametrize("reducer", EVERY, ids=NAMES)
def test_lossy_ring_run_resumes_and_replays_bit_identically(reducer, tmp_path) -> None:
    """Losses occur in both directions, and the workers' reducers have their own state."""
    recipe = Recipe(workers=4, batch=4, steps=6, payload=64, collective="ring", pull_fill="zero", resync=4)
    make = lambda network: Trainer(resnet(), DATA, recipe, reducer, network)
    recorded = RecordingNetwork(Random(0.05, way="both"))
    whole, first, second = make(recorded), make(Random(0.05, way="both")), make(Random(0.05, way="both"))
    rows = [whole.step() for _ in range(6)]
    assert whole.replicas is not None and rows[-1].apart_rms > 0 == rows[3].apart_rms
    for _ in range(3):
        first.step()
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [second.step() for _ in range(3)] == rows[3:]
    again = make(Replay(recorded.answers))
    assert [again.step() for _ in range(6)] == rows
    for other in (second, again):
        assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.parametrize("reducer", EVERY, ids=NAMES)
def test_simulated_ring_carries_reduced_gradients_with_losses(reducer) -> None:
    """Reduced gradients take less time than dense ones; simulated losses of either half reach the trainer."""

    def made(reducer=None, **more):
        recipe = Recipe(workers=4, batch=4, steps=3, payload=128, collective="ring", pull_fill="zero")
        asked = scenario(job=RING, transport={"kind": "dlcp", "payload": "128B"}, **more)
        return Trainer(resnet(), DATA, recipe, reducer, Simulated(Session(asked)))

    dense, mine = made(), made(reducer)
    for _ in range(3):
        row = mine.step()
        assert 0 < row.time_ps < dense.step().time_ps
    assert row.sent_bytes < 0.4 * 4 * 4 * 2 * sum(info.numel for info in mine.infos)
    lossy = made(reducer, link={**LOSSY, "loss": 0.2})
    rows = [lossy.step() for _ in range(3)]
    assert max(each.lost for each in rows) > 0 and lossy.replicas is not None and rows[-1].apart_rms > 0


def test_resync_sends_full_parameters_instead_of_reduced_values() -> None:
    exchange = Exchange(RandomK(ratio=0.25), INFOS, 4, **ZERO)
    nbytes, time_ps = lossless_all_reduce(exchange, gradients(4), 0, Ideal())
    assert (nbytes, time_ps) == (2 * 3 * 4 * 32, 0)  # of 127 values, a quarter each
    recipe = Recipe(workers=4, batch=4, steps=2, payload=64, collective="ring", pull_fill="zero", resync=2)
    trainer = Trainer(resnet(), DATA, recipe, RandomK(ratio=0.1), Random(0.3, way="pull"))
    rows = [trainer.step() for _ in range(2)]
    assert rows[1].sent_bytes > 8 * rows[0].sent_bytes and rows[1].apart_max == 0


def test_encode_and_decode_times_are_counted() -> None:
    """Each worker encodes at a nanosecond per element; the mean is decoded once, by all workers at a time."""
    exchange = Exchange(RandomK(ratio=0.25), INFOS, 4, encode_time=1.0, **ZERO)
    _, sent = exchange.step(gradients(4), 0)
    assert (sent.encode_ps, sent.decode_ps, sent.time_ps) == (127_000, 127_000, 254_000)


class Claims(Reducer):
    """Says that it adds up, and sends bytes."""

    adds_up = True
    kind: str = "claims"

    def compress(self, tensor, info, state):
        return Encoded((torch.zeros(info.numel, dtype=torch.uint8),))

    def decode(self, encoded, info, arrived=None):
        return encoded.fields[0].float()


def test_ring_rejects_non_additive_reducers_and_stale_fills() -> None:
    for reducer in (TopK(), QSGD(), ErrorFeedback(reducer=TopK())):
        with pytest.raises(
            ValueError, match=f"cannot add up {reducer.kind}; expected .* or one whose values can be added up"
        ):
            Exchange(reducer, INFOS, 4, **ZERO)
    for more in ({"pull_fill": "stale"}, {"fill": "stale"}):
        with pytest.raises(ValueError, match=r"sends other elements .* expected job\.pull_fill = \"zero\""):
            Exchange(RandomK(), INFOS, 4, **{**ZERO, **more})
    with pytest.raises(
        ScenarioError, match="adds up, and returns uint8 for m; expected one field of float32, and no head"
    ):
        Exchange(Claims(), INFOS, 4, **ZERO).step(gradients(4), 0)


def test_scenario_trains_powersgd_over_ring() -> None:
    more = (
        "training.steps=3", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2", "job.servers=0",
        'job.exchange={kind="ring"}', 'job.pull_fill="zero"', "job.push_bound=0.1", 'training.reducer={kind="powersgd", rank=2}',
        "training.error_feedback=true",
    )  # fmt: skip
    learned = train(load_scenario("train-tiny", set=more, policy="dlcp"))
    dense = train(load_scenario("train-tiny", set=[*more[:9]], policy="dlcp"))
    assert learned.steps[-1]["sent_bytes"] < dense.steps[-1]["sent_bytes"] / 4
    assert learned.steps[-1]["clock_ps"] < dense.steps[-1]["clock_ps"]
