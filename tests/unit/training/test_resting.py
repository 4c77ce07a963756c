"""Networks with a memory rest by the scenario alone: whoever looks on, keeps, stops or goes on sees the same training."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as parquet
import pytest

torch = pytest.importorskip("torch")

from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.sim.sessions.session import Session  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.loss_replay.loss_recording import LossRecording  # noqa: E402
from gradwire.training.networks.builtin_networks import EvenLoss, Ideal, Random, RecordingNetwork  # noqa: E402
from gradwire.training.networks.network_interface import is_stateful  # noqa: E402
from gradwire.training.networks.simulated import Simulated  # noqa: E402
from gradwire.training.trainer import Trainer  # noqa: E402
from tests.support.killing import Killed  # noqa: E402

SHORT = ["training.steps=7", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=3"]
PERSISTENT = 'transport={kind="dctcp", connections="persistent"}'
TRAFFIC = 'traffic=[{name="others", kind="poisson", load=0.5, sizes="web_search"}]'
ARMS = {
    "dctcp": ("dctcp", [PERSISTENT]),
    "dlcp": ("dlcp", []),
    "ring": ("dctcp", [PERSISTENT, 'job.exchange={kind="ring"}', "job.servers=0"]),
    "spread": ("dlcp", ["training.spread=true", "training.keep_missing=true"]),
    "slimdp": ("dlcp", ['training.system={kind="slimdp"}']),
    "mp2": ("dctcp", [PERSISTENT, 'training.system={kind="mp2"}']),
    "beside traffic": ("dctcp", [PERSISTENT, TRAFFIC]),
    "one by one beside traffic": ("dctcp", [TRAFFIC, 'training.system={kind="asynchronous"}']),
    "wnn": ("dctcp", [PERSISTENT, 'training.system={kind="wnn", period=1}']),
}
"""(policy, settings) by name."""


def tiny(*more: str, arm: str = "dctcp"):
    policy, settings = ARMS[arm]
    return load_scenario("train-tiny", set=[*SHORT, *settings, *more], policy=policy)


def model_in(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoint.pt", weights_only=True)["model"]


def alike(one: Path, other: Path) -> bool:
    """Whether two folders hold the same training, to the last bit."""
    mine, theirs = model_in(one), model_in(other)
    names = {each.name for each in one.glob("*.parquet")}
    return (
        {each.name for each in other.glob("*.parquet")} == names
        and all(parquet.read_table(one / name).equals(parquet.read_table(other / name)) for name in names)
        and all(torch.equal(mine[name], theirs[name]) for name in mine)
        and TrainingResult.read(one).summary["steps_done"] == TrainingResult.read(other).summary["steps_done"]
    )


def killed_in(step: int):
    """Hears of progress, and ends the training in that step."""

    def hears(share: float, words: str) -> None:
        if words.startswith(f"step {step},"):
            raise KeyboardInterrupt

    return hears


@pytest.mark.parametrize("arm", ARMS)
def test_evaluations_and_output_folder_do_not_change_training(arm: str, tmp_path: Path) -> None:
    """Evaluations run in every step, in every third, or at the end alone, with a folder and without."""
    found = [
        train(tiny(f"training.score_every={every}", arm=arm), None if place is None else tmp_path / f"{every}")
        for every in (1, 3, 100)
        for place in (None, tmp_path)
    ]
    assert all(each.steps == found[0].steps and each.tables["lost"] == found[0].tables["lost"] for each in found)
    for each in found:
        steps = {row["step"] for row in each.scores}
        assert each.scores == [row for row in found[0].scores if row["step"] in steps]
    assert [[row["step"] for row in each.scores] for each in found[::2]] == [[1, 2, 3, 4, 5, 6, 7], [3, 6, 7], [7]]


@pytest.mark.parametrize("arm", ["dctcp", "dlcp"])
@pytest.mark.parametrize(("steps", "settings", "every"), [
    (12, [], 2), (12, ["training.score_every=5"], 2), (7, ["training.checkpoint_every=3", "training.score_every=2"], 3),
])  # fmt: skip
def test_network_rests_at_checkpoint_interval(arm: str, steps: int, settings: list[str], every: int) -> None:
    """A trainer whose checkpoints let the network rest at the interval has the same clock. By default the interval
    is that of evaluations, a tenth of a training run. Without rests the clock is another one."""
    scenario = tiny(f"training.steps={steps}", *settings, arm=arm)
    clocks = []
    for rests in (True, False):
        network = Simulated(Session(scenario))
        trainer = trainer_of(scenario, data_of(scenario.training), network)
        rows = []
        while trainer.done < steps:
            rows.append(trainer.step())
            if rests and trainer.done % every == 0:
                trainer.state_dict()
        clocks.append([row.clock_ps for row in rows])
        network.plays.close()
    found = [row["clock_ps"] for row in train(scenario).steps]
    assert found == clocks[0] != clocks[1]


@pytest.mark.parametrize("arm", ["dctcp", "spread", "slimdp", "beside traffic"])
@pytest.mark.parametrize("rest", [3, 5])
def test_run_stopped_between_rests_resumes_identically(arm: str, rest: int, tmp_path: Path) -> None:
    """It resumes from the last rest, or from the beginning if there was none."""
    scenario = tiny(f"training.checkpoint_every={rest}", "training.score_every=2", arm=arm)
    train(scenario, tmp_path / "whole")
    for step in range(2, 8):
        place = tmp_path / f"{step}"
        with pytest.raises(KeyboardInterrupt):
            train(scenario, place, progress=killed_in(step))
        rested = [each for each in range(1, step + 1) if each % rest == 0 and not (each == step and each % 2 == 0)]
        assert (place / "checkpoint.pt").exists() == bool(rested)
        if rested:
            assert torch.load(place / "checkpoint.pt", weights_only=True)["done"] == rested[-1]
        if step > 2:
            looked = (step - 1) // 2 * 2
            assert TrainingResult.read(place).summary["steps_done"] == max([looked, *rested]), (
                "tables are of the last look"
            )
        train(scenario, place)
        assert alike(place, tmp_path / "whole"), step


@pytest.mark.parametrize("settings", [[], ["training.keep_missing=true"]])
def test_run_killed_at_any_file_write_resumes_identically(
    settings: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills cover each file of all tables and checkpoints: after an evaluation, a rest, and the end."""
    scenario = tiny("training.steps=4", "training.checkpoint_every=3", "training.score_every=2", *settings, arm="dlcp")
    kills = Killed(monkeypatch)
    train(scenario, tmp_path / "whole")
    files = kills.done
    assert files == 3 * (7 if settings else 5) + 2, "scenario, tables, how far it is; and two checkpoints"
    for kill_at in range(1, files + 1):
        kills.next(kill_at)
        place = tmp_path / f"{kill_at}"
        with pytest.raises(KeyboardInterrupt):
            train(scenario, place)
        kills.next(0)
        train(scenario, place)
        assert alike(place, tmp_path / "whole"), kill_at


def test_run_resumes_past_reached_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is reached before the network's first rest, after it, and with it. Steps are not trained again for
    the same target, and the resumed run equals one without a target."""
    for rest, every, kept in ((3, 2, None), (3, 4, 3), (2, 4, 4)):
        scenario = tiny(f"training.checkpoint_every={rest}", f"training.score_every={every}", arm="spread")
        whole, part = tmp_path / f"whole {rest} {every}", tmp_path / f"part {rest} {every}"
        train(scenario, whole)
        first = train(scenario, part, until=1e-6)
        assert first.summary["steps_done"] == every == len(first.steps)
        assert (part / "checkpoint.pt").exists() == (kept is not None)
        if kept is not None:
            assert torch.load(part / "checkpoint.pt", weights_only=True)["done"] == kept
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", lambda self: pytest.fail("a step was trained again"))
            again = train(scenario, part, until=1e-6)
        assert again.tables == first.tables and again.summary == first.summary
        assert train(scenario, part).steps == TrainingResult.read(whole).steps
        assert alike(part, whole)


def test_run_killed_while_writing_target_evaluation_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target counts as reached only after all files of its evaluation are written."""
    scenario = tiny("training.checkpoint_every=3", "training.score_every=2", arm="spread")
    kills = Killed(monkeypatch)
    whole = train(scenario, tmp_path / "whole", until=1e-6)
    assert kills.done == 7
    for kill_at in range(1, 8):
        kills.next(kill_at)
        place = tmp_path / f"{kill_at}"
        with pytest.raises(KeyboardInterrupt):
            train(scenario, place, until=1e-6)
        kills.next(0)
        assert train(scenario, place, until=1e-6).tables == whole.tables
        for each in (tmp_path / "whole").glob("*.parquet"):
            assert parquet.read_table(place / each.name).equals(parquet.read_table(each)), (kill_at, each.name)


@pytest.mark.parametrize("settings", [
    ["training.network={loss=0.2}"], ['training.network="ideal"'],
    ["training.network={loss=0.2}", "training.keep_missing=true"],
    ["training.network={loss=0.2}", 'training.system={kind="asynchronous", computing=["1ms","3ms"]}'],
], ids=["rule", "ideal", "kept", "asynchronous"])  # fmt: skip
def test_stateless_networks_checkpoint_at_every_evaluation(settings: list[str], tmp_path: Path) -> None:
    """`checkpoint_every` has no effect; the evaluation that reaches a target writes a checkpoint, too."""
    scenario = tiny("training.checkpoint_every=3", "training.score_every=2", *settings, arm="dlcp")
    with pytest.raises(KeyboardInterrupt):
        train(scenario, tmp_path / "a", progress=killed_in(4))
    assert torch.load(tmp_path / "a" / "checkpoint.pt", weights_only=True)["done"] == 2
    train(scenario, tmp_path / "b", until=1e-6)
    assert torch.load(tmp_path / "b" / "checkpoint.pt", weights_only=True)["done"] == 2
    train(scenario, tmp_path / "whole")
    for each in ("a", "b"):
        train(scenario, tmp_path / each)
        assert alike(tmp_path / each, tmp_path / "whole")


def test_stateful_networks_are_detected_through_wrappers() -> None:
    session = Simulated(Session(tiny()))
    assert all(
        is_stateful(each)
        for each in (
            session,
            LossRecording(session),
            EvenLoss(session),
            LossRecording(EvenLoss(RecordingNetwork(session))),
        )
    )
    assert not any(
        is_stateful(each)
        for each in (Ideal(), Random(0.1), LossRecording(Random(0.1)), RecordingNetwork(LossRecording(Ideal())))
    )
    session.plays.close()


def test_invalid_checkpoint_interval_is_rejected() -> None:
    for wrong in ("0", "-1", "2.5", '"often"'):
        with pytest.raises(ScenarioError, match=r"training\.checkpoint_every"):
            tiny(f"training.checkpoint_every={wrong}")
