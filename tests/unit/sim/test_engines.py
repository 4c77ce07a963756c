"""Compiled engines: made as one program, known by what they are made of, kept whole or not at all, gone by themselves."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_cases import ROOT, runs_without_numba, scenario, share_functions
from numba.core import config as numba_config
from profiles import by_profile, is_usual
from typer.testing import CliRunner

import gradwire.scenarios.wire
from gradwire import cli
from gradwire.jit import engine_cache, whole_program
from gradwire.jit import fingerprint as identity
from gradwire.protocols.registry import functions_of
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.protocols.transports.tcp.dctcp import Dctcp
from gradwire.scenarios.loading.registry import kind_of
from gradwire.scenarios.schema.network.network import Switch
from gradwire.sim.engine import specialization
from gradwire.sim.engine.specialization import combination_of, compile_ahead
from gradwire.sim.simulate import simulate
from gradwire.testing.oracle import Case, MessageSpec, first_difference, run_engine
from gradwire.topology import LinkSpec, leaf_spine

US = 10**6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The engine of `scenario()`, compiled once for all tests that need one: its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADWIRE_CACHE", str(tmp_path_factory.mktemp("made")))
        patch.setattr(engine_cache, "_private", [])
        share_functions()
        compile_ahead([scenario()])
        (kept,) = engine_cache.cached_engines()
        return engine_cache.engines_folder() / kept.identity


@pytest.fixture
def own_engine(own_cache, made):
    """The own cache with that engine in it: its folder."""
    return Path(shutil.copytree(made, own_cache / made.name))


@pytest.fixture
def remade(monkeypatch, made):
    """What compiles puts that engine where it belongs, instead of compiling it once more. How often it did."""
    times = []

    def fill(part, work, at_once, begin):
        assert work.identity == made.name
        times.append(1)
        for path in made.iterdir():
            shutil.copy(path, part)

    monkeypatch.setattr(engine_cache, "_fill", fill)
    return times


def case(balancing, *models):
    tables = [model.model_validate({"kind": kind_of(model)}) for model in models]
    letters = [MessageSpec(n * US, n % 6, (n + 3 + n // 6) % 6 if n % 6 != (n + 3 + n // 6) % 6 else (n + 1) % 6,
                      9_000 + 5_000 * n, n % len(tables), bound=0.1 * (n % len(tables))) for n in range(12)]  # fmt: skip
    switch = Switch.model_validate({"buffer": "20kB", "ecn_threshold": "8kB"})
    return Case(leaf_spine(2, 3, 2, LinkSpec(10**10, US)), tables, letters, switch, balancing)


def test_engine_compiles_as_one_program(own_engine):
    """A fallback to Numba's function-by-function compilation would take four times as long without notice."""
    assert whole_program.is_supported(), "this Numba is not known to work: see whole.KNOWN"
    kept = {
        each.about["transports"][0] if each.about["transports"] else "": each.about
        for each in engine_cache.cached_engines()
    }
    assert set(kept) == {"dctcp"}
    assert all(about["compiled"] == "as one program" for about in kept.values())
    assert kept["dctcp"]["functions"] > 60
    assert simulate(scenario()).summary["totals"]["finished"]


@pytest.mark.slow
def test_first_run_reports_compile_time_of_child_process(own_cache):
    share_functions()
    compile_ahead([scenario()])
    (kept,) = engine_cache.cached_engines()
    first, second = (simulate(scenario()).timing["compile_s"] for _ in range(2))
    assert first >= kept.about["seconds"] - 0.1 > second  # rounded to 0.1 s
    engine_cache.clear()
    specialization._load.cache_clear()
    assert simulate(scenario()).timing["compile_s"] > second, "without being compiled beforehand"


@pytest.mark.slow
def test_whole_program_and_per_function_compilation_give_equal_results(own_cache, monkeypatch):
    """One engine is compiled as one program, the other function by function. Without a child the process itself
    compiles and caches nothing; with a child, the child inherits compiled functions and has to write them. The usual
    profile compiles one transport without LLVM's optimisation, which takes half of the time."""
    share_functions()
    played = case("reps", *by_profile([Dctcp, Dlcp], [Dctcp]))
    quick = run_engine(played)
    (kept,) = engine_cache.cached_engines()
    assert kept.about["compiled"] == "as one program"
    monkeypatch.setattr(whole_program, "SUPPORTED_VERSIONS", ())
    monkeypatch.setattr(specialization, "_functions", functools.cache(specialization._functions))
    if is_usual():
        monkeypatch.setattr(numba_config, "OPT", type(numba_config.OPT)(0))
    for child in (False, True):
        engine_cache.clear()
        specialization._load.cache_clear()
        with monkeypatch.context() as patch:
            if not child:
                patch.setattr(specialization, "compile_all", lambda *_: {})
            slow = run_engine(played)
        ways = {each.about["compiled"] for each in engine_cache.cached_engines()}
        assert ways == ({"function by function"} if child else set())
        assert quick.transmissions and first_difference(quick, slow) == ""


@pytest.mark.parametrize("left", [{"run.o": b"half"}, {engine_cache.ABOUT: b"{"}, {engine_cache.ABOUT: b"{}"}])
def test_incomplete_cached_engine_is_recompiled(own_cache, remade, left):
    identity = specialization._identity(combination_of(scenario()))
    folder = own_cache / identity  # as a crash could have left it, had it had its name
    folder.mkdir(parents=True)
    for name, data in left.items():
        (folder / name).write_bytes(data)
    assert simulate(scenario()).summary["totals"]["finished"]
    assert [kept.identity for kept in engine_cache.cached_engines()] == [identity] and (folder / "post.o").exists()


def test_modified_cached_engine_is_recompiled(own_engine, remade):
    code = own_engine / "run.o"
    whole_code = code.read_bytes()
    code.write_bytes(whole_code[:5000] + bytes(100) + whole_code[5100:])
    assert simulate(scenario()).summary["totals"]["finished"]
    assert code.read_bytes() == whole_code


def test_engine_identity_depends_on_processor_and_versions(monkeypatch):
    made = combination_of(scenario())
    before = specialization._identity(made)
    for what, other in (("target_description", lambda: "another processor"), ("version", lambda package: "0.1")):
        with monkeypatch.context() as patch:
            patch.setattr(identity, what, other)
            assert specialization._identity.__wrapped__(made) != before
    assert specialization._identity.__wrapped__(made) == before


@pytest.mark.parametrize("fields", [
    {"transport": {"kind": "dlcp"}, "load_balancing": "flowlet", "switch": {"pfc": True, "buffer": "1MiB"}},
    {"transport": {"kind": "ndp"}, "load_balancing": "reps", "switch": {"trim_threshold": "20kB"}},
])  # fmt: skip
def test_engine_identity_covers_all_compiled_files(fields):
    """Every compiled function lies in a file that is part of the engine's identity."""
    made = combination_of(scenario(**fields))
    bound = [function for owner in (*made.transports, made.balancer, made.queue) for function in functions_of(owner)]
    files = set(specialization._files(identity.reachable_functions(bound)))
    compiled = identity.reachable_functions([each.py_func for each in specialization._functions(made).values()])
    assert len(compiled) > 60
    theirs = {
        Path(sys.modules[each.__module__].__file__ or "") for each in compiled if "bindings" not in each.__module__
    }
    assert theirs <= files
    assert ROOT / "protocols/transports/swift.py" not in files, "an engine outlives what it has nothing to do with"
    spaces = {
        name: value for each in compiled for name, value in identity.global_values(each) if isinstance(value, int)
    }
    for name in ("MIN_FRAME", "PROBE_BYTES"):
        assert name in spaces, "numbers of other rooms are compiled in"
    assert Path(gradwire.scenarios.wire.__file__) in files


def test_run_with_cached_engine_does_not_import_numba(own_engine):
    """Numba takes a fifth of a second and 60 MB to load."""
    runs_without_numba()


def test_engines_compile_in_parallel_and_one_failure_keeps_the_rest(own_cache):
    def work(name, check):
        return engine_cache.CompileTask(name, lambda: {}, {"transports": [name]}, check)

    begin = time.monotonic()
    works = [work(f"w{n}", lambda: time.sleep(0.7) or "") for n in range(3)]  # type: ignore[func-returns-value]
    with pytest.raises(engine_cache.CompileError, match=r"a\.py:3: no"):
        engine_cache.compile_all([*works, work("bad", lambda: "a.py:3: no")], jobs=4)
    took = time.monotonic() - begin
    assert {each.identity for each in engine_cache.cached_engines()} == {"w0", "w1", "w2"}
    assert list(own_cache.glob("*.part")) == []
    assert took < 10  # 2.1 s one after the other; a loaded machine needs some time to start children


def test_old_engines_are_evicted_from_cache(own_cache, monkeypatch):
    monkeypatch.setattr(engine_cache, "MAX_ENGINES", 3)
    now = time.time()
    for n in range(5):
        folder = own_cache / f"e{n}"
        folder.mkdir(parents=True)
        (folder / engine_cache.ABOUT).write_text("{}")
        os.utime(folder / engine_cache.ABOUT, (now - 60 * n, now - 60 * n))
    stale, young = own_cache / "x.part", own_cache / "y.part"
    stale.mkdir()
    young.mkdir()
    os.utime(stale, (now - 10_000, now - 10_000))
    os.utime(own_cache / "e1" / engine_cache.ABOUT, (now - 100 * 86_400,) * 2)
    engine_cache._forget_old(own_cache)
    assert {path.name for path in own_cache.iterdir()} == {"e0", "e2", "e3", "y.part"}


def test_loading_an_engine_refreshes_its_age(own_engine):
    os.utime(own_engine / engine_cache.ABOUT, (1, 1))
    assert engine_cache.load(own_engine.name)
    assert engine_cache.cached_engines()[0].used > time.time() - 1000


@pytest.mark.slow
def test_run_continues_if_engine_cache_is_not_writable(tmp_path):
    """A separate process prints one warning line and completes the run."""
    (tmp_path / "file").touch()
    text = (
        "from gradwire.scenarios.loading.load import build_scenario; from gradwire.sim.simulate import simulate\n"
        "s = build_scenario({'name': 'x', 'topology': {'kind': 'star', 'hosts': 3}, 'traffic': "
        "[{'name': 't', 'kind': 'permutation', 'size': '1kB'}]})\n"
        "print(simulate(s).summary['totals']['finished'])"
    )
    environment = {**os.environ, "GRADWIRE_CACHE": str(tmp_path / "file"), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", text], env=environment, capture_output=True, text=True, timeout=300)
    assert ran.stdout == "True\n"
    assert len(ran.stderr.splitlines()) == 1 and "are not cached" in ran.stderr and "Not a directory" in ran.stderr


def test_cache_command_lists_and_clears_engines(own_cache):
    engine_cache.compile_all(
        [engine_cache.CompileTask("one", lambda: {}, {"transports": ["dlcp"], "load_balancing": "ecmp"}, str)]
    )
    (own_cache / engine_cache.FUNCTIONS).mkdir()
    (own_cache / engine_cache.FUNCTIONS / "one").write_bytes(bytes(7))
    (own_cache.parent / "uml").mkdir()
    (own_cache.parent / "uml" / "linux").write_bytes(bytes(10))
    runner = CliRunner()
    shown = json.loads(runner.invoke(cli.app, ["cache", "--json"]).stdout)
    assert [each["identity"] for each in shown["engines"]] == ["one"] and shown["others"] == {"functions": 7, "uml": 10}
    text = runner.invoke(cli.app, ["cache"]).stdout
    assert "1 compiled engines" in text and "dlcp / ecmp" in text and "other: uml" in text
    assert runner.invoke(cli.app, ["cache", "clear"]).stdout == "removed 1 compiled engines\n"
    assert (
        list(own_cache.iterdir()) in ([], [own_cache / engine_cache.LOCK])
        and (own_cache.parent / "uml" / "linux").exists()
    )


def test_concurrent_requests_compile_each_engine_once(own_cache, tmp_path, monkeypatch):
    """Two pytest workers, or two runs started together, may need the same engine; another engine does not wait for
    it."""
    told = tmp_path / "compiled"

    def fill(part, work, at_once, begin):
        with told.open("a") as file:
            file.write(f"{work.identity}\n")
        time.sleep(0.3)  # what compiles takes a while, so that the others come meanwhile
        (part / engine_cache.ABOUT).write_text("{}")

    monkeypatch.setattr(engine_cache, "_fill", fill)
    works = [engine_cache.CompileTask(name, dict, {}, str) for name in ("same", "same", "other", "same")]
    engine_cache.compile_all(works, jobs=4)
    assert sorted(told.read_text().split()) == ["other", "same"]
    assert {each.name for each in own_cache.iterdir()} == {"same", "other", engine_cache.LOCK}
