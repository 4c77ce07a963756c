"""Which packets a training lost: by hand, of servers and of a ring; what is damaged; the map of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from gradwire.scenarios.errors import ResultError
from gradwire.studies.reproduce import claims_of
from gradwire.studies.reproduce.lost_packets import LostPackets, lost_figures, lost_packets
from gradwire.studies.reproduce.measures import MEASURE_LABELS
from gradwire.studies.reproduce.plots.claim_plots import claim_figure
from gradwire.studies.reproduce.plots.loss_maps import map_of
from gradwire.studies.reproduce.run_plan import runs_of_claim
from gradwire.studies.reproduce.run_store import RunStore
from gradwire.studies.reproduce.verdicts import judge

COLUMNS = ("step", "round", "way", "hop", "worker", "tensor", "packet", "packets")
SHORT = (
    "training.steps=3", "training.samples=200", "training.size=8", "training.batch=4", "job.workers=2",
    "training.keep_missing=true", "training.network={loss=0.3}",
)  # fmt: skip
RING = ('job.exchange={kind="ring"}', "job.servers=0", "job.push_bound=0.0", 'training.network={loss=0.3, way="both"}')


def kept(
    folder: Path,
    rows: list[tuple[Any, ...]],
    steps: int,
    tensors: list[int],
    buckets: list[list[int]],
    workers: int = 2,
) -> Path:
    """Tables as a training leaves them, with packets of two values."""
    said = {
        "workers": workers, "payload": 8, "exchange": "ring" if buckets else "parameter_server",
        "tensors": [[f"t{number}", numel] for number, numel in enumerate(tensors)],
    }  # fmt: skip
    columns = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    types = {name: pyarrow.string() if name == "way" else pyarrow.int64() for name in COLUMNS}
    table = pyarrow.table({name: pyarrow.array(columns[name], types[name]) for name in COLUMNS})
    parquet.write_table(
        table.replace_schema_metadata({b"pushed": json.dumps(said).encode(), b"buckets": json.dumps(buckets).encode()}),
        folder / "missing.parquet",
    )
    parquet.write_table(pyarrow.table({"step": list(range(steps))}), folder / "rounds.parquet")
    return folder


def test_lost_packets_of_servers_match_hand_computed_values(tmp_path: Path) -> None:
    """Two workers push tensors of 4 and 2 packets (the second of 3 values) in 2 steps. Worker 0 loses packets 1 and 2
    in both steps and the last packet in the second; worker 1 loses packet 0 of the second tensor in the first. Losses
    of pulls do not count."""
    rows = [
        (0, 0, "push", -1, 0, 0, 1, 2), (1, 0, "push", -1, 0, 0, 1, 2), (1, 0, "push", -1, 0, 1, 1, 1),
        (0, 0, "push", -1, 1, 1, 0, 1), (0, 0, "pull", -1, 1, 0, 0, 4),
    ]  # fmt: skip
    found = lost_packets(kept(tmp_path, rows, 2, [8, 3], []))
    assert found is not None and found.lost.shape == (2, 1, 2, 6) and found.messages == ((0, 4), (4, 6))
    assert found.lost[0, 0].astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]]
    assert found.lost[1, 0].astype(int).tolist() == [[0, 1, 1, 0, 0, 1], [0] * 6]
    assert found.matrix().ravel().tolist() == pytest.approx([5 / 12, 1 / 12])
    assert found.repeated_share() == pytest.approx(2 / 3)
    assert found.often_lost_share() == pytest.approx(4 / 12), "two in both steps, and two in one of two"
    assert found.runs() == pytest.approx((2 * 2 * 3 / 4 + 2 * 1) / 4), (
        "pairs are 1.5 runs by chance, single ones 1; four runs"
    )
    assert found.correlation() == pytest.approx(-1), "2 and 3 of 6, 1 and 0"
    assert found.worst() == pytest.approx(5 / 3)


def test_lost_packets_of_a_ring_match_hand_computed_values(tmp_path: Path) -> None:
    """Three workers exchange buckets of 10 and 2 values over 4 hops, in segments of 2 packets and 1."""
    rows = [(0, 0, "hop", 3, 2, 0, 0, 2), (0, 0, "hop", 0, 1, 1, 0, 1)]
    folder = kept(tmp_path, rows, 1, [2, 10], [[1], [0]], workers=3)
    found = lost_packets(folder)
    assert found is not None and found.lost.shape == (1, 4, 3, 3) and found.messages == ((0, 2), (2, 3))
    wanted = np.zeros((3, 4))
    wanted[2, 3], wanted[1, 0] = 2 / 3, 1 / 3
    assert found.matrix() == pytest.approx(wanted)
    figures = lost_figures(folder)
    assert figures["lost@2,3"] == pytest.approx(2 / 3) and figures["lost@0,0"] == 0 and "again_lost" not in figures
    assert figures["worst_place"] == pytest.approx(8) and {each for each in figures if "@" not in each} <= set(
        MEASURE_LABELS
    )
    again = map_of(figures)
    assert again is not None and again == pytest.approx(wanted)


def test_loss_statistics_distinguish_random_and_constant_losses() -> None:
    """Random losses have runs of chance length and are uncorrelated between workers. The same tail lost in every step
    is one run per step, repeated, and without a correlation."""
    lost = np.random.default_rng(1).random((400, 1, 4, 50)) < 0.1
    chance = LostPackets(lost, ((0, 50),))
    assert chance.runs() == pytest.approx(1, abs=0.02) and chance.repeated_share() == pytest.approx(0.1, abs=0.01)
    assert chance.correlation() == pytest.approx(0, abs=0.05) and chance.often_lost_share() == 0
    tail = np.zeros((3, 1, 4, 50), dtype=bool)
    tail[..., 40:] = True
    always = LostPackets(tail, ((0, 50),))
    assert (always.repeated_share(), always.often_lost_share(), always.correlation(), always.worst()) == (
        1,
        0.2,
        None,
        1,
    )
    assert always.runs() == pytest.approx(10 * 41 / 50)
    common = lost.copy()
    common[200:] = False
    assert (LostPackets(common, ((0, 50),)).correlation() or 0) > 0.5, "there are steps in which nobody loses anything"
    hops = np.concatenate([lost, np.zeros_like(lost)], axis=1)
    assert LostPackets(hops, ((0, 50),)).correlation() == chance.correlation(), (
        "a hop in which nobody loses anything says nothing"
    )


def test_loss_figures_are_zero_without_losses_and_absent_without_a_table(tmp_path: Path) -> None:
    assert lost_packets(tmp_path) is None and lost_figures(tmp_path) == {}
    found = lost_figures(kept(tmp_path, [], 2, [8], []))
    assert found == {"often_lost": 0, "lost@0,0": 0, "lost@1,0": 0}


@pytest.mark.parametrize("row", [(9, 0, "push", -1, 0, 0, 0, 1), (0, 0, "push", -1, 0, 9, 0, 1)])
def test_damaged_missing_tables_are_reported(tmp_path: Path, row: tuple[Any, ...]) -> None:
    """A table may name an unknown step or tensor, or be unreadable."""
    with pytest.raises(ResultError, match=r"missing\.parquet: is damaged"):
        lost_packets(kept(tmp_path, [row], 2, [8], []))
    (tmp_path / "missing.parquet").write_bytes(b"nothing")
    with pytest.raises(ResultError, match=r"missing\.parquet: is damaged"):
        lost_packets(tmp_path)


def test_loss_maps_share_a_colour_scale_and_do_not_overlap() -> None:
    """Maps show the first seed, and variants with servers have none. The colour scale ends at the largest share of
    all maps."""
    claim = next(each for each in claims_of(["loop"]) if each.id == "L8")
    figures = {}
    for run in runs_of_claim(claim, 2, False, {"pictures": "synthetic"}):
        hops = 14 if run.setting.startswith("ResNet-8 in a ring") else 1
        found = {"accuracy": 0.3, "runs": 1.5, "together": 0.2, "worst_place": 2.0, "lost": 0.02}
        most = 0.5 if run.policy == "ring-switches-drawn" and run.seed == 1 else 0.1
        if run.policy != "ring-lossless":
            found |= {
                f"lost@{worker},{hop}": most * hop / 13 if hops > 1 else 0.9
                for worker in range(8)
                for hop in range(hops)
            }
        figures[run.key] = found
    figure = claim_figure(judge(claim, runs_of_claim(claim, 2, False, {"pictures": "synthetic"}), figures))
    assert figure is not None
    maps = {panel.get_title().split("\n")[0]: panel.images[0] for panel in figure.axes if panel.get_title()}
    assert list(maps) == [
        "ring, loss left to switches", "ring, as many bytes spread evenly", "ring, loss left to switches, tags drawn",
        "ring, as many bytes spread evenly, tags drawn",
    ]  # fmt: skip
    assert {each.get_clim() for each in maps.values()} == {(0.0, 50.0)}
    drawn = maps["ring, loss left to switches"].get_array()
    assert drawn is not None and drawn.shape == (8, 14) and drawn[3, 13] == pytest.approx(10) and drawn[3, 0] == 0
    figure.draw_without_rendering()
    boxes = [panel.title.get_window_extent() for panel in figure.axes if panel.get_title()]
    for number, box in enumerate(boxes):
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes[:number])


@pytest.mark.parametrize(("more", "shape"), [((), (3, 1, 2)), (RING, (3, 2, 2))])
def test_loss_figures_match_the_missing_table_of_a_training_run(
    tmp_path: Path, more: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    """The packets counted equal those of the table, and the run store adds the loss figures."""
    pytest.importorskip("torch")
    from gradwire.scenarios.loading.load import load_scenario
    from gradwire.studies.training.run import train

    train(load_scenario("train-tiny", policy="dlcp", set=[*SHORT, *more]), tmp_path / "runs" / "key")
    found = lost_packets(tmp_path / "runs" / "key")
    table = parquet.read_table(tmp_path / "runs" / "key" / "missing.parquet").to_pylist()
    assert found is not None and found.lost.shape[:3] == shape and found.lost.mean() == pytest.approx(0.3, abs=0.1)
    assert int(found.lost.sum()) == sum(row["packets"] for row in table)
    assert all(found.lost[row["step"], max(row["hop"], 0), row["worker"]].any() for row in table)
    figures = RunStore(tmp_path).figures("key")
    assert figures is not None and {"accuracy", "again_lost", "runs", "lost@1,0"} <= set(figures)
