"""Which switch backend runs a plan on a kernel, and why not the others."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from gradwire.emu.planning.plan import Plan
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.switches.base import BackendKind, TestbedError
from gradwire.scenarios.advice import build_kernel
from gradwire.scenarios.components import component, components

BACKENDS = tuple(components("switch"))
"""Of equals the first, or on the wall clock one that keeps time."""
RIGHTS = "root, in a container with the rights to it (such as docker run --privileged), or --clock virtual"


@dataclass(frozen=True)
class Choice:
    """`name`: the backend. `why_not`: of every other one, what it misses, or how it departs further from the plan.
    `substitutions`: what the chosen one does otherwise than the plan says."""

    name: str
    why_not: dict[str, list[str]] = field(default_factory=dict)
    substitutions: list[str] = field(default_factory=list)


def kind_of(name: str) -> BackendKind:
    """The `BackendKind` of a name; TestbedError for a name that is none."""
    backend = component("switch", name)
    if backend is None:
        raise TestbedError(f"there is no switch backend {name!r}", "switch", f"auto, {', '.join(BACKENDS)}")
    kind: BackendKind = importlib.import_module(backend.module).KIND
    return kind


def choose(plan: Plan, kernel: Kernel, wanted: str = "auto") -> Choice:
    """The backend that can run the plan and departs from it in the fewest ways; or the one that is wanted.

    TestbedError if none can, or the wanted one cannot, with all the reasons.
    """
    if kernel.namespaces:  # without which there is nothing else to say
        raise TestbedError(
            f"private namespaces cannot be made ({kernel.namespaces})",
            "this machine",
            RIGHTS if kernel.tools.get("unshare") else "the package util-linux",
        )
    missing: dict[str, list[str]] = {}
    departs: dict[str, list[str]] = {}
    late: dict[str, bool] = {}
    for name in BACKENDS if wanted == "auto" else (wanted,):
        try:
            kind = kind_of(name)
        except ImportError as error:
            missing[name] = [f"not installed: {error}"]
            continue
        reasons = kind.missing(kernel, plan)
        if reasons:
            missing[name] = reasons
        else:
            departs[name] = kind.substitutions(kernel, plan)
            late[name] = plan.clock == "wall" and not kind.keeps_time
    if not departs:
        told = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in missing.items())
        raise TestbedError(f"no switch backend can run this here: {told}", "switch", advice(kernel, told))
    best = min(departs, key=lambda name: (len(departs[name]), late[name]))
    why_not = dict(missing)
    for name in departs.keys() - {best}:
        why_not[name] = [
            f"departs further from the scenario: {each}"
            for each in departs[name]
            if each not in departs[best]
        ]
        why_not[name] = why_not[name] or ["does no better"]
    return Choice(best, {name: why_not[name] for name in BACKENDS if name in why_not}, departs[best])


def advice(kernel: Kernel, told: str) -> str:
    """What would help most against the reasons that were told, in one line."""
    packages = [name for name in kernel.missing_packages() if f"(package {name})" in told]
    if packages:
        return f"the packages {' '.join(packages)}"
    if kernel.virtual:
        return "another backend, or the wall clock"
    virtual = "--clock virtual" if kernel.uml else f"--clock virtual after {build_kernel()}"
    return f"another backend or kernel, or {virtual}"
