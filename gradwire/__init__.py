"""The door of gradwire: the public Python API. The command line is `gradwire.cli`.

    import gradwire

    scenario = gradwire.load_scenario("leaf_spine_ps.toml")
    trace = gradwire.load_trace("resnet50")
    result = gradwire.simulate(scenario, trace)
    result.iterations, result.messages          # pyarrow tables
    gradwire.compare("demo", result).to_pandas()

Every name is imported from its room at its first use: `import gradwire` takes no time, and needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

PUBLIC = {
    "load_scenario": "gradwire.scenarios.load",
    "load_trace": "gradwire.traces.trace",
    "simulate": "gradwire.sim.simulate",
    "emulate": "gradwire.connect",
    "mark": "gradwire.marking",
    "compare": "gradwire.connect",
    "plot": "gradwire.connect",
    "breakdown": "gradwire.analysis.breakdown",
    "tensors": "gradwire.analysis.tensors",
    "timeline": "gradwire.analysis.timeline",
    "sweep": "gradwire.sweeping",
    "tune": "gradwire.tuning",
    "Comparison": "gradwire.analysis.compare",
    "Metrics": "gradwire.analysis.metrics",
    "Result": "gradwire.scenarios.result",
    "Sweep": "gradwire.analysis.sweeps.outcome",
    "Scenario": "gradwire.scenarios.schema.scenario",
    "Trace": "gradwire.traces.trace",
    "GradwireError": "gradwire.scenarios.errors",
    "MissingExtraError": "gradwire.scenarios.errors",
    "ResultError": "gradwire.scenarios.errors",
    "ScenarioError": "gradwire.scenarios.errors",
    "StallError": "gradwire.scenarios.errors",
    "TestbedError": "gradwire.emu.switches.base",
    "TraceError": "gradwire.scenarios.errors",
}
"""The Python API and where it comes from, at its first use."""
OPTIONAL = {"capture": "gradwire.traces.capture.session"}
"""The same for what needs an extra (torch), and is left out by `from gradwire import *`."""

__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if room := PUBLIC.get(name) or OPTIONAL.get(name):
        return getattr(importlib.import_module(room), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, *OPTIONAL))
