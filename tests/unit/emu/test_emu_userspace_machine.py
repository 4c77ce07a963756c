"""The switch's machine code: found where somebody else has made it, loaded without Numba, and never taken for what other
sources would give."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gradwire.components import engines
from gradwire.emu.native import kept
from gradwire.emu.userspace import machine, rules

ROOT = Path(__file__).resolve().parents[3]
LOADS = """
import json, sys
from gradwire.emu.native import kept
from gradwire.emu.userspace import machine, process
kept.use(json.loads(sys.argv[1]))
machine.work = None  # what it is made of is not looked at
print(sorted(machine.core()), sorted({"numba", "pyarrow", "gradwire.components.identity"} & set(sys.modules)))
"""
SOURCES = (
    "emu/userspace/rules.py", "emu/userspace/layout.py", "emu/native/calls.py", "emu/system/turns.py", "scenarios/wire.py",
)  # fmt: skip
CHANGED = """
import sys
from gradwire.emu.userspace import machine
print(machine.work.__wrapped__().identity)
for path in sys.argv[1:]:
    with open(path, "a") as file:
        file.write("\\n# changed\\n")
    print(machine.work.__wrapped__().identity)
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    return engines.writable_folder()


def in_a_process(code: str, *arguments: object, root: Path = ROOT, **environment: str) -> str:
    seen = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.check_output(command, text=True, env=seen, cwd=root, timeout=120)


def test_whoever_is_told_where_it_is_compiles_nothing(own_cache, tmp_path):
    begun = []
    works = {machine.SWITCH: machine.work()}
    told = kept.make_ready(works, lambda: begun.append(1))
    assert told == {kept.FOLDER: str(own_cache), machine.SWITCH: machine.work().identity}
    assert kept.make_ready(works, lambda: begun.append(2)) == told
    assert begun == [1]
    assert [each.about["features"] for each in engines.kept_engines()] == [["userspace switch of the testbed"]]
    elsewhere = tmp_path / "elsewhere"
    assert in_a_process(LOADS, json.dumps(told), GRADWIRE_CACHE=str(elsewhere)) == "['serve'] []\n"
    assert not elsewhere.exists()


def test_other_sources_are_another_switch(tmp_path):
    for folder in ("gradwire", "components", "emu", "experiment", "scenarios", "sim", "traces"):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    first, *others = in_a_process(CHANGED, *SOURCES, root=tmp_path).split()
    assert first == machine.work().identity
    assert len({first, *others}) == 1 + len(SOURCES)


def test_another_number_is_another_switch(monkeypatch):
    before = machine.work().identity
    monkeypatch.setitem(rules.arrive.py_func.__globals__, "at", rules.at)  # where its numbers are from
    assert machine.work.__wrapped__().identity == before
    monkeypatch.setattr(rules.at, "P_LATENCY", rules.at.P_LATENCY + 1)
    assert machine.work.__wrapped__().identity != before
