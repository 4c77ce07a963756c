"""Verdicts: right on generated scenarios whose bottleneck is known by construction, and the same words everywhere."""

from __future__ import annotations

import json
import random
import textwrap
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import pytest
from analysis_cases import iterations, small_result
from sim_cases import MS, make_trace, ps_job, ring_job, scenario
from typer.testing import CliRunner

from gradwire import cli
from gradwire.analysis.comparison.compare import Comparison, compare
from gradwire.analysis.verdict.bottleneck import Bottleneck, kind_of
from gradwire.analysis.verdict.difference import Samples, difference_of
from gradwire.analysis.verdict.verdict import JudgedRun, Verdict
from gradwire.result_store.result import Result
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.sim.simulate import simulate
from gradwire.traces.presets.generate import layout_of, model_trace
from gradwire.traces.presets.model_specs import transformer

TRANSPORT = {"kind": "dctcp", "payload": "1000B", "initial_window": 4000, "min_rto": "1ms"}
BASE: dict[str, Any] = {"transport": TRANSPORT, "switch": {"buffer": "100MB"}}


class Maker:
    """Draws small scenarios with a known bottleneck; traces lie in `folder`."""

    def __init__(self, folder: Path, number: int) -> None:
        self.random, self.folder, self.number = random.Random(number), folder, number
        self.workers = self.random.randint(2, 5)

    def trace(self, elements: list[int], **times: int) -> str:
        return str(make_trace([[count] for count in elements], **times).save(self.folder / f"{self.number}.trace"))

    def ring(self, trace: str, **more: Any) -> Scenario:
        job = {**ring_job(self.workers), "trace": trace, "iterations": 5, **more.pop("job", {})}
        link = {"rate": "100Gbps", "latency": "1us"}
        return scenario(job, hosts=self.workers, **{**BASE, "link": link, **more})

    def compute(self) -> Scenario:
        """Computing of tens of milliseconds, and gradients that take tens of microseconds."""
        elements = [self.random.randint(1000, 20_000) for _ in range(3)]
        return self.ring(self.trace(elements, forward=self.random.randint(5, 20) * MS, backward=10 * MS))

    def hot_link(self) -> Scenario:
        """One host's cable has a fraction of the others' rate, and gradients take longer than computing."""
        trace = self.trace([self.random.randint(200_000, 400_000)] * 2, forward=MS // 20, backward=MS // 20)
        slow = {
            "between": [f"h{self.random.randrange(self.workers)}", "s0"],
            "rate": self.random.choice(["5Gbps", "10Gbps"]),
        }
        return self.ring(trace, link_override=[slow])

    def time_outs(self) -> Scenario:
        """Messages of few packets over a lossy cable: a loss is found by time-out alone."""
        trace = self.trace([250 * self.random.randint(1, 3)] * 6, forward=MS // 20, backward=MS // 20)
        fault = {"kind": "gray_loss", "between": ["h0", "s0"], "at": "0s", "loss": self.random.uniform(0.1, 0.3)}
        return self.ring(trace, fault=[fault])

    def scheduler(self) -> Scenario:
        """Credit for one short partition over cables of long latency: partitions wait at an idle card."""
        trace = self.trace([self.random.randint(20_000, 40_000)] * 2, forward=MS // 20, backward=MS // 20)
        exchange = {"kind": "parameter_server", "partition": "4000B"}
        job = {**ps_job(self.workers, 1, exchange=exchange, order="layer", credit=1), "trace": trace, "iterations": 5}
        link = {"rate": "100Gbps", "latency": f"{self.random.randint(20, 60)}us"}
        return scenario(job, hosts=self.workers + 1, host={"software_latency": "70us"}, **BASE, link=link)

    def straggler(self) -> Scenario:
        """One host computes more slowly."""
        host, factor = f"h{self.random.randrange(self.workers)}", self.random.uniform(1.5, 4)
        fault = {"kind": "host_slow", "host": host, "at": "0s", "factor": factor}
        return self.ring(self.trace([1000] * 3, forward=5 * MS, backward=5 * MS), fault=[fault])

    def nothing(self) -> Scenario:
        """Computing that varies by chance."""
        return self.ring(self.trace([1000] * 3, forward=5 * MS), job={"jitter": 0.05, "iterations": 12})


def verdict_of(*runs: Result) -> Verdict:
    (verdict,) = compare(runs).verdicts
    return verdict


def largest(verdict: Verdict) -> str:
    gains = verdict.runs[0].bottleneck.gains
    return max(gains, key=lambda cause: gains[cause])


def is_compute_bound(verdict: Verdict, made: Scenario) -> bool:
    return verdict.runs[0].bottleneck.kind == "compute-bound"


def is_hot_link(verdict: Verdict, made: Scenario) -> bool:
    finding = verdict.runs[0].bottleneck
    host = made.link_override[0].between[0]
    return finding.kind == "network-bound" and finding.hot_link is not None and host in finding.hot_link[0].split("->")


def is_bound_by(kind: str, cause: str) -> Callable[[Verdict, Scenario], bool]:
    return lambda verdict, made: (verdict.runs[0].bottleneck.kind, largest(verdict)) == (kind, cause)


KINDS: dict[str, Callable[[Verdict, Scenario], bool]] = {
    "compute": is_compute_bound,
    "hot_link": is_hot_link,
    "time_outs": is_bound_by("network-bound", "timeouts"),
    "scheduler": is_bound_by("host-bound", "scheduler"),
    "straggler": is_bound_by("host-bound", "straggler"),
}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("kind", KINDS)
def test_verdict_finds_the_bottleneck_that_was_built_in(kind: str, number: int, tmp_path: Path) -> None:
    made: Scenario = getattr(Maker(tmp_path, number), kind)()
    verdict = verdict_of(simulate(made))
    assert KINDS[kind](verdict, made), verdict.text


@pytest.mark.parametrize("number", range(5))
def test_runs_that_differ_by_chance_are_not_different(number: int, tmp_path: Path) -> None:
    made = Maker(tmp_path, number).nothing()
    runs = []
    for policy, seed in (("a", 1 + number), ("b, faster", 100 + number)):
        result = simulate(made.model_copy(update={"seed": seed}))
        result.summary.update(policy=policy, label=policy)
        runs.append(result)
    verdict = verdict_of(*runs)
    assert verdict.runs[0].mean_ps != verdict.runs[1].mean_ps
    assert verdict.text.startswith('No difference between a and "b, faster": '), verdict.text
    assert len(verdict.alike) == 2


def test_sentences_on_a_model_name_their_run(tmp_path: Path) -> None:
    """Two runs that differ have a sentence each; a single run needs no name."""
    spec = transformer("tiny", "tiny", 2, 256, 4, 704, 500, 128)
    folder = model_trace(spec, layout=layout_of(spec)).save(tmp_path / "tiny.trace")
    runs = []
    for name, rate in (("slow", "10Gbps"), ("fast", "100Gbps")):
        job = {"name": "job", "trace": str(folder), "iterations": 3, "workers": 2, "exchange": {"kind": "ring"}}
        tables = {"name": "tiny", "topology": {"kind": "star", "hosts": 2}, "link": {"rate": rate}, "job": [job]}
        result = simulate(Scenario.model_validate({**tables, "transport": {"kind": "dctcp"}}))
        result.summary.update(policy=name, label=name)
        runs.append(result)
    assert "With slow, it reaches an MFU of" in verdict_of(*runs).text
    assert "With fast, it reaches an MFU of" in verdict_of(*runs).text
    assert " It reaches an MFU of" in verdict_of(runs[0]).text


def samples(*values: float, seed: int = 1) -> Samples:
    return Samples({(seed, number): value for number, value in enumerate(values)})


def test_difference_is_judged_in_pairs() -> None:
    """Both runs vary by a tenth, but together: a hundredth between them is no chance."""
    first, second = samples(100, 110, 90, 100), samples(101, 111, 91, 101)
    paired = difference_of(second, first)
    assert paired.change == pytest.approx(0.01) and paired.is_significant
    apart = difference_of(samples(101, 111, 91, 101, seed=2), first)
    assert apart.change == pytest.approx(0.01) and not apart.is_significant


def test_difference_of_single_iterations_needs_a_hundredth() -> None:
    assert not difference_of(samples(100.9), samples(100)).is_significant
    assert difference_of(samples(101.1), samples(100)).is_significant


def test_several_seeds_raise_the_confidence(tmp_path: Path) -> None:
    made = Maker(tmp_path, 1).nothing()
    runs = [simulate(made.model_copy(update={"seed": seed})) for seed in (1, 2, 3)]
    assert "Confidence: medium (10 iterations, 1 seed; --seeds 5 raises it)." in verdict_of(runs[0]).text
    (verdict,) = compare(runs[:1], other_seeds=runs[1:]).verdicts
    assert "Confidence: high (30 iterations, 3 seeds)." in verdict.text
    assert len(verdict.runs) == 1 and verdict.runs[0].samples.seeds == [1, 2, 3]


def test_held_messages_count_as_network_if_the_card_is_busy() -> None:
    gains = {"scheduler": 0.3, "serialisation": 0.1}
    assert kind_of(gains, busy_while_held=0.2) == "host-bound"
    assert kind_of(gains, busy_while_held=0.9) == "network-bound"
    assert kind_of({"queueing": 0.04}, 0.0) == "compute-bound"


def test_ranking_names_ties_the_next_runs_and_the_slowest() -> None:
    means = [("A", 15_000), ("B", 15_000), ("C", 16_000), ("D", 18_000), ("E", 20_000), ("F", 25_000), ("G", 30_000)]
    runs = [
        small_result(
            iteration_columns=iterations(
                start_ps=[0] * 4, end_ps=[mean] * 4, compute_ps=[60] * 4, exposed_ps=[mean - 60] * 4,
                forward_end_ps=[20] * 4, backward_end_ps=[60] * 4,
            ),
            policy=name,
            label=name,
        )
        for name, mean in means
    ]  # fmt: skip
    text = verdict_of(*runs).text
    assert text.startswith(
        "A and B are fastest, without a difference between them: 15.0 ns per iteration, 6.25 % less than C, 16.7 % "
        "less than D, 25.0 % less than E and ... 50.0 % less than G. The fastest is communication-bound: "
    )
    assert "its causes are unknown: " in text and "Confidence: low (2 iterations, 1 seed; --seeds 5 raises it)" in text


def test_traffic_has_no_verdict() -> None:
    assert compare([small_result(iteration_columns={name: [] for name in iterations()})]).verdicts == []


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    made = Maker(tmp_path_factory.mktemp("verdict"), 3).hot_link()
    return compare([simulate(made)])


def test_terminal_report_notebook_and_json_say_the_same(
    runs: Comparison, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (verdict,) = runs.verdicts
    text = verdict.text
    runs.print()
    printed = capsys.readouterr().out
    assert printed.startswith(textwrap.fill(text, 100, break_on_hyphens=False))
    assert f"<p><b>{escape(text)}</b></p>" in runs._repr_html_()
    folder = runs.write(tmp_path / "out", page=True)
    assert json.loads((folder / "comparison.json").read_text())["verdicts"][0]["text"] == text
    assert f"**{text}**" in (folder / "report.md").read_text()
    assert escape(text) in (folder / "report.html").read_text()


def test_seeds_of_the_command_line_reach_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    made = Maker(tmp_path, 2).nothing()
    from gradwire.scenarios.loading.toml import write_toml

    file.write_text(write_toml(made.as_written()))
    done = CliRunner().invoke(cli.app, ["run", str(file), "--seeds", "3", "--out", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    (verdict,) = json.loads(done.stdout)["verdicts"]
    assert verdict["confidence"] == "high" and verdict["runs"][0]["seeds"] == [1, 2, 3]
    assert len(list((tmp_path / "out" / "results").iterdir())) == 3


def test_names_that_would_run_into_a_list_are_quoted() -> None:
    """Two runs, "P3" and "P3 and DLCP", read as three without quotation marks."""
    bottleneck = Bottleneck("compute-bound", 2.0, 0.0, {})
    runs = [JudgedRun(name, Samples({(1, 1): 2.0}), bottleneck) for name in ("P3", "P3 and DLCP", "TicTac, slow")]
    text = Verdict("job", runs).text
    assert text.startswith('No difference between P3, "P3 and DLCP" and "TicTac, slow": ')
