"""Functions that engines have in common: lowered once, the same machine code, and never what is not the same function."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import types

import llvmlite.binding as llvm
import numpy
import pytest

from gradwire.jit import engine_cache, machine_code
from gradwire.jit.compiled import Compiled, Intrinsic, njit
from gradwire.jit.fingerprint import made_of
from gradwire.scenarios.loading.load import build_scenario
from gradwire.sim.engine.specialization import compile_ahead

STEP, TABLE = 3, numpy.arange(4)


@njit
def innermost(a):
    return a + STEP


@njit
def inner(a):
    return 2 * innermost(a)


@njit
def beside(a):
    return a // STEP - a % 7  # Numba has helpers for these


@njit
def with_array(a):
    return a + TABLE[1]


@njit
def around_array(a):
    return with_array(a)


@njit
def down(a):
    return a if a < 1 else down(a - 1)


def engine(name, *outer, common=()):
    """Machine code of `outer`, by its place, compiled in a process of its own as all engines are. `common`: the names of
    those that other engines have, too."""

    def functions():
        return {f"f{n}": Compiled(each, "int64(int64)", {}) for n, each in enumerate(outer)}

    engine_cache.compile_all(
        [engine_cache.CompileTask(name, functions, {"transports": [name]}, str, frozenset(common))]
    )
    loaded = engine_cache.load(name)
    assert loaded is not None, "it could not be compiled"
    return [loaded[f"f{n}"] for n in range(len(outer))]


def kept(cache):
    return {path.name for path in (cache / engine_cache.FUNCTIONS).iterdir()}


def lowered_for(cache, name):
    """How many functions were linked into an engine."""
    return json.loads((cache / name / engine_cache.ABOUT).read_text())["functions"]


def both(a):
    return inner(a) + beside(a)


def other(a):
    return beside(a) - inner(a)


def test_engines_share_lowered_functions(own_cache):
    (first,) = engine("first", both)
    assert first(20) == 46 + 6 - 6
    before = {path: path.stat().st_ino for path in (own_cache / engine_cache.FUNCTIONS).iterdir()}
    assert len(before) == 3, "all but the outermost"
    (second,) = engine("second", other)
    assert second(20) == 0 - 46 and second(-1) == both(-1) - 2 * inner.py_func(-1)
    assert {path: path.stat().st_ino for path in (own_cache / engine_cache.FUNCTIONS).iterdir()} == before
    assert lowered_for(own_cache, "second") == lowered_for(own_cache, "first"), "all that it calls was linked"


def test_changed_constant_in_callee_recompiles_its_callers(own_cache, monkeypatch):
    (first,) = engine("first", both)
    before = kept(own_cache)
    monkeypatch.setitem(globals(), "STEP", 5)
    (second,) = engine("second", both)
    assert (first(20), second(20)) == (46 + 0, 50 + 4 - 6)
    assert len(kept(own_cache) - before) == 3


def test_machine_code_of_common_functions_is_emitted_once(own_cache, monkeypatch):
    """A changed constant or a damaged cached file causes another emission. Code of other functions is emitted every
    time."""
    emitted, made = machine_code.emit, own_cache.parent / "made"

    def noted(function):
        with made.open("a") as file:  # in the child that compiles
            file.write(f"{function.py_func.__name__} ")
        return emitted(function)

    monkeypatch.setattr(machine_code, "emit", noted)
    engine("first", both, other, common=["f0"])
    one, two = engine("second", both, other, common=["f0"])
    assert made.read_text().split() == ["both", "other", "other"]
    assert (one(20), two(20)) == (46, -46)
    with monkeypatch.context() as patch:
        patch.setitem(globals(), "STEP", 5)
        (changed,) = engine("changed", both, common=["f0"])
    assert changed(20) == 50 + 4 - 6
    for path in (own_cache / engine_cache.FUNCTIONS).iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    (anew,) = engine("anew", both, common=["f0"])
    assert anew(20) == 46
    assert made.read_text().split()[3:] == ["both", "both"]


@pytest.mark.parametrize("left", [b"", b"half of it", None], ids=["empty", "changed", "gone"])
def test_damaged_cached_function_is_lowered_again(own_cache, left):
    """Each cached function is damaged in turn, even those called by intact ones."""
    engine("first", both)
    whole = {path: path.read_bytes() for path in (own_cache / engine_cache.FUNCTIONS).iterdir()}
    for number, path in enumerate(whole):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(whole[path][: len(left)] + left + whole[path][2 * len(left) :])
        (afresh,) = engine(f"again {number}", other)
        assert afresh(20) == -46
        for written in whole:
            data = written.read_bytes()
            assert hashlib.sha256(data[32:]).digest() == data[:32], "all are whole again"


def test_functions_without_stable_key_are_lowered_every_time(own_cache):
    for name in ("first", "second"):
        (outer,) = engine(name, lambda a: around_array(a) + down(a) + inner(a))
        assert outer(5) == 6 + 0 + 16
        assert len(kept(own_cache)) == 2, "inner and what it calls"


def again(function, **changed):
    """The function with other meanings of its names."""
    return types.FunctionType(function.__code__, {**function.__globals__, **changed}, function.__name__)


def made(function, **changed):
    return made_of(again(function, **changed), {})


def test_function_key_covers_code_constants_and_callees():
    mine = innermost.py_func
    keys = [
        made(mine),
        made(mine, STEP=4),
        made(mine, STEP=3.0),
        made(mine, STEP=True),
        made(mine, STEP=(3,)),
        made(inner.py_func),
        made(inner.py_func, innermost=Compiled(again(mine, STEP=4), None, {})),
        made(inner.py_func, innermost=Compiled(mine, None, {"fastmath": True})),
        made(inner.py_func, innermost=Compiled(beside.py_func, None, {})),
        made(inner.py_func, innermost=Intrinsic("prefetch")),
        made(inner.py_func, innermost=Intrinsic("fetch_add")),
        made(inner.py_func, innermost=abs),
        made(inner.py_func, innermost=max),
        made(lambda a, b=1: a + b),
        made_of(lambda a, b=1: a + b, {}),
        made_of(lambda a, b=2: a + b, {}),
        made_of(lambda a, b=2: a - b, {}),
        made_of(lambda a, b=2: a - b + 1, {}),
    ]
    assert None not in keys and len(set(keys)) == len(keys)
    assert made(mine) == keys[0] == made(mine, OTHER=5), "what it does not name does not matter"


def test_function_with_unsupported_globals_has_no_key():
    captured = 3
    assert made(innermost.py_func, STEP=TABLE) is None
    assert made(innermost.py_func, STEP=[3]) is None
    assert made(innermost.py_func, STEP=(3, [4])) is None
    assert made(inner.py_func, innermost=again) is None, "a function that is not compiled"
    assert made_of(lambda a: a + captured, {}) is None
    assert made_of(lambda a: (lambda: a)(), {}) is None
    known = {}
    assert [made_of(each.py_func, known) for each in (around_array, with_array, down)] == [None] * 3
    assert made_of(inner.py_func, known) is not None


def test_function_key_covers_module_constants():
    module = types.ModuleType("of_mine")

    def uses(a):
        return a + module_of_mine.NUMBER  # noqa: F821

    keys = set()
    for number in (1, 2):
        module.NUMBER = number
        keys.add(made(uses, module_of_mine=module))
    assert len(keys) == 2 and None not in keys
    module.NUMBER = TABLE
    assert made(uses, module_of_mine=module) is None
    module.NUMBER = types.ModuleType("deeper")
    assert made(uses, module_of_mine=module) is None


def scenario(**fields):
    return build_scenario({
        "name": "x", "topology": {"kind": "star", "hosts": 4},
        "traffic": [{"name": "t", "kind": "permutation", "size": "10kB"}], **fields,
    })  # fmt: skip


def instructions(folder):
    """The machine code of an engine's functions, without the names of their symbols."""
    files = {path.name: llvm.ObjectFileRef.from_data(path.read_bytes()) for path in folder.glob("*.o")}
    return {name: [each.data() for each in file.sections() if each.is_text()] for name, file in files.items()}


@pytest.mark.slow
def test_engine_code_does_not_depend_on_function_cache(own_cache, tmp_path, monkeypatch):
    """DCTCP is compiled with an empty cache, after another transport and balancer, and after itself."""
    made = scenario()
    compile_ahead([made])
    (identity,) = [each.identity for each in engine_cache.cached_engines()]
    alone = instructions(own_cache / identity)
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "second"))
    compile_ahead([scenario(transport={"kind": "swift"}, load_balancing="flowlet")])
    folder = engine_cache.engines_folder()
    before = kept(folder)
    compile_ahead([made])
    fresh = kept(folder) - before
    assert 0 < len(fresh) < len(before) / 2, "more than half of it was there"
    after_others = instructions(folder / identity)
    shutil.rmtree(folder / identity)
    compile_ahead([made])
    after_itself = instructions(folder / identity)
    assert set(alone) == {"run.o", "post.o", "keep.o"} and all(map(len, alone.values()))
    assert alone == after_others == after_itself


def test_unused_functions_are_evicted_from_cache(own_cache, monkeypatch):
    monkeypatch.setattr(engine_cache, "MAX_FUNCTIONS", 2)
    folder = own_cache / engine_cache.FUNCTIONS
    folder.mkdir(parents=True)
    now = time.time()
    for name, age in (("a", 0), ("b", 50), ("c", 100)):
        (folder / name).touch()
        os.utime(folder / name, (now - age, now - age))
    engine_cache._forget_old(own_cache)
    assert kept(own_cache) == {"a", "b"}
    os.utime(folder / "b", (now - 91 * 86_400,) * 2)
    engine_cache._forget_old(own_cache)
    assert kept(own_cache) == {"a"}
    assert engine_cache.clear(own_cache) == 0 and not folder.exists()


def test_reused_functions_count_as_recently_used(own_cache):
    engine("first", both)
    for path in (own_cache / engine_cache.FUNCTIONS).iterdir():
        os.utime(path, (time.time() - 80 * 86_400,) * 2)
    engine("second", other)
    ages = [time.time() - path.stat().st_mtime for path in (own_cache / engine_cache.FUNCTIONS).iterdir()]
    assert len(ages) == 3 and max(ages) < 86_400
