"""Public Python API of gradwire. The command line is `gradwire.cli`.

    import gradwire

    scenario = gradwire.load_scenario("leaf_spine_ps.toml")
    trace = gradwire.load_trace("resnet50")
    result = gradwire.simulate(scenario, trace)
    result.iterations, result.messages          # pyarrow tables
    gradwire.compare("demo", result).to_pandas()
    gradwire.report(result, out="report.html")  # one self-contained HTML file

Every name is imported from its module at its first use: `import gradwire` takes no time, and needs no torch.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

from gradwire.scenarios.version import VERSION as __version__

if TYPE_CHECKING:  # for type checkers and completion
    from gradwire.analysis.breakdown.breakdown import breakdown as breakdown
    from gradwire.analysis.comparison.compare import Comparison as Comparison
    from gradwire.analysis.metrics import Metrics as Metrics
    from gradwire.analysis.timeline.tensors import tensors as tensors
    from gradwire.analysis.timeline.timeline import timeline as timeline
    from gradwire.emu.switches.backend_kind import TestbedError as TestbedError
    from gradwire.result_store.result import Result as Result
    from gradwire.result_store.training_result import TrainingResult as TrainingResult
    from gradwire.scenarios.errors import GradwireError as GradwireError
    from gradwire.scenarios.errors import MissingExtraError as MissingExtraError
    from gradwire.scenarios.errors import ResultError as ResultError
    from gradwire.scenarios.errors import ScenarioError as ScenarioError
    from gradwire.scenarios.errors import StallError as StallError
    from gradwire.scenarios.errors import TraceError as TraceError
    from gradwire.scenarios.loading.load import load_scenario as load_scenario
    from gradwire.scenarios.schema.scenario import Scenario as Scenario
    from gradwire.studies.compute_replay import paced as paced
    from gradwire.studies.connect import compare as compare
    from gradwire.studies.connect import emulate as emulate
    from gradwire.studies.connect import metrics as metrics
    from gradwire.studies.connect import plot as plot
    from gradwire.studies.connect import simulate as simulate
    from gradwire.studies.diagnose.report import diagnose as diagnose
    from gradwire.studies.iteration_markers import mark as mark
    from gradwire.studies.recommend.outcome import Recommendation as Recommendation
    from gradwire.studies.recommend.runner import recommend as recommend
    from gradwire.studies.report.report_inputs import report as report
    from gradwire.studies.sweep.outcome import Sweep as Sweep
    from gradwire.studies.sweep.runner import sweep as sweep
    from gradwire.studies.training.run import train as train
    from gradwire.studies.tune.scheduler_tuning import tune as tune
    from gradwire.traces.capture.session import capture as capture
    from gradwire.traces.trace import Trace as Trace
    from gradwire.traces.trace import load_trace as load_trace


PUBLIC = {
    "load_scenario": "gradwire.scenarios.loading.load",
    "load_trace": "gradwire.traces.trace",
    "simulate": "gradwire.studies.connect",
    "emulate": "gradwire.studies.connect",
    "mark": "gradwire.studies.iteration_markers",
    "paced": "gradwire.studies.compute_replay",
    "compare": "gradwire.studies.connect",
    "metrics": "gradwire.studies.connect",
    "plot": "gradwire.studies.connect",
    "breakdown": "gradwire.analysis.breakdown.breakdown",
    "tensors": "gradwire.analysis.timeline.tensors",
    "timeline": "gradwire.analysis.timeline.timeline",
    "report": "gradwire.studies.report.report_inputs",
    "diagnose": "gradwire.studies.diagnose.report",
    "sweep": "gradwire.studies.sweep.runner",
    "recommend": "gradwire.studies.recommend.runner",
    "train": "gradwire.studies.training.run",
    "tune": "gradwire.studies.tune.scheduler_tuning",
    "Comparison": "gradwire.analysis.comparison.compare",
    "TrainingResult": "gradwire.result_store.training_result",
    "Metrics": "gradwire.analysis.metrics",
    "Recommendation": "gradwire.studies.recommend.outcome",
    "Result": "gradwire.result_store.result",
    "Sweep": "gradwire.studies.sweep.outcome",
    "Scenario": "gradwire.scenarios.schema.scenario",
    "Trace": "gradwire.traces.trace",
    "GradwireError": "gradwire.scenarios.errors",
    "MissingExtraError": "gradwire.scenarios.errors",
    "ResultError": "gradwire.scenarios.errors",
    "ScenarioError": "gradwire.scenarios.errors",
    "StallError": "gradwire.scenarios.errors",
    "TestbedError": "gradwire.emu.switches.backend_kind",
    "TraceError": "gradwire.scenarios.errors",
}
"""Names of the Python API, and the modules that they are imported from at first use."""
OPTIONAL = {"capture": "gradwire.traces.capture.session"}
"""Names that need an extra (torch) and are left out by `from gradwire import *`."""

__all__ = ["__version__", *PUBLIC]


TIMEOUT = "OPENBLAS_THREAD_TIMEOUT"


def _import_numpy() -> None:
    """Import NumPy, unless done already, with BLAS threads that sleep as soon as they are idle. NumPy's linear algebra
    (OpenBLAS) starts a thread per processor, and by default each spins for a tenth of a second whenever it waits. The
    threads remain available to a program's own linear algebra. A value set in the environment is kept."""
    if "numpy" in sys.modules or TIMEOUT in os.environ:
        return
    os.environ[TIMEOUT] = "4"  # 2^4 rounds
    try:
        importlib.import_module("numpy")
    finally:
        del os.environ[TIMEOUT]


if not TYPE_CHECKING:  # else every name would exist, with type Any

    def __getattr__(name: str) -> Any:
        if module := PUBLIC.get(name) or OPTIONAL.get(name):
            needs_no_numpy = ("gradwire.scenarios.", "gradwire.result_store.", "gradwire.studies.iteration_markers")
            if not module.startswith(needs_no_numpy):
                _import_numpy()
            return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted((*__all__, *OPTIONAL))
