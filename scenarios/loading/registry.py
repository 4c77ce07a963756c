"""Finds the component classes that a scenario chooses by name (`kind`), one per module of gradwire's packages.

A *component* is a class with a `kind`, the name by which a scenario chooses it. The class is its manifest: its fields
are its parameters, with defaults, checks and docstrings; its other attributes state its requirements and its
implementation. Everything that lists components (the schema, the checks, choices on the command line, the reference,
the testbed's capabilities) asks this module.

Components are discovered by their files in their package: a new one is a new file. A module named like its component,
as all of gradwire's are, is imported alone when it is named; all of a package are imported when they are listed.
Packages are imported by name, so that this package imports no other one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.user_code_errors import class_file, error_location

USER_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Name of a user-defined class: "module:Class"."""

DECLARES_KIND = re.compile(
    r"""^(?: {4}|\t)kind\b[^\n=]*\b(?:Literal|ClassVar)\b|^(?: {4}|\t)kind\b[^\n=]*= *["']""", re.M
)
"""Declaration of a `kind` in a class body. A listing skips modules without one."""

COMPONENT_PACKAGES: Mapping[str, str] = {
    "transport": "gradwire.protocols.transports",
    "load_balancing": "gradwire.protocols.load_balancers",
    "queue": "gradwire.protocols.queues",
    "fault": "gradwire.protocols.faults",
    "exchange": "gradwire.workload.collectives",
    "scheduler": "gradwire.workload.schedulers",
    "topology": "gradwire.topology.kinds",
    "traffic": "gradwire.workload.traffic",
    "reducer": "gradwire.training.reducers",
    "system": "gradwire.training.systems",
    "trace_format": "gradwire.traces.formats.kinds",
    "switch": "gradwire.emu.switches.backends",
}
"""Package of the components of each category, by its key."""


@functools.cache
def components(table: str) -> Mapping[str, type[Any]]:
    """Return every component of a key of `COMPONENT_PACKAGES` by kind, sorted alphabetically. Raises ScenarioError if
    two have the same kind, one is incomplete, or a file raises an error; with location and reason."""
    by_kind: dict[str, type[Any]] = {}
    for name, path in _modules(table).items():
        if not DECLARES_KIND.search(path.read_text(encoding="utf-8")):
            continue
        for kind, owner in _in(name).items():
            if kind in by_kind:
                both = f"{class_file(by_kind[kind])} and {class_file(owner)}"
                raise ScenarioError(f"{both} both have a {table} called {kind}", expected="distinct kinds")
            by_kind[kind] = owner
    return MappingProxyType(dict(sorted(by_kind.items())))


def component(table: str, kind: str) -> type[Any] | None:
    """Return the component of a kind, or None. Raises as `components`, for the modules it has imported. A module named
    like the kind is imported first and alone, so that a run imports no more than it needs."""
    if USER_CLASS.fullmatch(kind):
        return None
    for name in _modules(table):
        if name.rpartition(".")[2] == kind and (owner := _in(name).get(kind)) is not None:
            return owner
    return components(table).get(kind)


@functools.cache
def _modules(table: str) -> Mapping[str, Path]:
    """Return the files of all modules below a package of `COMPONENT_PACKAGES` by name; none is imported or read."""
    package = importlib.import_module(COMPONENT_PACKAGES[table])
    files = {
        ".".join([package.__name__, *path.relative_to(folder).with_suffix("").parts]): path
        for folder in map(Path, package.__path__)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    }
    return MappingProxyType(files)


def is_known_kind(table: str, name: str) -> bool:
    """Return True if a component has this name, or it has the form of a user-defined class."""
    return USER_CLASS.fullmatch(name) is not None or component(table, name) is not None


def kind_of(owner: type[Any]) -> str | None:
    """Return the kind of a component class; None for others, such as a shared base."""
    fields = getattr(owner, "model_fields", {})
    if "kind" in fields:
        names = typing.get_args(fields["kind"].annotation)
        return names[0] if names and "kind" in owner.__annotations__ else None
    kind = vars(owner).get("kind")
    return kind if isinstance(kind, str) else None


def _in(name: str) -> dict[str, type[Any]]:
    try:
        module = importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        spec = importlib.util.find_spec(name)
        file = spec.origin if spec is not None and spec.origin else name
        raise ScenarioError(error_location(error, file)) from error
    classes = [value for value in vars(module).values() if isinstance(value, type) and value.__module__ == name]
    by_kind: dict[str, type[Any]] = {kind: owner for owner in classes if (kind := kind_of(owner)) is not None}
    for owner in by_kind.values():
        if inspect.isabstract(owner):
            missing = ", ".join(sorted(owner.__abstractmethods__))
            base = next(each for each in owner.__mro__ if owner.__abstractmethods__ & vars(each).keys())
            what = f"{class_file(owner)}: {owner.__name__} has no {missing}"
            raise ScenarioError(what, expected=f"all abstract members of {base.__name__} in {class_file(base)}")
    return by_kind
