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

from gradwire.emu.native import code_cache
from gradwire.emu.switches.userspace_switch import compiled_switch, rules
from gradwire.jit import engine_cache

ROOT = Path(__file__).resolve().parents[3]
LOADS = """
import json, sys
from gradwire.emu.native import code_cache
from gradwire.emu.switches.userspace_switch import compiled_switch, process
code_cache.use(json.loads(sys.argv[1]))
compiled_switch.work = None  # sources are not read
print(sorted(compiled_switch.core()), sorted({"numba", "pyarrow", "gradwire.jit.fingerprint"} & set(sys.modules)))
"""
SOURCES = (
    "emu/switches/userspace_switch/rules.py", "emu/switches/userspace_switch/layout.py", "emu/native/calls.py", "scenarios/wire.py",
)  # fmt: skip
CHANGED = """
import sys
from gradwire.emu.switches.userspace_switch import compiled_switch
print(compiled_switch.work.__wrapped__().identity)
for path in sys.argv[1:]:
    with open(path, "a") as file:
        file.write("\\n# changed\\n")
    print(compiled_switch.work.__wrapped__().identity)
"""


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """An empty cache."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    return engine_cache.writable_folder()


def in_a_process(code: str, *arguments: object, root: Path = ROOT, **environment: str) -> str:
    seen = {**os.environ, "PYTHONPATH": str(root), **environment}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.check_output(command, text=True, env=seen, cwd=root, timeout=120)


def test_cached_switch_code_is_loaded_without_compiling(own_cache, tmp_path):
    begun = []
    works = {compiled_switch.SWITCH: compiled_switch.work()}
    told = code_cache.make_ready(works, lambda: begun.append(1))
    assert told == {code_cache.FOLDER: str(own_cache), compiled_switch.SWITCH: compiled_switch.work().identity}
    assert code_cache.make_ready(works, lambda: begun.append(2)) == told
    assert begun == [1]
    assert [each.about["features"] for each in engine_cache.cached_engines()] == [["userspace switch of the testbed"]]
    elsewhere = tmp_path / "elsewhere"
    assert in_a_process(LOADS, json.dumps(told), GRADWIRE_CACHE=str(elsewhere)) == "['serve'] []\n"
    assert not elsewhere.exists()


def test_changed_source_file_changes_the_switch_identity(tmp_path):
    for folder in (
        "gradwire",
        "emu",
        "jit",
        "protocols",
        "result_store",
        "scenarios",
        "sim",
        "topology",
        "traces",
        "workload",
    ):
        shutil.copytree(ROOT / folder, tmp_path / folder, symlinks=True)
    first, *others = in_a_process(CHANGED, *SOURCES, root=tmp_path).split()
    assert first == compiled_switch.work().identity
    assert len({first, *others}) == 1 + len(SOURCES)


def test_changed_constant_changes_the_switch_identity(monkeypatch):
    before = compiled_switch.work().identity
    monkeypatch.setitem(rules.arrive.py_func.__globals__, "at", rules.at)  # where its numbers are from
    assert compiled_switch.work.__wrapped__().identity == before
    monkeypatch.setattr(rules.at, "LINK_BITS", rules.at.LINK_BITS + 1)
    assert compiled_switch.work.__wrapped__().identity != before
