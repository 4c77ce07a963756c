"""Claims: verdicts by hand, plans that share runs, a store that outlives a kill, and pages of it all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from gradwire.analysis import source_digests
from gradwire.result_store.result import Result
from gradwire.scenarios.errors import ResultError, ScenarioError
from gradwire.scenarios.loading.load import load_tables
from gradwire.scenarios.units import parse_time
from gradwire.studies.report.other_sections import claims_page, claims_section
from gradwire.studies.reproduce import SETS, claims_of
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import gain, ratio, saved
from gradwire.studies.reproduce.claims_page import as_dict, basis_text, published_words
from gradwire.studies.reproduce.lost_magnitude import lost_magnitude
from gradwire.studies.reproduce.measures import MEASURE_LABELS, WHY_ABSENT
from gradwire.studies.reproduce.plots.claim_plots import claim_figure
from gradwire.studies.reproduce.policies import POLICIES, apply_policy
from gradwire.studies.reproduce.published import PublishedNumber
from gradwire.studies.reproduce.run_plan import all_runs, planned_part, runs_of_claim
from gradwire.studies.reproduce.run_store import RunStore
from gradwire.studies.reproduce.runner import Reproduction
from gradwire.studies.reproduce.scaling.node import HASWELL, KNL
from gradwire.studies.reproduce.scaling.strong_scaling import scaling_of
from gradwire.studies.reproduce.verdicts import (
    CONDITION,
    NOT_SHOWN,
    OPEN,
    SHOWN,
    UNRESOLVED,
    Judgement,
    SeedRange,
    judge,
)
from gradwire.traces.trace import load_trace
from gradwire.workload.replay import Timetable
from tests.support.analysis_cases import messages, small_result

DATA = {"pictures": "synthetic", "text": "synthetic"}
BURST = {"traffic": [{"name": "burst", "kind": "incast", "fan_in": 2, "size": "20kB", "rounds": 1}]}


def _claim(*expects: Expect, policies: tuple[str, ...] = ("dlcp", "dctcp-10ms")) -> Claim:
    settings = (
        Setting("small", "incast-mix", policies, BURST),
        Setting("large", "incast-mix", policies, {**BURST, "switch": {"buffer": "1MiB"}}, full_only=True),
    )
    return Claim("T1", "[ours]", "It is fast.", "twice as fast", settings, expects, "p99")


def _p99(high: float, condition: str = "", blame: tuple[str, str] | None = None) -> Expect:
    return Expect("p99 over DCTCP's", ratio("small", "dlcp", "dctcp-10ms", "p99"), ("small",), high=high,
                  condition=condition, blame=blame)  # fmt: skip


def _judged(*expects: Expect, tail: float = 0.0) -> Judgement:
    """DLCP takes 2, 3 and 4 us by seed, DCTCP always 10 us: ratios of 0.2, 0.3 and 0.4."""
    claim = _claim(*expects)
    runs = runs_of_claim(claim, 3, False)
    values = {("dlcp", seed): (seed + 1) * 1e6 for seed in (1, 2, 3)}
    figures = {run.key: {"p99": values.get((run.policy, run.seed), 10e6), "tail_timed_out": tail} for run in runs}
    return judge(claim, runs, figures)


def test_verdict_is_based_on_medians_over_seeds() -> None:
    """The median ratio is 0.3: a limit of 0.3 holds, and a limit of 0.29 does not."""
    assert _judged(_p99(0.3)).verdict == SHOWN
    assert _judged(_p99(0.29)).verdict == NOT_SHOWN
    both = _judged(_p99(0.3, "here"), _p99(0.29, "there"))
    assert both.verdict == CONDITION
    assert both.reason == "It holds for: here. Not for: there (0.300 (0.200 to 0.400), not <= 0.290)."


def test_verdict_names_timeouts_if_most_slow_messages_had_one() -> None:
    """The threshold is half of the slowest messages."""
    blame = ("small", "dctcp-10ms")
    words = "Time-outs, not volume: most of the slowest messages of DCTCP, RTOmin 10 ms had one."
    assert words in _judged(_p99(0.5, blame=blame), tail=0.75).reason
    assert "Time-outs" not in _judged(_p99(0.5, blame=blame), tail=0.4).reason


def test_claims_section_names_timeouts_beside_the_expectation() -> None:
    judged = _judged(_p99(0.5, blame=("small", "dctcp-10ms")), tail=0.75)
    section = claims_section({"command": "how", **as_dict([judged])}, "T")
    assert "holds; time-outs: DCTCP, RTOmin 10 ms" in "".join(map(str, section.parts))


def test_claim_with_missing_runs_stays_open() -> None:
    """A missing run leaves a claim open; a quick run omits expectations of full settings."""
    claim = _claim(_p99(0.5))
    runs = runs_of_claim(claim, 3, False)
    assert judge(claim, runs, {runs[0].key: {"p99": 1.0}}).verdict == OPEN
    needs_large = Expect("never", lambda at: 1 / 0, ("large",), low=1.0)
    assert [each.expect.text for each in _judged(_p99(0.3), needs_large).findings] == ["p99 over DCTCP's"]


def _judged_magnitude(have: set[int], *others: Expect) -> Judgement:
    """Runs of all seeds are there, those of some with a magnitude of 0.5."""
    expect = Expect("magnitude of what was lost", lambda at: at("small", "dlcp", "magnitude"), ("small",), high=0.6)
    claim = _claim(expect, *others)
    runs = runs_of_claim(claim, 3, False)
    return judge(claim, runs, {
        run.key: {"p99": 1e6, **({"magnitude": 0.5} if run.seed in have else {})} for run in runs
    })  # fmt: skip


def test_absent_measure_is_named_and_remaining_seeds_decide() -> None:
    """A measure is absent from a run in which nothing was lost; the other seeds decide."""
    nothing = _judged_magnitude(set())
    assert nothing.verdict == UNRESOLVED
    assert "measure absent: nothing was lost (mean |g| of lost gradients over that of their tensors; " in nothing.reason
    assert nothing.findings[0].holds is None and nothing.findings[0].spread.values == ()
    some = _judged_magnitude({1, 3})
    assert some.verdict == SHOWN and some.findings[0].spread.values == (0.5, 0.5)
    assert some.findings[0].measured.startswith("0.500, measure absent: nothing was lost (")
    assert some.findings[0].measured.endswith(", of seed 2")
    beside = _judged_magnitude(set(), _p99(1.0, "here"))
    assert beside.verdict == CONDITION and "Unresolved: magnitude of what was lost (measure absent: " in beside.reason
    for judgement in (nothing, some, beside):
        page = claims_page("T", [judgement], [None], {"command": "how", **as_dict([judgement])})
        assert "measure absent: nothing was lost" in page
        assert "nothing was lost" in json.dumps(as_dict([judgement]), allow_nan=False)


def test_every_conditional_measure_has_a_reason_for_its_absence() -> None:
    """WHY_ABSENT lists every measure that `figures` and `lost_figures` may omit."""
    always = {
        "worst", "broken", "accuracy", "loss", "lost", "worst_lost", "apart", "apart_max", "step_bytes", "pulled",
        "traffic", "encode", "server", "steps_to", "to",
    }  # fmt: skip
    others = {name for name in MEASURE_LABELS if not name.endswith("Gbps")} - always
    assert others == set(WHY_ABSENT)


def test_gain_and_saving_match_hand_computed_values() -> None:
    """10 against 8 is a gain of a quarter and a saving of a fifth."""
    figures = {("x", "a", "m"): 8.0, ("x", "b", "m"): 10.0}
    at: Callable[[str, str, str], float] = lambda *where: figures[where]
    assert gain("x", "a", "b", "m")(at) == 0.25
    assert saved("x", "a", "b", "m")(at) == pytest.approx(0.2)
    assert SeedRange((0.1, 0.3, 0.2)).text("share") == "20.0 % (10.0 % to 30.0 %)"


def test_claims_share_equal_runs() -> None:
    """Equal runs have equal keys; seeds, policies and traces distinguish runs."""
    first, second = _claim(_p99(1)), _claim(_p99(2), policies=("dlcp", "swift"))
    runs = [runs_of_claim(each, 2, True) for each in (first, second)]
    assert [len(each) for each in runs] == [8, 8]
    assert len(all_runs(runs)) == 12
    jobs = [
        runs_of_claim(
            Claim("T", "", "", "", (Setting("s", "paper-144", ("dlcp",), {"job": {"trace": trace}}),), (), "p99"),
            1,
            False,
        )
        for trace in ("resnet50", "vgg16")
    ]
    assert len(all_runs(jobs)) == 2


@pytest.mark.parametrize("name", SETS)
def test_every_claim_resolves_to_valid_runs_and_a_verdict(name: str) -> None:
    """All scenarios are valid, and expectations use settings and policies that the claim runs."""
    for claim in claims_of([name]):
        runs = runs_of_claim(claim, 1, True, DATA)
        figures = {run.key: dict.fromkeys(MEASURE_LABELS, 1.0) for run in runs}
        planned = {(run.setting, run.policy) for run in runs}

        def at(setting: str, policy: str, measure: str, planned: set[tuple[str, str]] = planned) -> float:
            assert (setting, policy) in planned, f"{policy} is not run in {setting}"
            return 1.0

        for expect in claim.expects:
            expect.value(at)
        found = judge(claim, runs, figures)
        assert found.verdict != OPEN and len(found.findings) == len(claim.expects)
        assert len({setting.name for setting in claim.settings}) == len(claim.settings)


@pytest.mark.parametrize("name", SETS)
def test_quick_run_judges_what_it_has(name: str) -> None:
    """A quick run leaves out expectations of runs that it has not, and every claim keeps some or is long as a whole."""
    for claim in claims_of([name]):
        runs = runs_of_claim(claim, 1, False, DATA)
        part = planned_part(claim, runs)
        assert {(setting.name, policy) for setting in part.settings for policy in setting.policies} == {
            (run.setting, run.policy) for run in runs
        }
        found = judge(part, runs, {run.key: dict.fromkeys(MEASURE_LABELS, 1.0) for run in runs})
        assert len(found.findings) == len(part.expects)
        assert part.expects or all(setting.full_only for setting in claim.settings), claim.id


def test_own_policies_of_a_setting_drop_its_quick_ones() -> None:
    """The setting of R2 has fewer policies than the one that it is based on, and runs all of them."""
    (claim,) = claims_of(["regimes"], ["R2"])
    assert {run.policy for run in runs_of_claim(claim, 1, False)} == {
        policy for setting in claim.settings for policy in setting.policies
    }
    quick, full = (runs_of_claim(claims_of(["dlcp"], ["S3"])[0], 1, each) for each in (False, True))
    assert {run.key for run in quick} < {run.key for run in full}


def test_quick_page_names_rivals_that_it_leaves_out(tmp_path: Path) -> None:
    """Of S3 rivals are left out that were never the fastest; of S2 nothing is."""
    for claim, named in (("S3", {"pFabric", "PIAS, RTOmin 2 ms"}), ("S2", set())):
        reproduction = Reproduction(["dlcp"], tmp_path, [claim])
        _, plans, _ = reproduction._plans()
        assert named <= set(reproduction._left_out(plans)) and bool(named) == bool(reproduction._left_out(plans))
        assert not {"DLCP", "NDP, layer priority"} & set(reproduction._left_out(plans))
        assert replace(reproduction, full=True)._left_out(plans) == []


def test_published_numbers_of_abstracts_come_first_on_the_page() -> None:
    notes, abstract = (
        replace(_p99(0.3, mark), published=PublishedNumber(0.5, mark, neutral=1)) for mark in ("[notes]", "[abstract]")
    )
    judged = _judged(notes, abstract, _p99(0.4, "no published number"))
    data = {"command": "how", **as_dict([judged])}
    for page in (claims_page("T", [judged], [None], data), claims_page("T", [], [], data)):
        table = page.partition("Published numbers")[2].partition("</table>")[0]
        assert 0 < table.index("0.500 [abstract]") < table.index("0.500 [notes]")
        assert "no published number" not in table


def test_tcp_baselines_include_both_minimum_rtos() -> None:
    """A setting with a baseline of 10 ms minimum RTO also has the one of 2 ms."""
    for name in SETS:
        for setting in (each for claim in claims_of([name]) for each in claim.settings):
            for policy in setting.policies:
                if policy.endswith("-10ms"):
                    assert policy.replace("-10ms", "-2ms") in setting.policies


def test_no_drop_variant_disables_selective_drop_only() -> None:
    """Packets are tagged even without selective drop."""
    tables = load_tables("demo")
    whole, arm = (apply_policy(tables, POLICIES[key]) for key in ("dlcp-chosen", "dlcp-chosen-no-drop"))
    assert arm["job"] == whole["job"]
    assert {key for key in whole["switch"] if whole["switch"][key] != arm["switch"][key]} == {"selective_drop"}


def test_unknown_claims_and_sets_are_refused_with_alternatives() -> None:
    with pytest.raises(ScenarioError, match="S1, S2"):
        claims_of(["dlcp"], ["S99"])
    with pytest.raises(ScenarioError, match="dlcp, mlt, regimes"):
        claims_of(["nothing"])
    assert [claim.id for claim in claims_of(["dlcp"], ["s4"])] == ["S4"]


def test_run_store_removes_a_damaged_result(tmp_path: Path) -> None:
    """An unreadable result counts as missing and is removed."""
    store = RunStore(tmp_path)
    assert store.figures("a") is None
    small_result().write(store.place("a"))
    found = store.figures("a")
    assert found is not None and found["p99"] == 40.0
    (store.place("a") / "messages.parquet").write_bytes(b"no")
    assert store.figures("a") is None and not store.place("a").exists()


def test_run_store_measures_a_result_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed results, changed measuring code and damaged figures cause a new measurement."""
    measured: list[Path] = []
    read = Result.read
    monkeypatch.setattr(Result, "read", lambda place: (measured.append(place), read(place))[1])
    store, place = RunStore(tmp_path), RunStore(tmp_path).place("a")
    small_result().write(place)
    found = store.figures("a")
    assert store.figures("a") == found and len(measured) == 1

    (kept,) = (each for each in place.parent.iterdir() if each != place)
    kept.write_bytes(kept.read_bytes()[:-9])
    assert store.figures("a") == store.figures("a") == found and len(measured) == 2

    monkeypatch.setattr(source_digests, "measuring_digest", lambda: "another")
    assert store.figures("a") == found and len(measured) == 3

    os.utime(place / "messages.parquet", ns=(1, 1))
    assert store.figures("a") == found and len(measured) == 4


def test_claims_page_holds_verdict_and_figures_without_links() -> None:
    """The page has no script and no external link."""
    judged = _judged(_p99(0.3, "a < b"))
    text = claims_page("Title", [judged], [None], {"command": "gradwire reproduce dlcp", **as_dict([judged])})
    assert "It is fast." in text and "a &lt; b" in text and "0.300 (0.200 to 0.400)" in text
    assert not re.search(r"(src|href)=.http", text)
    (entry,) = as_dict([judged])["claims"]  # type: ignore[misc]
    assert entry["verdict"] == SHOWN and entry["expectations"][0]["values"] == [0.2, 0.3, 0.4]


def test_lost_magnitude_matches_hand_computed_value() -> None:
    """Half of one chunk and all of the next are lost; the tensor's mean |g| is the reference."""
    trace = load_trace("resnet50")
    tensor = max(range(len(trace.tensors)), key=lambda each: trace.tensors[each].numel)
    phase = trace.phases["early"]
    mean, _ = trace.magnitudes(phase[1], tensor)
    columns = messages(
        tensor=[tensor] * 5, iteration=[1] * 5, part=[0, 1, 0, 0, 0], received_bytes=[1000] * 5, lost_bytes=[0] * 5
    )
    missing = {"message": [1], "packet": [0], "packets": [1], "offset": [512], "bytes": [1536]}
    table: dict[str, Any] = {"name": "j", "trace": "resnet50", "phase": "early"}
    table["exchange"] = {"kind": "parameter_server", "partition": "4KiB"}
    result = Result.build({"name": "r"}, {"messages": columns, "missing": missing})
    object.__setattr__(result, "scenario", _toml(table))
    first = 4096 // 1024  # the second part begins with this chunk
    actual = mean[first] * 128 + mean[first + 1] * 256
    chunks = trace.tensors[tensor].numel / 256
    overall = sum(mean[: int(chunks)]) / int(chunks)
    assert lost_magnitude(result) == pytest.approx(actual / (384 * overall), rel=1e-3)


def _toml(job: dict[str, Any]) -> str:
    exchange = job.pop("exchange")
    lines = ["[[job]]", *(f'{key} = "{value}"' for key, value in job.items()), "[job.exchange]"]
    return "\n".join([*lines, *(f'{key} = "{value}"' for key, value in exchange.items()), ""])


def test_repeated_reproduction_simulates_missing_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reproduction simulates only the run whose folder was deleted."""
    from gradwire.studies.reproduce import runner as door

    monkeypatch.setattr("gradwire.studies.reproduce.claims_of", lambda name, chosen: [_claim(_p99(9.0))])
    made: list[Path] = []
    simulated = door._simulated
    monkeypatch.setattr(door, "_simulated", lambda scenario, place: (made.append(place), simulated(scenario, place))[1])
    out = tmp_path / "out"
    (judged,) = door.Reproduction(["dlcp"], out, seeds=2).run()
    assert len(made) == 4 and judged.verdict == SHOWN
    assert {"page.html", "claims.json", "T1.png", "runs"} <= {path.name for path in out.iterdir()}
    shutil.rmtree(made[1])
    (again,) = door.Reproduction(["dlcp"], out, seeds=2).run()
    assert made[4:] == [made[1]] and again.figures == judged.figures


def test_reproduce_refuses_an_unrelated_folder(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ResultError, match="does not hold a reproduction"):
        Reproduction(["dlcp"], tmp_path, claims=["S2"]).run()


def test_times_of_lee_claims_follow_from_the_node_model() -> None:
    """Compute scale, optimizer and batch of every setting, and the times of a step without a network."""
    claims = claims_of(["lee"], ["E3", "E4", "E5"])
    settings = {setting.name: setting.changes["job"] for claim in claims for setting in claim.settings}
    assert len(settings) == 10
    scalings = {}
    for name, job in settings.items():
        model, nodes = name.split(", ")[0], job["workers"]
        scaling = scaling_of(model, KNL if "KNL" in name else HASWELL)
        scalings[name] = scaling
        trace = load_trace(job["trace"])
        own_ps = fmean(Timetable.of(trace.iterations[each]).backward_end for each in trace.phases["early"])
        assert job["compute_scale"] * own_ps == pytest.approx(scaling.compute_ps(nodes), rel=1e-5)
        assert parse_time(job["optimizer"]) == pytest.approx(scaling.node.optimizer_ps(scaling.work), rel=1e-3)
        assert job["exchange"]["batch"] * nodes == scaling.pictures
        assert job["trace"] == scaling.trace
    alone = [expect for claim in claims for expect in claim.expects if "speed-up over" in expect.text]
    assert len(alone) == 12
    for expect in alone:
        scaling, cores = scalings[expect.settings[0]], 1 if "one core" in expect.text else None
        per = 2516.36 if expect.condition == "calibration" else 1
        alone_ps = scaling.alone_ps(cores)
        assert expect.value(lambda *_, step_ps=alone_ps / 64: step_ps) == pytest.approx(64 / per, rel=1e-5)


def test_speed_ups_of_lee_claims_have_limits_on_both_sides() -> None:
    for claim in claims_of(["lee"], ["E3", "E4", "E5"]):
        for expect in claim.expects:
            is_predicted = expect.published is not None and expect.published.within == 0.15
            assert is_predicted or (expect.low is not None and expect.high is not None), expect.text


def test_panel_titles_of_a_claim_figure_do_not_overlap() -> None:
    """Four settings have long names, and medians in the thousands are written out."""
    names = [f"VGG-16, {nodes} nodes of a dragonfly" for nodes in (16, 64, 128, 256)]
    settings = tuple(Setting(name, "incast-mix", ("dlcp", "ndp"), BURST) for name in names)
    claim = Claim("T1", "[ours]", "It is fast.", "twice as fast", settings, (), "p99")
    runs = runs_of_claim(claim, 1, False)
    judged = judge(claim, runs, {run.key: {"p99": 1.66e12 if run.policy == "ndp" else 2e9} for run in runs})
    figure = claim_figure(judged)
    assert figure is not None
    figure.draw_without_rendering()
    boxes = [panel.title.get_window_extent() for panel in figure.axes]
    assert [panel.title.get_text().replace("\n", " ") for panel in figure.axes] == names
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))
    assert {text.get_text() for text in figure.axes[0].texts} == {" 2", " 1,660 (cut off)"}


def test_panels_keep_their_width_beside_long_policy_names() -> None:
    """Two columns have rows of different policies, and every title stays within the figure."""
    (claim,) = (each for each in claims_of(["lee"], ["E1"]))
    runs = runs_of_claim(claim, 1, True)
    figure = claim_figure(judge(claim, runs, {run.key: {"iteration": 1.66e12} for run in runs}))
    assert figure is not None
    figure.draw_without_rendering()
    for panel in figure.axes:
        inside = panel.get_window_extent().width
        assert inside > 0.2 * figure.bbox.width, panel.title.get_text()
        title = panel.title.get_window_extent()
        assert figure.bbox.x0 <= title.x0 and title.x1 <= figure.bbox.x1


def test_basis_text_names_traces_device_and_project_goals() -> None:
    """The text names replayed traces and the device of training runs; `[ours]` marks goals of this project."""
    assert (
        basis_text({"traces": ["a", "b"], "device": "cuda"})
        == "Replayed traces: a, b. Training runs computed on: cuda."
    )
    assert basis_text({"traces": ["a"], "device": ""}) == "Replayed trace: a."
    assert basis_text({"traces": [], "device": ""}) == "No trace is replayed."
    assert basis_text({"traces": [], "device": "", "left_out": ["A", "B, C"]}).endswith("leaves out: A; B, C.")
    (ours,) = claims_of(["dlcp"], ["S10"])
    (published,) = claims_of(["dlcp"], ["S4"])
    assert published_words(ours.published, ours.source) == "loss <= p for every message [ours]"
    assert "[ours]" in published.source and "[ours]" not in published_words(published.published, published.source), (
        "only its limits are"
    )


def test_source_digest_covers_the_code_that_measures_figures() -> None:
    root = Path(source_digests.__file__).parents[1]
    folders = {(root / package).resolve() for package in source_digests.MEASURING_PACKAGES}
    for code in ("analysis/metrics.py", "studies/reproduce/measures.py"):
        assert folders & set((root / code).resolve().parents), code
