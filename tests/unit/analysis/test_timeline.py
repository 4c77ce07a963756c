"""The timeline of a run is what Google's "Trace Event Format" asks for, and holds every message once."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sim_cases import MS, US, Ideal, make_trace, ps_job, ring_job, rows, scenario
from typer.testing import CliRunner

from gradwire.analysis.timeline.timeline import timeline
from gradwire.cli import app
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError
from gradwire.sim.simulate import simulate
from gradwire.traces.trace import Trace

LINK: dict[str, Any] = {"link": {"rate": "100Gbps", "latency": "1us"}}
Event = dict[str, Any]
PS = 10**6


def picoseconds(value: Any) -> int:
    """A time of the format, which is in microseconds and may have digits behind the point."""
    assert isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
    assert abs(value * PS - round(value * PS)) < 0.01
    return round(value * PS)


def parsed(path: Path) -> list[Event]:
    """The events of a file in "JSON Object Format", held to the format's own words."""

    def pairs(found: list[tuple[str, Any]]) -> Event:
        assert len({key for key, _ in found}) == len(found), "a key twice"
        return dict(found)

    data = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=pairs)
    assert isinstance(data["traceEvents"], list) and data["displayTimeUnit"] in ("ms", "ns")
    events: list[Event] = data["traceEvents"]
    for event in events:
        assert isinstance(event["name"], str) and isinstance(event["pid"], int)
        assert isinstance(event.get("tid", 0), int) and isinstance(event.get("args", {}), dict)
        check = {"X": complete, "M": metadata, "C": counter, "i": instant, "s": flow, "f": flow}
        check[event["ph"]](event)
    nested(events)
    arrows(events)
    return events


def complete(event: Event) -> None:
    event["begin"] = picoseconds(event["ts"])
    event["end"] = event["begin"] + picoseconds(event["dur"])


def metadata(event: Event) -> None:
    kinds = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}
    (value,) = event["args"].values()
    assert isinstance(value, kinds[event["name"]])
    assert ("tid" in event) == event["name"].startswith("thread")


def counter(event: Event) -> None:
    picoseconds(event["ts"])
    assert event["args"] and all(isinstance(each, (int, float)) for each in event["args"].values())


def instant(event: Event) -> None:
    picoseconds(event["ts"])
    assert event["s"] in ("g", "p", "t")


def flow(event: Event) -> None:
    event["begin"] = picoseconds(event["ts"])
    assert "id" in event and (event["ph"] == "s" or event["bp"] == "e")


def tracks(events: list[Event]) -> dict[tuple[int, int], list[Event]]:
    found: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def nested(events: list[Event]) -> None:
    """Complete events of one thread lie beside each other or within each other, never across."""
    for inside in tracks(events).values():
        open_until: list[int] = []
        for event in sorted(inside, key=lambda each: (each["begin"], -each["end"])):
            while open_until and open_until[-1] <= event["begin"]:
                open_until.pop()
            assert not open_until or event["end"] <= open_until[-1], event
            open_until.append(event["end"])


def arrows(events: list[Event]) -> None:
    """Every flow begins once and ends once, not earlier, and at both ends there is a slice that it is bound to."""
    by_track = tracks(events)
    ends: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["cat"], event["name"], event["id"]].append(event)
            there = by_track[event["pid"], event["tid"]]
            assert any(each["begin"] <= event["begin"] <= each["end"] for each in there), event
    for pair in ends.values():
        assert [each["ph"] for each in sorted(pair, key=lambda each: (each["begin"], each["ph"] == "f"))] == ["s", "f"]


def of(events: list[Event], *categories: str) -> list[Event]:
    return [event for event in events if event.get("cat") in categories and event["ph"] != "M"]


def ran(job: dict[str, Any] | None = None, *, ideal: bool = True, **tables: Any) -> tuple[Result, Trace]:
    trace = make_trace([[25_000], [100, 50_000]], optimizer=MS // 10)
    table = scenario(job or ps_job(2, iterations=3), hosts=4, **{**LINK, **tables})
    return simulate(table, trace, fabric=Ideal() if ideal else None), trace


@pytest.mark.parametrize(
    "job", [ps_job(2, iterations=3), ring_job(3, iterations=2, bucket="4KiB")], ids=["server", "ring"]
)
def test_timeline_holds_every_message_once(job: dict[str, Any], tmp_path: Path) -> None:
    result, trace = ran(job)
    written = timeline(result, tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    shown = {event["args"]["message"]: event for event in of(events, "message")}
    assert len(shown) == len(of(events, "message")) == written.messages == result.messages.num_rows
    for row in rows(result.messages):
        event = shown[row["message"]]
        assert (event["begin"], event["end"]) == (row["start_ps"], row["end_ps"])
        assert (event["args"]["bytes"], event["args"]["to"]) == (row["bytes"], row["dst"])
    parts = Counter[str]()
    for event in of(events, "part"):
        parts[event["name"]] += event["end"] - event["begin"]
    assert parts["on its way"] == sum(row["end_ps"] - row["released_ps"] for row in rows(result.messages))
    assert parts["held back"] == sum(row["released_ps"] - row["start_ps"] for row in rows(result.messages))
    assert len(of(events, "arrival")) == result.messages.num_rows
    assert len(of(events, "arrow")) == 2 * result.messages.num_rows


def test_timeline_compute_and_waiting_match_the_result(tmp_path: Path) -> None:
    result, trace = ran()
    timeline(result, tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    spent: dict[tuple[int, int, bool], int] = Counter()
    for event in of(events, "forward", "backward", "optimizer", "computing", "waiting"):
        args = event["args"]
        spent[args["worker"], args["iteration"], event["cat"] == "waiting"] += event["end"] - event["begin"]
        if event["cat"] == "waiting":
            causes = sum(value for key, value in args.items() if key.endswith("_us"))
            assert causes == pytest.approx((event["end"] - event["begin"]) / PS)
    for row in rows(result.iterations):
        assert spent[row["worker"], row["iteration"], False] == row["compute_ps"]
        assert spent[row["worker"], row["iteration"], True] == row["exposed_ps"]
    first = [
        event for event in of(events, "forward", "backward") if (event["pid"], event["args"]["iteration"]) == (1, 0)
    ]
    assert [(event["name"], event["begin"], event["end"]) for event in first] == [
        ("forward layer0", 0, MS), ("forward layer1", MS, 2 * MS),
        ("backward layer1", 2 * MS, 3 * MS), ("backward layer0", 3 * MS, 4 * MS),
    ]  # fmt: skip
    waits = {event["name"] for event in of(events, "waiting")}
    assert waits <= {"for layer0", "for layer1", "for all layers"} and "for layer0" in waits


def test_optimizer_shares_precede_the_forward_step_of_their_layer(tmp_path: Path) -> None:
    """Workers of a layerwise ring update each layer right before its forward step. A third of the bytes is in the
    first layer, 25,000 of 75,100 values. The last iteration ends with the whole step besides."""
    result, trace = ran(
        {"workers": 3, "iterations": 3, "exchange": {"kind": "ring", "bucket": "4KiB", "forward": "layerwise"}}
    )
    timeline(result, tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    assert not of(events, "computing")
    step = MS // 10
    first = step * 25_000 // 75_100
    updates = {0: [], 1: [("optimizer layer0", first), ("optimizer layer1", step - first)]}
    updates[2] = [*updates[1], ("optimizer", step)]
    for iteration, wanted in updates.items():
        mine = [
            event
            for event in of(events, "optimizer", "forward", "backward")
            if (event["pid"], event["args"]["iteration"]) == (1, iteration)
        ]
        spent: dict[str, int] = Counter()
        for event in mine:
            spent[event["name"]] += event["end"] - event["begin"]
        whole = {f"{turn} layer{layer}": MS for turn in ("forward", "backward") for layer in (0, 1)}
        assert spent == {**whole, **dict(wanted)}
        order = [event["name"] for event in sorted(mine, key=lambda event: event["begin"])]
        if iteration:
            assert order.index("optimizer layer1") == order.index("forward layer1") - 1


def test_timeline_names_workers_servers_and_messages(tmp_path: Path) -> None:
    result, trace = ran()
    timeline(result, tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == ["h0: job0 worker 0", "h1: job0 worker 1", "h2: job0 server 0", "network"]
    messages = {event["name"] for event in of(events, "message")}
    assert messages == {f"{kind} l{layer}" for kind in ("push", "pull") for layer in ("0.t0", "1.t0", "1.t1")}
    known = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert set(tracks(events)) <= known


def test_timeline_can_be_limited_to_iterations(tmp_path: Path) -> None:
    result, trace = ran()
    written = timeline(result, tmp_path / "t.json", iterations=(1, 2), trace=trace)
    events = parsed(tmp_path / "t.json")
    wanted = {row["message"] for row in rows(result.messages) if row["iteration"] == 1}
    assert {event["args"]["message"] for event in of(events, "message")} == wanted
    assert written.messages == len(wanted)
    assert {event["args"]["iteration"] for event in of(events, "waiting", "forward")} >= {1}


def test_timeline_shows_drops_and_the_longest_queues(tmp_path: Path) -> None:
    fault = {"fault": [{"kind": "gray_loss", "between": ["h0", "s0"], "at": "0s", "loss": 0.05}]}
    tables = {"transport": {"kind": "dctcp", "payload": "1000B"}, "output": {"queue_samples": "5us"}, **fault}
    result, trace = ran(ideal=False, **tables)
    assert result.drops.num_rows and result.samples.num_rows
    written = timeline(result, tmp_path / "t.json", ports=2, trace=trace)
    events = parsed(tmp_path / "t.json")
    drops = [(picoseconds(event["ts"]), event["name"], event["args"]["message"]) for event in of(events, "drop")]
    assert Counter(drops) == Counter((row["time_ps"], row["port"], row["message"]) for row in rows(result.drops))
    assert written.drops == result.drops.num_rows and written.note == ""
    shown = defaultdict(dict)
    for event in of(events, "queue"):
        shown[event["name"].removeprefix("queue ")][picoseconds(event["ts"])] = event["args"]["bytes"]
    assert len(shown) == 2
    longest = {port: max(values.values()) for port, values in shown.items()}
    for row in rows(result.samples):
        if row["port"] in shown:
            assert shown[row["port"]][row["time_ps"]] == row["queue_bytes"]
        else:
            assert row["queue_bytes"] <= min(longest.values())


def test_timeline_notes_missing_queue_samples(tmp_path: Path) -> None:
    result, trace = ran()
    assert timeline(result, tmp_path / "t.json", trace=trace).note.startswith("no queues: there are no samples")


def test_timeline_of_a_cut_run_shows_messages_in_flight(tmp_path: Path) -> None:
    result, trace = ran(duration="3005us")
    timeline(result, tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    under_way = [event for event in of(events, "message") if event["args"].get("under_way")]
    assert len(under_way) == sum(row["end_ps"] < 0 for row in rows(result.messages)) > 0
    assert all(event["end"] == 3005 * US for event in under_way)


def test_timeline_of_an_emulated_run_shows_whole_passes(tmp_path: Path) -> None:
    result, trace = ran()
    summary = {**result.summary, "engine": {"kind": "emulation", "clock": "wall"}}
    unknown = result.messages.set_column(
        result.messages.column_names.index("released_ps"), "released_ps", [[-1] * result.messages.num_rows]
    ).cast(result.messages.schema)
    timeline(replace(result, summary=summary, messages=unknown), tmp_path / "t.json", trace=trace)
    events = parsed(tmp_path / "t.json")
    assert {event["name"] for event in of(events, "forward", "backward")} == {"forward pass", "backward pass"}
    assert len(of(events, "message")) == result.messages.num_rows and not of(events, "part")


# --- refusals, and the commands --------------------------------------------------------------------------------------


def test_timeline_refuses_too_many_messages_and_unknown_iterations(tmp_path: Path) -> None:
    result, trace = ran()
    with pytest.raises(ResultError, match=r"has 36 messages: more than the limit of 35; expected --iterations A:B"):
        timeline(result, tmp_path / "t.json", most=35, trace=trace)
    with pytest.raises(ResultError, match=r"has no iterations 3:9; expected 0:3"):
        timeline(result, tmp_path / "t.json", iterations=(3, 9), trace=trace)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Result whose trace lies beside it."""
    monkeypatch.chdir(tmp_path)
    result, trace = ran()
    trace.save("case")
    named = result.scenario.replace('trace = "case"', f'trace = "{tmp_path / "case"}"')
    replace(result, scenario=named).write("r")
    return tmp_path


def call(*words: str) -> tuple[int, str]:
    answer = CliRunner().invoke(app, list(words))
    return answer.exit_code, answer.output


def test_timeline_tensors_and_breakdown_commands_write_their_outputs(folder: Path) -> None:
    code, text = call("timeline", "r", "--iterations", "1")
    assert code == 0, text
    assert "12 messages" in text and "note: no queues" in text
    parsed(folder / "r" / "timeline.json")
    code, text = call("timeline", "r", "--out", "t.json", "--json")
    assert json.loads(text)["messages"] == 36
    code, text = call("tensors", "r", "--out", "t.csv")
    assert code == 0 and "18 rows" in text
    assert len(Path("t.csv").read_text().splitlines()) == 19
    code, text = call("tensors", "r", "--json")
    assert len(json.loads(text)["tensors"]) == 18
    code, text = call("compare", "r", "--breakdown", "--out", "c")
    assert code == 0, text
    assert "breakdown of the mean iteration" in text and Path("c/breakdown.png").is_file()
    data = json.loads(Path("c/comparison.json").read_text())["runs"][0]["breakdown"]
    assert len(data["iterations"]) == 6 and sum(data["mean_ps"]["job0"].values()) > 0
    Path("case").rename("moved")
    assert call("tensors", "r")[0] == 2
    assert call("tensors", "r", "--trace", "moved")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("timeline", "nowhere"), "nowhere: no such directory"),
        (("timeline", "r", "--iterations", "2:1"), "--iterations: is '2:1'"),
        (("timeline", "r", "--iterations", "x"), "--iterations: is 'x'"),
        (("timeline", "r", "--out", "case"), "case: exists already"),
        (("tensors", "r", "--out", "t.txt"), "t.txt: is not a table format"),
        (("tensors", "r", "--trace", "resnet20"), "is not the one of the run"),
        (("tensors", "nowhere"), "nowhere: no such directory"),
    ],
)
def test_timeline_and_tensors_commands_refuse_invalid_arguments(
    words: tuple[str, ...], message: str, folder: Path
) -> None:
    code, text = call(*words)
    assert code == 2
    assert message in text.replace("\n", " ")
    assert "Traceback" not in text
