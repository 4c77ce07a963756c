"""`catalog` lists what a scenario or a command can name, with a line on each."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any

from gradwire.scenarios.advice import nearest
from gradwire.scenarios.errors import GradwireError
from gradwire.scenarios.loading.load import list_library, list_sweeps
from gradwire.scenarios.loading.registry import components

Entries = list[tuple[str, str]]
"""Names and lines."""
ABBREVIATIONS = ("et al.", "e.g.", "i.e.")


def catalog(kind: str) -> Entries:
    """Return the names of a kind of `KINDS`, with a line on each. Raises GradwireError for another kind."""
    if kind not in KINDS:
        raise GradwireError("unknown kind", repr(kind), f"one of {', '.join(KINDS)}{nearest(kind, KINDS)}")
    return KINDS[kind]()


def _scenarios() -> Entries:
    return [(name, _description("library", name)) for name in list_library()]


def _sweeps() -> Entries:
    return [(name, _description("library/sweeps", name)) for name in list_sweeps()]


def _description(folder: str, name: str) -> str:
    text = (resources.files("gradwire.scenarios") / folder / f"{name}.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text).get("description", ""))


def _traces() -> Entries:
    from gradwire.traces.trace import bundled_traces, load_trace

    return [(name, repr(load_trace(name))[1:-1].partition(": ")[2]) for name in bundled_traces()]


def _of(table: str) -> Callable[[], Entries]:
    """Return a function that lists the components of a table of a scenario."""
    return lambda: [(name, _line(owner)) for name, owner in components(table).items()]


def _line(owner: type[Any]) -> str:
    """Return the first sentence on a component: of its class, or of its module if the class only repeats its name."""
    text = " ".join((owner.__doc__ or "").split())
    if not text or text.startswith("Load balancer `"):
        text = " ".join((sys.modules[owner.__module__].__doc__ or "").split())
    end = -1
    while (end := text.find(". ", end + 1)) >= 0:
        if text[end - 1] != "." and not text[: end + 1].endswith(ABBREVIATIONS):
            return text[:end]
    return text.rstrip(".")


def _measures() -> Entries:
    from gradwire.studies.sweep.measures import MEASURES

    return list(MEASURES.items())


def _models() -> Entries:
    from gradwire.traces.presets.model_specs import MODEL_SPECS

    return [(name, f"{spec.title}, {_short(spec.parameters)} parameters") for name, spec in MODEL_SPECS.items()]


def _short(number: float) -> str:
    return f"{number / 1e9:.1f} G" if number >= 1e9 else f"{number / 1e6:.1f} M"


def _gpus() -> Entries:
    from gradwire.traces.presets.gpus import GPUS

    return [
        (name, f"{gpu.flops / 1e12:.0f} TFLOPs, {gpu.memory_rate / 1e12:.2f} TB/s, {gpu.memory / 1e9:.0f} GB")
        for name, gpu in GPUS.items()
    ]


def _fabrics() -> Entries:
    from gradwire.studies.fabrics import FABRICS

    return [(name, fabric.title) for name, fabric in FABRICS.items()]


def _presets() -> Entries:
    from gradwire.studies.busbw.presets import list_presets, load_preset

    entries = []
    for name in list_presets():
        preset = load_preset(name)
        policies = ", ".join(policy.name for policy in preset.policy)
        entries.append((name, f"{preset.description}: {policies}"))
    return entries


KINDS: Mapping[str, Callable[[], Entries]] = {
    "scenarios": _scenarios,
    "sweeps": _sweeps,
    "traces": _traces,
    "models": _models,
    "gpus": _gpus,
    "fabrics": _fabrics,
    "presets": _presets,
    "transports": _of("transport"),
    "balancers": _of("load_balancing"),
    "queues": _of("queue"),
    "topologies": _of("topology"),
    "exchanges": _of("exchange"),
    "schedulers": _of("scheduler"),
    "traffic": _of("traffic"),
    "faults": _of("fault"),
    "reducers": _of("reducer"),
    "formats": _of("trace_format"),
    "measures": _measures,
}
"""Kinds of names, in the order of the help."""
