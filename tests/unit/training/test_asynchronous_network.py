"""An asynchronous server over the packet simulator: as without a network where that says nothing, as bytes over rates where
it is a link, and what it loses is missing."""

from __future__ import annotations

import copy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from pyarrow import parquet

torch = pytest.importorskip("torch")

from gradwire.analysis.training.training_comparison import rows_of  # noqa: E402
from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import ScenarioError, TraceError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.sim.sessions.async_session import AsyncSession  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.traces.models import find_model  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.packet_steps import StepTraceMaker, masks_of_worker  # noqa: E402
from gradwire.training.networks.simulated_async import SimulatedTurns  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import Asynchronous, LinkTiming  # noqa: E402
from gradwire.training.parameter_server.mipd_trainer import MipdTrainer  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.systems.mipd import MIPD  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.sim_cases import make_trace  # noqa: E402
from tests.support.simulated_cases import scenario  # noqa: E402
from tests.support.training_cases import plain, resnet, same  # noqa: E402

DATA = images("synthetic", 8, limit=400)
SHALLOW = {"queues": 8, "buffer": "32KiB", "ecn_threshold": "16KiB", "selective_drop": True}
LOSSLESS = {"push_bound": 0.0, "tagging": {"magnitude": False}}


def live(workers: int, transport: str = "dctcp", times=None, **more) -> SimulatedTurns:
    return SimulatedTurns(AsyncSession(scenario(transport, workers, **more)), times)


def recipe(workers: int, **more) -> Recipe:
    return Recipe(**{"workers": workers, "batch": 4, "steps": 12, "rate": 0.05} | more)


def test_one_worker_over_lossless_network_equals_ideal_network() -> None:
    """One worker without loss trains bit-identically to no network; only the times differ."""
    over, without = (
        Asynchronous(resnet(), DATA, recipe(1), None, live(1, job=LOSSLESS)),
        Asynchronous(resnet(), DATA, recipe(1)),
    )
    for _ in range(4):
        mine, its = over.step(), without.step()
        assert (mine.loss, mine.sent_bytes, mine.pulled_bytes, mine.lost) == (
            its.loss,
            its.sent_bytes,
            its.pulled_bytes,
            0,
        )
        assert mine.time_ps > 0 == its.time_ps
    assert same(over.model, without.model)


def test_workers_share_server_link_bandwidth() -> None:
    """Eight workers begin together, and DCTCP gives each an eighth of the server's 1 Gbps. All pushes arrive when
    eight times their bytes have (within headers, a hundredth, and unfairness). From then on the link is never
    faster, and every push is as stale as other workers push meanwhile."""
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2000))
    link = {
        "link": {"rate": "1Gbps", "latency": "1us"},
        "switch": {"queues": 8, "buffer": "64MiB", "ecn_threshold": "64KiB"},
    }
    whole = LOSSLESS | {"exchange": {"kind": "parameter_server", "partition": "4MiB"}}
    over = Asynchronous(net, DATA, recipe(8), None, live(8, job=whole, **link))
    way = 8 * 4 * 193 * 2000 * 1000  # picoseconds
    turns = [over.turn() for _ in range(48)]
    assert [each.clock_ps / way for each in turns[:8]] == pytest.approx([8] * 8, rel=0.15) and turns[
        7
    ].clock_ps > 8 * way
    assert (turns[-1].clock_ps - turns[7].clock_ps) / 40 > way
    assert sum(each.stale for each in turns[8:]) == pytest.approx(7 * 40, rel=0.05)


def test_lost_packets_are_missing_from_server_update() -> None:
    """The gradient holds ones and twos, packet by packet. The server's parameters move where packets arrived, and
    only packets of small values are lost."""
    sizes = 1.0 + (torch.arange(60 * 1024) // 1024 % 2)

    class Known(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(len(sizes)))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return (sizes * self.weight).sum() + 0 * inputs.flatten(1).sum(dim=1)

    plan = recipe(8, momentum=0.0, weight_decay=0.0, schedule="constant", rate=8.0)
    trainer = Asynchronous(Known(), DATA, plan, None, live(8, "dlcp", switch=SHALLOW))
    trainer.loss = lambda model, inputs, _: model(*inputs)
    turns = [trainer.turn() for _ in range(16)]
    assert any(each.lost for each in turns) and all(0 <= each.lost <= 0.2 for each in turns)
    arrived = (-trainer.model.weight.detach() / sizes).view(
        60, 1024
    )  # an eighth of the rate each: how often a packet has
    assert (arrived == arrived[:, :1]).all() and torch.equal(arrived, arrived.round()), "packets are lost as a whole"
    assert 16 - float(arrived.mean()) == pytest.approx(sum(each.lost for each in turns), abs=1e-4)
    assert (arrived[1::2] == 16).all() and (arrived[::2] < 16).any(), "those with large gradients arrive"


def test_tensor_masks_combine_masks_of_partitions() -> None:
    """Two of three tensors are sent, the second in two messages. Packet 1 of its second message is packet 4 of the
    tensor, from 0."""
    rows = SimpleNamespace(tensor=np.array([0, 1, 1]), first=np.array([0, 0, 3 * 1024]))
    lost = {2: np.array([False, True]), 0: np.array([True])}
    masks = masks_of_worker([1, 7, 5], 4096, np.array([0, 2]), rows, lost)
    assert [None if each is None else each.tolist() for each in masks] == [
        [False],
        None,
        [True, True, True, True, False],
    ]


def test_feed_back_adds_lost_part_to_next_gradient() -> None:
    """With feed_back a worker's error memory holds the lost part of its push."""
    asked = recipe(4, feed_back=True)
    trainer = Asynchronous(
        resnet(), DATA, asked, ErrorFeedback(reducer=TopK(ratio=0.5)), live(4, "dlcp", switch=SHALLOW)
    )
    log = [trainer.turn() for _ in range(12)]
    assert any(turn.lost for turn in log)
    without = Asynchronous(
        resnet(), DATA, recipe(4), ErrorFeedback(reducer=TopK(ratio=0.5)), live(4, "dlcp", switch=SHALLOW)
    )
    others = [without.turn() for _ in range(12)]
    first = next(n for n, turn in enumerate(log) if turn.lost)
    assert log[: first + 1] == others[: first + 1] and not same(trainer.model, without.model)
    residuals = [
        sum(float(v.abs().sum()) for row in each.exchange.states for state in row for v in state.values.values())
        for each in (trainer, without)
    ]
    assert residuals[0] > residuals[1]


def test_staleness_bound_holds_over_simulated_network() -> None:
    """Worker 0 computes a hundred times longer; the other workers wait for it."""
    trainer = Asynchronous(
        plain(),
        DATA,
        recipe(4),
        None,
        live(4, job=LOSSLESS),
        staleness=2,
        pace=LinkTiming((10**11, 10**9, 10**9, 10**9)),
    )
    for _ in range(40):
        trainer.turn()
        assert max(trainer.turns) - min(trainer.turns) <= 3
    free = Asynchronous(
        plain(), DATA, recipe(4), None, live(4, job=LOSSLESS), pace=LinkTiming((10**11, 10**9, 10**9, 10**9))
    )
    for _ in range(40):
        free.turn()
    assert max(free.turns) - min(free.turns) > 3


def test_turn_time_includes_compute_time() -> None:
    """With one worker, a turn is computing, a push and a pull."""

    def turns(pace: LinkTiming) -> list[int]:
        trainer = Asynchronous(plain(), DATA, recipe(1), None, live(1, job=LOSSLESS), pace=pace)
        times = [trainer.turn().clock_ps for _ in range(4)]
        return [later - before for before, later in pairwise(times)]

    quick, slow = turns(LinkTiming()), turns(LinkTiming((10**10,)))
    assert [a - b for a, b in zip(slow, quick, strict=True)] == [10**10] * 3


def test_trace_compute_times_delay_pushes() -> None:
    """Forward and backward times of two layers delay the arrival of the first push."""
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(192, 100, bias=False), torch.nn.Linear(100, 10, bias=False)
    )
    times = make_trace([[19_200], [1_000]], forward=10**9, backward=10**9)
    first = [
        Asynchronous(copy.deepcopy(net), DATA, recipe(1), None, live(1, times=each, job=LOSSLESS)).turn().clock_ps
        for each in (None, times)
    ]
    assert first[1] - first[0] == pytest.approx(4 * 10**9, rel=0.02), "forward and backward of two layers"
    wrong = make_trace([[19_200]], forward=10**9, backward=10**9)
    with pytest.raises(TraceError, match="other tensors than the trained model"):
        Asynchronous(copy.deepcopy(net), DATA, recipe(1), None, live(1, times=wrong, job=LOSSLESS)).turn()


@pytest.mark.parametrize(
    "traffic", [[], [{"name": "others", "kind": "poisson", "load": 0.7, "sizes": "30kB"}]], ids=["alone", "beside"]
)
def test_async_run_over_network_resumes_mid_turn(traffic) -> None:
    """The checkpoint holds arrival times and losses of pushes in flight, so a resumed run is identical. Background
    traffic continues, too, and makes turns longer."""

    def make(*flows) -> Asynchronous:
        reducer = ErrorFeedback(reducer=TopK(ratio=0.45))
        return Asynchronous(
            resnet(), DATA, recipe(3), reducer, live(3, "dlcp", traffic=list(flows)), pace=LinkTiming((10**5,))
        )

    if traffic:
        times = [[each.turn().clock_ps for _ in range(15)][-1] for each in (make(), make(*traffic))]
        assert times[1] > 1.05 * times[0]
    whole, other = make(*traffic), make(*traffic)
    for _ in range(5):
        whole.turn()
    saved = copy.deepcopy(whole.state_dict())
    assert any(whole.flying) and whole.events
    other.load_state_dict(saved)
    assert [whole.turn() for _ in range(15)] == [other.turn() for _ in range(15)]
    assert same(whole.model, other.model)


def test_mismatched_networks_and_unsupported_recipes_are_rejected() -> None:
    """A network with another worker count or packet size would miscount losses."""
    for wrong in (recipe(2), recipe(4), recipe(3, payload=512)):
        with pytest.raises(
            ScenarioError, match=r"^Asynchronous\(recipe\): \d workers with packets of \d+ bytes; expected 3 and 4096"
        ):
            Asynchronous(plain(), DATA, wrong, None, live(3, job=LOSSLESS))
    with pytest.raises(ScenarioError, match=r"Asynchronous\(staleness\).*-1"):
        Asynchronous(plain(), DATA, recipe(3), None, live(3, job=LOSSLESS), staleness=-1)
    with pytest.raises(ValueError, match="'ring' has no server; expected parameter_server"):
        Asynchronous(plain(), DATA, recipe(3, collective="ring"))
    with pytest.raises(ValueError, match="vote = true needs the mean of all workers"):
        Asynchronous(plain(), DATA, recipe(3), SignSGD(vote=True, scale="none"))


@pytest.mark.parametrize("make", [
    lambda: Asynchronous(resnet(), DATA, recipe(2), None, live(2, job=LOSSLESS)), lambda: Trainer(resnet(), DATA, recipe(2)),
], ids=["asynchronous", "together"])  # fmt: skip
def test_state_dict_returns_independent_copy(make) -> None:
    """A trainer that continues does not change the state that another trainer has loaded."""
    one, other, third = make(), make(), make()
    one.step()
    saved = one.state_dict()
    other.load_state_dict(saved)
    rows = [one.step() for _ in range(3)]
    assert [other.step() for _ in range(3)] == rows
    third.load_state_dict(saved)
    assert [third.step() for _ in range(3)] == rows and same(third.model, one.model)


def test_network_is_rebuilt_at_message_limit(monkeypatch) -> None:
    monkeypatch.setattr("gradwire.sim.sessions.persistent_network.MAX_MESSAGES", 30)
    trainer = Asynchronous(plain(), DATA, recipe(2), None, live(2, job=LOSSLESS))
    for _ in range(12):
        trainer.step()
    assert trainer.live.plays.built > 2


def test_mipd_answer_bytes_per_tensor_match_element_count() -> None:
    """A half is a part of the vector of all parameters without gaps."""
    trainer = MipdTrainer(resnet(), DATA, recipe(2), MIPD(refresh=2))
    for _ in range(9):
        turn = trainer.turn()
        half, first, expected = trainer.halves[trainer.half[turn.worker]], 0, []
        for info in trainer.infos:
            expected.append(4 * sum(half.start <= first + element < half.stop for element in range(info.numel)))
            first += info.numel
        sizes = trainer.answer(turn.worker, turn.pulled_bytes)
        assert sizes[::2] == expected and sum(sizes) == turn.pulled_bytes and not any(sizes[1::2])
    whole = MipdTrainer(resnet(), DATA, recipe(2), MIPD(update="all"))
    assert whole.answer(0, 4 * whole.numel)[::2] == [4 * info.numel for info in whole.infos]


def test_mipd_over_lossless_network_equals_ideal_network() -> None:
    """One worker without loss trains bit-identically to no network, and faster than with dense pushes."""
    over = MipdTrainer(resnet(), DATA, recipe(1), MIPD(), live(1, job=LOSSLESS))
    without, dense = (
        MipdTrainer(resnet(), DATA, recipe(1), MIPD()),
        Asynchronous(resnet(), DATA, recipe(1), None, live(1, job=LOSSLESS)),
    )
    for _ in range(4):
        assert over.step().loss == without.step().loss
        dense.step()
    assert same(over.model, without.model) and 0 < over.clock_ps < dense.clock_ps


def test_answer_trace_has_tensors_of_answer_sizes() -> None:
    infos = resnet_infos()
    made = StepTraceMaker(3, 4096, 1.0, None).answer(infos, np.array([8, 0, 4097]), 5)
    assert [(each.name, each.numel, each.layer) for each in made.tensors] == [("a", 2, 0), ("c", 1025, 2)]
    assert len(made.iterations) == 3 and len(made.magnitudes(2, 1)[0]) == 5, "chunks of 256 values"


def resnet_infos():
    from gradwire.traces.trace import TensorInfo

    return [TensorInfo(name, (2000,), 2000, "float32", layer) for layer, name in enumerate("abc")]


def test_async_scenario_trains_and_rejects_unsupported_job_keys(tmp_path) -> None:
    short = ["training.steps=4", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=4"]
    made = load_scenario(
        "train-tiny",
        set=[*short, "training.batch=2", "job.workers=8", 'training.system={kind="asynchronous"}'],
        policy="dlcp",
    )
    learned = train(made, tmp_path / "over")
    assert learned.steps[-1]["clock_ps"] > 0 and any(row["lost"] for row in learned.steps)
    turns = TrainingResult.read(tmp_path / "over").turns
    assert [row["turn"] for row in turns] == list(range(32)) and [row["step"] for row in turns] == [
        n // 8 for n in range(32)
    ]
    assert turns[-1]["clock_ps"] == learned.steps[-1]["clock_ps"] and [row["stale"] for row in turns[:8]] == list(
        range(8)
    )
    assert sum(row["sent_bytes"] for row in turns) == learned.scores[-1]["sent_bytes"]
    (line,) = [row for row in rows_of([learned]) if row.label == "updates behind, mean"]
    assert line.cells[0].startswith(f"{np.mean([row['stale'] for row in turns]):.3g} (max")
    train(load_scenario("train-tiny", set=[*short, 'training.network="ideal"'], policy="dlcp"), tmp_path / "together")
    assert (
        not (tmp_path / "together" / "turns.parquet").exists() and not TrainingResult.read(tmp_path / "together").turns
    )
    for more, words in (
        (['job.order="layer"'], "job.order: layer holds messages back"),
        (["job.exchange.server_rate=1Gbps"], "job.exchange.server_rate"),
    ):
        with pytest.raises(ScenarioError, match=words):
            train(load_scenario("train-tiny", set=[*short, 'training.system={kind="mipd"}', *more], policy="dlcp"))


def test_lost_table_rows_identify_their_turn(tmp_path: Path) -> None:
    """A worker pushes twice in a step; rows of lost.parquet carry the turn number. Their element-weighted mean is
    the turn's loss in turns.parquet. Synchronous runs have no turn number, and neither have older tables."""
    more = [
        "training.steps=6",
        "training.samples=200",
        "training.size=8",
        "training.batch=4",
        "job.workers=3",
        "job.pull_bound=0",
        "training.network={loss=0.2}",
        'training.system={kind="asynchronous", computing=["1ms", "5ms", "1ms"]}',
    ]
    learned = train(load_scenario("train-tiny", set=more, policy="dlcp"), tmp_path / "out")
    sizes = [each.numel() for each in find_model("resnet8").build(10).parameters()]
    lost, turns = learned.tables["lost"], learned.tables["turns"]
    assert any(
        sum(t["step"] == step and t["worker"] == worker for t in turns) > 1 for step in range(6) for worker in range(3)
    )
    for turn in turns:
        rows = [row for row in lost if row["turn"] == turn["turn"]]
        assert {(row["step"], row["worker"]) for row in rows} <= {(turn["step"], turn["worker"])}
        assert sum(row["lost"] * sizes[row["tensor"]] for row in rows) / sum(sizes) == pytest.approx(
            turn["lost"], rel=1e-6
        )
    assert TrainingResult.read(tmp_path / "out").tables["lost"] == lost
    together = train(load_scenario("train-tiny", set=more[:-1], policy="dlcp"), tmp_path / "together").tables["lost"]
    assert together and {row["turn"] for row in together} == {None}
    place = tmp_path / "together" / "lost.parquet"
    parquet.write_table(parquet.read_table(place).drop_columns(["turn"]), place)
    assert TrainingResult.read(tmp_path / "together").tables["lost"] == together
