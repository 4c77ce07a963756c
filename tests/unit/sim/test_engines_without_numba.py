"""Engines, components and their machine code in processes in which Numba is not there, or is not what compiled them."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest
from engine_cases import ROOT, runs_without_numba, scenario, share_functions

from gradwire.jit import engine_cache, machine_code
from gradwire.sim.engine import specialization
from gradwire.sim.engine.specialization import combination_of, compile_ahead


@pytest.mark.slow
def test_child_process_recompiles_functions_compiled_by_parent(own_cache):
    """Otherwise the cached engine would call Numba helpers that are missing when it is loaded."""
    share_functions()
    assert specialization._functions(combination_of(scenario()))["keep"].numba
    compile_ahead([scenario()])
    runs_without_numba()
    (kept,) = engine_cache.cached_engines()
    for name in specialization.FUNCTIONS:
        assert not machine_code.refers_to_numba((own_cache / kept.identity / f"{name}.o").read_bytes())


def test_machine_code_with_numba_helpers_loads_numba():
    """A user's function may have been compiled by Numba before the engine, with calls to its helpers."""
    code = (
        "import sys, numba\n"
        "from gradwire.jit import machine_code\n"
        "from gradwire.jit.compiled import Compiled\n"
        "@numba.njit('int64(int64)')\n"
        "def down(n):\n"
        "    if n < 0: raise ValueError('negative')\n"
        "    return n - 1\n"
        "made = Compiled(lambda n: down(n), 'int64(int64)', {})\n"
        "symbol, code = machine_code.emit(made)\n"
        "print(machine_code.refers_to_numba(code)); open(sys.argv[1], 'wb').write(code); print(symbol)\n"
    )
    with tempfile.NamedTemporaryFile() as file:
        done = subprocess.run(
            [sys.executable, "-c", code, file.name], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        refers, symbol = done.stdout.split()
        assert refers == "True"
        code = (
            "import sys; from gradwire.jit import machine_code\n"
            "call = machine_code.load(open(sys.argv[1], 'rb').read(), sys.argv[2], 1)\n"
            "print(call(5), flush=True)\n"
            "call(-5)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, file.name, symbol], cwd=ROOT, capture_output=True, text=True, timeout=120
        )
    assert (done.stdout.strip(), done.returncode) == ("4", 1), done.stderr
    assert "raised an exception" in done.stderr


def test_components_import_without_numba():
    code = (
        "import sys, importlib, pkgutil; sys.modules['numba'] = None\n"
        "import gradwire.protocols.transports, gradwire.protocols.load_balancers, gradwire.protocols.queues\n"
        "for room in (gradwire.protocols.transports, gradwire.protocols.load_balancers, gradwire.protocols.queues):\n"
        "    for one in pkgutil.iter_modules(room.__path__, room.__name__ + '.'):\n"
        "        importlib.import_module(one.name)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_exception_in_compiled_code_becomes_machine_code_error(tmp_path):
    code = (
        "from pathlib import Path; from gradwire.jit import machine_code, whole_program\n"
        "from gradwire.jit.compiled import njit\n"
        f"whole_program.enable_whole_program(Path({str(tmp_path)!r}))\n"
        "quotient = njit('int64(int64, int64, int64, int64)')(lambda a, b, c, d: a // b)\n"
        "symbol, code = machine_code.emit(quotient)\n"
        "call = machine_code.load(code, symbol, 4); print(call(7, 2, 0, 0), call(-(1 << 62), 1, 0, 0))\n"
        "call(1, 0, 0, 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["3", str(-(1 << 62))]
    assert done.returncode == 1 and "gradwire.jit.machine_code.MachineCodeError: " in done.stderr
