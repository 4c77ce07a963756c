"""The commands `gradwire collective` and `gradwire list presets`: table, JSON, comparison, and bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.busbw.collectives import COLLECTIVES
from gradwire.studies.busbw.presets import list_presets, load_preset

RUN = CliRunner()
FAST = ("--on", "h100-rail", "--ranks", "16", "--ideal")


def output(*words: str) -> str:
    result = RUN.invoke(app, ["collective", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_collective_prints_consistent_rows(collective: str) -> None:
    told = json.loads(output(collective, "-b", "1M", "-e", "256M", "-f", "16", *FAST, "--json"))
    factor = COLLECTIVES[collective].factor(16)
    rows = told["outcomes"][0]["rows"]
    assert [row["size"] for row in rows] == [1 << 20, 1 << 24, 1 << 28]
    for row in rows:
        assert row["algbw"] == pytest.approx(row["size"] / row["time_us"] / 1000)
        assert row["busbw"] == pytest.approx(row["algbw"] * factor)


def test_table_reads_back_as_nccl_tests_output(tmp_path: Path) -> None:
    from gradwire.studies.busbw.nccl_tests_log import read_log

    (tmp_path / "log").write_text(
        output("all_reduce", "-b", "8", "-e", "1G", "-f", "8", *FAST).replace("  algorithm", "")
    )
    text = (tmp_path / "log").read_text().splitlines()
    (tmp_path / "log").write_text(
        "\n".join(line if line.startswith("#") else line.rsplit(maxsplit=1)[0] for line in text)
    )
    rows = read_log(tmp_path / "log").rows
    assert [row.size for row in rows] == [8**power for power in range(1, 11)]


def test_presets_policies_and_a_plot_side_by_side(tmp_path: Path) -> None:
    lines = output(
        "all_reduce", "-b", "1M", "-e", "1M", *FAST, "--policy", "all", "--plot", str(tmp_path / "p.png")
    ).splitlines()
    assert lines[1].split()[3:] == ["adaptive", "static", "spray"]
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    both = output("all_reduce", "-b", "1M", "-e", "1M", *FAST, "--on", "a100-hdr").splitlines()
    assert both[1].split()[3:] == ["h100-rail", "a100-hdr"]


def test_overrides_change_the_outcome() -> None:
    def busbw(*words: str) -> float:
        told = json.loads(
            output(
                "all_gather", "-b", "4G", "-e", "4G", "--ideal", "--on", "a100-hdr", "--ranks", "16", "--json", *words
            )
        )
        return float(told["outcomes"][0]["rows"][0]["busbw"])

    assert busbw("--set", "network.link.rate=100Gbps") == pytest.approx(busbw() / 2, rel=0.05)
    assert busbw("--set", "constants.efficiency=0.5") == pytest.approx(busbw() * 0.5 / 0.9676, rel=0.05)


BAD = {
    "all_reduse": (("all_reduse", *FAST), "did you mean"),
    "preset": (("all_reduce", "--on", "h100", "--ranks", "16"), "no such preset"),
    "ranks": (("all_reduce", "--on", "h100-rail", "--ranks", "12"), "multiple of 8"),
    "one rank": (("all_reduce", "--on", "h100-rail", "--ranks", "1"), "2 to"),
    "size": (("all_reduce", *FAST, "-b", "8Q"), "-b: 8Q"),
    "sizes": (("all_reduce", *FAST, "-b", "1G", "-e", "1M"), "begins above its end"),
    "both": (("all_reduce", *FAST, "-f", "2", "-i", "8"), "two ways"),
    "type": (("all_reduce", *FAST, "-d", "floaty"), "no such data type"),
    "op": (("all_reduce", *FAST, "-o", "plus"), "no such reduction"),
    "algo": (("all_reduce", *FAST, "--algo", "Circle"), "Circle"),
    "nothing": (("all_gather", *FAST, "--algo", "Tree"), "nothing is left"),
    "policy": (("all_reduce", *FAST, "--policy", "ecpm"), "no policy"),
    "override": (("all_reduce", *FAST, "--set", "host.gpu=3"), "gpus"),
    "network": (("all_reduce", *FAST, "--set", "network.link.rat=3"), "rat"),
    "module": (("all_reduce", *FAST, "--set", 'network.modules=["x.py"]'), "modules"),
    "log": (("all_reduce", *FAST, "--measured", "/nowhere"), "no such file"),
    "plot": (("all_reduce", *FAST, "--plot", "x.txt"), "figure format"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_has_one_message(name: str) -> None:
    words, expected = BAD[name]
    result = RUN.invoke(app, ["collective", *words])
    assert result.exit_code == 2 and expected in " ".join(result.output.split()), result.output


def test_a_log_of_another_collective_is_refused(tmp_path: Path) -> None:
    header = "#  size  count  time  algbw  busbw\n  8  2  1.0  0.0  0.0\n"
    (tmp_path / "log").write_text("# Collective test starting: alltoall_perf\n" + header)
    result = RUN.invoke(app, ["collective", "all_reduce", *FAST, "--measured", str(tmp_path / "log")])
    assert result.exit_code == 2 and "alltoall" in result.output


def test_presets_are_listed_and_name_their_sources() -> None:
    text = RUN.invoke(app, ["list", "presets"]).stdout
    for name in list_presets():
        preset = load_preset(name)
        assert name in text and preset.sources
        for policy in preset.policy:
            load_preset(name, policy=policy.name).scenario(preset.topology.hosts_per_group + 1)


def test_a_preset_file_reports_its_mistakes(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('description = "x"\nfabric_class = "verb"\n')
    with pytest.raises(ScenarioError) as caught:
        load_preset(str(tmp_path / "mine.toml"))
    assert {mistake.path for mistake in caught.value.mistakes} >= {"fabric_class", "host", "topology", "network"}
