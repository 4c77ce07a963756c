"""The simulator's steps of training take the time of computing, encoding and transmission."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sim_cases import make_trace as made  # noqa: E402

from gradwire.scenarios.errors import TraceError  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.traces.models.resnet import CifarResNet  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.networks.builtin_networks import RecordingNetwork, Replay  # noqa: E402
from gradwire.training.networks.packet_steps import _encoding_ends  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.reducers.powersgd import PowerSGD  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer  # noqa: E402
from gradwire.workload.replay import Replay as RunReplay  # noqa: E402
from tests.support.simulated_cases import LOSSY, RING, made_trace, pushed, scenario  # noqa: E402


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
