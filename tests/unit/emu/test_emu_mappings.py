"""A program in a virtual machine may touch much memory in many places."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.emu.virtual_time import memory_mappings
from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.emu.virtual_time.virtual_machine import run_inside

TOUCH = """
import mmap
pages = 160_000
memory = mmap.mmap(-1, pages * 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
print("gradwire: all touched,", sum(memory[page * 4096] for page in range(pages)), flush=True)
"""
"""Pages that are only read are all the same one of the machine's memory, so that no two lie side by side in it."""


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "max_map_count"
    monkeypatch.setattr(memory_mappings, "LIMIT", place)
    return place


@pytest.mark.parametrize(
    ("before", "after"), [("65530\n", "1048576"), ("1048576\n", "1048576"), ("2147483642\n", "2147483642")]
)
def test_mapping_limit_is_raised_but_never_lowered(before: str, after: str, limit: Path) -> None:
    limit.write_text(before)
    memory_mappings.raise_limit()
    assert limit.read_text().strip() == after and memory_mappings.advice() == ""


def test_advice_names_the_sysctl_if_the_limit_cannot_be_raised(limit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit.write_text("65530\n")
    monkeypatch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(PermissionError("no")))
    memory_mappings.raise_limit()
    assert memory_mappings.limit() == 65530
    assert "65,530" in memory_mappings.advice() and "vm.max_map_count = 1048576" in memory_mappings.advice()


@pytest.mark.parametrize("content", [None, "many\n", ""])
def test_unreadable_mapping_limit_is_left_unchanged(content: str | None, limit: Path) -> None:
    if content is not None:
        limit.write_text(content)
    memory_mappings.raise_limit()
    assert memory_mappings.limit() == 0 and memory_mappings.advice() == ""
    assert (limit.read_text() if limit.exists() else None) == content


@pytest.mark.skipif(find_kernel() is None, reason="there is no virtual-time kernel (make uml)")
def test_virtual_machine_runs_a_program_with_many_scattered_pages() -> None:
    if not os.access(memory_mappings.LIMIT, os.W_OK):
        pytest.skip("not allowed to set vm.max_map_count")
    memory_mappings.LIMIT.write_text("65530\n")
    heard: list[str] = []
    words: list[str] = []
    status = run_inside([sys.executable, "-c", TOUCH], seed=1, limit_s=200, on_line=heard.append, words=words)
    assert (status, heard) == (0, ["all touched, 0"]), words


@pytest.mark.skipif(find_kernel() is None, reason="there is no virtual-time kernel (make uml)")
@pytest.mark.parametrize(("found", "told"), [("65530", True), ("1048576", False)])
def test_error_of_a_killed_rank_suggests_the_sysctl_if_the_limit_is_low(
    found: str, told: bool, limit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit.write_text(found)
    monkeypatch.setattr("gradwire.emu.virtual_time.virtual_machine.raise_limit", lambda: None)
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    done = CliRunner().invoke(app, ["exec", "four-hosts", "--clock", "virtual", "--hosts", "h0", "--", *command])
    assert done.exit_code == 1 and "was killed by SIGKILL" in done.output
    assert ("vm.max_map_count = 1048576" in " ".join(done.output.split())) == told
