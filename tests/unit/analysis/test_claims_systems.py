"""Claims of the systems and of the loop: times to an accuracy by hand, plans that share trainings, costs that are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from gradwire.result_store.training_result import PRICES, TrainingResult
from gradwire.studies.report.other_sections import claims_page
from gradwire.studies.reproduce import claims_of
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import saved_at_share, saved_or_not
from gradwire.studies.reproduce.claims_page import as_dict
from gradwire.studies.reproduce.measures import MEASURE_LABELS, RATES, TIMES, costs, first_crossing, unit_of
from gradwire.studies.reproduce.plots.claim_plots import claim_figure
from gradwire.studies.reproduce.run_plan import all_runs, runs_of_claim
from gradwire.studies.reproduce.verdicts import NOT_SHOWN, SHOWN, effects_of, judge, value_text

DATA = {"pictures": "synthetic"}
MS = 10**9
SYSTEMS = "ResNet-8, 10,000 pictures, 2 epochs"


def learned(accuracies: dict[int, float], clock: int = 0, pulled: int = 600) -> TrainingResult:
    """Four steps of two workers that push 100 bytes each in a step; encoding takes 8 ms of all, the server 4."""
    steps = [
        {"step": n, "sent_bytes": 200, "pulled_bytes": pulled, "clock_ps": (n + 1) * clock, "lost": 0.0}
        for n in range(4)
    ]
    scores = [{"step": n, "accuracy": a, "clock_ps": n * clock} for n, a in accuracies.items()]
    return TrainingResult(
        {"workers": 2, "encode_cpu_s": 0.008, "server_cpu_s": 0.004}, {"steps": steps, "scores": scores}
    )


def test_first_crossing_matches_hand_computed_values() -> None:
    """The curve rises, falls and rises again; the first crossing is interpolated linearly."""
    curve = [(0.0, 0.1), (10.0, 0.3), (20.0, 0.2), (30.0, 0.5)]
    assert first_crossing(curve, 0.2) == pytest.approx(5) and first_crossing(curve, 0.3) == pytest.approx(10)
    assert first_crossing(curve, 0.4) == pytest.approx(20 + 10 * 2 / 3)
    assert first_crossing(curve, 0.6) == inf and first_crossing(curve, 0.1) == 0 and first_crossing([], 0.1) == inf


def test_training_costs_match_hand_computed_values() -> None:
    """Accuracy rises from 0.1 by chance to 0.5 after 4 steps, so 0.3 takes two steps. A step takes 5 ms at 10 Gbps,
    encoding 1 ms and the server 1 ms."""
    found = costs(learned({4: 0.5}, clock=MS), 0.3, {"10Gbps": 5 * MS})
    assert (found["pulled"], found["traffic"]) == (300, 400)
    assert found["encode"] == pytest.approx(MS) == found["server"]
    assert found["steps_to"] == pytest.approx(2) and found["to"] == pytest.approx(2 * MS) and found["clock"] == MS
    assert found["to_10Gbps"] == pytest.approx(10 * MS) and found["worked_10Gbps"] == pytest.approx(14 * MS)
    assert (found["accuracy@4"], found["clock@4"]) == (0.5, 4 * MS)
    named = {name for name in found if "@" not in name}
    assert named <= set(MEASURE_LABELS) and "to" not in costs(learned({4: 0.5}), 0.3, {})
    assert [found[f"steps_to@{percent}"] for percent in (20, 50, 51)] == pytest.approx([1, 4, inf])
    assert "steps_to" not in costs(learned({4: 0.5}), 0.0, {"1Gbps": 1})


def test_time_to_a_share_of_dense_accuracy_is_rounded_to_a_percent() -> None:
    """Dense training ends at 49.6 %; 80 % of that are 40 %, which it reaches after 10 steps of 3 ms, the arm after 12 of
    2 ms: a fifth of the time is saved. It never reaches 60 %, which neither does."""
    figures = {
        ("dense", "accuracy"): 0.496, ("dense", "steps_to@40"): 10.0, ("arm", "steps_to@40"): 12.0,
        ("dense", "step_1Gbps"): 3.0, ("arm", "step_1Gbps"): 2.0, ("arm", "steps_to@50"): inf, ("dense", "steps_to@50"): 50.0,
    }  # fmt: skip

    def at(setting: str, arm: str, measure: str) -> float:
        return figures[arm, measure]

    assert saved_at_share("s", "arm", "dense", "1Gbps", "dense", 0.8)(at) == pytest.approx(0.2)
    assert saved_at_share("s", "arm", "dense", "1Gbps", "dense", 1.0)(at) == -inf


def test_unreached_accuracy_is_reported_as_never() -> None:
    never = costs(learned({4: 0.2}), 0.3, {"1Gbps": MS})
    assert never["steps_to"] == inf == never["to_1Gbps"] and value_text(inf, "time") == "never"
    figures = {"mine": inf, "theirs": 2.0, "half": 1.0}

    def at(setting: str, arm: str, measure: str) -> float:
        return figures[arm]

    assert saved_or_not("s", "half", "theirs", "to")(at) == 0.5
    assert saved_or_not("s", "mine", "theirs", "to")(at) == -inf and saved_or_not("s", "theirs", "mine", "to")(at) == 1
    assert saved_or_not("s", "mine", "mine", "to")(at) == 0


def _claim(arm: str = "slimdp") -> Claim:
    setting = Setting(
        SYSTEMS, "train-tiny", ("dense", arm), {"training": {"network": "ideal", "steps": 4}}, baseline="dense",
        target=0.3, rates=RATES, shown="accuracy",
    )  # fmt: skip
    expects = tuple(
        Expect("time saved", saved_or_not(SYSTEMS, arm, "dense", f"to_{rate}"), (SYSTEMS,), 0.0, None, "share",
               f"{rate.removesuffix('Gbps')} Gbps, {SYSTEMS}")
        for rate in RATES
    )  # fmt: skip
    return Claim("T", "[ours]", "It is faster.", "nothing", (setting,), expects, "to_1Gbps")


def _judged(accuracy: float, step: int) -> Any:
    """Dense comes to 0.3 after 2 of 4 steps of 10 ms at 1 Gbps and 1 ms else; the other one has another accuracy at the end
    and steps of another time at 1 Gbps, and of as long ones else."""
    claim = _claim()
    runs, figures = runs_of_claim(claim, 2, False), {}
    for run in runs:
        dense = run.policy == "dense"
        prices = {rate: (10 if dense else step) * MS if rate == "1Gbps" else MS for rate in RATES}
        figures[run.key] = costs(learned({4: 0.5 if dense else accuracy}), 0.3, prices)
        figures[run.key]["accuracy"] = 0.5 if dense else accuracy
    return judge(claim, runs, figures)


def test_verdicts_compare_times_to_the_target_accuracy() -> None:
    """The variant takes half the time at 1 Gbps, learns more slowly, or never reaches the accuracy."""
    good = _judged(0.5, 5)
    assert good.verdict == SHOWN and [each.spread.median for each in good.findings] == pytest.approx([0.5, 0, 0])
    slow = _judged(0.1 + 0.8 / 3, 5)
    assert [each.spread.median for each in slow.findings] == pytest.approx([0.25, -0.5, -0.5]) and slow.verdict != SHOWN
    never = _judged(0.2, 1)
    assert never.verdict == NOT_SHOWN and never.findings[0].measured == "never"
    values = json.loads(json.dumps(as_dict([never]), allow_nan=False))["claims"][0]
    assert values["expectations"][0]["median"] is None and values["effects"][0]["measure"] == "accuracy"
    assert "never" in claims_page("T", [never], [None], {"command": "how", **as_dict([never])})


def test_claim_has_accuracy_effects_and_time_curves() -> None:
    """Each rate has a panel with a curve per variant, and one panel shows bytes."""
    judged = _judged(0.4, 5)
    (effect,) = effects_of(judged)
    assert effect.change.mean == pytest.approx(-0.1)
    figure = claim_figure(judged)
    assert figure is not None and len(figure.axes) == 4
    dense, other, _ = figure.axes[0].lines
    assert list(dense.get_xdata()) == pytest.approx([0, 40]) and list(dense.get_ydata()) == pytest.approx([10, 50])
    assert list(other.get_xdata()) == pytest.approx([0, 20]) and list(other.get_ydata()) == pytest.approx([10, 40])
    assert list(figure.axes[3].lines[0].get_xdata()) == pytest.approx([0, 4 * 400 / 1e6])


def test_every_measure_has_a_unit() -> None:
    assert set(TIMES) <= set(MEASURE_LABELS) and {unit_of(each) for each in MEASURE_LABELS} <= {
        "time",
        "count",
        "ratio",
        "share",
    }
    assert unit_of("to_10Gbps") == "time" and unit_of("traffic") == "count"


def test_system_claims_share_baseline_training_runs() -> None:
    """Dense training is trained once for all three sets, and reducers for two; target and rates do not change keys."""
    quick = {
        name: all_runs([runs_of_claim(each, 3, False, DATA) for each in claims_of([name])])
        for name in ("mp2", "mipd", "slimdp")
    }
    keys = [{run.key for run in runs if run.setting == SYSTEMS} for runs in quick.values()]
    assert len(keys[0] & keys[2]) == 3 * 7 and len(keys[0] & keys[1] & keys[2]) == 3 * 2, "three seeds"
    assert all(
        run.scenario.training.steps is None or run.scenario.training.steps <= 60
        for runs in quick.values()
        for run in runs
    )
    for name, runs in quick.items():
        full = all_runs([runs_of_claim(each, 3, True, DATA) for each in claims_of([name])])
        assert len(full) > len(runs) and any(run.scenario.training.epochs == 20 for run in full)
    (one, *_), (other, *_) = runs_of_claim(_claim(), 1, False), runs_of_claim(_claim(), 1, False)
    assert one.key == other.key and one.rates == RATES and one.target == 0.3


def test_shared_run_keeps_rates_and_target_of_any_claim() -> None:
    """One claim requests times and the other does not, in either order."""
    claim = _claim()
    (setting,) = claim.settings
    plain = replace(claim, settings=(replace(setting, rates=(), target=0.0),))
    for order in ((claim, plain), (plain, claim)):
        runs = all_runs([runs_of_claim(each, 1, False) for each in order])
        assert len(runs) == 2 and all(run.rates == RATES and run.target == 0.3 for run in runs)


def test_loop_claims_train_over_the_simulated_network() -> None:
    """Loss bounds apply to pushes only, except in rings, where either half may have one, and in two policies with bounded
    pulls. The DCTCP run with small packets is shared by three settings."""
    runs = all_runs([runs_of_claim(each, 2, False, DATA) for each in claims_of(["loop"])])
    assert len(runs) == 2 * (6 + 3 + 3 + 2 + 11 + 4 + 7 + 6)
    halves = {run.policy: (run.scenario.job[0].push_bound, run.scenario.job[0].pull_bound) for run in runs}
    assert (halves["ring-switches-scatter"], halves["ring-switches-gather"]) == ((0.2, 0.0), (0.0, 0.2))
    assert (halves["ring-lossless"], halves["ring-switches"]) == ((0.0, 0.0), (0.2, 0.2))
    for run in all_runs([runs_of_claim(each, 2, True, DATA) for each in claims_of(["loop"])]):
        assert run.scenario.training.network == "simulated"
        assert bool(run.target) is not ("40 steps" in run.setting)
        assert run.scenario.training.spread is ("spread" in run.policy)
        pulls = run.policy.startswith("ring") and not run.policy.endswith(("lossless", "scatter"))
        assert bool(run.scenario.job[0].pull_bound) is (pulls or run.policy in ("dlcp-pull", "dlcp-paper"))


def test_asynchronous_loop_variants_differ_in_transport_and_tagging() -> None:
    runs = {run.policy: run.scenario for run in runs_of_claim(claims_of(["loop"])[-1], 1, False, DATA)}
    assert len(runs) == 6
    for kind in ("asynchronous", "mipd"):
        dctcp, dlcp, flat = (runs[f"{kind}-{key}"] for key in ("dctcp", "dlcp", "flat"))
        assert {each.training.system.kind for each in (dctcp, dlcp, flat)} == {
            kind
        } and not dctcp.training.system.together
        assert [each.transport.kind for each in (dctcp, dlcp, flat)] == ["dctcp", "dlcp", "dlcp"]
        assert [each.job[0].tagging.layer_priority for each in (dctcp, dlcp, flat)] == [False, True, False]
        assert dlcp.job[0].tagging.magnitude and flat.job[0].tagging.magnitude
        assert [each.job[0].push_bound for each in (dctcp, dlcp, flat)] == [0, 0.1, 0.1]
        assert {each.transport.payload for each in (dctcp, dlcp, flat)} == {512}


def test_eager_stop_variants_differ_in_send_order_only() -> None:
    """Variants of one seed have the same scenario except for the send order."""
    claim = next(each for each in claims_of(["loop"]) if each.id == "L6")
    runs = {run.policy: run for run in runs_of_claim(claim, 1, False, DATA)}
    for end in ("", "-deep", "-deep-fifth", "-path-fifth", "-tags"):
        found = []
        for order in ("rotating", "sequential", *(() if end else ("random",))):
            scenario = runs[f"eager-{order}{end}"].scenario
            assert scenario.transport.stop_policy == "eager" and scenario.training.keep_missing
            assert scenario.job[0].tagging.important_fraction == (0.5 if end == "-tags" else 0)
            assert scenario.switch.selective_drop is (end in ("", "-tags"))
            assert scenario.job[0].push_bound == (0.2 if end.endswith("fifth") else 0.1)
            assert scenario.load_balancing == ("ecmp" if end == "-path-fifth" else "spray_random")
            tables = scenario.model_dump()
            tables["transport"].pop("send_order")
            found.append(tables)
        assert all(each == found[0] for each in found)


def test_lossless_variants_reuse_the_accuracy_curve_of_the_baseline() -> None:
    """DCTCP reaches the target after 90 of 100 steps, which take 9 ms each over persistent connections. Packets of
    512 bytes have a separate expectation, the last one."""
    claims = {each.id: each for each in claims_of(["loop"])}
    claim, figures = claims["L2"], {}
    for run in runs_of_claim(claims["L2"], 1, False, DATA):
        found = {"clock": 10.0 * MS, "accuracy": 0.3}
        if run.policy == "dctcp-kept-2ms":
            found["clock"] = 9.0 * MS
        if "2 epochs" in run.setting:
            found |= {
                "steps_to": 90.0,
                "to": 900.0 * MS if run.policy.startswith("dctcp-2ms") else 405.0 * MS,
                "accuracy@100": 0.3,
                "clock@100": 1000.0 * MS,
            }
        figures[run.key] = found
    judged = judge(claim, runs_of_claim(claim, 1, False, DATA), figures)
    assert [each.spread.median for each in judged.findings] == pytest.approx([0.55, 0.55, 0.55, 0.5])
    figure = claim_figure(judged)
    assert figure is not None
    ends = {line.get_label(): line.get_xdata()[-1] for line in figure.axes[0].lines if len(line.get_xdata()) == 2}
    assert ends["DCTCP, connections kept, RTOmin 2 ms"] == pytest.approx(900) and ends[
        "DCTCP, RTOmin 2 ms"
    ] == pytest.approx(1000)


def test_legends_stay_within_their_subfigure() -> None:
    """Each setting has a row, and long names do not push its legend beyond the row."""
    claim, figures = next(each for each in claims_of(["loop"]) if each.id == "L1"), {}
    for run in runs_of_claim(claim, 1, False, DATA):
        found = {"accuracy": 0.3, "clock": 10.0 * MS, "steps_to": 90.0, "to": 900.0 * MS}
        figures[run.key] = found | {"accuracy@100": 0.3, "clock@100": 1000.0 * MS}
    figure = claim_figure(judge(claim, runs_of_claim(claim, 1, False, DATA), figures))
    assert figure is not None and len(figure.subfigs) == 2
    figure.set_dpi(120)  # as it is written
    figure.canvas.draw()
    for part in figure.subfigs:
        (legend,) = part.legends
        inner, outer = legend.get_window_extent(), part.bbox
        assert outer.x0 <= inner.x0 < inner.x1 <= outer.x1 and outer.y0 <= inner.y0 < inner.y1 <= outer.y1
        assert len(legend.get_texts()) == len(part.axes[0].lines) - 1, "all lines but that of the target"


def test_step_times_are_stored_and_only_missing_runs_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step times are stored beside training runs; only the deleted run is computed again."""
    pytest.importorskip("torch")
    import shutil

    from gradwire.studies.reproduce import runner as door
    from gradwire.studies.training import step_time_model

    setting = Setting(
        "tiny", "train-tiny", ("dense", "slimdp"), {
            "training": {"network": "ideal", "steps": 4, "size": 8, "samples": 100, "batch": 2, "augment": False},
            "job": {"workers": 2},
        }, baseline="dense", target=0.01, rates=("1Gbps",), computing="5ms",
    )  # fmt: skip
    claim = Claim("T", "[ours]", "s", "p", (setting,), (), "accuracy")
    monkeypatch.setattr("gradwire.studies.reproduce.claims_of", lambda name, chosen: [claim])
    asked: list[tuple[float, float]] = []
    monkeypatch.setattr(
        step_time_model, "synchronous_step_times",
        lambda scenario, pushed, pulled, rates, computing: (asked.append((pushed, pulled)), dict.fromkeys(rates, 7 * MS))[1],
    )  # fmt: skip
    (first,) = door.Reproduction(["mp2"], tmp_path / "out", seeds=1).run()
    assert len(asked) == 2 and (4 * 75_290, 4 * 75_290) in asked
    figures = first.figures["tiny", "slimdp", 1]
    assert (
        figures["step_1Gbps"] == 7 * MS and figures["steps_to"] == 0 and figures["encode"] > 0 and figures["server"] > 0
    )
    kept = sorted((tmp_path / "out" / "runs").glob(f"*/{PRICES}"))
    assert len(kept) == 2 and json.loads(kept[0].read_text()) == {"5ms": {"1Gbps": 7 * MS}}
    shutil.rmtree(kept[0].parent)
    door.Reproduction(["mp2"], tmp_path / "out", seeds=1).run()
    assert len(asked) == 3 and kept[0].is_file()
