"""Compiles the testbed's machine code once, stores it with the simulator's engines, and loads it without Numba.

The engines are those of `gradwire.jit.engine_cache`. Missing code is compiled. Inside a virtual machine that would take
minutes, so `make_ready` does it beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.jit.machine_code import NativeFunction

Natives = Mapping[str, "NativeFunction"]
CodeLocations = Mapping[str, str]
"""Location of machine code: its folder (`FOLDER`), and the identity of each unit by name."""
FOLDER = "folder"
ROOT = Path(__file__).parents[2]
"""The folder of gradwire's packages."""

_known_code: dict[str, str] = {}


def use(locations: CodeLocations | None) -> None:
    """Use machine code at these locations from now on.

    Its sources and processor are not checked again: the caller is on this machine.
    """
    _known_code.clear()
    _known_code.update(locations or {})


def make_ready(works: Mapping[str, CompileTask], begins: Callable[[], object] = lambda: None) -> CodeLocations:
    """Compile missing code in parallel, after a call of `begins` if there is any; return the locations. Raises
    ScenarioError: a user-defined component cannot be compiled."""
    from gradwire.jit import engine_cache

    if not all(engine_cache.is_cached(work.identity) for work in works.values()):
        begins()
        _compile(works.values())
    return {FOLDER: str(engine_cache.writable_folder()), **{name: work.identity for name, work in works.items()}}


def load(name: str, make: Callable[[], CompileTask]) -> Natives:
    """Return the functions of a unit, compiled now if missing; raises as `make_ready`."""
    from gradwire.jit import engine_cache, machine_code

    if name in _known_code and (found := engine_cache.load(_known_code[name], Path(_known_code[FOLDER]))) is not None:
        return found
    work = make()
    for _ in range(2):  # a damaged cache entry is compiled again
        _compile([work])
        found = engine_cache.load(work.identity)
        if found is not None:
            return found
    natives = {}  # the cache is not writable: compile in this process
    for function_name, function in work.functions().items():
        symbol, code = machine_code.emit(function)
        natives[function_name] = machine_code.load(code, symbol, function.py_func.__code__.co_argcount)
    return natives


def _compile(works: Iterable[CompileTask]) -> None:
    from gradwire.jit.engine_cache import CompileError, compile_all
    from gradwire.scenarios.errors import ScenarioError

    try:
        compile_all(list(works))
    except CompileError as error:
        expected = "code that Numba can compile (docs/extending.md)"
        raise ScenarioError(str(error), "a component of your own", expected) from None


def files() -> set[Path]:
    native = {Path(__file__).with_name(name) for name in ("calls.py", "heap.py", "intrinsics.py")}
    return native | {*ROOT.glob("jit/**/*.py"), *ROOT.glob("protocols/*.py"), ROOT / "scenarios" / "wire.py"}
