"""Threads of an engine, whose machine code is a Python function here: whichever raises an exception, the others end with it."""

from __future__ import annotations

import ctypes
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from transport_bench import star_of

from gradwire.jit.records.header import State
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.inner_units import Ps
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine import guarded_rules
from gradwire.sim.engine.fabric import Fabric
from gradwire.sim.engine.specialization import CompiledEngine
from gradwire.sim.engine.worker_threads import WorkerThreads
from gradwire.testing import transport
from gradwire.topology.routing import build_routing

WORDS = 64


@pytest.mark.parametrize("stopped", [0, 1])
def test_exception_in_one_thread_ends_all_threads(stopped: int) -> None:
    state = np.zeros(WORDS, np.int64)
    ran: list[int] = []

    def run(address: int, number: int, threads: int, epoch: int) -> int:
        """Wait for the others, as the engine's barrier does."""
        ran.append(number)
        if number == stopped:
            raise RuntimeError("it is over")
        seen = (ctypes.c_int64 * WORDS).from_address(address)
        until = time.monotonic() + 60
        while not seen[State.quit.offset]:
            assert time.monotonic() < until
            time.sleep(0.001)
        return epoch + 1

    workers = WorkerThreads(state, CompiledEngine(run, run, run, ""), 2)
    with pytest.raises(RuntimeError, match="it is over"):
        workers.advance(alone=False)
    for each in threading.enumerate():
        if each.name == "fabric-1":
            each.join(timeout=60)
            assert not each.is_alive()
    before = sorted(ran)
    assert stopped in before
    for alone in (True, False):  # it goes no further
        with pytest.raises(RuntimeError, match="it is over"):
            workers.advance(alone)
    assert sorted(ran) == before


@pytest.mark.parametrize("own", [True, False])
def test_exception_of_rule_compiled_in_process_is_reported(own: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With user-defined components any exception becomes a one-line error; otherwise it is raised unchanged."""

    def run(*_: int) -> int:
        raise KeyError("seven")

    network = star_of(2)
    fabric = Fabric(network, build_routing(network), switch=Switch(), transports=[transport("dctcp")])
    monkeypatch.setattr(fabric.advance.workers, "kernel", replace(fabric.advance.workers.kernel, run=run))
    monkeypatch.setattr(guarded_rules, "is_user_defined", lambda owner: own)
    with pytest.raises(
        ScenarioError if own else KeyError, match="has raised KeyError: 'seven'; expected" if own else "seven"
    ):
        fabric.run(Ps(1))
