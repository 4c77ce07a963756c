"""What notebooks show: bars while something runs, and words and tables for what has come of it."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest

import gradwire
from gradwire.result_store.training_result import TrainingResult
from gradwire.scenarios.errors import Mistake
from gradwire.studies.notebook import heard, in_notebook
from tests.support.sweep_cases import SCENARIO

SHORT = {**SCENARIO, "traffic": [{"name": "web", "kind": "poisson", "sizes": "20kB", "load": 0.4, "flows": 20}]}


class Kernel:
    """A notebook: what it has shown, one text per bar, as it stands."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.updates = 0

    def display(self, html: str, display_id: bool) -> Any:
        assert display_id is True
        self.shown.append(html)
        place = len(self.shown) - 1

        def update(more: str) -> None:
            self.updates += 1
            self.shown[place] = more

        return types.SimpleNamespace(update=update)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    shell = types.SimpleNamespace(kernel=object())
    modules: dict[str, Any] = {
        "IPython": types.SimpleNamespace(get_ipython=lambda: shell),
        "IPython.display": types.SimpleNamespace(HTML=str, display=found.display),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_terminal_is_not_detected_as_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    shell = types.SimpleNamespace()  # IPython without a kernel
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not in_notebook()


def test_notebook_progress_updates_one_line(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gradwire.studies.notebook.time.monotonic", lambda: now[0])
    with heard("a <b>") as told:
        for n in range(100):
            now[0] += 0.05
            told(n / 100, "where it is & more")
    assert len(kernel.shown) == 1 and 20 <= kernel.updates <= 40  # every fifth of a second or so
    assert kernel.shown[0] == "<div>a &lt;b&gt;: done after 5.0 s</div>"
    with pytest.raises(KeyboardInterrupt), heard("b"):
        raise KeyboardInterrupt
    assert "b: ended by KeyboardInterrupt" in kernel.shown[1]


def test_progress_callback_replaces_the_notebook_bar(kernel: Kernel) -> None:
    found: list[tuple[float, str]] = []
    with heard("a", lambda share, words: found.append((share, words))) as told:
        told(0.5, "half")
    assert found == [(0.5, "half")] and kernel.shown == []


def test_simulate_compare_and_sweep_show_notebook_progress(kernel: Kernel, tmp_path: Any) -> None:
    scenario = gradwire.Scenario.model_validate(SHORT)
    gradwire.simulate(scenario)
    gradwire.compare(scenario)
    gradwire.sweep({"name": "one", "scenario": SHORT, "measures": ["marks"]}, out=tmp_path / "one", jobs=1)
    names = [each.partition(":")[0].removeprefix("<div>") for each in kernel.shown]
    assert names == ["small base", "small plain", "small spray", "sweep one"]
    assert all("done after" in each for each in kernel.shown)
    gradwire.simulate(scenario, progress=lambda at: None)
    assert len(kernel.shown) == 4


def test_objects_have_short_repr_and_escaped_html() -> None:
    """A repr has fewer than 120 characters, and names are escaped in HTML."""
    scenario = gradwire.Scenario.model_validate({**SHORT, "description": "<i>"})
    trace = gradwire.load_trace("resnet50")
    row = {"step": 4, "accuracy": 0.5, "loss": 1.0, "clock_ps": 10**9, "sent_bytes": 10**6, "pulled_bytes": 0}
    learned = TrainingResult({"name": "tiny", "policy": "<dlcp>", "steps_done": 4, "steps": 8}, {"scores": [row]})
    error = gradwire.ScenarioError("is wrong", "<file>", mistakes=[Mistake("a.b", "is no time", "<5>", "a time")])
    for each, words in (
        (scenario, "<Scenario small: dctcp over star, traffic web; 2 policies>"), (trace, "<Trace resnet50: "),
        (learned, "<TrainingResult: tiny <dlcp>, 4 of 8 steps, accuracy 50.00 %>"), (error, "<ScenarioError: <file>: is wrong>"),
    ):  # fmt: skip
        assert repr(each).startswith(words) and len(repr(each)) < 120
        html = each._repr_html_()
        assert html.count("<p>") == html.count("</p>") == 1
        assert not any(bad in html for bad in ("<i>", "<dlcp>", "<file>", "<5>"))
    assert "50.00 %" in learned._repr_html_() and "a.b" in error._repr_html_()
    assert learned.to_pandas("scores").accuracy.tolist() == [0.5]


@pytest.mark.parametrize(
    "name", ["simulate", "compare", "metrics", "plot", "sweep", "train", "report", "load_scenario", "load_trace"]
)
def test_api_docstrings_have_summary_types_and_errors(name: str) -> None:
    """A docstring has a first sentence, annotated arguments and the exceptions raised."""
    function = getattr(gradwire, name)
    text = inspect.getdoc(function) or ""
    assert text.split("\n")[0].rstrip(".:") and ("Raises" in text or "rror" in text)
    signature = inspect.signature(function)
    assert all(each.annotation is not inspect.Parameter.empty for each in signature.parameters.values())
    assert signature.return_annotation is not inspect.Signature.empty
