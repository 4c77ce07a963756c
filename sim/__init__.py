"""The simulated network: topologies, routing, the packet fabric, training jobs, and `simulate`.

Names are loaded when they are first used, so that `import sim` costs nothing: neither Numba nor pyarrow is
imported before a simulation starts, and torch never is.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "Network": "gradwire.sim.topology",
    "build_network": "gradwire.sim.topology",
    "fat_tree": "gradwire.sim.topology",
    "from_networkx": "gradwire.sim.topology",
    "leaf_spine": "gradwire.sim.topology",
    "star": "gradwire.sim.topology",
    "Routing": "gradwire.sim.routing",
    "build_routing": "gradwire.sim.routing",
    "simulate": "gradwire.sim.simulate",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gradwire.sim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
