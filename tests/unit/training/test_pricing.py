"""Steps at other rates: bytes spread over tensors, turns at a server by hand, and the clock of a training over the simulator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradwire.pricing import spread, step_times, turn_times  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.load import build_scenario  # noqa: E402
from gradwire.scenarios.result import KINDS  # noqa: E402
from gradwire.sim.session import Session  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.served.asynchronous import Asynchronous  # noqa: E402
from gradwire.training.served.pace import Pace, marched  # noqa: E402
from gradwire.training.simulated import Simulated  # noqa: E402
from gradwire.training.trainer import Recipe  # noqa: E402
from tests.unit.training.test_simulated import made_trace, scenario  # noqa: E402

INFOS = [TensorInfo(f"t{n}", (numel,), numel, "float32", n) for n, numel in enumerate((1000, 10, 90_000, 3))]
MS = 10**9


def test_bytes_are_spread_as_parameters_are() -> None:
    """All of them as they are; of half the bytes half of each; and what is less than a value is not sent."""
    assert spread(INFOS, 4 * 91_013) == INFOS
    half = spread(INFOS, 2 * 91_013)
    assert sum(info.numel for info in half) == round(91_013 / 2) and half[2].numel == pytest.approx(45_000, abs=1)
    few = spread(INFOS, 400)
    assert sum(info.numel for info in few) == 100 and all(info.numel for info in few) and len(few) < 4


TINY = {
    "name": "tiny", "topology": {"kind": "star", "hosts": 9}, "link": {"rate": "1Gbps", "latency": "2us"},
    "transport": {"kind": "dctcp", "connections": "persistent", "min_rto": "200ms"}, "switch": {"buffer": "4MiB"}, "host": {"software_latency": "5us"},
    "job": [{"name": "job", "trace": "resnet20", "workers": 8, "servers": 1, "exchange": {"kind": "parameter_server"}}],
    "training": {
        "model": "resnet8", "size": 8, "samples": 64, "augment": False, "batch": 1, "steps": 3, "network": "simulated",
    },
}  # fmt: skip


def test_dense_steps_take_what_a_training_over_the_simulator_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the picosecond, in the mean of as many steps over connections that are kept; and no less than bytes over the rate."""
    monkeypatch.setattr("gradwire.pricing.PLAYED", 3)
    asked = build_scenario(TINY)
    trainer = trainer_of(asked, data_of(asked.training), Simulated(Session(asked)))
    rows = [trainer.step() for _ in range(3)]
    n = 4.0 * 75_290
    found = step_times(asked, n, n, ("1Gbps", "10Gbps"), 5 * MS)
    assert round(sum(row.time_ps for row in rows) / 3) + 5 * MS == found["1Gbps"]
    assert found["1Gbps"] - 5 * MS > 8 * n * 8 / 1e9 * 1e12
    assert 5 < (found["1Gbps"] - 5 * MS) / (found["10Gbps"] - 5 * MS) < 15


def test_what_comes_back_may_be_of_another_length() -> None:
    """Messages of half as many bytes, rounded up to values; it is refused where something may be lost of them."""
    plain = {"push_bound": 0.0, "tagging": {"layer_priority": False}}
    session, trace = Session(scenario("dctcp", job=plain)), made_trace(elements=[1001, 6])
    played = session.step(trace, 0.5)
    pushes, pulls = ([int(b) for b, w in zip(played.messages.nbytes, played.workers[:, way], strict=True) if w >= 0] for way in (0, 1))
    assert sorted(set(pushes)) == [24, 4004] and sorted(set(pulls)) == [12, 2004]
    assert session.step(trace, 4.0).time_ps > session.step(trace).time_ps > 0
    by_tensor = Session(scenario("dctcp", job=plain)).step(trace, [40, 5000]).messages
    assert {int(t): int(n) for t, n, k in zip(by_tensor.tensor, by_tensor.nbytes, by_tensor.kind, strict=True) if KINDS[k] == "pull"} == {0: 40, 1: 5000}
    with pytest.raises(ScenarioError, match=r"job\.pull_bound: is 0\.1: some may be lost of what comes back in other lengths"):
        Session(scenario(job={"pull_bound": 0.1})).step(made_trace(), 0.5)
    ring = scenario("dctcp", job={**plain, "servers": 0, "exchange": {"kind": "ring"}})
    with pytest.raises(ScenarioError, match="parameter_server"):
        Session(ring).step(made_trace(), 0.5)


def test_a_shared_link_by_hand() -> None:
    """Two workers that compute for 10 and push and pull what takes the server's link 4 and 2: pushes end at 14 and 18, pulls at
    16 and 20, so that the next pushes begin at 26 and 30."""
    pace = Pace((10,), server_rate=8 * 10**12)  # a byte a picosecond
    assert marched(pace, 2, 4, 4, 2) == (34, [0, 1, 0, 1])
    assert [marched(pace, 2, n, 4, 2)[0] for n in (1, 2, 3)] == [14, 18, 30]
    assert Pace((1,), rate=8 * 10**12, server_rate=16 * 10**12).moved(10, 100, 90) == (110, 105), "the slower of both"
    assert Pace((1,), rate=8 * 10**12).moved(10, 100, 900) == (110, 100), "each has the server's to itself"


@pytest.mark.parametrize("rate", [10**6, 10**9, 10**11])
def test_turns_are_those_of_a_training(rate: int) -> None:
    """The clock and the order, whatever the rate: workers that compute for equally long come in turn."""
    from tests.unit.training.test_asynchronous import DATA, plain

    pace = Pace((5 * MS,), rate, rate)
    trainer = Asynchronous(plain(), DATA, Recipe(workers=3, batch=2, steps=9), pace=pace)
    seen = [trainer.turn() for _ in range(9)]
    n = 4 * 3114
    assert (seen[-1].time_ps, [each.worker for each in seen]) == marched(pace, 3, 9, n, n)
    assert [each.worker for each in seen] == [0, 1, 2] * 3


def test_turns_settle_at_the_servers_rate_or_at_a_workers() -> None:
    """What is longer: pushes of all eight one after the other, or a worker's computing, push and pull."""
    training = {**TINY["training"], "network": "ideal", "system": {"kind": "asynchronous"}}
    asked = build_scenario({**TINY, "training": training})
    busy = turn_times(asked, 100_000, 50_000, ("1Gbps",), 5 * MS)["1Gbps"]
    assert busy == pytest.approx(8 * 100_000 * 8 / 1e9 * 1e12)
    idle = turn_times(asked, 1000, 500, ("100Gbps",), 5 * MS)["100Gbps"]
    assert idle == pytest.approx(5 * MS + 1500 * 8 / 100e9 * 1e12, rel=1e-3)
