"""--force means the same everywhere: an earlier output of the same kind is replaced, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from gradwire.cli import app

RESUMED = {"train", "sweep", "recommend", "reproduce", "predictor", "collective", "log"}
"""Commands whose output is resumed or replaced anyway, or that write none of their own."""
CASES = {
    "timeline": ("timeline", "one", "--out", "{}.json"),
    "tensors as csv": ("tensors", "one", "--out", "{}.csv"),
    "tensors as parquet": ("tensors", "one", "--out", "{}.parquet"),
    "plot as png": ("telemetry", "one", "--plot", "{}.png"),
    "plot as svg": ("telemetry", "one", "--plot", "{}.svg"),
    "pcap": ("telemetry", "one", "--pcap", "{}.pcapng"),
    "report": ("report", "one", "--out", "{}.html", "--no-perfetto", "--no-timelines"),
    "tune": ("tune", "schedulers", "--policy", "bytescheduler", "--trials", "1", "--set", "job.iterations=1", "--out", "{}.toml"),
    "new scenario": ("new", "scenario", "{}.toml", "--model", "resnet-50", "--gpus", "16"),
    "new transport": ("new", "transport", "{}.py"),
    "trace model": ("trace", "model", "resnet-50", "--out", "{}"),
    "trace csv": ("trace", "export", "resnet20", "--format", "csv", "--out", "{}.csv"),
    "trace chakra": ("trace", "export", "resnet20", "--format", "chakra", "--ranks", "2", "--out", "{}"),
    "trace retime": ("trace", "retime", "resnet20", "--times", "resnet20", "--out", "{}"),
    "trace plot": ("trace", "plot", "resnet20", "--out", "{}"),
    "dumps": ("trace", "example-dumps", "--ranks", "16", "--out", "{}"),
    "inspector lines": ("trace", "example-dumps", "--ranks", "16", "--format", "inspector", "--out", "{}"),
}  # fmt: skip


def ended(words: tuple[str, ...], name: str, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*(word.replace("{}", name) for word in words), *more])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("force")
    output = ["output.packet_log=true", "output.queue_samples=100us"]
    words = ["run", "demo", "--policy", "dctcp", "--set", "job.iterations=1", "--out", str(place / "one")]
    assert ended((*words, *(part for each in output for part in ("--set", each))), "")[0] == 0
    return place


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("case", CASES)
def test_only_an_earlier_output_is_replaced(case: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --force nothing is replaced; with it the output is, but neither a file of the user nor a folder with one."""
    monkeypatch.chdir(folder)
    words, name = CASES[case], case.replace(" ", "_")
    before = set(folder.iterdir())
    assert ended(words, name)[0] == 0
    written = sorted(set(folder.iterdir()) - before)
    assert written
    stored = contents(folder)
    code, message = ended(words, name)
    assert code == 2 and "exist" in message and contents(folder) == stored
    times = {path: path.stat().st_ino for path in written}
    assert ended(words, name, "--force")[0] == 0
    assert any(path.stat().st_ino != times[path] for path in written)
    for path in written:
        mine = path / "mine.txt" if path.is_dir() else path
        mine.write_text("mine\n")
    stored = contents(folder)
    code, message = ended(words, name, "--force")
    assert code == 2 and "cannot be replaced (--force)" in message
    assert contents(folder) == stored


def test_commands_that_refuse_existing_files_have_the_option() -> None:
    """Every command with --out, --plot or --pcap either resumes its output or has --force, and all explain it alike."""
    group = get_command(app)
    commands = dict(group.commands) | {f"trace {name}": each for name, each in group.commands["trace"].commands.items()}  # type: ignore[attr-defined]
    helps = set()
    for name, command in commands.items():
        options = {option: each for each in getattr(command, "params", ()) for option in each.opts}
        if "--force" in options:
            helps.add(options["--force"].help)
        elif {"--out", "--plot"} & set(options):
            assert name in RESUMED, name
    assert len(helps) == 1
