"""The door of gradwire: the public Python API. The command line is `gradwire.cli`.

    import gradwire

    scenario = gradwire.load_scenario("leaf_spine_ps.toml")
    trace = gradwire.load_trace("resnet50")
    result = gradwire.simulate(scenario, trace)
    result.iterations, result.messages          # pyarrow tables
    gradwire.compare("demo", result).to_pandas()
    gradwire.report(result, out="report.html")  # one file that explains it

Every name is imported from its room at its first use: `import gradwire` takes no time, and needs no torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # who checks types or completes names sees what everything is
    from gradwire.analysis.breakdown import breakdown as breakdown
    from gradwire.analysis.compare import Comparison as Comparison
    from gradwire.analysis.html.given import report as report
    from gradwire.analysis.metrics import Metrics as Metrics
    from gradwire.analysis.sweeps.outcome import Sweep as Sweep
    from gradwire.analysis.tensors import tensors as tensors
    from gradwire.analysis.timeline import timeline as timeline
    from gradwire.connect import compare as compare
    from gradwire.connect import emulate as emulate
    from gradwire.connect import metrics as metrics
    from gradwire.connect import plot as plot
    from gradwire.connect import simulate as simulate
    from gradwire.emu.switches.base import TestbedError as TestbedError
    from gradwire.learn import train as train
    from gradwire.marking import mark as mark
    from gradwire.pacing import paced as paced
    from gradwire.scenarios.errors import GradwireError as GradwireError
    from gradwire.scenarios.errors import MissingExtraError as MissingExtraError
    from gradwire.scenarios.errors import ResultError as ResultError
    from gradwire.scenarios.errors import ScenarioError as ScenarioError
    from gradwire.scenarios.errors import StallError as StallError
    from gradwire.scenarios.errors import TraceError as TraceError
    from gradwire.scenarios.learned import Learned as Learned
    from gradwire.scenarios.load import load_scenario as load_scenario
    from gradwire.scenarios.result import Result as Result
    from gradwire.scenarios.schema.scenario import Scenario as Scenario
    from gradwire.sweeping import sweep as sweep
    from gradwire.traces.capture.session import capture as capture
    from gradwire.traces.trace import Trace as Trace
    from gradwire.traces.trace import load_trace as load_trace
    from gradwire.tuning import tune as tune

__version__ = "0.1.0"

PUBLIC = {
    "load_scenario": "gradwire.scenarios.load",
    "load_trace": "gradwire.traces.trace",
    "simulate": "gradwire.connect",
    "emulate": "gradwire.connect",
    "mark": "gradwire.marking",
    "paced": "gradwire.pacing",
    "compare": "gradwire.connect",
    "metrics": "gradwire.connect",
    "plot": "gradwire.connect",
    "breakdown": "gradwire.analysis.breakdown",
    "tensors": "gradwire.analysis.tensors",
    "timeline": "gradwire.analysis.timeline",
    "report": "gradwire.analysis.html.given",
    "sweep": "gradwire.sweeping",
    "train": "gradwire.learn",
    "tune": "gradwire.tuning",
    "Comparison": "gradwire.analysis.compare",
    "Learned": "gradwire.scenarios.learned",
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


TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"


def _import_numpy() -> None:
    """Import NumPy, unless that has been done, with threads that sleep as soon as they have no work.

    NumPy's linear algebra (OpenBLAS) starts a thread per processor, and by default each spins for a tenth of a second
    whenever it waits. The threads stay: a program's own linear algebra uses them as before. A value that is set in the
    environment is kept.
    """
    if "numpy" in sys.modules or TIMEOUT in os.environ:
        return
    os.environ[TIMEOUT] = "4"  # 2^4 rounds
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[TIMEOUT]


if not TYPE_CHECKING:  # else every name would be there, of type Any

    def __getattr__(name: str) -> Any:
        if room := PUBLIC.get(name) or OPTIONAL.get(name):
            if not room.startswith(("gradwire.scenarios.", "gradwire.marking")):  # which need no NumPy
                _import_numpy()
            return getattr(importlib.import_module(room), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, *OPTIONAL))
