"""The scenario whose engine tests of engines compile, and what engines of other tests have lowered."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gradwire.jit import engine_cache
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.simulate import simulate

ROOT = Path(__file__).parents[2]

USUAL = engine_cache.engines_folder()
"""Where all other tests keep theirs."""


def share_functions():
    """What engines of other tests have lowered is there, so that one compiles in half the time."""
    (USUAL / engine_cache.FUNCTIONS).mkdir(parents=True, exist_ok=True)
    engine_cache.engines_folder().mkdir(parents=True)
    (engine_cache.engines_folder() / engine_cache.FUNCTIONS).symlink_to(USUAL / engine_cache.FUNCTIONS)


def scenario(**fields):
    return build_scenario({
        "name": "x", "topology": {"kind": "star", "hosts": 4},
        "traffic": [{"name": "t", "kind": "permutation", "size": "10kB"}], **fields,
    })  # fmt: skip


def runs_without_numba():
    """A run in a process in which there is no Numba is the same as here."""
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from gradwire.scenarios.loading.load import build_scenario; from gradwire.sim.simulate import simulate\n"
        f"print(simulate(build_scenario({scenario().model_dump(mode='json', exclude_unset=True)!r})).summary['totals'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert repr(simulate(scenario()).summary["totals"]) == done.stdout.strip()
