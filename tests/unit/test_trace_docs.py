"""docs/traces.md says what is there: every column of every table, examples that run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gradwire
from analysis.trace_cli import app
from traces.storage import RMS, SCHEMAS

ROOT = Path(gradwire.__file__).resolve().parent
TEXT = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("table", SCHEMAS)
def test_every_column_is_described(table: str) -> None:
    section = TEXT.split(f"### {table}\n")[1].split("\n#")[0]
    described = re.findall(r"^\| `(\w+)` \| ([\w ]+) \|", section, flags=re.MULTILINE)
    fields = [*SCHEMAS[table], *([RMS] if table == "chunks" else [])]
    types = [str(field.type).replace("list<item: int64>", "list of int64") for field in fields]
    assert described == [(field.name, kind) for field, kind in zip(fields, types, strict=True)]


def test_commands_run_in_their_order(own_directory: Path) -> None:
    runner = CliRunner()
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    ran = 0
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[0] == "gradwire":
            assert words[1] == "trace"
            result = runner.invoke(app, words[2:])
            assert result.exit_code == 0, (line, result.output, result.exception)
            ran += 1
        else:
            subprocess.run(["sh", "-c", line], cwd=own_directory, check=True, timeout=20)
    assert ran >= 8
    assert (own_directory / "resnet50-pictures" / "magnitudes.png").exists()
    assert (own_directory / "resnet50.json").exists()


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_python_examples_run(number: int, own_directory: Path) -> None:
    code = blocks("python")[number]
    if "torch" in code:
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=own_directory, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    if "run1.trace" in code:
        assert len(gradwire.load_trace("run1.trace").tensors) == 4
