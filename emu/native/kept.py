"""Machine code of the testbed that is kept: made once, where the simulator's engines are
(`gradwire.components.engines`), and loaded without Numba.

Whoever finds nothing kept compiles it. Inside a virtual machine that would take minutes: `make_ready` does it before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradwire.components.engines import Work
    from gradwire.components.objects import Native

Natives = Mapping[str, "Native"]
Told = Mapping[str, str]
"""Where machine code is: its folder (`FOLDER`), and by name what it is known by there."""
FOLDER = "folder"

_told: dict[str, str] = {}


def use(told: Told | None) -> None:
    """Look for machine code where somebody else has seen to it that it is, from now on. What it is made of, and for
    which processor, is not looked at again: who tells of it is of this machine."""
    _told.clear()
    _told.update(told or {})


def make_ready(works: Mapping[str, Work], begins: Callable[[], object] = lambda: None) -> Told:
    """Compile what is not kept, side by side; `begins` is called before, if anything has to be. Returns where all of it
    is.

    Raises
    ------
    ScenarioError
        A component of the user's own cannot be compiled.
    """
    from gradwire.components import engines

    if not all(engines.is_kept(work.identity) for work in works.values()):
        begins()
        _compile(works.values())
    return {FOLDER: str(engines.writable_folder()), **{name: work.identity for name, work in works.items()}}


def load(name: str, make: Callable[[], Work]) -> Natives:
    """The functions of a work of this name, compiled now if they are nowhere kept. Raises as `make_ready`."""
    from gradwire.components import engines, objects

    if name in _told and (found := engines.load(_told[name], Path(_told[FOLDER]))) is not None:
        return found
    work = make()
    for _ in range(2):  # what was kept may turn out to be damaged, and is made anew
        _compile([work])
        found = engines.load(work.identity)
        if found is not None:
            return found
    made = {}  # no child could put it there: compiled in this process and kept nowhere
    for each, function in work.functions().items():
        symbol, code = objects.emitted(function)
        made[each] = objects.load(code, symbol, function.py_func.__code__.co_argcount)
    return made


def _compile(works: Iterable[Work]) -> None:
    from gradwire.components.engines import CompileError, compile_all
    from gradwire.scenarios.errors import ScenarioError

    try:
        compile_all(list(works))
    except CompileError as error:
        expected = "what Numba can compile (docs/extending.md)"
        raise ScenarioError(str(error), "a component of your own", expected) from None


def files() -> set[Path]:
    """The files that all machine code of the testbed is made of."""
    import gradwire.components
    import gradwire.emu.native
    import gradwire.emu.system.turns
    import gradwire.scenarios.wire

    native, components = (Path(each.__path__[0]) for each in (gradwire.emu.native, gradwire.components))
    modules = gradwire.emu.system.turns, gradwire.scenarios.wire
    found = {*(native / name for name in ("calls.py", "intrinsics.py")), *components.glob("*.py")}
    return found | {Path(str(module.__file__)) for module in modules}
