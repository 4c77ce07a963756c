"""The machine code of agents (`gradwire.emu.native.kept`).

The loop of agents (`gradwire.emu.agent.core`) is one such, and every transport another: its functions, as the simulator
has them, bound to one memory. The loop calls them by their addresses, so what is compiled for one scenario serves all
others, and a transport of the user's own is compiled in a few seconds. An agent that finds nothing kept, on another
machine, compiles it.
"""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.agent.core.layout import RULES
from gradwire.emu.native import kept

if TYPE_CHECKING:
    from gradwire.components.compiled import Compiled
    from gradwire.components.engines import Work
    from gradwire.scenarios.schema.transport_base import Transport

CORE = "agents"
ANSWERING = ("pull", "on_data", "on_probe")
"""The functions of a transport that return something."""

@cache
def core() -> kept.Natives:
    """The loop of agents (`gradwire.emu.agent.core.entry`)."""
    return kept.load(CORE, _core_work)


@cache
def rules(owner: type[Transport]) -> kept.Natives:
    """The functions of a transport (`RULES`): of the address of the memory, and then as
    `gradwire.components.find.ARGUMENTS` has them. What it has not got does nothing.

    Raises
    ------
    ScenarioError
        A transport of the user's own cannot be compiled.
    """
    return kept.load(_rules_name(owner), partial(_rules_work, owner))


def works(owners: Iterable[type[Transport]]) -> dict[str, Work]:
    """What has to be compiled for agents with these transports, by name."""
    return {CORE: _core_work(), **{_rules_name(owner): _rules_work(owner) for owner in owners}}


def _rules_name(owner: type[Transport]) -> str:
    return f"{owner.__module__}.{owner.__qualname__}"


@cache
def _core_work() -> Work:
    from gradwire.components.engines import Work
    from gradwire.components.identity import digest_of

    about = {"features": ["agents of the testbed"]}
    return Work(digest_of("agents", [], _files([])), _core_functions, about, str)


def _core_functions() -> Mapping[str, Compiled]:
    found: Mapping[str, Compiled] = importlib.import_module("gradwire.emu.agent.core.entry").FUNCTIONS
    return found


@cache
def _rules_work(owner: type[Transport]) -> Work:
    from gradwire.components.engines import Work
    from gradwire.components.find import functions_of, is_users, type_check
    from gradwire.components.identity import digest_of, reachable
    from gradwire.scenarios.components import kind_of

    source, functions = _source(owner), reachable(functions_of(owner))
    files = _files({Path(str(sys.modules[function.__module__].__file__)) for function in functions})
    identity = digest_of(source, functions, files)
    about = {"features": [f"{kind_of(owner) or owner.__name__} at agents of the testbed"]}
    check = partial(type_check, [owner] if is_users(owner) else [])
    return Work(identity, partial(_rules_functions, source, identity), about, check)


def _rules_functions(source: str, identity: str) -> Mapping[str, Compiled]:
    module = types.ModuleType(f"gradwire.emu.rules_{identity}")
    exec(compile(source, f"<rules {identity}>", "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    return {name: getattr(module, name) for name in RULES}


def _source(owner: type[Transport]) -> str:
    """A module of the functions of a transport, of the address of the memory instead of the memory."""
    from gradwire.components.find import ARGUMENTS, bound_to
    from gradwire.components.transports.base import Deaf

    lines = ['"""Written by gradwire.emu.agent.machine."""', "from gradwire.components.compiled import njit"]
    lines.append("from gradwire.emu.native.calls import words_at")
    for name in RULES:
        lines.append(bound_to(owner if hasattr(owner, name) else Deaf, name, f"{name}_itself"))
        arguments = ARGUMENTS[name].removeprefix("M, ")
        kinds = ", ".join(["int64"] * (2 + arguments.count(",")))
        call = f"{name}_itself(words_at(origin), {arguments})"
        lines += [f'@njit("int64({kinds})")', f"def {name}(origin, {arguments}):"]
        lines += [f"    return {call}"] if name in ANSWERING else [f"    {call}", "    return 0"]
    return "\n".join(lines) + "\n"


def _files(more: Iterable[Path]) -> list[Path]:
    """The files that machine code of agents is made of, and `more`."""
    import gradwire.components
    import gradwire.emu.agent.core
    import gradwire.emu.agent.words
    import gradwire.emu.wire.header

    core, components = (Path(each.__path__[0]) for each in (gradwire.emu.agent.core, gradwire.components))
    files = {*kept.files(), *core.glob("*.py"), *components.glob("*/base.py"), *more}
    for module in (gradwire.emu.agent.words, gradwire.emu.wire.header):
        files.add(Path(str(module.__file__)))
    return sorted(files)
