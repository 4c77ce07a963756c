"""Generates and loads the engine specialized to one combination of transports, load balancer, queue policy and
features.

The compiled steps in `gradwire.sim.engine.core` import the functions they are bound to from a sibling module,
`bindings`. For each combination this module generates that sibling (a few lines of dispatch that import the chosen
functions under fixed names), puts it into a new package whose other modules are the files of `core`, and imports the
package. So the steps exist once as source and once in memory per combination, at full speed and without function
pointers.

An engine's fingerprint is a hash of every source that goes into it: an outdated one can never run, and old ones are
harmless. `gradwire.jit.engine_cache` stores engines, `gradwire.jit.whole_program` compiles them.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import gradwire.jit
import gradwire.protocols
import gradwire.scenarios.wire
import gradwire.sim.engine.core
from gradwire.jit.engine_cache import CompileError, CompileTask, compile_all, is_cached, load
from gradwire.jit.fingerprint import digest_of, reachable_functions
from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.load_balancers.base import Balancer
from gradwire.protocols.registry import ARGUMENTS as ARGUMENTS_OF
from gradwire.protocols.registry import (
    BALANCER_SIDE,
    QUEUE_SIDE,
    RECEIVER_SIDE,
    RECORDS,
    SENDER_SIDE,
    functions_of,
    is_user_defined,
    record_lines,
    resolve_component,
    type_check,
)
from gradwire.protocols.transports.base import (
    NoOpTransport,
    delays_acks,
    implementation_of,
    is_persistent,
    pulls,
    queues_at_nic,
    rides,
    shares_pair_state,
)
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.registry import kind_of
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.sim.engine.guarded_rules import guarded_source

if TYPE_CHECKING:
    from gradwire.jit.compiled import Compiled
    from gradwire.scenarios.json_data import Json
    from gradwire.scenarios.schema.network.network import Switch
    from gradwire.scenarios.schema.network.transport_base import Transport
    from gradwire.scenarios.schema.scenario import Scenario

FUNCTIONS = ("run", "post", "keep")
COMMON = frozenset({"post", "keep"})
"""Functions that do not depend on transports, balancers and switches."""

ARGUMENTS = {
    "start": "now",
    "pull": "now",
    "on_control": "kind, sequence, argument, echo, now",
    "on_timer": "now",
    "at_nic": "nbytes",
    "on_data": "sequence, size, ce, now",
    "on_probe": "argument, now",
    "on_trimmed": "sequence, now",
    "on_late": "now",
    "resume": "now",
    "forget": "packets",
    "forget_received": "packets",
}


@dataclass(frozen=True)
class Features:
    """Optional abilities of the engine of a run; those that are off cost nothing.

    shared : the ports of a switch share its buffer.
    limits : every class may fill only a part of the buffer.
    drr : deficit round robin among some classes of a port.
    trimming : packets are cut to their headers.
    pfc : priority flow control.
    srpt : shortest message first within a class.
    faults : hosts may stop and routes may be missing.
    delays : waiting times are counted.
    streams : connections may carry several messages.
    ack_delay : receivers may delay their answers.
    pulls : receivers pace their senders.
    rides : data packets carry a word of their sender.
    pairs : messages between two hosts share a pace.
    host_queues : packets of some flows wait at the NIC.
    aggregation : switches sum packets of many hosts for one.
    """

    shared: bool = False
    limits: bool = False
    drr: bool = False
    trimming: bool = False
    pfc: bool = False
    srpt: bool = False
    faults: bool = False
    delays: bool = False
    streams: bool = False
    ack_delay: bool = False
    pulls: bool = False
    rides: bool = False
    pairs: bool = False
    host_queues: bool = False
    aggregation: bool = False


@dataclass(frozen=True)
class Combination:
    """The components that an engine is compiled for. Classes of transports (in the order of their numbers), of a load
    balancer and of a queue policy, and the features."""

    transports: tuple[type, ...]
    balancer: type
    queue: type
    features: Features = Features()

    @property
    def owners(self) -> tuple[type, ...]:
        """All component classes."""
        return *self.transports, self.balancer, self.queue

    def names(self) -> Json:
        """Return the names of the components and features."""
        return {
            "transports": [_name(transport) for transport in self.transports],
            "load_balancing": _name(self.balancer),
            "queues": _name(self.queue),
            "features": [feature for feature, on in asdict(self.features).items() if on],
        }


@dataclass(frozen=True)
class CompiledEngine:
    """The compiled entry points of one combination.

    run : (address, thread, threads, epoch): take part in advancing the state at a machine address (see `core.engine`).
    post : (address, node, time, key): put an entry on a host's heap, between calls of `run`.
    keep : (address, what, first, second): manage messages and their records (see `record_retention`).
    """

    run: Callable[..., int]
    post: Callable[..., object]
    keep: Callable[..., int]
    identity: str


def combination_of(scenario: Scenario) -> Combination:
    """Return the combination that a scenario needs. Raises ScenarioError for an unknown transport or balancer, or an
    invalid user-defined component."""
    faults = any(table.engine for table in scenario.fault)
    return make_combination(
        scenario.transports,
        scenario.load_balancing,
        scenario.switch,
        scenario.folder,
        features_of(scenario.switch, faults, scenario.output.delays),
    )


def engine_fingerprint(scenario: Scenario) -> str:
    """Return the fingerprint of the engine that a scenario needs. Raises as `combination_of`."""
    return _identity(combination_of(scenario))


def make_combination(
    tables: Sequence[Transport], balancing: str, switch: Switch, folder: Path | None, features: Features
) -> Combination:
    """Return the combination for transport tables, a load balancer and switches. Raises as `combination_of`. Transport
    tables have `kind` and possibly `connections`, `delayed_acks` and the like."""
    owners = tuple(resolve_component("transport", table.kind, folder) for table in tables)
    tables = [validate_user_table(owner, table) for owner, table in zip(owners, tables, strict=True)]
    owners = tuple(implementation_of(owner, table) for owner, table in zip(owners, tables, strict=True))
    both = list(zip(owners, tables, strict=True))
    features = replace(
        features,
        streams=any(is_persistent(table) for table in tables),
        ack_delay=any(delays_acks(table) for table in tables),
        pulls=any(pulls(owner, table) for owner, table in both),
        rides=any(rides(owner, table) for owner, table in both),
        pairs=any(shares_pair_state(owner) for owner in owners),
        host_queues=any(queues_at_nic(owner) for owner in owners),
    )
    return Combination(
        owners,
        resolve_component("load_balancing", balancing, folder),
        resolve_component("queue", switch.queue_policy, folder),
        features,
    )


def features_of(switch: Switch, faults: bool, delays: bool) -> Features:
    """Return the features that a scenario's switches need."""
    return Features(
        shared=switch.shared() is not None,
        limits=switch.limits() is not None,
        drr=switch.quanta() is not None,
        trimming=switch.trim_threshold is not None,
        pfc=switch.pfc,
        srpt=switch.shortest_first,
        faults=faults,
        delays=delays,
        aggregation=switch.aggregation_slots > 0,
    )


def compile_ahead(scenarios: Iterable[Scenario], jobs: int | None = None) -> None:
    """Compile the engines of these scenarios that are not cached yet, in parallel. Raises ScenarioError if a
    user-defined component cannot be compiled; says where and why."""
    for identity, seconds in _compile([combination_of(scenario) for scenario in scenarios], jobs).items():
        _ahead[identity] = _ahead.get(identity, 0.0) + seconds


def is_compiled(combination: Combination) -> bool:
    """Return True if the engine for a combination is cached."""
    return is_cached(_identity(combination))


def take_compile_seconds(kernel: CompiledEngine) -> float:
    """Return the seconds that `compile_ahead` spent on an engine in this process, once. The first run that uses the
    engine accounts for them."""
    return _ahead.pop(kernel.identity, 0.0)


_ahead: dict[str, float] = {}  # seconds by fingerprint


def load_engine(combination: Combination, compiled: bool = True) -> CompiledEngine:
    """Return the engine for a combination: compiled if it is not cached, or as plain Python. Raises as
    `compile_ahead`."""
    kernel: CompiledEngine = _load(combination) if compiled else _uncompiled(combination)
    return kernel


def _compile(combinations: Iterable[Combination], jobs: int | None = None) -> dict[str, float]:
    """Compile what is not cached, and return the seconds of each engine by fingerprint."""
    works = []
    for combination in dict.fromkeys(combinations):
        users = [owner for owner in combination.owners if is_user_defined(owner)]
        functions, check = partial(_functions, combination), partial(type_check, users)
        works.append(CompileTask(_identity(combination), functions, combination.names(), check, COMMON))
    try:
        return compile_all(works, jobs)
    except CompileError as error:
        expected = "what Numba can compile (docs/extending.md)"
        raise ScenarioError(str(error), "user-defined component", expected) from None


@cache
def _uncompiled(combination: Combination) -> CompiledEngine:
    """Return the engine for a combination as plain Python functions, which run in one thread."""
    functions = _functions(combination)
    run, post, keep = (uncompiled(functions[name]) for name in FUNCTIONS)
    return CompiledEngine(run, post, keep, _identity(combination))


@cache
def _load(combination: Combination) -> CompiledEngine:
    identity = _identity(combination)
    for _ in range(2):  # a damaged cache entry is compiled again
        _compile([combination])
        functions: Mapping[str, Callable[..., int]] | None = load(identity)
        if functions is not None:
            break
    else:  # no child process could store it: compile in this process without caching
        compiled = _functions(combination)
        functions = {name: compiled[name].numba for name in FUNCTIONS}
    run, post, keep = (functions[name] for name in FUNCTIONS)
    return CompiledEngine(run, post, keep, identity)


def _functions(combination: Combination) -> dict[str, Compiled]:
    """Return the functions of the engine for a combination, not compiled yet."""
    package_name = f"gradwire.sim.engine.core_{_identity(combination)}"
    package = types.ModuleType(package_name)
    package.__path__ = list(gradwire.sim.engine.core.__path__)
    package.__spec__ = importlib.machinery.ModuleSpec(package_name, None, is_package=True)
    sys.modules[package_name] = package
    bound = types.ModuleType(f"{package_name}.bindings")
    exec(compile(_source(combination), f"<bound {package_name}>", "exec"), bound.__dict__)
    sys.modules[bound.__name__] = bound
    engine = importlib.import_module(f"{package_name}.engine")
    injection = importlib.import_module("gradwire.sim.engine.program.timer_injection")
    retention = importlib.import_module("gradwire.sim.engine.memory.record_retention")
    return {"run": engine.run, "post": injection.post, "keep": retention.keep}


@cache
def _identity(combination: Combination) -> str:
    """Return a hash of all sources of the engine for a combination."""
    return _digest(_source(combination), combination.owners)


def _name(owner: type) -> str:
    """Return a component's name in scenarios; the class name of a user-defined one."""
    return kind_of(owner) or owner.__name__


def _source(combination: Combination) -> str:
    """Return the source of the module `bindings` for a combination."""
    transports, balancer, features = combination.transports, combination.balancer, combination.features
    lines = ['"""Written by gradwire.sim.engine.specialization."""', "from gradwire.jit.compiled import njit"]
    lines.append("from gradwire.jit.records.flows import Parameters")
    lines.append("from gradwire.jit.records.constants import SET_SHIFT")
    lines.append(f"SEES_QUEUES = {bool(getattr(balancer, 'sees_queues', False))}")
    lines.append(f"HOST_PATHS = {hasattr(balancer, 'pick_path') and balancer.pick_path is not Balancer.pick_path}")
    lines.append(f"SOURCE_ROUTES = {bool(getattr(balancer, 'source_routes', False))}")
    stamps = any(hasattr(transport, "stamp_slots") for transport in transports)
    lines.append(f"INT = {stamps}")
    for feature, on in asdict(features).items():
        lines.append(f"{feature.upper()} = {on}")
    for function in BALANCER_SIDE:
        lines += _bound(balancer if hasattr(balancer, function) else Balancer, function, "")
        lines += ["@njit", f"def {function}({ARGUMENTS_OF[function]}):", f"    return {_call(function, '')}"]
    for function in QUEUE_SIDE:
        lines += _bound(combination.queue, function, "")
        lines += ["@njit", f"def {function}({ARGUMENTS_OF[function]}):", f"    return {_call(function, '')}"]
    for function in SENDER_SIDE + RECEIVER_SIDE:
        record = "flow" if function in SENDER_SIDE else "receiver"
        for i, transport in enumerate(transports):
            lines += _bound(transport if hasattr(transport, function) else NoOpTransport, function, f"_{i}", i)
        lines += ["@njit", f"def {function}({record}, {ARGUMENTS[function]}):"]
        lines.append(f"    params = {record}.state.parameter_sets + ({record}.kind >> SET_SHIFT) * Parameters.WORDS")
        if len(transports) > 1:
            lines.append(f"    transport = {record}.kind & ((1 << SET_SHIFT) - 1)")  # `kind` is an argument
        for i in range(len(transports)):
            last = i == len(transports) - 1
            indent = "    " if last else "        "
            if not last:
                lines.append(f"    if transport == {i}:")
            lines.append(f"{indent}return {_call(function, f'_{i}')}")
    return "\n".join(lines) + "\n"


def _bound(owner: type, function: str, suffix: str, number: int = 0) -> list[str]:
    """Return lines that bind a component's function, guarded if it is user-defined, and the records it takes."""
    imports, _ = record_lines(owner, function, suffix)
    return [*guarded_source(owner, function, f"{function}_rule{suffix}", number), *imports]


def _call(function: str, suffix: str) -> str:
    """Return the call of a bound function, with the records that it declares."""
    arguments = []
    for argument in ARGUMENTS_OF[function].split(", "):
        record = f"{argument}_{function}{suffix}"
        if argument == "params":
            arguments.append(f"{record}({'flow' if function in SENDER_SIDE else 'receiver'}, params)")
        else:
            arguments.append(f"{record}({argument}, {argument}.base)" if argument in RECORDS else argument)
    return f"{function}_rule{suffix}({', '.join(arguments)})"


def _digest(source: str, classes: Sequence[type]) -> str:
    """Return a hash of everything that is compiled into a combination."""
    functions = reachable_functions([function for owner in classes for function in functions_of(owner)])
    return digest_of(source, functions, _files(functions))


def _files(functions: Iterable[FunctionType]) -> list[Path]:
    """Return the source files of an engine, so that changes in other files do not outdate it. These are its own files,
    those that all components share, and those of the functions that it is bound to."""
    packages = (gradwire.sim.engine, gradwire.jit, gradwire.protocols)
    engine, jit, protocols = (Path(package.__path__[0]) for package in packages)
    files = {*engine.glob("core/*.py"), *jit.rglob("*.py"), *protocols.glob("*.py"), *protocols.glob("*/base.py")}
    memory = ("atomics", "record_retention", "stretch_allocator", "timer_heap")
    program = ("flow_teardown", "flow_setup", "timer_injection")
    files |= {engine / "memory" / f"{name}.py" for name in memory}
    files |= {engine / "program" / f"{name}.py" for name in program}
    for module in (gradwire.scenarios.wire, *(sys.modules[function.__module__] for function in functions)):
        if module.__file__ is not None:
            files.add(Path(module.__file__))
    return sorted(files)
