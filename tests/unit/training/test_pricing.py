"""Steps at other rates: bytes spread over tensors, turns at a server by hand, and the clock of a training over the simulator."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gradwire.result_store.table_schema import KINDS  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.sim.sessions.async_session import AsyncSession  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.studies.training.step_time_model import asynchronous_step_times, scale_tensors, synchronous_step_times  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.networks.simulated_async import SimulatedTurns  # noqa: E402
from gradwire.training.parameter_server.asynchronous_trainer import LinkTiming  # noqa: E402
from tests.support.simulated_cases import made_trace, scenario  # noqa: E402

INFOS = [TensorInfo(f"t{n}", (numel,), numel, "float32", n) for n, numel in enumerate((1000, 10, 90_000, 3))]
MS = 10**9


def test_scaled_tensors_are_proportional_to_parameters() -> None:
    """All bytes give all tensors, half the bytes half of each; tensors below one value are left out."""
    assert scale_tensors(INFOS, 4 * 91_013) == INFOS
    half = scale_tensors(INFOS, 2 * 91_013)
    assert sum(info.numel for info in half) == round(91_013 / 2) and half[2].numel == pytest.approx(45_000, abs=1)
    few = scale_tensors(INFOS, 400)
    assert sum(info.numel for info in few) == 100 and all(info.numel for info in few) and len(few) < 4


TINY = {
    "name": "tiny", "topology": {"kind": "star", "hosts": 9}, "link": {"rate": "1Gbps", "latency": "2us"},
    "transport": {"kind": "dctcp", "connections": "persistent", "min_rto": "200ms"}, "switch": {"buffer": "4MiB"}, "host": {"software_latency": "5us"},
    "job": [{"name": "job", "trace": "resnet20", "workers": 8, "servers": 1, "exchange": {"kind": "parameter_server"}}],
    "training": {
        "model": "resnet8", "size": 8, "samples": 64, "augment": False, "batch": 1, "steps": 3, "network": "simulated",
    },
}  # fmt: skip


def test_synchronous_step_times_equal_simulated_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean times over persistent connections agree to the picosecond, and are no less than bytes over the rate."""
    monkeypatch.setattr("gradwire.studies.training.step_time_model.SIMULATED_STEPS", 3)
    asked = build_scenario(TINY)
    trainer = trainer_of(asked, data_of(asked.training), Simulated(Session(asked)))
    rows = [trainer.step() for _ in range(3)]
    n = 4.0 * 75_290
    found = synchronous_step_times(asked, n, n, ("1Gbps", "10Gbps"), 5 * MS)
    assert round(sum(row.time_ps for row in rows) / 3) + 5 * MS == found["1Gbps"]
    assert found["1Gbps"] - 5 * MS > 8 * n * 8 / 1e9 * 1e12
    assert 5 < (found["1Gbps"] - 5 * MS) / (found["10Gbps"] - 5 * MS) < 15


def test_pulls_may_differ_in_size_from_pushes() -> None:
    """Pulls of half the bytes are rounded up to whole values; lossy pulls of another size are rejected."""
    plain = {"push_bound": 0.0, "tagging": {"layer_priority": False}}
    session, trace = Session(scenario("dctcp", job=plain)), made_trace(elements=[1001, 6])
    played = session.step(trace, 0.5)
    pushes, pulls = (
        [int(b) for b, w in zip(played.messages.nbytes, played.workers[:, way], strict=True) if w >= 0]
        for way in (0, 1)
    )
    assert sorted(set(pushes)) == [24, 4004] and sorted(set(pulls)) == [12, 2004]
    assert session.step(trace, 4.0).time_ps > session.step(trace).time_ps > 0
    by_tensor = Session(scenario("dctcp", job=plain)).step(trace, [40, 5000]).messages
    assert {
        int(t): int(n)
        for t, n, k in zip(by_tensor.tensor, by_tensor.nbytes, by_tensor.kind, strict=True)
        if KINDS[k] == "pull"
    } == {0: 40, 1: 5000}
    with pytest.raises(
        ScenarioError, match=r"job\.pull_bound: is 0\.1: answers of other sizes than the pushes may be lost"
    ):
        Session(scenario(job={"pull_bound": 0.1})).step(made_trace(), 0.5)
    ring = scenario("dctcp", job={**plain, "servers": 0, "exchange": {"kind": "ring"}})
    with pytest.raises(ScenarioError, match="parameter_server"):
        Session(ring).step(made_trace(), 0.5)


def test_shared_link_transfer_end_matches_hand_computation() -> None:
    assert LinkTiming((1,), rate=8 * 10**12, server_rate=16 * 10**12).transfer_end(10, 100, 90) == (110, 105), (
        "the slower of both"
    )
    assert LinkTiming((1,), rate=8 * 10**12).transfer_end(10, 100, 900) == (110, 100), "each has the server's to itself"


def test_asynchronous_step_times_equal_simulated_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """They agree to the picosecond."""
    monkeypatch.setattr("gradwire.studies.training.step_time_model.SIMULATED_ASYNC_STEPS", 3)
    training = {**TINY["training"], "system": {"kind": "asynchronous", "computing": ["5ms"]}}
    asked = build_scenario({**TINY, "training": training})
    trainer = trainer_of(asked, data_of(asked.training), SimulatedTurns(AsyncSession(asked)))
    rows = [trainer.step() for _ in range(3)]
    n = 4.0 * 75_290
    assert asynchronous_step_times(asked, n, n, ("1Gbps",), 5 * MS)["1Gbps"] == rows[-1].clock_ps // 3


def test_async_step_time_is_limited_by_server_link_or_worker() -> None:
    """The longer of two times decides. One is the bytes of all eight workers over the server's link, with headers
    of one to three percent; the other a worker's computing, push and pull."""
    training = {**TINY["training"], "system": {"kind": "asynchronous"}}
    asked = build_scenario({**TINY, "training": training})
    busy = asynchronous_step_times(asked, 400_000, 200_000, ("1Gbps",), 5 * MS)["1Gbps"]
    assert 1.01 < busy / (8 * 400_000 * 8 / 1e9 * 1e12) < 1.1
    idle = asynchronous_step_times(asked, 1000, 500, ("100Gbps",), 5 * MS)["100Gbps"]
    assert 0 < idle - 5 * MS < 0.05 * MS
