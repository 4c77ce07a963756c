"""The machine code of agents: what it is known by, when it is made, where it is found, and what goes wrong in it."""

from __future__ import annotations

import ast
import ctypes
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from nic_bench import Fake, bench, start

import gradwire
from gradwire.emu.agent import compiled_agent
from gradwire.emu.agent.core import entry
from gradwire.emu.agent.core import layout as at
from gradwire.emu.agent.loop import EpollLoop
from gradwire.emu.native import code_cache
from gradwire.emu.planning.capabilities import available_transports
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.transports.simulator_rules import transport_class
from gradwire.jit import engine_cache, fingerprint
from gradwire.jit.records.constants import PULL_PROBE
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.registry import components

ROOT = Path(gradwire.__file__).resolve().parents[1]
RUNNING = [kind for kind in available_transports() if not components("transport")[kind].congestion()]
HALVED = '''
from typing import Literal

from gradwire.jit.compiled import njit
from gradwire.protocols.transports.constant_rate import ConstantRate, ConstantRateFlow, ConstantRateParameters
from gradwire.protocols.transports.constant_rate import start as at_pace

HALF = {half}


@njit
def start(params: ConstantRateParameters, flow: ConstantRateFlow, now):
    """At a share of the pace."""
    at_pace(params, flow, now)
    flow.packets = {what}


class Halved(ConstantRate):
    """Transport `halved`."""

    kind: Literal["halved"]
    start = staticmethod(start)
'''


def of_ones_own(folder, half=2, what="HALF"):
    """A transport of the user's own in a folder."""
    folder.mkdir()
    (folder / "halved.py").write_text(HALVED.format(half=half, what=what))
    return transport_class("halved:Halved", str(folder))


@pytest.fixture
def forgotten(monkeypatch):
    """Nothing is loaded, and no folder is known but that of engines."""
    monkeypatch.setattr(code_cache, "_known_code", {})
    monkeypatch.setattr(engine_cache, "_private", [])
    forget()
    yield
    forget()


def forget():
    compiled_agent.core.cache_clear()
    compiled_agent.rules.cache_clear()


@pytest.fixture
def own_cache(tmp_path, monkeypatch, forgotten):
    """An empty cache."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "engines"


# --- what it is known by


def defined(path):
    """The names of numbers and records that a module defines."""
    tree = ast.parse(path.read_text())
    targets = [each for node in tree.body if isinstance(node, ast.Assign) for each in node.targets]
    targets += [node.target for node in tree.body if isinstance(node, ast.AnnAssign)]
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    return classes | {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


def test_loop_fingerprint_covers_all_functions_and_constants():
    functions = fingerprint.reachable_functions([each.py_func for each in entry.FUNCTIONS.values()])
    files = set(compiled_agent._files([]))
    assert len(functions) > 50
    for each in functions:
        assert Path(sys.modules[each.__module__].__file__) in files, f"{each.__module__}.{each.__name__}"
    numbers = {name for each in functions for name, _ in fingerprint.constants(each)}
    assert {"MIN_FRAME", "HASH_MULTIPLIER", "PULL_PROBE"} <= numbers
    assert numbers <= set().union(*map(defined, files)) | {"CLASSES"}


@pytest.mark.parametrize("kind", [*RUNNING, "nscc"])
def test_transport_fingerprint_covers_all_compiled_functions(kind, monkeypatch):
    """The parameter table is excluded, because parameters are read at run time."""
    seen = []
    monkeypatch.setattr(fingerprint, "digest_of", lambda source, functions, files: seen.append(files) or "x")
    owner = transport_class(kind)
    compiled_agent._rules_work.__wrapped__(owner)
    module = {}
    exec(compiled_agent._source(owner), module)
    for each in fingerprint.reachable_functions([module[name].py_func for name in at.RULES]):
        if each.__module__ is not None:  # else of the module that is written
            assert Path(sys.modules[each.__module__].__file__) in set(seen[0]), f"{each.__module__}.{each.__name__}"


def test_changed_constant_of_a_user_defined_transport_changes_its_identity(tmp_path):
    owner = of_ones_own(tmp_path / "mine")
    before = compiled_agent._rules_work.__wrapped__(owner).identity
    space = owner.start.py_func.__globals__
    space["HALF"] = 3
    assert compiled_agent._rules_work.__wrapped__(owner).identity != before
    space["HALF"] = 2
    assert compiled_agent._rules_work.__wrapped__(owner).identity == before


# --- when it is made, and where it is found


def test_missing_machine_code_is_compiled_once_after_a_callback(own_cache, tmp_path):
    begun = []
    owners = [transport_class("constant_rate"), transport_class("ltp")]
    told = code_cache.make_ready(
        compiled_agent.works(owners[:1]), lambda: begun.append(len(engine_cache.cached_engines()))
    )
    assert code_cache.make_ready(compiled_agent.works(owners[:1]), lambda: begun.append("again")) == told
    assert told[code_cache.FOLDER] == str(own_cache)
    assert begun == [0] and len(engine_cache.cached_engines()) == 2
    told = code_cache.make_ready(
        compiled_agent.works([*owners, *owners]), lambda: begun.append(len(engine_cache.cached_engines()))
    )
    assert begun == [0, 2]
    assert {each.about["features"][0] for each in engine_cache.cached_engines()} == {
        "agents of the testbed", "constant_rate at agents of the testbed", "ltp at agents of the testbed",
    }  # fmt: skip
    here = {each.identity for each in engine_cache.cached_engines()}
    _loaded_without_numba(tmp_path / "elsewhere", told)
    _damaged_is_made_anew(own_cache, owners[0], here)


def _loaded_without_numba(elsewhere, told):
    """Where it is told, nothing is compiled, as inside of a virtual machine it would take minutes."""
    code = (
        "import json, sys\n"
        "from gradwire.emu.agent import compiled_agent\n"
        "from gradwire.emu.agent.loop import EpollLoop\n"
        "from gradwire.emu.native import code_cache\n"
        "from gradwire.emu.transports.simulator_rules import transport_class\n"
        "code_cache.use(json.loads(sys.argv[1]))\n"
        "loop = EpollLoop()\n"
        "loop.at(loop.now(), loop.stop)\n"
        "loop.run()\n"
        "compiled_agent.rules(transport_class('ltp'))\n"
        "print(sorted({'numba', 'torch', 'pyarrow', 'gradwire.jit.fingerprint'} & set(sys.modules)))"
    )
    environment = {**os.environ, "GRADWIRE_CACHE": str(elsewhere), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(told)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
    assert not elsewhere.exists()


def _damaged_is_made_anew(folder, owner, known):
    (name,) = (
        each
        for each in known
        if (folder / each / "pull.o").exists() and compiled_agent._rules_work(owner).identity == each
    )
    code = (folder / name / "pull.o").read_bytes()
    (folder / name / "pull.o").write_bytes(bytes([code[0] ^ 1]) + code[1:])
    forget()
    assert set(compiled_agent.rules(owner)) == set(at.RULES)
    assert {each.identity for each in engine_cache.cached_engines()} == known
    assert (folder / name / "pull.o").read_bytes()[:1] == code[:1]


def test_agent_compiles_in_process_if_no_child_can_compile(own_cache, monkeypatch):
    monkeypatch.setattr(engine_cache, "compile_all", lambda works: {})
    owner = transport_class("constant_rate")
    functions = compiled_agent.rules(owner)
    assert set(functions) == set(at.RULES) and engine_cache.cached_engines() == []
    assert functions["on_probe"](0, 0, 0, 0, 0) == 0


@pytest.mark.parametrize(
    ("what", "why"), [("'half'", "str"), ("undefined", "undefined"), ("now.real_part", "real_part")]
)
def test_compile_error_of_a_transport_names_file_and_line(own_cache, tmp_path, what, why):
    owner = of_ones_own(tmp_path / "mine", what=what)
    with pytest.raises(ScenarioError) as caught:
        code_cache.make_ready(compiled_agent.works([owner]))
    said = str(caught.value)
    place = HALVED.splitlines().index("    flow.packets = {what}") + 1
    assert f"{tmp_path / 'mine' / 'halved.py'}:{place}: " in said and why in said, said
    assert not any(
        compiled_agent._rules_work(owner).identity == each.identity for each in engine_cache.cached_engines()
    )


# --- what goes wrong in it


class Raising(Fake):
    """A flow whose functions raise an exception, as compiled ones do: by their status."""

    def _pull(self, result, _, origin, parameters, record, now):
        return 1

    def _on_timer(self, result, _, origin, parameters, record, now):
        return 1


class Saying(Fake):
    """A flow that wants to send what it is told to."""

    def _pull(self, result, _, origin, parameters, record, now):
        ctypes.c_int64.from_address(result).value = self.left
        return 0


def test_exception_in_pull_is_reported_and_other_flows_continue():
    loop, nic, log = bench()
    with pytest.raises(TestbedError, match="the function pull of a transport raised an exception") as caught:
        start(nic, Raising(log, loop, 1, 1, priority=7))
    assert (caught.value.where, caught.value.exit_code) == ("transport", 1)
    start(nic, Fake(log, loop, 2, 2))  # of a better class
    assert log[0] == (2, 0, 0)


def test_exception_in_on_timer_is_reported():
    loop, nic, log = bench()
    flow = Raising(log, loop, 1, 0)
    flow.timer = 300_000
    nic.update(flow)
    loop.run(200)
    with pytest.raises(TestbedError, match="the function on_timer of a transport raised an exception"):
        loop.run(1000)


@pytest.mark.parametrize("number", [1 << 20, (1 << 20) + 5, (1 << 30) - 1])
def test_packet_beyond_the_end_of_its_message_is_not_sent(number):
    """Its bytes would belong to another message."""
    loop, nic, log = bench()
    with pytest.raises(TestbedError, match=f"a transport tried to send packet {number}, beyond the end of its message"):
        start(nic, Saying(log, loop, 1, number))
    assert nic.sender.empty


def test_exception_in_a_python_callback_propagates_unchanged():
    loop, nic, log = bench()
    error = ValueError("no such probe")

    def refuse(*_):
        raise error

    loop.asked[at.ASK_PROBE] = refuse
    with pytest.raises(ValueError, match="no such probe") as caught:
        start(nic, Saying(log, loop, 1, PULL_PROBE + 3))
    assert caught.value is error
    with pytest.raises(ValueError, match="of a timer"):
        loop.at(loop.now(), lambda: (_ for _ in ()).throw(ValueError("of a timer")))
        loop.run(100)


def test_failed_system_call_of_the_loop_raises_oserror():
    loop = EpollLoop()
    loop.at(loop.now() + 10**10, loop.stop)
    os.close(loop._clock)
    with pytest.raises(OSError, match="a system call of the agent's loop: Bad file descriptor"):
        loop.run()
    loop._clock = os.open(os.devnull, os.O_RDONLY)
    loop.close()


def test_loop_handles_signals_while_waiting_and_while_busy():
    """Machine code does not check for signals, so a signal ends a wait and runs the Python handler."""
    loop, heard = EpollLoop(), []
    before = signal.signal(signal.SIGALRM, lambda *_: (heard.append(loop.now()), loop.stop()))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        loop.run()
        signal.setitimer(signal.ITIMER_REAL, 0.02)

        def again():
            loop.at(loop.now(), again)

        again()
        loop.run()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(heard) == 2
    loop.close()


def test_real_time_loop_yields_after_its_time_slice():
    """The loop yields repeatedly while timers are due. Without real-time priority, it never yields."""
    for share in (0, 1):
        loop, turns = EpollLoop(), []
        assert loop.agent.slice_ns == 0  # this is no process of real-time priority
        loop.agent.slice_ns = share
        for _ in range(6):
            loop.at(loop.now(), lambda loop=loop, turns=turns: turns.append(loop.agent.slice_begin_ns))
        loop.at(loop.now(), loop.stop)
        loop.run()
        assert len(turns) == 6 and (len(set(turns)) == 6 if share else not any(turns))


def test_agent_with_real_time_priority_has_a_time_slice(tmp_path):
    code = (
        "import os, sys\n"
        "try:\n"
        "    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))\n"
        "except OSError:\n"
        "    sys.exit(77)\n"
        "from gradwire.emu.agent.loop import EpollLoop\n"
        "from gradwire.emu.native import code_cache\n"
        "from gradwire.emu.native.calls import SHARE_NS\n"
        "assert EpollLoop().agent.slice_ns == SHARE_NS > 0\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if ended.returncode == 77:
        pytest.skip("not allowed to have real-time priority")
    assert ended.returncode == 0, ended.stderr
