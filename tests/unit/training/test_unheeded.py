"""A replay takes times and losses as they were: what its scenario says otherwise of the network is told, and makes no
difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

torch = pytest.importorskip("torch")

from gradwire import cli  # noqa: E402
from gradwire.scenarios.loading.load import load_scenario  # noqa: E402
from gradwire.studies.training.run import train  # noqa: E402

SHORT = ["training.steps=2", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept") / "dlcp"
    train(load_scenario("train-tiny", set=[*SHORT, "training.keep_missing=true"], policy="dlcp"), folder)
    return folder


def replayed(kept: Path, *more: str, policy: str = "dlcp"):
    return load_scenario("train-tiny", set=[*SHORT, f'training.network={{replay="{kept}"}}', *more], policy=policy)


@pytest.mark.parametrize(("more", "keys"), [
    ([], []),
    (["training.optimizer.rate=0.01", "seed=4", 'job.fill="rescaled"', "name=other", "job.name=other", "output.delays=true"], []),
    (["link.rate=10Gbps", "job.push_bound=0.3"], ["link.rate", "job.push_bound"]),
    (["job.servers=2", 'job.exchange.partition="32KiB"', "switch.buffer=1MiB"], ["switch.buffer", "job.servers", "job.exchange.partition"]),
    (['topology={kind="dumbbell", left=6}'], ["topology"]),
    (["host.software_latency=7us", 'load_balancing="spray_random"'], ["host.software_latency", "load_balancing"]),
])  # fmt: skip
def test_keys_ignored_by_replay_are_named(kept: Path, more: list[str], keys: list[str]) -> None:
    done = train(replayed(kept, *more))
    assert done.summary["replayed"] == {"folder": str(kept), "otherwise": keys}
    assert sum(row["time_ps"] for row in done.steps) == sum(row["time_ps"] for row in train(replayed(kept)).steps)


def test_replay_names_ignored_transport_change(kept: Path) -> None:
    otherwise = train(replayed(kept, policy="dctcp")).summary["replayed"]["otherwise"]
    assert "transport" in otherwise and not any("payload" in each for each in otherwise)


def test_summary_without_replay_has_no_replay_entry(kept: Path) -> None:
    assert "replayed" not in json.loads((kept / "training.json").read_text())


def test_train_command_notes_ignored_keys_on_every_call(kept: Path, tmp_path: Path) -> None:
    asked = ["train", "train-tiny", "--policy", "dlcp", "--out", str(tmp_path / "out")]
    for each in (*SHORT, f'training.network={{replay="{kept}"}}', "link.rate=10Gbps", "job.servers=2"):
        asked += ["--set", each]
    words = f"note: dlcp: times and losses are those of {kept}; ignored keys that differ: link.rate, job.servers"
    for _ in range(2):
        done = CliRunner().invoke(cli.app, asked)
        assert done.exit_code == 0 and done.stderr.splitlines().count(words) == 1
    asked += ["--set", "link.rate=1Gbps", "--set", "job.servers=1", "--out", str(tmp_path / "same")]
    assert "times and losses" not in CliRunner().invoke(cli.app, asked).stderr
