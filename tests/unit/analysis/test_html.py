"""Reports as files: what a page holds is what was measured, and what cannot be reported is refused in one sentence."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import page_cases
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sim_cases import MS, make_trace, ps_job, rows, scenario
from sweep_cases import SCENARIO
from typer.testing import CliRunner

import gradwire
from gradwire import cli
from gradwire.analysis.breakdown.result_context import ResultContext
from gradwire.analysis.metrics import tail
from gradwire.analysis.report.charts import rounded
from gradwire.analysis.report.html_page import PageSection, code, data, html_page, prose
from gradwire.analysis.report.lanes import lanes_of, typical_iteration
from gradwire.scenarios.errors import ResultError
from gradwire.sim.simulate import simulate
from gradwire.studies.report.report_inputs import report
from gradwire.studies.sweep.outcome import Sweep

LINK = {"link": {"rate": "100Gbps", "latency": "1us"}}
VOID = {"meta", "link", "br", "img", "hr"}


class Page(HTMLParser):
    """A page as a browser takes it: text by element, plain data, and whether every element ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, found: str) -> None:
        if self.open[-1:] == ["script"]:
            if self.attributes[-1][1].get("type") == "application/json":
                self.scripts.append(found)
        else:
            self.texts.append(found)

    @property
    def figures(self) -> list[Any]:
        return [json.loads(each) for each in self.scripts]


@pytest.fixture(scope="module")
def lossy() -> tuple[ResultContext, Any]:
    """Three workers and a server over a cable that loses packets, with samples of queues."""
    fault = [{"kind": "gray_loss", "between": ["h0", "s0"], "at": "0s", "loss": 0.05}]
    tables: dict[str, Any] = {"transport": {"kind": "dctcp", "payload": "1000B"}, "output": {"queue_samples": "500ns"}}
    trace = make_trace([[25_000], [100, 500_000]], optimizer=MS // 10)
    table = scenario(ps_job(3, iterations=5), hosts=4, fault=fault, **tables, **LINK)
    result = simulate(table, trace)
    return ResultContext(result, trace, "case"), result


def summed(values: list[int]) -> list[int]:
    return np.cumsum(values).tolist()


def test_timeline_shows_every_message_of_an_iteration_once(lossy: tuple[ResultContext, Any]) -> None:
    """Times are exact to a tick; overlapping messages of other iterations are included."""
    found, result = lossy
    lanes = lanes_of(found, 2)
    tick, start = lanes["tick_ps"], lanes["start_ps"]
    these = [row for row in rows(result.iterations) if row["iteration"] == 2]
    assert start == min(row["start_ps"] for row in these)
    window = start, max(row["end_ps"] for row in these)
    wanted: Counter[Any] = Counter()
    for row in rows(result.messages):
        if row["start_ps"] <= window[1] and row["end_ps"] >= window[0]:
            wanted[
                row["src"], (row["start_ps"] - start) // tick, (row["end_ps"] - start) // tick, row["bytes"], row["dst"]
            ] += 1
    names = [host["name"] for host in lanes["hosts"]]
    drawn: Counter[Any] = Counter()
    for host in lanes["hosts"]:
        m = host["messages"]
        for n, begin in enumerate(summed(m["begin"])):
            end = begin + m["held"][n] + m["sent"][n]
            drawn[host["name"], begin, end, m["bytes"][n], names[m["to"][n]]] += 1
        by_track: dict[int, int] = {}
        for n, begin in enumerate(summed(m["begin"])):  # on a track one message follows the other
            assert begin >= by_track.get(m["track"][n], begin)
            by_track[m["track"][n]] = begin + m["held"][n] + m["sent"][n]
    assert drawn == wanted and sum(wanted.values()) >= sum(row["iteration"] == 2 for row in rows(result.messages))


def test_compute_and_waiting_spans_fill_an_iteration(lossy: tuple[ResultContext, Any]) -> None:
    found, result = lossy
    lanes = lanes_of(found, 1)
    tick, waiting = lanes["tick_ps"], lanes["spans"].index("waiting")
    for worker, host in enumerate(lanes["hosts"][:2]):
        (row,) = [each for each in rows(result.iterations) if (each["iteration"], each["worker"]) == (1, worker)]
        begin, length = (np.array(summed(host["spans"]["begin"])), np.array(host["spans"]["length"]))
        own = (begin >= (row["start_ps"] - lanes["start_ps"]) // tick) & (
            begin < (row["end_ps"] - lanes["start_ps"]) // tick
        )
        waits = own & (np.array(host["spans"]["kind"]) == waiting)
        texts = {lanes["texts"][n] for n in np.array(host["spans"]["text"])[waits]}
        assert all(text.startswith("waits for ") for text in texts) and texts
        for mine, whole in ((waits, row["exposed_ps"]), (own & ~waits, row["compute_ps"])):
            assert abs(int(length[mine].sum()) * tick - whole) <= 2 * own.sum() * tick


def test_timeline_drops_and_queues_match_the_iteration(lossy: tuple[ResultContext, Any]) -> None:
    found, result = lossy
    lanes = lanes_of(found, 2)
    end = max(row["end_ps"] for row in rows(result.iterations) if row["iteration"] == 2)
    inside = [row for row in rows(result.drops) if lanes["start_ps"] <= row["time_ps"] <= end]
    assert inside and sum(cause["total"] for cause in lanes["drops"]["causes"]) == len(inside)
    counts: Counter[int] = Counter((row["time_ps"] - lanes["start_ps"]) // lanes["drops"]["wide_ps"] for row in inside)
    drawn: Counter[int] = Counter()
    for cause in lanes["drops"]["causes"]:
        drawn.update(dict(zip(summed(cause["at"]), cause["count"], strict=True)))
        assert sum(cause["count"]) == cause["total"]
    assert drawn == counts and {cause["cause"] for cause in lanes["drops"]["causes"]} == {"tail", "link loss"}
    peaks: dict[str, int] = {}
    for row in rows(result.samples):
        if lanes["start_ps"] <= row["time_ps"] <= end and row["queue_bytes"]:
            peaks[row["port"]] = max(peaks.get(row["port"], 0), row["queue_bytes"])
    assert {queue["port"]: queue["peak"] for queue in lanes["queues"]} == peaks != {}
    assert all(queue["peak"] == max(queue["bytes"]) for queue in lanes["queues"])
    assert all(min(queue["at"][1:], default=0) >= 0 for queue in lanes["queues"])


def test_timeline_is_limited_to_the_first_hosts(lossy: tuple[ResultContext, Any]) -> None:
    """A note counts omitted hosts, and no message points to one."""
    lanes = lanes_of(lossy[0], 1, most=1)
    assert [host["name"] for host in lanes["hosts"]] == ["h0"]
    assert set(lanes["hosts"][0]["messages"]["to"]) == {-1} and "shown are 1 of 4 hosts" in lanes["notes"][0]


def test_typical_iteration_is_nearest_to_the_mean_time(lossy: tuple[ResultContext, Any]) -> None:
    found, result = lossy
    means = {
        n: np.mean([row["end_ps"] - row["start_ps"] for row in rows(result.iterations) if row["iteration"] == n])
        for n in (1, 2, 3)
    }
    middle = sum(means.values()) / 3
    assert len({abs(mean - middle) for mean in means.values()}) == 3
    assert typical_iteration(found, "job0") == min(means, key=lambda n: (abs(means[n] - middle), n))
    with pytest.raises(ResultError, match="has no iterations 9:10"):
        lanes_of(found, 9)


def test_timeline_of_many_flows_shows_the_middle_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of few flows shows all of them; a note states the limit otherwise."""
    result = simulate(gradwire.Scenario.model_validate(SCENARIO))
    found = ResultContext(result, where="flows")
    whole = lanes_of(found)
    assert sum(len(host["messages"]["begin"]) for host in whole["hosts"]) == result.messages.num_rows == 120
    assert whole["start_ps"] == 0 and whole["what"].startswith("flows, ")
    monkeypatch.setattr("gradwire.analysis.report.lanes.MOST_FLOWS", 50)
    some = lanes_of(found)
    starts = sorted(row["start_ps"] for row in rows(result.messages))
    assert sum(len(host["messages"]["begin"]) for host in some["hosts"]) == 50
    assert some["start_ps"] == starts[35] and some["notes"][0] == "shown are 50 of 120 flows, in the middle of the run"


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200))
def test_tail_gives_the_share_of_values_at_least_as_large(values: list[int]) -> None:
    found, shares = tail(np.array(values))
    assert found[0] == min(values) and shares[0] == 100
    for value, share in zip(found.tolist(), shares.tolist(), strict=True):
        assert share == pytest.approx(100 * sum(each >= value for each in values) / len(values))


@given(st.text(), st.text())
@example("</script><b>", "</pre></details><!--<script>")
def test_page_escapes_arbitrary_text(words: str, other: str) -> None:
    """Elements end properly and data stay unchanged for any text."""
    section = PageSection(
        words + "</section>", other, words, [prose(other + "</p><script>"), code(words), data({"x": [words, other]})]
    )
    found = Page(html_page(other + "</title>", [section, section], words))
    assert [figure["x"] for figure in found.figures] == [[words, other]] * 2
    assert sum(tag == "script" for tag, _ in found.attributes) == 2 + 5


def test_rounded_numbers_are_valid_json() -> None:
    assert rounded({"a": [1.23456789, float("inf"), float("nan"), 7, "x", None]}) == {
        "a": [1.23457, None, None, 7, "x", None]
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each kind."""
    place = tmp_path_factory.mktemp("kinds")
    runs = page_cases.runs()
    runs.write(place / "comparison")
    runs.results[0].write(place / "run")
    page_cases.sweep(place / "sweep")
    return {
        "comparison": place / "comparison", "run": place / "run", "sweep": place / "sweep",
        "claims": page_cases.claims(place / "claims"), "trainings": page_cases.trainings(place / "trainings"),
        "training": place / "trainings" / "dlcp", "fidelity": page_cases.fidelity(place / "fidelity"),
    }  # fmt: skip


def test_report_combines_all_kinds_of_folders(folders: dict[str, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(
        cli.app, ["report", *map(str, folders.values()), "--out", str(tmp_path / "all.html"), "--json"]
    )
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    text = (tmp_path / "all.html").read_text(encoding="utf-8")
    assert told["bytes"] == len(text.encode()) < 3_000_000 and len(told["sections"]) == len(folders)
    found = Page(text)
    kinds = Counter(figure.get("kind", "timeline") for figure in found.figures)
    assert kinds["timeline"] == 2 and kinds["heat"] == 1 and kinds["bars"] >= 4 and kinds["lines"] >= 12
    assert all(Path(each).is_file() for each in told["timelines"]) and len(told["timelines"]) == 4
    words = " ".join(found.texts)
    for wanted in (
        " per iteration, ", "Confidence: ", "gradwire run " + str(folders["run"]), "8 runs: 8 done",
        "1 claim: 1 not shown", "DLCP: an accuracy of", "figures within their tolerances", "p99 <of> DLCP",
    ):  # fmt: skip
        assert wanted in words, wanted


def test_report_shows_a_fidelity_comparison_seed_by_seed(tmp_path: Path) -> None:
    text = report(
        page_cases.fidelity_of_seeds(tmp_path / "seeds"), out=tmp_path / "r.html", perfetto=False
    ).path.read_text(encoding="utf-8")
    words = " ".join(Page(text).texts)
    assert "figures within their tolerances" in words and "completion, mean of train, push" in words
    assert "2 runs of each world, with the seeds 1 and 2, whose messages are judged together." in words
    assert (
        "Mean completion time, seed by seed" in words
        and "+1.0 % ± 0.00" in words
        and "± is half of the 95 % interval" in words
    )


def test_report_page_makes_no_network_requests(folders: dict[str, Path], tmp_path: Path) -> None:
    """The content security policy forbids requests, and no element makes any."""
    text = report(folders["run"], out=tmp_path / "r.html", perfetto=False).path.read_text(encoding="utf-8")
    found = Page(text)
    policy = re.search(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert policy is not None and "default-src 'none'" in policy[1] and "unsafe" not in policy[1]
    own = {
        kind: [f"'sha256-{base64.b64encode(hashlib.sha256(each.encode()).digest()).decode()}'" for each in found]
        for kind, found in (
            ("style", re.findall(r"<style>(.*?)</style>", text, re.S)),
            ("script", re.findall(r"<script>(.*?)</script>", text, re.S)),
        )
    }
    allowed = {words[0]: words[1:] for words in map(str.split, policy[1].split(";"))}
    assert allowed["style-src"] == own["style"] and allowed["script-src"] == own["script"] and len(own["script"]) > 3
    assert not re.search(r"<[^>]+\s(style|on\w+)=", re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S))
    for tag, attributes in found.attributes:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            assert re.match(r"#|data:", attributes.get(name) or "#"), (tag, attributes)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttp|import\(|WebSocket|localStorage", text)


def test_report_is_reproducible_byte_for_byte(folders: dict[str, Path], tmp_path: Path) -> None:
    one, other = (report(folders["comparison"], out=tmp_path / f"{n}.html", perfetto=False).path for n in (1, 2))
    assert one.read_bytes() == other.read_bytes()


def test_sweep_read_from_its_folder_equals_the_original(folders: dict[str, Path]) -> None:
    """Tables, states and plots are read without resolving a scenario."""
    found = Sweep.read(folders["sweep"])
    again = page_cases.sweep(folders["sweep"])
    assert found.table.equals(again.table) and found.points_table.equals(again.points_table)
    assert found.states == again.states and set(found.plot()) == set(again.plot())
    assert [point.labels for point in found.points] == [point.labels for point in again.points]


def test_objects_and_folders_yield_the_same_figures(folders: dict[str, Path], tmp_path: Path) -> None:
    comparison = gradwire.compare(folders["comparison"])
    pages = [
        Page(gradwire.report(source, out=tmp_path / f"{n}.html", perfetto=False).path.read_text(encoding="utf-8"))
        for n, source in enumerate((comparison, folders["comparison"]))
    ]
    assert pages[0].figures == pages[1].figures and len(pages[0].figures) > 3


@pytest.mark.parametrize("arguments, words", [
    (["nowhere"], "nowhere: no such directory; expected a folder of gradwire run"),
    ([""], "holds nothing to report"),
    (["run", "--iteration", "99"], "has no iteration 99"),
    (["claims/claims.json"], "is a file; expected a folder"),
    (["run", "--out", "taken.html"], "taken.html: exists already"),
    (["run", "--out", "other.html"], "other-timelines: exists already"),
    (["damaged"], "claims.json: is damaged"),
    (["begun"], "begun: is an unfinished reproduction without verdicts; expected gradwire reproduce"),
])  # fmt: skip
def test_report_refuses_unsuitable_folders_and_outputs(
    arguments: list[str], words: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command prints one message, exits with 2 and writes no file."""
    monkeypatch.chdir(tmp_path)
    for name in ("run", "claims"):
        (tmp_path / name).symlink_to(folders[name])
    (tmp_path / "taken.html").write_text("mine")
    (tmp_path / "other-timelines").mkdir()
    (tmp_path / "other-timelines" / "mine").touch()
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "reproduction.txt").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "claims.json").write_text("{")
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    done = CliRunner().invoke(cli.app, ["report", *(["empty"] if arguments == [""] else arguments)])
    assert done.exit_code == 2 and words in done.stderr and "Traceback" not in done.output
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "taken.html").read_text() == "mine"


def test_report_without_the_trace_omits_the_timeline(lossy: tuple[ResultContext, Any], tmp_path: Path) -> None:
    """The trace was passed to `simulate` as an object, so its name cannot be loaded."""
    text = report(lossy[1], out=tmp_path / "r.html").path.read_text(encoding="utf-8")
    found = Page(text)
    assert "no timeline: " in " ".join(found.texts)
    assert {figure.get("kind") for figure in found.figures} == {"bars", "lines"}
    with_it = report(lossy[1], out=tmp_path / "s.html", trace=lossy[0].traces[0], perfetto=False)
    assert "runs" in Page(with_it.path.read_text(encoding="utf-8")).figures[-1]
