"""Selects the switch backend that can run a plan on a kernel and departs least from the plan."""

from __future__ import annotations

from dataclasses import dataclass, field

from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.backend_kind import Backend, TestbedError
from gradwire.scenarios.advice import build_kernel
from gradwire.scenarios.loading.registry import component, components

BACKENDS = tuple(components("switch"))
"""In order of preference: the first wins a tie, except that on the wall clock one that keeps time goes before."""
PRIVILEGES = "root, in a container with the rights to it (such as docker run --privileged), or --clock virtual"


@dataclass(frozen=True)
class BackendChoice:
    """The chosen backend and the reasons against the others.

    why_not : by name of every other backend, what it lacks or where it departs further from the plan.
    substitutions : departures of the chosen backend from the plan.
    """

    name: str
    why_not: dict[str, list[str]] = field(default_factory=dict)
    substitutions: list[str] = field(default_factory=list)


def backend_kind_of(name: str) -> Backend:
    """Return the `Backend` of a name; raise TestbedError if there is none."""
    backend = component("switch", name)
    if backend is None:
        raise TestbedError(f"unknown switch backend {name!r}", "switch", f"auto, {', '.join(BACKENDS)}")
    kind: Backend = backend()
    return kind


def select_backend(plan: TestbedPlan, kernel: KernelFeatures, wanted: str = "auto") -> BackendChoice:
    """Return the backend that can run the plan and departs least from it, or the `wanted` one. Raises TestbedError with
    all reasons if none can run it, or the wanted one cannot."""
    if kernel.namespaces:  # every backend needs them
        raise TestbedError(
            f"cannot create private namespaces ({kernel.namespaces})",
            "this machine",
            PRIVILEGES if kernel.tools.get("unshare") else "the package util-linux",
        )
    missing: dict[str, list[str]] = {}
    substitutions: dict[str, list[str]] = {}
    keeps_time_badly: dict[str, bool] = {}
    for name in BACKENDS if wanted == "auto" else (wanted,):
        try:
            kind = backend_kind_of(name)
        except ImportError as error:
            missing[name] = [f"not installed: {error}"]
            continue
        reasons = kind.missing(kernel, plan)
        if reasons:
            missing[name] = reasons
        else:
            substitutions[name] = kind.substitutions(kernel, plan)
            keeps_time_badly[name] = plan.clock == "wall" and not kind.keeps_time
    if not substitutions:
        reasons_text = "; ".join(f"{name}: {', '.join(reasons)}" for name, reasons in missing.items())
        raise TestbedError(
            f"no switch backend can run this here: {reasons_text}", "switch", remedy_for(kernel, reasons_text)
        )
    best = min(substitutions, key=lambda name: (len(substitutions[name]), keeps_time_badly[name]))
    why_not = dict(missing)
    for name in substitutions.keys() - {best}:
        why_not[name] = [
            f"departs further from the scenario: {substitution}"
            for substitution in substitutions[name]
            if substitution not in substitutions[best]
        ]
        why_not[name] = why_not[name] or ["no better than the chosen one"]
    return BackendChoice(best, {name: why_not[name] for name in BACKENDS if name in why_not}, substitutions[best])


def remedy_for(kernel: KernelFeatures, reasons: str) -> str:
    """Return a one-line remedy for the reasons why no backend can run."""
    packages = [name for name in kernel.missing_packages() if f"(package {name})" in reasons]
    if packages:
        return f"the packages {' '.join(packages)}"
    if kernel.virtual:
        return "another backend, or the wall clock"
    virtual = "--clock virtual" if kernel.uml else f"--clock virtual after {build_kernel()}"
    return f"another backend or kernel, or {virtual}"
