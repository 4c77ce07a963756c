"""A training whose steps go over the testbed: one network for all of them, what is lost is lost in the update, and in
virtual time the same again, whatever happens outside meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from emu_cases import needs

torch = pytest.importorskip("torch")

from gradwire.emu.session import Session  # noqa: E402
from gradwire.emu.switches.backend_kind import TestbedError  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.scenarios.schema.scenario import Scenario  # noqa: E402
from gradwire.sim.sessions.session import Session as Simulator  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import RecordingNetwork, Replay  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.reducers.base import Reducer  # noqa: E402
from gradwire.training.reducers.terngrad import TernGrad  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402

PAYLOAD, BOUND = 1024, 0.25
VIRTUAL, WALL = ("1Gbps", "60us"), ("20Mbps", "600us")


def scenario(clock: str, transport: str = "dlcp", loss: float = 0.05, **more: Any) -> Scenario:
    rate, latency = VIRTUAL if clock == "virtual" else WALL
    return build_scenario({
        "name": "two", "transport": {"kind": transport, "payload": f"{PAYLOAD}B"}, "emulation": {"clock": clock},
        "topology": {"kind": "star", "hosts": 3}, "link": {"rate": rate, "latency": "50us", "loss": loss},
        "host": {"software_latency": latency},
        "switch": {"queues": 8, "buffer": "64KiB", "ecn_threshold": "16KiB", "selective_drop": True},
        "job": [{
            "name": "job", "trace": "step", "iterations": 1, "workers": 2, "servers": 1, "push_bound": BOUND if transport == "dlcp" else 0.0,
            "exchange": {"kind": "parameter_server"}, "tagging": {"magnitude": True, "layer_priority": True},
        }], **more,
    })  # fmt: skip


def trainer(network: Any, reducer: Reducer | None = None, steps: int = 4) -> Trainer:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    recipe = Recipe(workers=2, batch=8, steps=steps, payload=PAYLOAD)
    return Trainer(model, images("synthetic", 8, augment=False, limit=400), recipe, reducer, network)


@pytest.mark.slow
@pytest.mark.virtual
@needs("uml")
def test_virtual_training_is_reproducible_from_checkpoint_and_replay(tmp_path: Path) -> None:
    """A session runs two steps, a checkpoint and two steps, with pauses outside. Another session without pauses
    continues from the checkpoint with equal results, and so does a replay of the record, bit by bit. Some data is
    lost, and of no message more than its bound."""
    session = Session(scenario("virtual"))
    try:
        recorded = RecordingNetwork(Simulated(session))
        first, rows = trainer(recorded), []
        for step in range(4):
            rows.append(first.step())
            time.sleep(0.3)
            if step == 1:
                torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
        assert session.built == 2 and session.engine["clock"] == "virtual" and not session.disturbed
    finally:
        session.close()
    assert all(row.time_ps > 0 for row in rows) and 0 < max(row.lost for row in rows) <= BOUND
    lost = 0
    for answer in (answers[0] for answers in recorded.answers):
        for info, mask in ((info, mask) for row in answer.arrived for info, mask in zip(first.infos, row, strict=True)):
            if mask is not None:
                sizes = [min(PAYLOAD, 4 * info.numel - PAYLOAD * packet) for packet in range(len(mask))]
                gone = sum(size for size, there in zip(sizes, mask.tolist(), strict=True) if not there)
                assert 0 < gone <= BOUND * 4 * info.numel
                lost += 1
    assert lost
    other = Session(scenario("virtual"))
    try:
        second = trainer(Simulated(other))
        second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
        assert [second.step() for _ in range(2)] == rows[2:]
    finally:
        other.close()
    third = trainer(Replay(recorded.answers))
    assert [third.step() for _ in range(4)] == rows
    for mine, theirs in ((second, first), (third, first)):
        assert all(torch.equal(a, b) for a, b in zip(mine.model.parameters(), theirs.model.parameters(), strict=True))


@pytest.mark.slow
@needs("namespaces", "tun")
@pytest.mark.parametrize(("transport", "reducer"), [("dlcp", TopK(ratio=0.2)), ("cubic", None)], ids=["dlcp", "cubic"])
def test_wall_clock_training_transfers_encoded_gradients(transport: str, reducer: Reducer | None) -> None:
    """Encodings are cut into packets, some of which are lost for good; the kernel's TCP retransmits losses. All steps
    use one network, and the session itself checks each of them to the byte."""
    session = Session(scenario("wall", transport, loss=0.05 if transport == "dlcp" else 0.0))
    try:
        mine = trainer(Simulated(session), reducer, steps=3)
        rows = [mine.step() for _ in range(3)]
    finally:
        session.close()
    assert session.built == 1 and all(row.time_ps > 0 for row in rows)
    assert all(row.lost <= BOUND for row in rows)
    if transport == "cubic":
        assert not any(row.lost for row in rows)
        plain = trainer(None, steps=3)
        assert [plain.step().loss for _ in range(3)] == [row.loss for row in rows], "nothing lost: plain training"


@pytest.mark.slow
@pytest.mark.virtual
@needs("uml")
def test_larger_pull_messages_take_proportional_time() -> None:
    """TernGrad is pushed in 2 bits an element and pulled in 32. A step takes as long as the link needs for that, and
    as long as in the simulator."""
    one = scenario("virtual", loss=0.0)
    simulator, session = Simulator(one), Session(one)
    try:
        there, here = (trainer(Simulated(each), TernGrad(), steps=2) for each in (simulator, session))
        rows = [(there.step(), here.step()) for _ in range(2)]
        assert not session.engine["substitutions"]
    finally:
        session.close()
        simulator.close()
    back = 4 * sum(info.numel for info in here.infos)
    for simulated, emulated in rows:
        assert emulated.pulled_bytes == 2 * back > 10 * emulated.sent_bytes
        assert emulated.time_ps > 2 * back * 8000  # ps for a byte of 1 Gbps, to both workers
        assert emulated.time_ps == pytest.approx(simulated.time_ps, rel=0.1)


def test_training_session_rejects_unsupported_scenarios() -> None:
    with pytest.raises(ScenarioError, match="flowlet"):
        Session(scenario("virtual", load_balancing="flowlet"))
    with pytest.raises(ScenarioError, match=r"emulation\.hosts"):
        Session(scenario("wall", emulation={"hosts": [
            {"name": f"h{n}", "address": f"127.0.0.{n + 1}", "command": ["true"]} for n in range(3)]}))  # fmt: skip


@pytest.mark.wall
@needs("namespaces", "tun")
def test_training_step_over_time_limit_closes_session() -> None:
    session = Session(scenario("wall"), limit_s=0.0)
    with pytest.raises(TestbedError, match="step 0 took longer than 0 s"):
        trainer(Simulated(session)).step()
    assert session._held is None
