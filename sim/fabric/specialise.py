"""Binding: the engine compiled for one combination of transports, load balancer and queue policy.

The compiled steps in `gradwire.sim.fabric.core` import the functions they are bound to from a sibling module, `bound`.
For each combination this module writes that sibling - a few lines of dispatch that import the chosen functions under
fixed names - puts it into a package of its own whose other modules are the files of `core`, and imports the package. So
the steps exist once as source, and once in memory per combination, at full speed and without a function pointer.

An engine's identity is a hash of every source that goes into it: an outdated one can never run, and old ones are
harmless. `gradwire.components.engines` says where they are kept, `gradwire.components.whole` how they are compiled.
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

import gradwire.components
import gradwire.scenarios.wire
import gradwire.sim.fabric.core
from gradwire.components.balancers.base import Balancer
from gradwire.components.engines import CompileError, Work, compile_all, is_kept, load
from gradwire.components.find import (
    BALANCER_SIDE,
    QUEUE_SIDE,
    RECEIVER_SIDE,
    SENDER_SIDE,
    functions_of,
    is_users,
    resolve,
    type_check,
)
from gradwire.components.identity import digest_of, reachable
from gradwire.components.transports.base import (
    Deaf,
    answers_late,
    carried_out_by,
    persists,
    pulls,
    queues_at_nic,
    rides,
    shares,
)
from gradwire.scenarios.components import kind_of
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.user_classes import table_for
from gradwire.sim.fabric.watched import watched

if TYPE_CHECKING:
    from gradwire.components.compiled import Compiled
    from gradwire.scenarios.json_data import Json
    from gradwire.scenarios.schema.network import Switch
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.scenarios.schema.transport_base import Transport

FUNCTIONS = ("run", "post", "keep")
COMMON = frozenset({"post", "keep"})
"""Those of them that know nothing of transports, balancers and switches."""

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
    """What the engine of a run can do beyond the usual; what is off costs nothing.

    `shared`: the ports of a switch share its buffer. `limits`: every class may fill a part of the buffer only. `drr`:
    some classes of a port take turns. `trimming`: packets are cut to their headers. `pfc`: priority flow control.
    `srpt`: shortest message first within a class. `faults`: hosts may stand still and routes may be missing. `delays`:
    waiting times are counted. `streams`: connections may carry message after message. `ack_delay`: receivers may put
    off their answers. `pulls`: receivers pace their senders. `rides`: data packets carry a word of their sender's.
    `pairs`: messages between two hosts share a pace. `host_queues`: packets of some flows wait at the NIC.
    `aggregation`: switches sum up packets of many hosts for one.
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
    """What an engine is compiled for: classes of transports (in the order of their numbers), of a load balancer and
    of a queue policy, and what the engine has to be able to do."""

    transports: tuple[type, ...]
    balancer: type
    queue: type
    features: Features = Features()

    @property
    def owners(self) -> tuple[type, ...]:
        """All its classes."""
        return *self.transports, self.balancer, self.queue

    def about(self) -> Json:
        """The same as names."""
        return {
            "transports": [_name(transport) for transport in self.transports],
            "load_balancing": _name(self.balancer),
            "queues": _name(self.queue),
            "features": [feature for feature, on in asdict(self.features).items() if on],
        }


@dataclass(frozen=True)
class Kernel:
    """The compiled entry points of one combination.

    `run(address, thread, threads, epoch)`: take part in advancing the state at a machine address (see `core.engine`).
    `post(address, node, time, key)`: put an entry on a host's heap, between calls of `run`.
    `keep(address, what, first, second)`: the keeping of messages and their records (see `keep`).
    """

    run: Callable[..., int]
    post: Callable[..., object]
    keep: Callable[..., int]
    identity: str


def combination_of(scenario: Scenario) -> Combination:
    """The combination that a scenario needs.

    Raises
    ------
    ScenarioError
        An unknown transport or balancer, or one of the user's own that is not what it is named for.
    """
    faults = any(table.engine for table in scenario.fault)
    return combine(
        scenario.transports, scenario.load_balancing, scenario.switch, scenario.folder,
        features_of(scenario.switch, faults, scenario.output.delays),
    )  # fmt: skip


def identity_of(scenario: Scenario) -> str:
    """The identity of the engine that a scenario needs, by which it is kept. Raises as `combination_of`."""
    return _identity(combination_of(scenario))


def combine(
    tables: Sequence[Transport], balancing: str, switch: Switch, folder: Path | None, features: Features
) -> Combination:
    """The combination for transport tables (`kind`, maybe `connections`, `delayed_acks` and the like), a load balancer
    and switches. Raises as `combination_of`."""
    owners = tuple(resolve("transport", table.kind, folder) for table in tables)
    tables = [table_for(owner, table) for owner, table in zip(owners, tables, strict=True)]
    owners = tuple(carried_out_by(owner, table) for owner, table in zip(owners, tables, strict=True))
    both = list(zip(owners, tables, strict=True))
    features = replace(
        features,
        streams=any(persists(table) for table in tables),
        ack_delay=any(answers_late(table) for table in tables),
        pulls=any(pulls(owner, table) for owner, table in both),
        rides=any(rides(owner, table) for owner, table in both),
        pairs=any(shares(owner) for owner in owners),
        host_queues=any(queues_at_nic(owner) for owner in owners),
    )
    return Combination(
        owners,
        resolve("load_balancing", balancing, folder),
        resolve("queue", switch.queue_policy, folder),
        features,
    )


def features_of(switch: Switch, faults: bool, delays: bool) -> Features:
    """What the engine has to be able to do for a scenario's switches."""
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
    """Compile the engines that runs of these scenarios need and that are not kept yet, side by side.

    Raises
    ------
    ScenarioError
        A component of the user's own cannot be compiled; says where and why.
    """
    for identity, seconds in _compile([combination_of(scenario) for scenario in scenarios], jobs).items():
        _ahead[identity] = _ahead.get(identity, 0.0) + seconds


def is_compiled(combination: Combination) -> bool:
    """Return True if the engine for a combination is kept."""
    return is_kept(_identity(combination))


def spent_ahead(kernel: Kernel) -> float:
    """Seconds that an engine was compiled for by `compile_ahead`, in this process and not asked for yet: a run that
    uses it first has them on its account, and no other."""
    return _ahead.pop(kernel.identity, 0.0)


_ahead: dict[str, float] = {}  # by identity


def specialise(combination: Combination) -> Kernel:
    """The engine for a combination, compiled if it is not kept. Raises as `compile_ahead`."""
    kernel: Kernel = _load(combination)
    return kernel


def _compile(combinations: Iterable[Combination], jobs: int | None = None) -> dict[str, float]:
    """Compile what is not kept. Returns the seconds of each, by identity."""
    works = []
    for combination in dict.fromkeys(combinations):
        users = [owner for owner in combination.owners if is_users(owner)]
        functions, check = partial(_functions, combination), partial(type_check, users)
        works.append(Work(_identity(combination), functions, combination.about(), check, COMMON))
    try:
        return compile_all(works, jobs)
    except CompileError as error:
        expected = "what Numba can compile (docs/extending.md)"
        raise ScenarioError(str(error), "a component of your own", expected) from None


@cache
def _load(combination: Combination) -> Kernel:
    identity = _identity(combination)
    for _ in range(2):  # what was kept may turn out to be damaged, and is made anew
        _compile([combination])
        functions: Mapping[str, Callable[..., int]] | None = load(identity)
        if functions is not None:
            break
    else:  # no child could put it there: compiled in this process and kept nowhere
        compiled = _functions(combination)
        functions = {name: compiled[name].numba for name in FUNCTIONS}
    run, post, keep = (functions[name] for name in FUNCTIONS)
    return Kernel(run, post, keep, identity)


def _functions(combination: Combination) -> dict[str, Compiled]:
    """The functions of the engine for a combination, not compiled yet."""
    package_name = f"gradwire.sim.fabric.core_{_identity(combination)}"
    package = types.ModuleType(package_name)
    package.__path__ = list(gradwire.sim.fabric.core.__path__)
    package.__spec__ = importlib.machinery.ModuleSpec(package_name, None, is_package=True)
    sys.modules[package_name] = package
    bound = types.ModuleType(f"{package_name}.bound")
    exec(compile(_source(combination), f"<bound {package_name}>", "exec"), bound.__dict__)
    sys.modules[bound.__name__] = bound
    engine = importlib.import_module(f"{package_name}.engine")
    post, keep = (importlib.import_module(f"gradwire.sim.fabric.{name}") for name in ("post", "keep"))
    return {"run": engine.run, "post": post.post, "keep": keep.keep}


@cache
def _identity(combination: Combination) -> str:
    """A hash of everything that an engine for a combination is made of."""
    return _digest(_source(combination), combination.owners)


def _name(owner: type) -> str:
    """How a scenario names a component; those of the user's own by their class."""
    return kind_of(owner) or owner.__name__


def _source(combination: Combination) -> str:
    transports, balancer, features = combination.transports, combination.balancer, combination.features
    lines = ['"""Written by gradwire.sim.fabric.specialise."""', "from gradwire.components.compiled import njit"]
    lines.append("from gradwire.components.layout import H_PARAMS, PARAM_WORDS, R_KIND, S_KIND, SET_SHIFT")
    for function in BALANCER_SIDE:
        owner = balancer if hasattr(balancer, function) else Balancer
        lines += watched(owner, function, function)
    lines.append(f"SEES_QUEUES = {bool(getattr(balancer, 'sees_queues', False))}")
    lines.append(f"HOST_PATHS = {hasattr(balancer, 'pick') and balancer.pick is not Balancer.pick}")
    lines.append(f"SOURCE_ROUTES = {bool(getattr(balancer, 'source_routes', False))}")
    stamps = any(hasattr(transport, "stamp_slots") for transport in transports)
    lines.append(f"INT = {stamps}")
    for feature, on in asdict(features).items():
        lines.append(f"{feature.upper()} = {on}")
    for function in QUEUE_SIDE:
        lines += watched(combination.queue, function, function)
    for function in SENDER_SIDE + RECEIVER_SIDE:
        record, kind = ("f", "S_KIND") if function in SENDER_SIDE else ("r", "R_KIND")
        for i, transport in enumerate(transports):
            owner = transport if hasattr(transport, function) else Deaf
            lines += watched(owner, function, f"{function}_{i}", i)
        arguments = ARGUMENTS[function]
        lines += ["@njit", f"def {function}(M, {record}, {arguments}):"]
        lines.append(f"    k = M[H_PARAMS] + (M[{record} + {kind}] >> SET_SHIFT) * PARAM_WORDS")
        if len(transports) > 1:
            lines.append(f"    transport = M[{record} + {kind}] & ((1 << SET_SHIFT) - 1)")  # `kind` is an argument
        for i in range(len(transports)):
            last = i == len(transports) - 1
            indent = "    " if last else "        "
            if not last:
                lines.append(f"    if transport == {i}:")
            call = f"{function}_{i}(M, k, {record}, {arguments})"
            lines.append(f"{indent}return {call}")
    return "\n".join(lines) + "\n"


def _digest(source: str, classes: Sequence[type]) -> str:
    """A hash of everything that is compiled into a combination."""
    functions = reachable([function for owner in classes for function in functions_of(owner)])
    return digest_of(source, functions, _files(functions))


def _files(functions: Iterable[FunctionType]) -> list[Path]:
    """The files that an engine is made of: its own, what all components share, and those of the functions that it is
    bound to. It outlives what changes in others."""
    fabric, components = (Path(package.__path__[0]) for package in (gradwire.sim.fabric, gradwire.components))
    files = {*fabric.glob("core/*.py"), *components.glob("*.py"), *components.glob("*/base.py")}
    own = ("atomics", "closing", "heap", "keep", "opening", "post", "stretches")
    files |= {fabric / f"{name}.py" for name in own}
    for module in (gradwire.scenarios.wire, *(sys.modules[function.__module__] for function in functions)):
        if module.__file__ is not None:
            files.add(Path(module.__file__))
    return sorted(files)
