"""The study of measured clusters: recovery of known constants, independence of clusters left out, bundled data."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.busbw.machine import Constants, HostSpec
from gradwire.studies.busbw.presets import FABRIC_CLASSES, fitted_tables, load_preset
from gradwire.studies.clusters.fit import FABRIC_RANGES, Fitted, fit, predicted
from gradwire.studies.clusters.leave_out import errors_of, judge, leave_out, modelled, remark_on
from gradwire.studies.clusters.measurements import Sweep, one_per_octave, read_measurements, sweeps_of
from gradwire.studies.clusters.simai_ratio import PUBLISHED, ring_ratios
from gradwire.studies.clusters.study import bundled_measurements

TRUTH = Constants(launch_us=6.0, step_us=9.0, flush_us=20.0, efficiency=0.8)
DGX = HostSpec(gpus=8, generation="hopper", nics=8, nic_gbytes=50.0)
SIZES = np.array([2.0**power for power in range(3, 34)])


def sweep(cluster: str, hosts: int, truth: Constants = TRUTH, fabric_class: str = "verbs") -> Sweep:
    """Return times of the model itself with known constants."""
    empty = Sweep(cluster, fabric_class, "", "", "", "all_reduce", "test", DGX, hosts, SIZES, SIZES, 1, 1.0)
    return replace(empty, time_us=predicted(empty, truth)[0])


def test_fit_recovers_known_constants() -> None:
    fitted = fit([sweep("a", 2), sweep("b", 4), sweep("c", 16)])
    found = fitted.constants("verbs", "hopper")
    judged = judge([sweep("d", 8)], fitted)
    assert found.efficiency == pytest.approx(0.8, rel=0.05)
    assert errors_of(judged).median < 0.03 and errors_of(judged).within == 1.0


def test_a_cluster_left_out_has_no_influence_on_its_prediction() -> None:
    others = [sweep("a", 2), sweep("b", 4)]
    outcomes = []
    for odd in (TRUTH, replace(TRUTH, efficiency=0.2, step_us=90.0)):
        sweeps = [*others, sweep("odd", 8, odd)]
        judged = list(leave_out(sweeps, fit(sweeps), lambda each: each.cluster))
        outcomes.append(next(each for each in judged if each.sweep.cluster == "odd").predicted_us)
    assert (outcomes[0] == outcomes[1]).all()


def test_an_unknown_fabric_class_has_nccls_own_constants() -> None:
    fitted = Fitted({"verbs": TRUTH}, {})
    assert {name: getattr(fitted.constants("new", "hopper"), name) for name in FABRIC_RANGES} == {
        name: getattr(Constants(), name) for name in FABRIC_RANGES
    }


def test_bundled_measurements_are_licensed_and_complete() -> None:
    rows = read_measurements(bundled_measurements())
    assert {row["license"] for row in rows} == {"MIT-0", "UPL-1.0", "BSD-3-Clause", "Apache-2.0"}
    sweeps = modelled(sweeps_of(rows))
    assert len({each.cluster for each in sweeps if each.hosts > 1}) == 6
    for each in sweeps:
        assert (np.diff(each.size) > 0).all() and (each.time_us > 0).all()
    one = next(each for each in sweeps if each.cluster == "OCI BM.GPU.H100.8")
    assert one.busbw.max() == pytest.approx(471, abs=2)  # as its source prints


def test_presets_have_constants_of_every_class() -> None:
    tables = fitted_tables()
    assert set(tables["fabric"]) == set(FABRIC_CLASSES)
    assert {"ampere", "hopper", "blackwell"} <= set(tables["accelerator"])
    constants = load_preset("a100-hdr").fitted_constants()
    assert constants.peer_us == tables["fabric"]["verbs"]["peer_us"]
    assert constants.fill == tables["accelerator"]["ampere"]["fill"]
    known = {"error_median", "error_p95", *FABRIC_RANGES}
    assert all(set(values) <= known for values in tables["fabric"].values())


def test_the_study_writes_a_page_with_every_judged_cluster(tmp_path: Path) -> None:
    lines = bundled_measurements().read_text().splitlines()
    kept = [line for line in lines[1:] if line.startswith(("OCI", "DeepOps", "AWS p4de"))]
    (tmp_path / "few.csv").write_text("\n".join([lines[0], *kept, ""]))
    result = CliRunner().invoke(
        app,
        [
            "reproduce",
            "clusters",
            "--measurements",
            str(tmp_path / "few.csv"),
            "--out",
            str(tmp_path / "out"),
            "--json",
        ],
    )
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert {each["cluster"] for each in told["sweeps"]} == {"OCI BM.GPU.H100.8", "DeepOps DGX A100", "AWS p4de"}
    errors = [
        abs(measured / guess - 1)
        for each in told["sweeps"]
        for size, measured, guess in zip(each["size"], each["measured_us"], each["predicted_us"], strict=True)
        if size >= 1 << 20
    ]
    assert told["cluster_left_out"]["median"] == pytest.approx(float(np.median(errors)), abs=1e-4)
    page = (tmp_path / "out" / "page.html").read_text()
    assert all(name in page for name in ("OCI BM.GPU.H100.8", "DeepOps DGX A100", "AWS p4de", "95th percentile"))
    tables = tomllib.loads((tmp_path / "out" / "constants.toml").read_text())
    assert set(tables["fabric"]) == {"verbs", "efa-1"} and "error_median" in tables["fabric"]["verbs"]


@pytest.mark.parametrize("words", [["clusters", "dlcp"], ["clusters", "--full"], ["dlcp", "--measurements", "x.csv"]])
def test_options_of_claims_are_refused_for_clusters(words: list[str]) -> None:
    assert CliRunner().invoke(app, ["reproduce", *words]).exit_code == 2


def test_ratios_rise_with_the_size_and_fall_with_the_hosts() -> None:
    """The published table has this order, and its plateau; ours agrees with both, and within 0.05 at 16 GiB."""
    for name in ("a100-hdr", "h100-rail"):
        table = np.array([ring_ratios(name, hosts) for hosts in PUBLISHED])
        assert (np.diff(table, axis=1) > 0).all() and (np.diff(table, axis=0) < 0).all()
    for hosts, published in PUBLISHED.items():
        assert ring_ratios("a100-hdr", hosts)[-1] == pytest.approx(published[-1], abs=0.05)


def test_linear_sweeps_are_thinned() -> None:
    assert one_per_octave([float(size) for size in range(100, 1100, 10)]) == [130.0, 260.0, 510.0, 1020.0]


def test_damaged_measurements_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("cluster,size_bytes\nx,1\n")
    with pytest.raises(ScenarioError, match="lacks the columns"):
        read_measurements(tmp_path / "a.csv")
    rows = read_measurements(bundled_measurements())[:3]
    rows[1]["time_us"] = "soon"
    with pytest.raises(ScenarioError, match="line 3"):
        sweeps_of(rows)


def test_omitted_clusters_have_reasons() -> None:
    assert remark_on("PICO Leonardo (CINECA)", "omitted") and not remark_on("Nebius", "omitted")
