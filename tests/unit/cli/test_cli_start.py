"""How a command that simulates begins: what is imported for it, and what is not done meanwhile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import gradwire

ROOT = Path(gradwire.__file__).resolve().parents[1]
THREADS = "OPENBLAS_NUM_THREADS"


def said(code: str, **environment: str) -> Any:
    """What Python prints as JSON in its last line."""
    others = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT, check=True,
        env=others | environment,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


LIGHT = f"""
import gc, json, os
from gradwire.cli.early_imports import without_collector

class Stopped(Exception): pass

within = []
try:
    with without_collector():
        import numpy
        within = [gc.isenabled(), os.environ.get({THREADS!r})]
        raise Stopped
except Stopped:
    pass
threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
print(json.dumps([within, gc.isenabled(), gc.get_freeze_count() > 10_000, os.environ.get({THREADS!r}), threads]))
"""


@pytest.mark.parametrize("asked", [None, "2"])
def test_startup_disables_garbage_collection_and_blas_threads(asked):
    more = {} if asked is None else {THREADS: asked}
    within, collecting, frozen, environment, threads = said(LIGHT, **more)
    assert within == [False, asked], "no collections, and nothing that a program of one's own would inherit"
    assert collecting and frozen, "also where a command ends in an error"
    assert environment == asked
    assert threads == (1 if asked is None else min(2, os.cpu_count() or 1))


RUN = """
import json, sys
from gradwire.cli import main
sys.argv = ["gradwire", "run", "permutation", "--policy", "ecmp", "--set", "traffic.size=4KB", "--out", {out!r}]
try: main()
except SystemExit as stop: assert not stop.code, stop
print(json.dumps(sorted(sys.modules)))
"""


BESIDE = """
import json, os, sys, threading
from gradwire.cli import early_imports

os.cpu_count = lambda: 2
early_imports.DEFERRED_IMPORTS = ("no_such_module", "colorsys")
heard = []
told = early_imports.import_during_run(heard.append, {threads})
early = [name in sys.modules for name in ("colorsys",)]
for each in (1, 2, 3):
    told(each)
for beside in threading.enumerate():
    if beside is not threading.main_thread(): beside.join(60)
print(json.dumps([early, heard, "colorsys" in sys.modules]))
"""


@pytest.mark.parametrize(("threads", "imported"), [(1, True), (2, False)])
def test_deferred_imports_run_during_simulation_on_a_free_processor(threads, imported):
    assert said(BESIDE.format(threads=threads)) == [[False], [1, 2, 3], imported]


def test_cached_traffic_run_imports_no_heavy_package(tmp_path):
    """Each of these imports takes at least a tenth of the time of such a run."""
    modules = set(said(RUN.format(out=str(tmp_path / "out"))))
    assert (tmp_path / "out" / "flows.parquet").is_file()
    assert not modules & {
        "numba", "pandas", "pyarrow.compute", "networkx", "matplotlib", "torch", "gradwire.workload.jobs",
    }  # fmt: skip
