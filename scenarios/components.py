"""Components: what a scenario chooses by name, each found as one class in a module of its own.

A *component* is a class with a `kind`, the name by which a scenario chooses it. The class is its manifest: its fields
are its parameters, with their defaults, their checks and, in the strings below them, what they mean; its other
attributes say what it needs of the rest, and what carries it out. Everything that lists components - the schema, the
checks, choices on the command line, the reference, what the testbed can run - asks here.

Components are found by their files, in the package where they live: a new one is a new file. One that is named like its
file, as all of gradwire's are, is imported alone when somebody names it; all of a package are when somebody lists them,
as plugin hosts do. The packages are imported by name, so that this room imports no other one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import pkgutil
import re
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gradwire.scenarios.asked import file_of, stopped_at
from gradwire.scenarios.errors import ScenarioError

USER_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""How a class of the user's own is named: "module:Class"."""

PLACES: Mapping[str, str] = {
    "transport": "gradwire.components.transports",
    "load_balancing": "gradwire.components.balancers",
    "queue": "gradwire.components.queues",
    "fault": "gradwire.components.faults",
    "exchange": "gradwire.experiment.collectives.kinds",
    "scheduler": "gradwire.experiment.schedulers",
    "topology": "gradwire.experiment.topology.kinds",
    "traffic": "gradwire.experiment.traffic.kinds",
    "reducer": "gradwire.training.reducers",
    "system": "gradwire.training.systems",
    "trace_format": "gradwire.traces.formats.kinds",
    "switch": "gradwire.emu.switches.kinds",
}
"""What is chosen: the package whose modules have what there is to choose from, in the lowest room that can carry it
out."""


@functools.cache
def components(place: str) -> Mapping[str, type[Any]]:
    """Every component that may stand at a key of `PLACES`, by its kind, in the order of the alphabet.

    Raises
    ------
    ScenarioError
        Two of them have the same kind, one lacks something, or a file is stopped by an error; says where and why.
    """
    package = importlib.import_module(PLACES[place])
    found: dict[str, type[Any]] = {}
    for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        for kind, owner in _in(module.name).items():
            if kind in found:
                both = f"{file_of(found[kind])} and {file_of(owner)}"
                raise ScenarioError(f"{both} both have a {place} called {kind}", expected="a kind of its own for each")
            found[kind] = owner
    return MappingProxyType(dict(sorted(found.items())))


def component(place: str, kind: str) -> type[Any] | None:
    """The component of a kind, None if there is none. A module that is named like it is looked at first, and alone: a
    run imports no more than it needs. Raises as `components`, of what it has looked at."""
    if USER_CLASS.fullmatch(kind):
        return None
    name = f"{PLACES[place]}.{kind}"
    if kind.isidentifier() and importlib.util.find_spec(name) is not None:
        if (owner := _in(name).get(kind)) is not None:
            return owner
    return components(place).get(kind)


def is_name(place: str, name: str) -> bool:
    """Whether a component goes by a name, or a class of the user's own does by its looks."""
    return USER_CLASS.fullmatch(name) is not None or component(place, name) is not None


def kind_of(owner: type[Any]) -> str | None:
    """The kind that a class is a component of; None if it is none, such as a base of several."""
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
        raise ScenarioError(stopped_at(error, file)) from error
    own = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == name]
    found: dict[str, type[Any]] = {kind: each for each in own if (kind := kind_of(each)) is not None}
    for owner in found.values():
        if inspect.isabstract(owner):
            lacks = ", ".join(sorted(owner.__abstractmethods__))
            base = next(each for each in owner.__mro__ if owner.__abstractmethods__ & vars(each).keys())
            what = f"{file_of(owner)}: {owner.__name__} has no {lacks}"
            raise ScenarioError(what, expected=f"a class with all that {base.__name__} in {file_of(base)} asks for")
    return found
