"""Provides the machine code of agents, the loop and each transport's functions, compiled or loaded from
`gradwire.emu.native.code_cache`.

The loop of agents (`gradwire.emu.agent.core`) is one unit, and every transport another: the simulator's functions bound
to one memory. The loop calls them by address, so code compiled for one scenario serves all others, and a user-defined
transport compiles in a few seconds. On another machine, an agent without cached code compiles it.
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
from gradwire.emu.native import code_cache

if TYPE_CHECKING:
    from gradwire.jit.compiled import Compiled
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.scenarios.schema.network.transport_base import Transport

CORE = "agents"
ANSWERING = ("pull", "on_data", "on_probe")
"""The functions of a transport that return something."""


@cache
def core() -> code_cache.Natives:
    """Return the loop of agents (`gradwire.emu.agent.core.entry`)."""
    return code_cache.load(CORE, _core_work)


@cache
def rules(owner: type[Transport]) -> code_cache.Natives:
    """Return the functions (`RULES`) of a transport; missing ones do nothing.

    Their arguments are the address of the memory, then those of `gradwire.protocols.registry.ARGUMENTS`. Raises
    ScenarioError: a user-defined transport cannot be compiled.
    """
    return code_cache.load(_rules_name(owner), partial(_rules_work, owner))


def works(owners: Iterable[type[Transport]]) -> dict[str, CompileTask]:
    """Return the units to compile for agents with these transports, by name."""
    return {CORE: _core_work(), **{_rules_name(owner): _rules_work(owner) for owner in owners}}


def _rules_name(owner: type[Transport]) -> str:
    return f"{owner.__module__}.{owner.__qualname__}"


@cache
def _core_work() -> CompileTask:
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.jit.fingerprint import digest_of

    about = {"features": ["agents of the testbed"]}
    entry = "gradwire.emu.agent.core.entry"
    return CompileTask(
        digest_of("agents", [], _files([])), lambda: importlib.import_module(entry).FUNCTIONS, about, str
    )


@cache
def _rules_work(owner: type[Transport]) -> CompileTask:
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.jit.fingerprint import digest_of, reachable_functions
    from gradwire.protocols.registry import functions_of, is_user_defined, type_check
    from gradwire.scenarios.loading.registry import kind_of

    source, functions = _source(owner), reachable_functions(functions_of(owner))
    files = _files({Path(str(sys.modules[function.__module__].__file__)) for function in functions})
    identity = digest_of(source, functions, files)
    about = {"features": [f"{kind_of(owner) or owner.__name__} at agents of the testbed"]}
    check = partial(type_check, [owner] if is_user_defined(owner) else [])
    return CompileTask(identity, partial(_rules_functions, source, identity), about, check)


def _rules_functions(source: str, identity: str) -> Mapping[str, Compiled]:
    module = types.ModuleType(f"gradwire.emu.rules_{identity}")
    exec(compile(source, f"<rules {identity}>", "exec"), module.__dict__)
    sys.modules[module.__name__] = module
    return {name: getattr(module, name) for name in RULES}


def _source(owner: type[Transport]) -> str:
    """Return the source of a transport's functions, with the memory's address as their first argument."""
    from gradwire.protocols.registry import ARGUMENTS, import_line, record_lines
    from gradwire.protocols.transports.base import NoOpTransport

    lines = ['"""Written by gradwire.emu.agent.compiled_agent."""', "from gradwire.jit.compiled import njit"]
    lines.append("from gradwire.emu.native.calls import words_at")
    for name in RULES:
        rule_owner = owner if hasattr(owner, name) else NoOpTransport
        imports, records = record_lines(rule_owner, name, "")
        lines += [import_line(rule_owner, name, f"{name}_itself"), *imports]
        arguments = ARGUMENTS[name]
        kinds = ", ".join(["int64"] * (2 + arguments.count(",")))
        passed = [
            f"{records[argument]}(words_at(origin), {argument})" if argument in records else argument
            for argument in arguments.split(", ")
        ]
        call = f"{name}_itself({', '.join(passed)})"
        lines += [f'@njit("int64({kinds})")', f"def {name}(origin, {arguments}):"]
        lines += [f"    return {call}"] if name in ANSWERING else [f"    {call}", "    return 0"]
    return "\n".join(lines) + "\n"


def _files(more: Iterable[Path]) -> list[Path]:
    emu, components = code_cache.ROOT / "emu", code_cache.ROOT / "protocols"
    files = {*(emu / "agent" / "core").glob("*.py"), emu / "agent" / "shared_words.py", emu / "wire" / "header.py"}
    return sorted({*code_cache.files(), *files, *components.glob("*/base.py"), *more})
