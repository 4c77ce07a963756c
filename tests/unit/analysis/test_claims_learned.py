"""Claims about accuracy: intervals by hand, pairs of seeds, runs that are trainings, and what a picture shows of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradwire.analysis.confidence_intervals import confidence_interval, half_width
from gradwire.result_store.training_result import CHECKPOINT, TrainingResult
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.report.other_sections import claims_page
from gradwire.studies.reproduce import TRAINING_SETS, claims_of
from gradwire.studies.reproduce.claim import Claim, Expect, Setting
from gradwire.studies.reproduce.claim_values import difference
from gradwire.studies.reproduce.claims_page import as_dict
from gradwire.studies.reproduce.plots.claim_plots import claim_figure
from gradwire.studies.reproduce.plots.effect_plots import effects_figure
from gradwire.studies.reproduce.policies import POLICIES, label_of, with_seed
from gradwire.studies.reproduce.run_plan import all_runs, runs_of_claim
from gradwire.studies.reproduce.run_store import RunStore
from gradwire.studies.reproduce.verdicts import (
    CONDITION,
    NOT_SHOWN,
    SHOWN,
    UNRESOLVED,
    Judgement,
    SeedRange,
    effects_of,
    judge,
)

TINY = {
    "training": {
        "model": "resnet8", "data": "synthetic", "size": 8, "samples": 200, "batch": 4, "steps": 3, "augment": False,
        "network": "ideal",
    },
    "job": {"workers": 2},
}  # fmt: skip


def _claim(*expects: Expect, arms: tuple[str, ...] = ("lossless", "p0.1", "p0.3"), data: Any = "") -> Claim:
    setting = Setting("tiny", "train-tiny", arms, TINY, data=data, baseline="lossless")
    return Claim("T9", "[ours]", "It is harmless.", "nothing", (setting,), expects, "accuracy")


def _less(arm: str, low: float | None = None, high: float | None = None) -> Expect:
    return Expect(
        f"{arm} less", difference("tiny", arm, "lossless"), ("tiny",), low, high, "points", arm, interval=True
    )


def _judged(*expects: Expect, arms: tuple[str, ...] = ("lossless", "p0.1", "p0.3")) -> Judgement:
    """Without loss 0.50, 0.60 and 0.55 by seed; with 10 % a hundredth less, two, and three; with 30 % ten less and one
    hundredth more or less."""
    claim = _claim(*expects, arms=arms)
    runs = runs_of_claim(claim, 3, False)
    clean = {1: 0.50, 2: 0.60, 3: 0.55}
    less = {"lossless": [0, 0, 0], "p0.1": [0.01, 0.02, 0.03], "p0.3": [0.10, 0.11, 0.09]}
    figures = {
        run.key: {"accuracy": clean[run.seed] - less.get(run.policy, [0.01, 0.02, 0.03])[run.seed - 1]} for run in runs
    }
    return judge(claim, runs, figures)


def test_confidence_intervals_match_hand_computed_values() -> None:
    """The deviation of 1, 2, 3 is 1; the t quantile for two degrees of freedom is 4.303."""
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert confidence_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.4843, 2 + 2.4843), abs=1e-3)
    assert confidence_interval([5.0, 5.0]) == (5.0, 5.0) and half_width([7.0]) == math.inf
    assert half_width([0.0, 1.0] * 20) == pytest.approx(2.042 * math.sqrt(10 / 39) / math.sqrt(40))
    assert SeedRange((-0.01, -0.02, -0.03)).interval_text("points") == "-2.00 ± 2.48 points"
    assert SeedRange((0.5, 0.6)).interval_text("share") == "55.0 ± 63.5 %" and "one seed" in SeedRange(
        (0.5,)
    ).interval_text("share")


def test_confidence_interval_covers_the_mean_in_95_percent_of_draws() -> None:
    """The interval of five normal draws holds the true mean in 95 of 100 cases."""
    import numpy as np

    draws = np.random.default_rng(1).normal(size=(2000, 5))
    held = sum(low <= 0 <= high for low, high in map(confidence_interval, draws.tolist()))
    assert 0.935 < held / 2000 < 0.965


def test_verdicts_depend_on_confidence_intervals() -> None:
    """A loss of 10 % costs 2 ± 2.48 points, a loss of 30 % costs 10 ± 2.48."""
    assert _judged(_less("p0.1", low=-0.05)).verdict == SHOWN
    assert _judged(_less("p0.3", high=-0.05)).verdict == SHOWN
    assert _judged(_less("p0.3", low=-0.05)).verdict == NOT_SHOWN
    alone = _judged(_less("p0.1", low=-0.03))
    assert alone.verdict == UNRESOLVED and alone.findings[0].holds is None, (
        "the limit is within, though the mean is above"
    )
    assert alone.reason == "Unresolved: p0.1 (-2.00 ± 2.48 points; expected >= -3.00 points)."
    mixed = _judged(_less("p0.1", low=-0.03), _less("p0.3", high=-0.05))
    assert mixed.verdict == CONDITION and mixed.reason.startswith("It holds for: p0.3. Unresolved: p0.1")
    assert _judged(_less("p0.1", low=-0.03), _less("p0.3", low=-0.05)).verdict == NOT_SHOWN


def test_effects_are_paired_by_seed_and_resolved_by_interval() -> None:
    """Seeds differ by ten points, paired differences of a variant by two."""
    first, second = effects_of(_judged())
    assert (first.policy, first.change.values) == ("p0.1", pytest.approx((-0.01, -0.02, -0.03)))
    assert not first.resolved and second.resolved
    assert second.figure.mean == pytest.approx(0.45) and second.interval[1] < -0.07


def test_texts_of_an_effects_figure_do_not_overlap() -> None:
    """Three settings have long names, and all texts lie within the figure."""
    names = [f"ResNet-8, {pictures},000 pictures, 6 epochs" for pictures in (10, 50, 100)]
    arms = ("lossless", "exactly", "tail")
    settings = tuple(Setting(name, "train-tiny", arms, TINY, baseline="lossless") for name in names)
    claim = Claim("T9", "[ours]", "It is harmless.", "nothing", settings, (), "accuracy")
    runs = runs_of_claim(claim, 2, False)
    figure = effects_figure(judge(claim, runs, {run.key: {"accuracy": 0.5 - 0.01 * run.seed} for run in runs}))
    assert figure is not None
    figure.draw_without_rendering()
    shown = [panel for panel in figure.axes if panel.get_visible()]
    assert [panel.get_title().replace("\n", " ") for panel in shown] == names
    texts = [panel.title for panel in shown] + [label for panel in shown for label in panel.get_yticklabels()]
    texts += [panel.xaxis.label for panel in shown if panel.get_xlabel()] + figure.texts
    boxes = [text.get_window_extent() for text in texts]
    for number, box in enumerate(boxes):
        assert (
            figure.bbox.x0 <= box.x0
            and box.x1 <= figure.bbox.x1
            and figure.bbox.y0 <= box.y0
            and box.y1 <= figure.bbox.y1
        )
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_effects_figure_draws_more_settings_than_colours() -> None:
    """The full tolerance set has nine settings on an axis."""
    arms = ("lossless", "p0.1", "p0.3")
    settings = tuple(Setting(f"setting {n}", "train-tiny", arms, TINY, baseline="lossless") for n in range(9))
    claim = Claim("T9", "[ours]", "It is harmless.", "nothing", settings, (), "accuracy")
    runs = runs_of_claim(claim, 2, False)
    figures = {(run.setting, run.policy, run.seed): {"accuracy": 0.5 + 0.1 * run.seed} for run in runs}
    figure = effects_figure(Judgement(claim, SHOWN, "", (), figures))
    assert figure is not None and len(figure.axes[0].containers) == 9


def test_two_line_variant_labels_do_not_overlap() -> None:
    """Labels that are too long for one line are wrapped."""
    claim = next(each for each in claims_of(["loop"]) if each.id == "L6")
    runs = runs_of_claim(claim, 2, False, {"pictures": "synthetic"})
    figure = effects_figure(judge(claim, runs, {run.key: {"accuracy": 0.5 - 0.01 * run.seed} for run in runs}))
    assert figure is not None
    figure.draw_without_rendering()
    names = [label for panel in figure.axes for label in panel.get_yticklabels()]
    assert sum("\n" in name.get_text() for name in names) > 1
    boxes = [name.get_window_extent() for name in names]
    assert not any(box.overlaps(other) for number, box in enumerate(boxes) for other in boxes[:number])


def test_claims_page_and_json_contain_effects() -> None:
    judged = _judged(_less("p0.1", low=-0.03))
    page = claims_page("Title", [judged], [None], {"command": "how", "seeds": 3, **as_dict([judged])})
    assert "-2.00 ± 2.48 points" in page and "95 % intervals" in page and "minimum time-outs" not in page
    assert page.count("<td>unresolved</td>") == 3, "the claim, the expectation, and the effect of 10 %"
    assert page.count("<td>resolved</td>") == 1 and "differs from zero</th>" in page
    (entry,) = json.loads(json.dumps(as_dict([judged])))["claims"]
    assert [each["resolved"] for each in entry["effects"]] == [False, True]
    assert entry["effects"][1]["changes"] == pytest.approx([-0.1, -0.11, -0.09])


def test_claim_figure_draws_curves_over_loss_rates_and_rows_otherwise() -> None:
    curve = claim_figure(_judged())
    assert curve is not None and [axes.get_xlabel() for axes in curve.axes] == ["packets lost, %"]
    line = curve.axes[0].lines[0]
    assert list(line.get_xdata()) == pytest.approx([0, 10, 30]) and list(line.get_ydata()) == pytest.approx(
        [0, -2, -10]
    )
    rows = claim_figure(_judged(arms=("lossless", "front", "tail")))
    assert rows is not None and [each.get_text() for each in rows.axes[0].get_yticklabels()] == [
        "50 %, front half of the layers", "20 %, always the last ones",
    ]  # fmt: skip


def test_variants_of_a_seed_share_model_data_and_network_seeds() -> None:
    """Variants of the same seed share the model, the order of data and the losses."""
    runs = {(run.policy, run.seed): run.scenario.training for run in runs_of_claim(_claim(), 2, False)}
    for seed in (1, 2):
        assert {(t.model_seed, t.data_seed) for (_, s), t in runs.items() if s == seed} == {(seed, seed)}
        assert {t.network.seed for (arm, s), t in runs.items() if s == seed and arm != "lossless"} == {seed}
    tables: dict[str, Any] = {"training": {"network": "ideal"}}
    assert with_seed(tables, 3)["training"]["network"] == "ideal" and "model_seed" not in tables["training"]


def test_claims_without_required_data_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"tiny.*requires data: pictures.*--pictures"):
        runs_of_claim(_claim(data="pictures"), 1, False)
    (run, *_) = runs_of_claim(_claim(data="pictures"), 1, False, {"pictures": "./cifar10"})
    assert run.scenario.training.data == "./cifar10"


def test_training_runs_are_shared_across_claims_and_keyed_by_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lossless variants are one run for all claims; the simulator's sources do not change keys."""
    data = {"pictures": "synthetic", "text": "synthetic"}
    plans = [runs_of_claim(claim, 2, False, data) for name in TRAINING_SETS for claim in claims_of([name])]
    clean = {run.key for plan in plans for run in plan if run.policy == "lossless" and "ResNet-8" in run.setting}
    assert len(clean) == 2, "one for each seed"
    assert len(all_runs(plans)) < sum(map(len, plans))
    before = [run.key for run in runs_of_claim(_claim(), 1, False)]
    monkeypatch.setattr("gradwire.studies.reproduce.run_plan.engine_digest", lambda: "other")
    assert [run.key for run in runs_of_claim(_claim(), 1, False)] == before
    monkeypatch.setattr("gradwire.studies.reproduce.run_plan.MODEL_VERSIONS", {"vgg16": 7})
    without = [run.key for run in runs_of_claim(_claim(), 1, False)]
    assert not set(before) & set(without), "that of its own model counts"
    monkeypatch.setattr("gradwire.studies.reproduce.run_plan.MODEL_VERSIONS", {})
    assert [run.key for run in runs_of_claim(_claim(), 1, False)] == without, "that of another does not"
    monkeypatch.setattr("gradwire.studies.reproduce.run_plan.TRAINING_VERSION", -1)
    assert not set(without) & {run.key for run in runs_of_claim(_claim(), 1, False)}


def test_policies_and_variants_have_labels() -> None:
    assert label_of("dlcp") == "DLCP" and label_of("p0.1") == "10 % lost"


def test_ring_variants_lose_the_same_share_of_packets() -> None:
    """Every variant loses 5 % of all packets."""
    torch = pytest.importorskip("torch")
    from gradwire.training.exchange.ring_allreduce import RingLayout
    from gradwire.training.networks.builtin_networks import Random
    from tests.support.training_cases import pushed_round

    layout = RingLayout((16_000,), ((0,),), 8, 4)
    for key, arm in POLICIES.items():
        if "exchange" in arm.job and "network" in arm.set.get("training", {}):
            rule = dict(arm.set["training"]["network"])  # type: ignore[index]
            mask = Random(**rule).carry(pushed_round(layout)).hops.masks[0]
            assert float((~mask).float().mean()) == pytest.approx(0.05, rel=0.02), key
            assert mask.dtype == torch.bool


def _train(run: Any, place: Path) -> None:
    from gradwire.studies.training.run import train

    train(run.scenario, place)


def test_run_store_handles_finished_unfinished_and_damaged_training_runs(tmp_path: Path) -> None:
    """A finished run yields figures and its checkpoint is removed; an unfinished run keeps its checkpoint."""
    pytest.importorskip("torch")
    store, (run, *_) = RunStore(tmp_path), runs_of_claim(_claim(), 1, False)
    _train(run, store.place(run.key))
    place = store.place(run.key)
    whole = TrainingResult.read(place)
    half = replace(whole, summary={**whole.summary, "steps_done": 2})
    half.write(place, (place / "scenario.toml").read_text())
    assert store.figures(run.key) is None and (place / CHECKPOINT).exists()
    whole.write(place, (place / "scenario.toml").read_text())
    found = store.figures(run.key)
    assert found is not None and not (place / CHECKPOINT).exists()
    assert found["accuracy"] == whole.scores[-1]["accuracy"] and found["lost"] == 0 and found["apart"] == 0
    assert found["step_bytes"] == 4 * 75_290
    (place / "steps.parquet").write_bytes(b"no")
    assert store.figures(run.key) is None and not place.exists()


def test_repeated_reproduction_trains_missing_runs_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reproduction trains only the deleted one of six runs."""
    pytest.importorskip("torch")
    import shutil

    from gradwire.studies.reproduce import runner as door

    monkeypatch.setattr(
        "gradwire.studies.reproduce.claims_of", lambda name, chosen: [_claim(_less("p0.3", low=-1.0), data="pictures")]
    )
    made: list[Path] = []
    trained = door._trained
    monkeypatch.setattr(door, "_trained", lambda scenario, place: (made.append(place), trained(scenario, place))[1])
    heard: list[str] = []
    reproduction = door.Reproduction(["tolerance"], tmp_path / "out", seeds=2, data={"pictures": "synthetic"})
    (judged,) = reproduction.run(on_progress=lambda share, words: heard.append(words))
    assert len(made) == 6 and judged.verdict == SHOWN and not any("compiling" in each for each in heard)
    assert "--pictures synthetic" in (tmp_path / "out" / "page.html").read_text()
    shutil.rmtree(made[3])
    (second,) = reproduction.run()
    assert made[6:] == [made[3]] and second.figures == judged.figures
