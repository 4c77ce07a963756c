"""NCCL's topology files: devices, rates, nearest NICs, tables of a scenario; what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire.cli import app
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario
from gradwire.topology.nccl_topology import HostDescription, read_nccl_topology

SWITCHES = """\
<!-- a virtual machine -->
<system version="1">
  <cpu numaid="0" arch="x86_64">
    <pci busid="s1" class="0x060400" link_speed="8 GT/s" link_width="16">
      <pci busid="g0" class="0x030200" link_speed="8 GT/s" link_width="16"/>
      <pci busid="g1" class="0x030200" link_speed="8 GT/s" link_width="16"/>
      <pci busid="n0" class="0x020000" link_speed="8 GT/s" link_width="16"/>
    </pci>
    <pci busid="s2" class="0x060400">
      <pci busid="g2" class="0x030200" link_speed="5 GT/s" link_width="8"/>
      <pci busid="n1" class="0x020700"/>
    </pci>
    <pci busid="nvs" class="0x068000"/>
  </cpu>
  <cpu numaid="1"><pci busid="g3" class="0x030200"/><pci busid="?"/></cpu>
</system>
"""
DUMPED = """\
<system version="1"><cpu numaid="1">
<pci busid="a" class="0x030200"><gpu dev="3" sm="90"><nvlink target="x" count="10"/><nvlink target="y" count="8"/></gpu></pci>
<pci busid="b" class="0x030200"><gpu dev="4" sm="90"><nvlink target="x" count="18"/></gpu></pci>
<pci busid="c" class="0x020700"><nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci>
<pci busid="d" class="0x020700"><nic><net name="mlx5_1" dev="1" speed="200000"/></nic></pci>
</cpu></system>
"""


def read(folder: Path, text: str) -> HostDescription:
    path = folder / "topo.xml"
    path.write_text(text)
    return read_nccl_topology(path)


def test_devices_by_their_class(tmp_path: Path) -> None:
    host = read(tmp_path, SWITCHES)
    assert [(gpu.name, gpu.numa, gpu.path) for gpu in host.gpus] == [
        ("g0", "0", ("s1",)),
        ("g1", "0", ("s1",)),
        ("g2", "0", ("s2",)),
        ("g3", "1", ()),
    ]
    assert [nic.name for nic in host.nics] == ["n0", "n1"]
    assert host.gpus[0].pci_bps == round(8e9 * 16 * 128 / 130) and host.gpus[2].pci_bps == 5e9 * 8 * 0.8
    assert [[nic.name for nic in host.nearest_nics(gpu)] for gpu in host.gpus] == [["n0"], ["n0"], ["n1"], ["n0", "n1"]]
    assert host.skipped == {"NVSwitches": 1, "PCI devices of class unknown": 1}
    assert host.tables() == {"topology": {"kind": "rail", "cards": 2}, "host": {"gpus": 4}}


def test_rates_of_a_dumped_topology(tmp_path: Path) -> None:
    host = read(tmp_path, DUMPED)
    assert [(gpu.name, gpu.nvlink_bps) for gpu in host.gpus] == [("gpu3", 18 * 20.6 * 8e9), ("gpu4", 18 * 20.6 * 8e9)]
    tables = host.tables()
    assert tables["link"] == {"rate": "200Gbps"}  # the slower NIC
    assert tables["host"] == {"gpus": 2, "scale_up_rate": "2966400000000bps"}
    tables["topology"] |= {"hosts": 4, "spines": 1}
    traffic = {"traffic": [{"kind": "permutation", "name": "p", "size": "1KB"}]}
    assert build_scenario({"name": "host", **tables, **traffic}).host.gpus == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("<system><cpu></system>", "is not XML"),
        ("<graph/>", "begins with <graph>"),
        ('<system version="1"><cpu numaid="0"><pci busid="x"/></cpu></system>', "no accelerator and no NIC"),
        ('<!DOCTYPE s [<!ENTITY a "b">]><system>&a;</system>', "declares a document type"),
        ("", "is not XML"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        read(tmp_path, text)


def test_the_command(tmp_path: Path) -> None:
    read(tmp_path, DUMPED)
    done = CliRunner().invoke(app, ["trace", "host", str(tmp_path / "topo.xml")])
    assert done.exit_code == 0 and "gpu3: CPU node 1, NVLink 2,966 Gbit/s; nearest NICs: mlx5_0, mlx5_1" in done.stdout
    done = CliRunner().invoke(app, ["trace", "host", str(tmp_path / "topo.xml"), "--json"])
    assert len(json.loads(done.stdout)["nics"]) == 2
    assert CliRunner().invoke(app, ["trace", "host", str(tmp_path / "none")]).exit_code == 2
