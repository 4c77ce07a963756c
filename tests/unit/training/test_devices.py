"""Trainings on a second device: everything but what goes to the network stays there, and the bits are the CPU's."""

from __future__ import annotations

import copy
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from second_device import DevicesMeet, SecondDevice  # noqa: E402
from training_cases import plain, same  # noqa: E402
from typer.testing import CliRunner  # noqa: E402

from gradwire import cli  # noqa: E402
from gradwire.result_store.training_result import TrainingResult  # noqa: E402
from gradwire.scenarios.errors import ScenarioError  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.scenarios.loading.registry import components  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402
from gradwire.training.build import data_of, trainer_of  # noqa: E402
from gradwire.training.data import images  # noqa: E402
from gradwire.training.devices import WORKSPACE, Stopwatch, describe_device, deterministic, to_device  # noqa: E402
from gradwire.training.exchange.encoded_tensors import Encoded  # noqa: E402
from gradwire.training.networks.builtin_networks import Pushed, Random  # noqa: E402
from gradwire.training.trainer import Recipe, Trainer, tensors_of  # noqa: E402

SHORT = [
    "training.steps=4", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2",
    "training.augment=true", "training.score_every=2", "transport.payload=\"512B\"",
]  # fmt: skip
LOSSY, IDEAL = "training.network={loss=0.2}", 'training.network="ideal"'
MODELS = {
    "vgg11-quarter": ["training.size=32", "training.samples=16", "training.steps=1"],
    "char-lstm": ["training.size=16", "training.steps=2", "training.batch=2"],
    "char-gpt": ["training.size=16", "training.steps=2", "training.batch=2"],
}
RING = ['job.exchange={kind="ring"}', "job.servers=0", 'training.network={loss=0.2, way="both"}', "training.resync=3"]
SMALLER = {"omnireduce": ", block=64"}  # its usual block has more bytes than the packets here
CASES = {
    **{f"reducer {kind}": [f'training.reducer={{kind="{kind}"{SMALLER.get(kind, "")}}}', LOSSY,
                           *["training.optimizer.momentum=0.0"][: kind == "dgc"]] for kind in components("reducer")},
    **{f"{kind}, fed back": [f'training.reducer={{kind="{kind}"}}', LOSSY, "training.error_feedback=true",
                             "training.feed_back=true", "training.momentum_correction=0.9",
                             "training.optimizer.momentum=0.0"] for kind in ("topk", "signsgd", "powersgd")},
    **{f"{kind}, nothing lost": [f'training.reducer={{kind="{kind}"}}', IDEAL, "training.optimizer.momentum=0.0"]
       for kind in ("none", "randomk", "dgc")},
    **{f"topk, {words}": ['training.reducer={kind="topk"}', IDEAL, "training.error_feedback=true", *more]
       for words, more in (("nothing lost", []), ("corrected, nothing lost", [
           "training.momentum_correction=0.9", "training.optimizer.momentum=0.0"]))},
    **{f"fill {fill}": [LOSSY, f'job.fill="{fill}"', "training.optimizer.clip=1.0"] for fill in ("rescaled", "stale")},
    **{f"randomk, {fill}": ['training.reducer={kind="randomk", ratio=0.5}', LOSSY, f'job.fill="{fill}"']
       for fill in ("rescaled", "stale")},
    **{f"pulls {fill}": ['training.network={loss=0.2, way="both"}', f'job.pull_fill="{fill}"', "training.resync=3"]
       for fill in ("stale", "zero")},
    **{f"ring {fill}": [*RING, f'job.fill="{fill}"', "training.optimizer.clip=1.0"]
       for fill in ("zero", "rescaled", "stale")},
    **{f"ring, {kind}": [*RING, f'training.reducer={{kind="{kind}"}}', 'job.pull_fill="zero"', "training.error_feedback=true"]
       for kind in ("randomk", "powersgd")},
    **{f"{words} magnitudes, {kind}": [f'training.reducer={{kind="{kind}"}}', f'training.network={{loss=0.5, magnitudes="{words}"}}']
       for words, kind in (("small", "terngrad"), ("large", "qsgd"))},
    "small magnitudes, mipd": ['training.system={kind="mipd", refresh=2, small=16}',
                               'training.network={loss=0.5, magnitudes="small"}'],
    "large magnitudes": ['training.network={loss=0.5, magnitudes="large", quota=true}'],
    "overlapped": ['job.exchange={kind="overlapped", batch=4}', "job.servers=0", IDEAL],
    "asynchronous": ['training.system={kind="asynchronous", staleness=1, computing=["1ms","3ms"]}', LOSSY],
    "slimdp": ['training.system={kind="slimdp", every=2}', LOSSY],
    "slimdp, own sets": ['training.system={kind="slimdp", every=2, sets="own", keys=false}', LOSSY],
    "mipd": ['training.system={kind="mipd", refresh=2, small=16}', LOSSY],
    "mipd, three bits": ['training.system={kind="mipd", refresh=2, bits=3, update="all"}', LOSSY],
    "mp2": ['training.system={kind="mp2", period=4}', LOSSY],
    "mp2, several": ['training.system={kind="mp2", every=2, predictor="several", momentum="averaged"}', IDEAL],
    "partial_averaging": ['training.system={kind="partial_averaging", pieces="tensors", outer_momentum=0.5}', LOSSY],
    "wnn": ['training.system={kind="wnn", period=1}', "training.steps=6", IDEAL],
    **{f"model {name}": [f'training.model="{name}"', LOSSY, *more] for name, more in MODELS.items()},
}  # fmt: skip


def scenario(*settings: str, policy: str = "dctcp"):
    return load_scenario("train-tiny", set=[*SHORT, *settings], policy=policy)


def trained(*settings: str):
    """A trainer after its steps, what its steps were, and its score."""
    asked = scenario(*settings)
    trainer = trainer_of(asked, data_of(asked.training))
    rows = [trainer.step() for _ in range(trainer.recipe.steps)]
    return trainer, rows, trainer.score()


def test_device_cases_cover_every_system() -> None:
    assert set(components("system")) <= set(CASES)


@pytest.mark.parametrize("case", CASES)
def test_training_on_second_device_equals_cpu_bit_for_bit(case: str) -> None:
    settings = CASES[case]
    expected, rows, score = trained(*settings)
    assert any(row.lost or row.lost_back for row in rows) or IDEAL in settings
    with SecondDevice() as device:
        ours, found, judged = trained(*settings, 'training.device="cuda"')
        assert "nothing lost" not in case or ours.exchange.rows is not None, "not all at once"
        everything = [*ours.model.parameters(), *ours.model.buffers()]
        assert {each.device for each in everything} == {device}
        on_the_cpu = [name for name, each in named(ours.state_dict()) if each.device != device and name != ".drawn.cpu"]
        assert not on_the_cpu
    assert (found, judged) == (rows, score)
    assert same(ours.model, expected.model)


STATEFUL = [
    "topk, fed back", "powersgd, fed back", "fill stale", "pulls stale", "ring stale", "asynchronous", "slimdp", "mipd", "mp2",
    "wnn", "partial_averaging",
]  # fmt: skip


@pytest.mark.parametrize("case", STATEFUL)
def test_cpu_checkpoint_resumes_on_second_device(case: str) -> None:
    asked = scenario(*CASES[case])
    before = trainer_of(asked, data_of(asked.training))
    before.step(), before.step()
    saved = copy.deepcopy(before.state_dict())
    rows = [before.step(), before.step()]
    with SecondDevice():
        there = scenario(*CASES[case], 'training.device="cuda"')
        after = trainer_of(there, data_of(there.training))
        after.load_state_dict(saved)
        assert [after.step(), after.step()] == rows
    assert same(after.model, before.model)


def named(of: object, name: str = "") -> list:
    """All tensors of a checkpoint, with where they are in it."""
    if isinstance(of, torch.Tensor):
        return [(name, of)]
    pairs = of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, (list, tuple)) else ()
    return [each for key, value in pairs for each in named(value, f"{name}.{key}")]


def test_emulated_device_rejects_mixed_device_operations() -> None:
    with SecondDevice() as device:
        there, here = torch.ones(3, device=device), torch.ones(3)
        for wrong in (lambda: there + here, lambda: torch.cat([there, here]), lambda: there[torch.tensor([0])],
                      lambda: torch.where(here > 0, there, 0.0), lambda: there.numpy(), lambda: there.new_zeros(3) * here):  # fmt: skip
            with pytest.raises(DevicesMeet):
                wrong()
        assert (there * torch.tensor(2.0)).device == device and (there.cpu() + here).device.type == "cpu"
        assert there.view(1, 3)[0].device == there[:1].device == there.double().device == device
        assert float(there.sum()) == 3 and there.cpu().numpy().tolist() == [1, 1, 1]


@pytest.mark.parametrize("more", ["", "training.spread=true"])
def test_simulated_losses_repeat_on_second_device(more: str, tmp_path: Path) -> None:
    asked = ["training.keep_missing=true", *([more] if more else [])]
    before = train(scenario(*asked, policy="dlcp"), tmp_path / "before")
    assert any(row["lost"] for row in before.steps)
    replayed = f'training.network={{replay="{tmp_path / "before"}"}}'
    with SecondDevice():
        again = train(scenario(*asked, 'training.device="cuda"', policy="dlcp"), tmp_path / "again")
        replay = train(scenario(replayed, 'training.device="cuda"', policy="dlcp"))
    unknown = [{**row, "retransmitted": None} for row in before.steps]
    assert again.steps == before.steps and replay.steps == unknown, "a replay has no packets to retransmit"
    assert again.scores == replay.scores == before.scores


@pytest.mark.parametrize("policy", ["dlcp", "topk"])
def test_simulated_run_moves_from_second_device_to_cpu(policy: str, tmp_path: Path) -> None:
    """Two of four steps run on a second device and two on the CPU. Parameters, tables and losses are those of four
    steps on the CPU, and the summary lists which steps ran where."""

    def stop(share: float, words: str) -> None:
        if "step 3" in words:
            raise KeyboardInterrupt

    asked = ("training.keep_missing=true", "training.checkpoint_every=2")
    whole = train(scenario(*asked, policy=policy), tmp_path / "whole")
    with SecondDevice(), pytest.raises(KeyboardInterrupt):
        train(scenario(*asked, 'training.device="cuda"', policy=policy), tmp_path / "part", progress=stop)
    early = TrainingResult.read(tmp_path / "part").summary
    assert early["steps_done"] == 2 and [each["device"] for each in early["devices"]] == ["cuda"]
    learned = train(scenario(*asked, policy=policy), tmp_path / "part")
    assert learned.steps == whole.steps and learned.scores == whole.scores
    tables = [(tmp_path / name / "missing.parquet").read_bytes() for name in ("whole", "part")]
    assert tables[0] == tables[1]
    assert [(each["from_step"], each["device"]) for each in learned.summary["devices"]] == [(0, "cuda"), (2, "cpu")]
    assert [each["deterministic_algorithms"] for each in learned.summary["devices"]] == [True, False]
    assert [(each["from_step"], each["device"]) for each in whole.summary["devices"]] == [(0, "cpu")]


def test_summary_attributes_repeated_steps_to_repeating_device(tmp_path: Path) -> None:
    """Two steps run on the CPU and one, without a checkpoint, on a second device. The CPU repeats it and runs the
    rest."""

    def stop(number: int) -> Callable[[float, str], None]:
        def hears(share: float, words: str) -> None:
            if f"step {number}" in words:
                raise KeyboardInterrupt

        return hears

    asked = ("training.score_every=1", "training.checkpoint_every=2")
    with pytest.raises(KeyboardInterrupt):
        train(scenario(*asked), tmp_path / "one", progress=stop(3))
    with SecondDevice(), pytest.raises(KeyboardInterrupt):
        train(scenario(*asked, 'training.device="cuda"'), tmp_path / "one", progress=stop(4))
    meanwhile = TrainingResult.read(tmp_path / "one").summary
    assert meanwhile["steps_done"] == 3
    assert [(each["from_step"], each["device"]) for each in meanwhile["devices"]] == [(0, "cpu"), (2, "cuda")]
    learned = train(scenario(*asked), tmp_path / "one")
    assert [(each["from_step"], each["device"]) for each in learned.summary["devices"]] == [(0, "cpu")]


def test_output_folder_of_another_scenario_is_rejected(tmp_path: Path) -> None:
    train(scenario(IDEAL), tmp_path / "one")
    with pytest.raises(Exception, match="holds a training run of another scenario"):
        train(scenario(IDEAL, "training.batch=5"), tmp_path / "one")


def test_device_tensors_serialize_to_same_packets_as_cpu_tensors() -> None:
    values, keys = torch.arange(7.0), torch.arange(7, dtype=torch.int32)
    expected = Encoded((values, keys), (torch.tensor([3.0]),)).to_packets(28)
    with SecondDevice() as device:
        there = Encoded((values.to(device), keys.to(device)), (torch.tensor([3.0], device=device),))
        packets = there.to_packets(28)
        assert packets == expected and len(packets) == 3
        again, arrived = there.from_packets([packets[0], None, packets[2]], 28)
        assert {each.device for each in (*again.fields, *again.head, arrived)} == {device}
        assert arrived.tolist() == [True] * 3 + [False] * 3 + [True]
        assert Encoded((values[:0].to(device),)).to_packets() == []
        pushed = Pushed(0, 0, 28, [], [[there]])
        assert pushed.magnitudes(0, 0).tolist() == pytest.approx([1.0, 4.0, 6.0])


def test_batches_of_cpu_data_move_to_model_device() -> None:
    """Training batches and evaluated samples are moved to the model."""
    data, recipe = images("synthetic", 8, limit=200), Recipe(workers=2, batch=4, steps=2)
    expected = Trainer(plain(), data, recipe, network=Random(0.3))
    rows = [expected.step() for _ in range(2)]
    with SecondDevice() as device:
        ours = Trainer(plain().to(device), data, recipe, network=Random(0.3))
        assert [ours.step() for _ in range(2)] == rows and ours.score() == expected.score()
        saved = ours.state_dict()
    other = Trainer(plain(), data, recipe, network=Random(0.3))
    other.load_state_dict(saved)
    assert same(other.model, ours.model)


def test_stopwatch_synchronizes_gpu_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    monkeypatch.setattr("torch.cuda.synchronize", waited.append)
    cpu, cuda = torch.device("cpu"), torch.device("cuda:1")
    assert Stopwatch(cpu, waits=True)() > 0 and Stopwatch(cuda)() > 0 and not waited
    assert Stopwatch(cuda, waits=True)() > 0 and waited == [cuda]


def test_measured_encode_time_synchronizes_device(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[object] = []
    with SecondDevice():
        monkeypatch.setattr("torch.cuda.synchronize", waited.append)
        for how, times in (("none", 0), ("measured", 2 * 2 * 3 * 4 + 2)):  # before and after; encode, decode and add
            asked = scenario(IDEAL, f'training.encode_time="{how}"', 'training.device="cuda"')
            data = data_of(asked.training)
            trainer = trainer_of(asked, data)
            waited.clear()
            trainer.step()
            tensors = len(tensors_of(trainer.model))
            assert len(waited) == (times - 2) // 4 * tensors + 2 if times else not waited


def test_deterministic_mode_applies_only_to_gpu_and_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with deterministic(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.benchmark
        assert WORKSPACE not in os.environ
    with deterministic(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled() and os.environ[WORKSPACE] == ":4096:8"
        assert not torch.backends.cudnn.benchmark and not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.benchmark and torch.backends.cudnn.allow_tf32
    monkeypatch.delenv(WORKSPACE)


def test_nondeterministic_operations_are_listed_and_other_warnings_pass() -> None:
    pool, places = torch.nn.functional.max_pool2d(torch.rand(1, 1, 4, 4), 2, return_indices=True)
    with (
        pytest.warns(UserWarning, match="something else") as heard,
        SecondDevice(),
        deterministic(torch.device("cuda")) as unlike,
    ):
        torch.nn.functional.max_unpool2d(pool, places, 2)
        warnings.warn("something else", stacklevel=1)
        said = describe_device(torch.device("cuda"), unlike, ["one"])
    assert said == {
        "device": "cuda", "name": "a second device", "deterministic_algorithms": True,
        "not_deterministic": ["max_unpooling2d_forward_out"], "slower": ["one"],
    }  # fmt: skip
    assert len(heard) == 1


def test_to_device_leaves_non_tensors_unchanged() -> None:
    one = {"a": [torch.ones(2), 3, None], 1: ("x", torch.zeros(1))}
    with SecondDevice() as device:
        found = to_device(one, device)
        assert found["a"][0].device == found[1][1].device == device
        assert found["a"][1:] == [3, None] and found[1][0] == "x" and isinstance(found[1], tuple)


# --- what is not there -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", [
    ["check", "train-tiny", "--set", 'training.device="cuda"'],
    ["train", "train-tiny", "--policy", "dctcp", "--device", "cuda", "--out", "here"],
    ["train", "train-tiny", "--policy", "dctcp", "--device", "cuda:7", "--out", "here"],
    ["reproduce", "reducers", "--device", "cuda", "--pictures", "synthetic", "--out", "here"],
    ["reproduce", "reducers", "--device", "cuda", "--list", "--out", "here"],
])  # fmt: skip
def test_missing_device_gives_one_error_message(command: list[str]) -> None:
    found = CliRunner().invoke(cli.app, command)
    assert found.exit_code == 2 and "Traceback" not in found.output
    words = "".join(found.output.replace("│", "").split())
    assert (
        "training.device:device'cuda" in words
        and "cannotbeused" in words
        and ("expectedcpu,orauto:torchfindsnoGPU" in words or "expectedcpu,autooroneofcuda:0" in words)
    )
    assert not any(Path("here").rglob("*.toml"))


def test_unknown_device_and_device_for_simulation_are_rejected() -> None:
    with pytest.raises(ScenarioError, match=r"(?s)device.*is not a compute device.*mps"):
        scenario('training.device="mps"')
    found = CliRunner().invoke(cli.app, ["reproduce", "schedulers", "--device", "cuda", "--out", "here"])
    assert found.exit_code == 2 and "only simulates" in found.output and not Path("here").exists()


def test_auto_device_is_cpu_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    learned = train(scenario(IDEAL, 'training.device="auto"'))
    assert [each["device"] for each in learned.summary["devices"]] == ["cpu"]


def test_reproduction_run_keys_depend_on_device() -> None:
    """Runs on the CPU have the same key with and without an explicit device; runs on CUDA have another one."""
    from gradwire.studies.reproduce import claims_of
    from gradwire.studies.reproduce.run_plan import runs_of_claim

    data = {"pictures": "synthetic", "text": "synthetic"}
    claim = claims_of(["reducers"])[0]
    before, cpu, cuda = (runs_of_claim(claim, 1, False, data, *more) for more in ((), ("cpu",), ("cuda",)))
    assert [run.key for run in before] == [run.key for run in cpu]
    assert not {run.key for run in cpu} & {run.key for run in cuda}
    assert {run.scenario.training.device for run in cuda} == {"cuda"}


def test_train_command_reports_compute_device(monkeypatch: pytest.MonkeyPatch) -> None:
    sets = [word for each in [*SHORT, IDEAL] for word in ("--set", each)]
    line = ["train", "train-tiny", "--policy", "dctcp", *sets, "--json"]
    with SecondDevice():
        found = CliRunner().invoke(cli.app, [*line, "--device", "cuda"])
    assert found.exit_code == 0 and "computed on cuda, a second device" in found.stderr
    (made,) = json.loads(found.stdout)["trainings"]
    assert made["devices"][0]["name"] == "a second device"
    assert "computed on" not in CliRunner().invoke(cli.app, line).stderr


# --- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("case", CASES)
def test_gpu_training_is_repeatable_and_close_to_cpu(case: str) -> None:
    """Equal seeds give equal bits on the GPU; the first step's loss is close to the CPU's."""
    settings = [*CASES[case], 'training.device="cuda"']
    with deterministic(torch.device("cuda")) as unlike:
        (one, rows, score), (other, again, judged) = trained(*settings), trained(*settings)
    assert {each.device.type for each in one.model.parameters()} == {"cuda"}
    if not unlike:
        assert (rows, score) == (again, judged) and same(one.model, other.model)
    _, expected, _ = trained(*CASES[case])
    assert rows[0].loss == pytest.approx(expected[0].loss, rel=1e-3)
    assert rows[0].sent_bytes == pytest.approx(expected[0].sent_bytes, rel=0.05)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_simulated_run_moves_from_gpu_to_cpu(tmp_path: Path) -> None:
    def stop(share: float, words: str) -> None:
        if "step 3" in words:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(scenario('training.device="cuda"', policy="dlcp"), tmp_path / "part", progress=stop)
    learned = train(scenario(policy="dlcp"), tmp_path / "part")
    assert [each["device"] for each in learned.summary["devices"]] == ["cuda", "cpu"]
    whole = train(scenario(policy="dlcp"))
    assert learned.steps[-1]["loss"] == pytest.approx(whole.steps[-1]["loss"], rel=1e-2)
