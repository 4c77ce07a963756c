"""The simulator as the network of a training: its steps, masks and times."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sim_cases import make_trace as made  # noqa: E402

from gradwire.scenarios.errors import GradwireError, ScenarioError, TraceError  # noqa: E402
from gradwire.scenarios.loading.load import build_scenario  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.sim.simulate import simulate  # noqa: E402
from gradwire.traces.models.resnet import CifarResNet  # noqa: E402
from gradwire.traces.trace import TensorInfo  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.exchange.ring_allreduce import RingLayout  # noqa: E402
from gradwire.training.networks.builtin_networks import Pushed, RecordingNetwork, Replay  # noqa: E402
from gradwire.training.networks.packet_steps import _encoding_ends  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.reducers.feedback import ErrorFeedback  # noqa: E402
from gradwire.training.reducers.none import Dense  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.reducers.signsgd import SignSGD  # noqa: E402
from gradwire.training.reducers.topk import TopK  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from gradwire.workload.replay import Replay as RunReplay  # noqa: E402


def made_trace(tensors: int = 2, elements: int | list[int] = 100, name: str = "step"):
    """One iteration; every tensor a layer."""
    sizes = elements if isinstance(elements, list) else [elements] * tensors
    found = made([[size] for size in sizes], forward=10**7, backward=10**7)
    found.manifest["name"] = name
    return found


def scenario(transport: str = "dlcp", workers: int = 4, **more):
    job = {
        "name": "job", "trace": "step", "iterations": 1, "workers": workers, "servers": 1, "push_bound": 0.2,
        "exchange": {"kind": "parameter_server", "partition": "64KiB"}, "tagging": {"magnitude": True, "layer_priority": True},
    }  # fmt: skip
    job |= more.pop("job", {})
    content = {
        "name": "small", "transport": transport, "topology": {"kind": "star", "hosts": workers + 1},
        "link": {"rate": "10Gbps", "latency": "1us"}, "job": [job],
        "switch": {"queues": 8, "buffer": "64KiB", "ecn_threshold": "16KiB", "selective_drop": True}, **more,
    }  # fmt: skip
    return build_scenario(content)


def trainer(network, reducer=None, steps: int = 4) -> Trainer:
    torch.manual_seed(1)
    recipe = Recipe(workers=4, batch=4, steps=steps)
    return Trainer(CifarResNet(1, 10), images("synthetic", 8, limit=200), recipe, reducer, network)


def pushed(values: torch.Tensor, workers: int = 4, step: int = 0) -> Pushed:
    """One tensor, the same of every worker."""
    info = TensorInfo("t", (len(values),), len(values), "float32", 0)
    return Pushed(step, 0, 4096, [info], [[Encoded((values,))] for _ in range(workers)])


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


@pytest.mark.parametrize(("phase", "expected"), [
    (None, [[0, 3, 1, 4], [1, 4, 2, 5], [2, 5, 0, 3], [0, 3, 1, 4]]),
    ("late", [[2, 5, 2, 5]] * 4), ("early", [[0, 3, 1, 4], [1, 4, 0, 3], [0, 3, 1, 4], [1, 4, 0, 3]]),
])  # fmt: skip
def test_training_workers_replay_same_iterations_as_job_workers(phase: str | None, expected: list[list[int]]) -> None:
    """Two ranks have three iterations each, two early and one late. The tables give the iteration by step and
    worker. The third and the fourth worker are one iteration ahead of the ranks whose iterations they have; so are
    they in a run."""
    times = made([[1920], [10]], iterations=6, skew=1000, phases=("early", "early", "late") * 2)
    for iteration in times.iterations:
        object.__setattr__(iteration, "rank", iteration.index // 3)
    session, seen = Session(scenario()), []
    play = session.step
    session.step = lambda trace, *args, **named: (seen.append(trace), play(trace, *args, **named))[1]  # type: ignore[method-assign]
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    trainer = Trainer(
        model,
        images("synthetic", 8, limit=200),
        Recipe(workers=4, batch=4, steps=4),
        network=Simulated(session, times, phase),
    )
    for _ in range(4):
        trainer.step()
    ready = [[each.ready_ps.tolist() for each in trace.iterations] for trace in seen]
    assert ready == [[times.iterations[index].ready_ps.tolist() for index in row] for row in expected]
    job = scenario().job[0].model_copy(update={"phase": phase})
    replayed = RunReplay(job, times, 1)
    assert [[replayed.captured(worker, step) for worker in range(4)] for step in range(4)] == expected


def test_step_time_includes_compute_times_of_trace() -> None:
    """A step takes no less than the computing before the last gradient."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))
    data, recipe = images("synthetic", 8, limit=200), Recipe(workers=4, batch=4, steps=1)
    times = made_trace(elements=[1920, 10])
    bare = Trainer(model, data, recipe, network=Simulated(Session(scenario()))).step().time_ps
    busy = Trainer(model, data, recipe, network=Simulated(Session(scenario()), times)).step().time_ps
    last = int(times.iterations[0].ready_ps.max())
    assert last > 0 and busy >= max(last, bare) and busy <= last + bare + times.iterations[0].end_ps
    other = made_trace(2, 100)
    with pytest.raises(TraceError, match="has other tensors than the trained model"):
        Trainer(model, data, recipe, network=Simulated(Session(scenario()), other)).step()


RING = {"exchange": {"kind": "ring"}, "servers": 0, "push_bound": 0.3, "pull_bound": 0.3, "pull_important": False,
        "tagging": {"magnitude": True, "important_fraction": 0.1}}  # fmt: skip
LOSSY = {"rate": "10Gbps", "latency": "1us", "loss": 0.05}


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


def test_resync_takes_time_of_another_lossless_all_reduce() -> None:
    """It loses no packet, and no bound by phase takes it for a change of gradients."""
    calls = []

    class Seen(RecordingNetwork):
        def carry(self, pushed):
            answer = super().carry(pushed)
            lossy = any(mask is not None for mask in answer.hops.masks)
            calls.append((pushed.step, pushed.round, len(pushed.kept), answer.time_ps, lossy))
            return answer

    recipe = Recipe(workers=4, batch=4, steps=6, payload=4096, collective="ring", resync=3)
    network = Seen(Simulated(Session(scenario(job=RING, link=LOSSY))))
    model, data = CifarResNet(1, 10), images("synthetic", 8, limit=200)
    rows = [one for each in [Trainer(model, data, recipe, network=network)] for one in (each.step() for _ in range(6))]
    again = [(step, round_) for step, round_, *_ in calls]
    assert again == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 0), (4, 0), (5, 0), (5, 1)]
    assert all(kept == len(network.answers[0][0].arrived[0]) * round_ for _, round_, kept, _, _ in calls)
    assert {lossy for _, round_, _, _, lossy in calls if round_} == {False} and any(lossy for *_, lossy in calls)
    for step in (2, 5):
        times = [time for number, _, _, time, _ in calls if number == step]
        assert rows[step].time_ps == sum(times) and min(times) > max(times) / 4 > 0


def test_worker_encodes_tensors_one_at_a_time() -> None:
    """Two tensors are ready at 0: the last takes 7, then the first 5. The third is ready at 100 and takes 9."""
    sent = dataclasses.replace(pushed(torch.zeros(1)), encode_ps=[[5, 7, 9]] * 4)
    assert _encoding_ends(sent, 0, np.arange(3), np.array([0, 0, 100])).tolist() == [12, 7, 109]
    assert _encoding_ends(pushed(torch.zeros(1)), 0, np.arange(3), np.array([0, 0, 100])).tolist() == [0, 0, 100]


def test_encoding_overlaps_with_transmission() -> None:
    """Encoding delays packets, and is not added at the end again; decoding comes after. A replay counts it once,
    too. Nothing is dropped, since a timeout would be longer than all of it."""

    def over(**job) -> Session:
        return Session(
            scenario(
                "dctcp",
                job={"push_bound": 0.0, **job},
                switch={"queues": 8, "buffer": "16MiB", "ecn_threshold": "16KiB"},
            )
        )

    def run(network, how) -> list:
        torch.manual_seed(1)
        recipe = Recipe(workers=4, batch=4, steps=2, encode_time=how)
        made = Trainer(CifarResNet(1, 10), images("synthetic", 8, limit=200), recipe, network=network)
        return [made.step() for _ in range(2)]

    recorded = RecordingNetwork(Simulated(over()))
    free, busy = run(Simulated(over()), "none")[0], run(recorded, 1.0)[0]
    assert busy.encode_ps == 75_290 * 1000 and busy.decode_ps == 4 * busy.encode_ps
    assert busy.encode_ps < busy.time_ps - busy.decode_ps < free.time_ps + busy.encode_ps
    assert run(Replay(recorded.answers), 1.0)[0] == busy
    for scale in (0.0, 2.0):
        other = run(Simulated(over(compute_scale=scale)), 1.0)[0]
        assert other.encode_ps < other.time_ps - other.decode_ps <= free.time_ps + other.encode_ps, (
            "no computing, nor scaled like it"
        )


def test_second_powersgd_round_encodes_matrices_only() -> None:
    """The second round sends matrices only. Encoding them again and decoding is all that the clock has besides the
    network."""

    def run(how) -> list:
        torch.manual_seed(1)
        session = Session(
            scenario(
                "dctcp", job={"push_bound": 0.0}, switch={"queues": 8, "buffer": "16MiB", "ecn_threshold": "16KiB"}
            )
        )
        recipe = Recipe(workers=4, batch=4, steps=1, encode_time=how, momentum=0.0)
        return Trainer(
            CifarResNet(1, 10), images("synthetic", 8, limit=200), recipe, PowerSGD(rank=1), Simulated(session)
        ).step()

    busy = run(100.0)
    matrices = sum(p.numel() for p in CifarResNet(1, 10).parameters() if p.dim() > 1)
    vectors = sum(p.numel() for p in CifarResNet(1, 10).parameters() if p.dim() == 1)
    assert busy.encode_ps == 100_000 * (2 * matrices + vectors)
    assert busy.encode_ps + busy.decode_ps < busy.time_ps < busy.encode_ps + busy.decode_ps + run("none").time_ps


def test_empty_push_takes_no_time() -> None:
    assert Simulated(Session(scenario())).carry(pushed(torch.zeros(0))).time_ps == 0


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
