"""The simulator as the network of a training run loses the same packets as a simulation of its messages."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from gradwire.scenarios.errors import GradwireError, ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.sim.simulate import simulate  # noqa: E402
from gradwire.traces.models.resnet import CifarResNet  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.ring_allreduce import RingLayout  # noqa: E402
from gradwire.training.networks.builtin_networks import RecordingNetwork, Replay  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from tests.support.simulated_cases import LOSSY, RING, made_trace, pushed, scenario, trainer  # noqa: E402


def test_session_step_equals_simulation_of_same_trace() -> None:
    """The first step has the same end and losses as `simulate` with the same trace and job."""
    trace = made_trace(3, 60_000)
    one = scenario(output={"missing": True})
    whole = simulate(one, trace)
    session = Session(one)
    played = session.step(trace)
    rows = whole.messages.to_pydict()
    assert played.time_ps == max(rows["end_ps"])
    seen = {
        (row["message"], n)
        for row in whole.missing.to_pylist()
        for n in range(row["packet"], row["packet"] + row["packets"])
    }
    mine = {(index, int(n)) for index, mask in played.missing.items() for n in np.flatnonzero(mask)}
    assert mine == seen and seen
    assert played.retransmitted == sum(rows["retransmitted"]) > 0
    assert session.now_ps == played.time_ps
    again = session.step(trace)
    between = (
        session.now_ps - played.time_ps - again.time_ps
    )  # it rests a little after the end of a step, less than a host takes
    assert 0 <= between <= one.host.software_latency and session.built == 1
    session.close()


def test_network_is_rebuilt_at_message_limit(monkeypatch) -> None:
    monkeypatch.setattr("gradwire.sim.sessions.persistent_network.MAX_MESSAGES", 20)
    session, trace = Session(scenario()), made_trace(3, 5_000)
    for _ in range(3):
        session.step(trace)
    assert session.built == 3


@pytest.mark.parametrize("reducer", [None, ErrorFeedback(reducer=TopK(ratio=0.3)), PowerSGD(rank=1)])
def test_training_over_simulator_replays_bit_identically(reducer) -> None:
    """Steps may have two rounds. Losses stay within the bound, and the clock is the sum of the steps."""
    recorded = RecordingNetwork(Simulated(Session(scenario())))
    first = trainer(recorded, reducer)
    rows, losses = [], []
    for _ in range(4):
        rows.append(first.step())
        losses.append(first.lost)
    assert rows[-1].clock_ps == sum(row.time_ps for row in rows) and all(row.time_ps > 0 for row in rows)
    assert max(max(map(max, each)) for each in losses) <= 0.5
    second = trainer(Replay(recorded.answers), reducer)
    again = [second.step() for _ in range(4)]
    assert again == rows
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))


def test_lost_packets_vary_from_step_to_step() -> None:
    """All packets are equal and droppable; different ones are last in different steps."""
    network = Simulated(Session(scenario(job={"tagging": {"magnitude": True, "important_fraction": 0.0}})))
    lost = []
    for step in range(6):
        mask = network.carry(pushed(torch.ones(40 * 1024), step=step)).arrived[0][0]
        lost.append(() if mask is None else tuple(np.flatnonzero(~mask.numpy()).tolist()))
    assert len(set(lost)) > 3 and len({packet for each in lost for packet in each}) > 12


def test_trainer_and_its_loaded_checkpoint_continue_identically(tmp_path) -> None:
    """The trainer that wrote the checkpoint and one that loads it have the same further steps."""
    first = trainer(Simulated(Session(scenario())), steps=6)
    for _ in range(3):
        first.step()
    torch.save(first.state_dict(), tmp_path / "checkpoint.pt")
    second = trainer(Simulated(Session(scenario())), steps=6)
    second.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    assert [first.step() for _ in range(3)] == [second.step() for _ in range(3)]


def test_loss_bound_holds_and_small_packets_are_lost_first() -> None:
    """The even ones of 40 packets are small; only these are missing, within a bound of 20 %."""
    values = torch.ones(40 * 1024)
    values.view(40, 1024)[::2] *= 0.01
    network = Simulated(Session(scenario()))
    for step in range(3):
        answer = network.carry(pushed(values, step=step))
        for row in answer.arrived:
            mask = row[0]
            assert mask is None or ((~mask).sum() <= 8 and mask[1::2].all())
    assert any(row[0] is not None for row in answer.arrived)


def test_loss_bound_of_critical_phase_follows_sent_gradients() -> None:
    """Gradients stay, double, stay. Nothing may be lost in the first step and in the one in which they double.
    After a rest the phase is unknown."""
    network = Simulated(Session(scenario(job={"push_bound": {"share": 0.2, "critical": 0.0}})))
    values = torch.ones(40 * 1024)
    values.view(40, 1024)[::2] *= 0.01
    lost = []
    for step, factor in enumerate((1.0, 1.1, 2.2, 2.2)):
        answer = network.carry(pushed(factor * values, step=step))
        lost.append(any(row[0] is not None for row in answer.arrived))
    assert lost == [False, True, False, True]
    network.state_dict()
    assert all(row[0] is None for row in network.carry(pushed(values, step=4)).arrived)


def test_exceeded_loss_bound_raises_error(monkeypatch) -> None:
    monkeypatch.setattr(
        "gradwire.sim.sessions.persistent_network.allowed_loss_per_message",
        lambda sizes, bounds: np.zeros(len(sizes), dtype=np.int64),
    )
    values = torch.ones(40 * 1024)
    values.view(40, 1024)[::2] *= 0.01
    network = Simulated(Session(scenario()))
    with pytest.raises(GradwireError, match=r"without \d+ of its \d+ bytes.*no more than its bound of 0.2"):
        network.carry(pushed(values))


def test_loss_bound_of_zero_loses_nothing() -> None:
    network = Simulated(Session(scenario(job={"push_bound": 0.0})))
    answer = network.carry(pushed(torch.randn(40 * 1024)))
    assert all(mask is None for row in answer.arrived for mask in row) and answer.time_ps > 0


def test_partition_losses_map_to_tensor_mask() -> None:
    """Messages have 64 KiB; a loss in the second is in the middle of the tensor's mask."""

    class Plays:
        scenario, takes_contents = scenario(), False

        def step(self, trace, back=1.0):
            found = Session(self.scenario).step(trace)
            rows = found.messages
            wanted = next(
                n
                for n in range(len(rows))
                if rows.captured[n] == 2 and found.workers[n, 0] == 2 and rows.first[n] == 16 * 1024
            )
            mask = np.zeros(16, dtype=bool)
            mask[3] = True
            return dataclasses.replace(found, missing={wanted: mask})

    answer = Simulated(Plays()).carry(pushed(torch.ones(40 * 1024)))
    assert [mask is not None for (mask,) in answer.arrived] == [False, False, True, False]
    assert np.flatnonzero(~answer.arrived[2][0].numpy()).tolist() == [19]


@pytest.mark.parametrize(("reducer", "numbers"), [(Dense(), True), (TopK(ratio=0.3), False), (SignSGD(), False)])
def test_session_receives_packet_contents_on_request(reducer, numbers: bool) -> None:
    """Each packet of an encoding is at its place in the message, and zeros follow the last one."""
    seen, sent = [], []

    class Plays:
        scenario, takes_contents = scenario(), True

        def step(self, trace, back, contents, as_numbers):
            seen.append((trace, contents, as_numbers))
            return Session(self.scenario).step(trace)

    class Heard(Simulated):
        def carry(self, pushed):
            sent.append(pushed)
            return super().carry(pushed)

    trainer(Heard(Plays()), reducer).step()
    (trace, contents, as_numbers), (pushed,) = seen[0], sent
    assert as_numbers is numbers and len(contents) == 4
    for worker, row in enumerate(contents):
        for tensor, content in enumerate(row):
            packets = pushed.encoded[worker][tensor].to_packets(4096)
            assert len(content) == trace.tensors[tensor].bytes
            rest = content
            for number, packet in enumerate(packets):
                assert content[4096 * number :].startswith(packet)
                rest = content[4096 * number + len(packet) :]
            assert not any(rest)


def test_ring_hop_masks_equal_message_losses() -> None:
    """The network derives hops from the senders, the test from the start times of a segment's messages."""
    one = scenario(job=RING, link=LOSSY, output={"missing": True})
    layout = RingLayout((180_000,), ((0,),), 4, 4096)
    sent = pushed(torch.linspace(1, 2, 180_000))
    traces = []

    class Plays:
        scenario, takes_contents = one, False

        def step(self, trace, back=1.0):
            traces.append(trace)
            return Session(one).step(trace)

    answer = Simulated(Plays()).carry(dataclasses.replace(sent, layout=layout))
    whole = simulate(one, traces[0])
    rows = whole.messages.to_pylist()
    order = {part: sorted(row["start_ps"] for row in rows if row["part"] == part) for part in range(4)}
    expected = torch.ones(6, 4, layout.packets(0), dtype=torch.bool)
    for each in whole.missing.to_pylist():
        row = rows[each["message"]]
        hop, worker = order[row["part"]].index(row["start_ps"]), int(row["src"][1:])
        expected[hop, worker, each["packet"] : each["packet"] + each["packets"]] = False
    assert not expected[:3].all() and not expected[3:].all()
    assert torch.equal(answer.hops.masks[0], expected) and answer.hops.buckets == ((0,),)


@pytest.mark.parametrize("job", [RING, {**RING, "exchange": {"kind": "parameter_server"}, "servers": 1}])
def test_training_with_pull_losses_replays_bit_identically(job) -> None:
    """Workers differ, and losses stay within the bound."""
    one = scenario(job=job, link=LOSSY)
    recorded = RecordingNetwork(Simulated(Session(one)))
    recipe = Recipe(workers=4, batch=4, steps=4, collective=one.job[0].exchange.kind)

    def run(network) -> tuple[Trainer, list]:
        torch.manual_seed(1)
        made = Trainer(CifarResNet(1, 10), images("synthetic", 8, limit=200), recipe, network=network)
        return made, [made.step() for _ in range(4)]

    first, rows = run(recorded)
    assert rows[-1].apart_rms > 0 and all(0 < row.lost <= 0.3 and row.lost_back <= 0.3 for row in rows[-2:])
    assert all((row.lost_back > 0) == (recipe.collective != "ring") for row in rows[-2:])
    second, again = run(Replay(recorded.answers))
    assert rows == again
    for mine, theirs in zip(first.replicas.values, second.replicas.values, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_scenarios_unsuitable_for_simulated_training_are_rejected() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"^job\.pull_bound: is 0\.1; with a reducer the servers' answers are not defined; expected 0, or no reducer$",
    ):
        trainer(Simulated(Session(scenario(job={"pull_bound": 0.1}))), TopK(ratio=0.3)).step()
    with pytest.raises(ScenarioError, match=r"payload.*multiple of 4 bytes"):
        Simulated(Session(scenario(transport={"kind": "dlcp", "payload": "1002B"}, job=RING)))
    with pytest.raises(ScenarioError, match=r"job\.exchange\.partition.*multiple of the payload"):
        Simulated(Session(scenario(job={"exchange": {"kind": "parameter_server", "partition": "10000B"}})))
    with pytest.raises(ScenarioError, match="p3 partitions gradients itself"):
        Simulated(Session(scenario(job={"servers": 0, "exchange": {"kind": "ring"}, "scheduler": "p3"})))
    with pytest.raises(ScenarioError, match="transpose cannot be trained"):
        Simulated(Session(scenario(job={"servers": 0, "exchange": {"kind": "transpose"}})))
    with pytest.raises(ScenarioError, match="has 0 jobs"):
        Session(
            build_scenario(
                {
                    **scenario().model_dump(mode="json", exclude_unset=True),
                    "job": [],
                    "traffic": [{"kind": "incast", "name": "t", "fan_in": 2, "receiver": "h0", "size": "1kB"}],
                }
            )
        )
    with pytest.raises(
        ScenarioError,
        match=r"^Simulated: 3 workers with packets of 4096 bytes; expected 4 and 4096, as the scenario's job has$",
    ):
        Simulated(Session(scenario())).carry(pushed(torch.ones(10), workers=3))


def test_simulated_message_sizes_equal_encoding_sizes() -> None:
    """Sizes are rounded to whole float32 values."""
    seen = []

    class Plays:
        scenario, takes_contents = scenario(), False

        def step(self, trace, back=1.0):
            seen.append([tensor.bytes for tensor in trace.tensors])
            return Session(self.scenario).step(trace)

    for reducer in (Dense(), TopK(ratio=0.5)):
        run = trainer(Simulated(Plays()), reducer)
        row = run.step()
        assert sum(seen[-1]) * 4 == pytest.approx(row.sent_bytes, rel=0.001)
