"""Reads NCCL's topology file of a host (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE): accelerators, NVLink, PCI and NICs.

    <system version="1"><cpu numaid="0"><pci busid="..." class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="..." class="0x030200"><gpu dev="0" sm="90"><nvlink target="..." count="18"/></gpu></pci>
      <pci busid="..." class="0x020700"><nic><net name="mlx5_0" dev="0" speed="400000"/></nic></pci>
    </pci></cpu></system>

Elements are those of NCCL [code: src/graph/xml.cc]; files for virtual machines have PCI devices alone, of which the
class tells accelerators (0x0300, 0x0302, 0x0380, 0x1200) from NICs (0x0200, 0x0207). NVLink has NCCL's rates per link
[code: src/graph/topo.h].
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.files import require_regular_file

EXPECTED = "a topology file of NCCL"
MAX_BYTES, MAX_DEVICES = 1 << 24, 1 << 12
GPU_CLASSES, NIC_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200"), ("0x0200", "0x0207")
NVSWITCH_CLASS = "0x0680"
NVLINK_GBS = ((100, 40.1), (90, 20.6), (86, 12.0), (70, 20.0), (60, 18.0))
"""GB/s of a link in each direction, from a compute capability on; 86 is that capability alone."""
_SPEED = re.compile(r"(\d+(?:\.\d+)?)\s*GT/s")
_STRUCTURE = ("system", "cpu", "pci", "nic")


@dataclass(frozen=True)
class HostDevice:
    """An accelerator or a NIC. `path` : bus ids of the PCI switches above it, from the CPU on; `numa` : the CPU's node.

    pci_bps : rate of its PCI link. nvlink_bps : of all its NVLinks. net_bps : of the NIC. 0 if the file has none.
    """

    name: str
    numa: str
    path: tuple[str, ...]
    pci_bps: int = 0
    nvlink_bps: int = 0
    net_bps: int = 0


@dataclass(frozen=True)
class HostDescription:
    """The accelerators and NICs of a host; `skipped` counts elements that are neither."""

    gpus: tuple[HostDevice, ...]
    nics: tuple[HostDevice, ...]
    skipped: Counter[str] = field(default_factory=Counter)

    def nearest_nics(self, gpu: HostDevice) -> list[HostDevice]:
        """Return the NICs that share most PCI switches with an accelerator, or else its CPU; all if none does."""

        def shared(nic: HostDevice) -> int:
            common = 0
            for ours, theirs in zip(gpu.path, nic.path, strict=False):
                if ours != theirs:
                    break
                common += 1
            return 1 + common if nic.numa == gpu.numa else 0

        most = max(map(shared, self.nics), default=0)
        return [nic for nic in self.nics if shared(nic) == most]

    def tables(self) -> dict[str, dict[str, Any]]:
        """Return the tables of a scenario for hosts like this one: NICs, accelerators, and their rates where known."""
        tables: dict[str, dict[str, Any]] = {"topology": {"kind": "rail", "cards": max(len(self.nics), 1)}}
        rates = {nic.net_bps for nic in self.nics if nic.net_bps}
        if rates:
            tables["link"] = {"rate": _rate(min(rates))}
        if len(self.gpus) > 1:
            tables["host"] = {"gpus": len(self.gpus)}
            for key, values in (
                ("scale_up_rate", [gpu.nvlink_bps for gpu in self.gpus]),
                ("pcie_rate", [gpu.pci_bps for gpu in self.gpus]),
            ):
                if min(values) > 0 and (key != "pcie_rate" or len(self.nics) < len(self.gpus)):
                    tables["host"][key] = _rate(min(values))
        return tables


def read_nccl_topology(path: str | Path) -> HostDescription:
    """Read a topology file of NCCL.

    Raises ScenarioError for a file that is not XML, or not of NCCL, and for one without accelerators and NICs.
    """
    path = Path(path)
    try:
        data = require_regular_file(path).read_bytes()[: MAX_BYTES + 1]
        root = _parsed(data, str(path))
    except OSError as error:
        raise ScenarioError(f"cannot be read ({error.strerror or error})", str(path), EXPECTED) from None
    if root.tag != "system":
        raise ScenarioError(f"begins with <{root.tag[:60]}>", str(path), f"{EXPECTED}, which begins with <system>")
    skipped: Counter[str] = Counter()
    gpus: list[HostDevice] = []
    nics: list[HostDevice] = []
    pending: list[tuple[ElementTree.Element, str, tuple[str, ...], int]] = [(root, "", (), 0)]
    while pending:
        element, numa, above, pci_bps = pending.pop()
        if len(gpus) + len(nics) > MAX_DEVICES:
            raise ScenarioError(f"more than {MAX_DEVICES} devices", str(path), "a host")
        if element.tag == "cpu":
            numa = element.get("numaid", "")
        elif element.tag == "pci":
            pci_bps = _pci_bps(element)
            kind = element.get("class", "")[:6].lower()
            children = {child.tag for child in element}
            if "gpu" in children or kind in GPU_CLASSES:
                gpus.append(_gpu(element, numa, above, pci_bps))
                continue
            if kind in NIC_CLASSES and not children:
                nics.append(HostDevice(element.get("busid", "?"), numa, above, pci_bps))
                continue
            if not children:
                known = "NVSwitches" if kind == NVSWITCH_CLASS else f"PCI devices of class {kind or 'unknown'}"
                skipped[known] += 1
            above = (*above, element.get("busid", "?"))
        elif element.tag == "net":
            nics.append(_nic(element, numa, above, pci_bps))
        elif element.tag not in _STRUCTURE:
            skipped[f"elements {str(element.tag)[:40]}"] += 1
        pending += [(child, numa, above, pci_bps) for child in reversed(element)]
    if not gpus and not nics:
        left_out = ", ".join(f"{count} x {what}" for what, count in skipped.most_common(3))
        raise ScenarioError(f"has no accelerator and no NIC (left out: {left_out or 'nothing'})", str(path), EXPECTED)
    return HostDescription(tuple(gpus), tuple(nics), skipped)


def _parsed(data: bytes, where: str) -> ElementTree.Element:
    if len(data) > MAX_BYTES:
        raise ScenarioError("has more than 16 MiB", where, EXPECTED)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise ScenarioError("declares a document type or entities", where, f"{EXPECTED}, which has none")
    try:
        return ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise ScenarioError(f"is not XML ({str(error)[:80]})", where, EXPECTED) from None


def _gpu(element: ElementTree.Element, numa: str, above: tuple[str, ...], pci_bps: int) -> HostDevice:
    links, per_link = 0, 20.0
    name = element.get("busid", "?")
    for gpu in element.iter("gpu"):
        name = f"gpu{gpu.get('dev', '')}"
        capability = _number(gpu.get("sm", ""))
        per_link = next(
            (gbs for least, gbs in NVLINK_GBS if capability >= least and (least != 86 or capability == 86)), 20.0
        )
        links = sum(_number(link.get("count", "1")) for link in gpu.iter("nvlink"))
    return HostDevice(name, numa, above, pci_bps, nvlink_bps=round(min(links, 1000) * per_link * 8e9))


def _nic(element: ElementTree.Element, numa: str, above: tuple[str, ...], pci_bps: int) -> HostDevice:
    """Return a NIC; its speed in the file is in Mbit/s."""
    name = element.get("name") or f"net{element.get('dev', '')}"
    return HostDevice(name, numa, above, pci_bps, net_bps=min(_number(element.get("speed", "")), 10**8) * 10**6)


def _pci_bps(element: ElementTree.Element) -> int:
    """Return the bits per second of a PCI link: GT/s and lanes, with the coding of its generation (8b/10b up to 5 GT/s,
    128b/130b beyond)."""
    speed = _SPEED.search(element.get("link_speed", ""))
    if speed is None or len(speed[1]) > 8:
        return 0
    transfers = float(speed[1]) * 1e9
    return round(transfers * min(_number(element.get("link_width", "")), 64) * (0.8 if transfers <= 5e9 else 128 / 130))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0


def _rate(bps: int) -> str:
    return f"{bps // 10**9}Gbps" if bps % 10**9 == 0 else f"{bps}bps"
