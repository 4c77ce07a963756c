"""Compiled once, kept where it belongs, and never taken for what other sources would give."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.emu.switches.base import TestbedError
from gradwire.emu.userspace import compiled

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    """A cache of its own."""
    monkeypatch.delenv(compiled.FOLDER, raising=False)
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    compiled.folder.cache_clear()
    yield
    compiled.folder.cache_clear()


def test_it_is_compiled_once_and_found_by_those_who_are_told_where(monkeypatch):
    folder = compiled.make_ready()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert before
    with monkeypatch.context() as patched:
        patched.setattr(compiled.subprocess, "run", None)  # nobody is asked again
        assert compiled.make_ready() == folder
    program = "from gradwire.emu.userspace import loop; loop.compile_all(); print(sum(loop.serve.stats.cache_hits.values()))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), compiled.FOLDER: str(folder), "GRADWIRE_CACHE": "/nowhere"}
    found = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert found.strip() == "1"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == before


@pytest.mark.parametrize("changed", [
    "emu/userspace/rules.py", "emu/userspace/layout.py", "emu/system/turns.py", "scenarios/wire.py",
])
def test_other_sources_are_another_folder(tmp_path, changed):
    for folder in ("gradwire", "emu", "scenarios", "traces"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)

    def named() -> str:
        program = "from gradwire.emu.userspace import compiled; print(compiled.folder().name)"
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        return subprocess.check_output([sys.executable, "-c", program], env=environment, text=True, cwd=tmp_path)

    before = named()
    assert before == named() == compiled.folder().name + "\n"
    with (tmp_path / changed).open("a") as file:
        file.write("\n# changed\n")
    assert named() != before


def test_no_place_for_it(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "file"))
    with pytest.raises(TestbedError, match=r"cannot write .*: Not a directory") as caught:
        compiled.make_ready()
    assert caught.value.usage and "GRADWIRE_CACHE" in caught.value.expected


def test_what_does_not_compile_is_said_in_one_line(monkeypatch):
    monkeypatch.setattr(compiled.sys, "executable", shutil.which("false"))
    with pytest.raises(TestbedError, match="cannot be compiled: 1") as caught:
        compiled.make_ready()
    assert not caught.value.usage
    assert not (compiled.folder() / compiled.DONE).exists()
