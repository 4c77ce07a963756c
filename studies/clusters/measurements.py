"""Reads measured times of collectives on public clusters, and describes each cluster's hosts and fabric class."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.files import require_regular_file
from gradwire.studies.busbw.collectives import COLLECTIVES
from gradwire.studies.busbw.machine import HostSpec

COLUMNS = (
    "cluster gpus_per_node gpu nodes nics_per_node nic_gbps fabric nccl algo collective size_bytes time_us source"
).split()
GENERATION_OF = {
    "V100": "volta",
    "A100": "ampere",
    "H100": "hopper",
    "H200": "hopper",
    "B200": "blackwell",
    "B300": "blackwell",
    "MI3": "hopper",
}
"""Generation by the beginning or a part of a GPU's name; AMD's of similar age (our choice)."""
SCALE_UP_GBYTES = {"MI3": 7 * 64.0, "PCIe": 24.0, "V100": 20.0}
"""GB/s of scale-up links that differ from their generation's: Infinity Fabric, seven links of 64 GB/s [AMD CDNA 3
white paper, recalled]; PCIe 4 x16; one V100 per host has none."""
AMD_PROCESSORS = ("DGX A100", "Sophia", "Polaris", "Sirius", "AWS p5")
"""Clusters with AMD processors, by a part of the name [makers' specifications]."""
TUNED = ("GCP A3 Mega", "AWS p4de", "AWS p5", "AWS p6")
"""Clusters whose network plugin brings a tuner, by the beginning of their names."""
FEW_SIZES = 36
"""A sweep with more sizes has linear steps, and is thinned."""
ONE_HOST = "one-host"
"""Class of measurements that cross no network."""


@dataclass(frozen=True, eq=False)
class Sweep:
    """Measured times of one collective on one cluster under one setting.

    cluster, fabric_class, fabric, library, setting, collective, source : as in the data; `fabric_class` is ours.
    host, hosts : the machines. size, time_us : float64[rows], rising sizes; the median of repeated measurements.
    repeats : measurements of a size, at most. spread : largest over smallest time of a size, its median over sizes.
    """

    cluster: str
    fabric_class: str
    fabric: str
    library: str
    setting: str
    collective: str
    source: str
    host: HostSpec
    hosts: int
    size: Floats
    time_us: Floats
    repeats: int
    spread: float

    @property
    def accelerator(self) -> str:
        """Name of the accelerators' kind, whose constants are fitted together."""
        if self.host.nvlink is None:
            return self.host.generation
        return "mi300" if self.host.nvls is False and self.host.nvlink > 100 else "pcie"

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.host.gpus * self.hosts

    @property
    def busbw(self) -> Floats:
        """Measured bus bandwidth in GB/s, float64[rows]."""
        return self.size / self.time_us / 1000 * COLLECTIVES[self.collective].factor(self.ranks)


def read_measurements(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, compressed or not. Raises ScenarioError if it is not one with these columns."""
    try:
        data = require_regular_file(path).read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot be read: {error}", str(path), "a CSV file of measured times") from None
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
    if missing:
        raise ScenarioError(f"lacks the columns {', '.join(missing)}", str(path), ", ".join(COLUMNS))
    return list(reader)


def sweeps_of(rows: Iterable[dict[str, str]], where: str = "measurements") -> list[Sweep]:
    """Return the rows as sweeps, for collectives and clusters whose hosts are known.

    Raises ScenarioError if a row is damaged; the message has its number.
    """
    grouped: dict[tuple[str, ...], dict[float, list[float]]] = {}
    sources: dict[tuple[str, ...], str] = {}
    keys = ("cluster", "nodes", "gpus_per_node", "gpu", "nics_per_node", "nic_gbps", "fabric", "nccl", "algo")
    for number, row in enumerate(rows, start=2):
        if row["collective"] not in COLLECTIVES:
            continue
        key = (*(row[name] for name in keys), row["collective"])
        try:
            size, time = float(row["size_bytes"]), float(row["time_us"])
        except ValueError:
            raise ScenarioError("has no size or time", f"{where}, line {number}", "numbers") from None
        if size > 0 and time > 0:
            grouped.setdefault(key, {}).setdefault(size, []).append(time)
            sources.setdefault(key, row["source"])
    sweeps = (_sweep(key, times, sources[key]) for key, times in grouped.items())
    return [sweep for sweep in sweeps if sweep is not None]


def _sweep(key: tuple[str, ...], times: dict[float, list[float]], source: str) -> Sweep | None:
    cluster, nodes, gpus, gpu, nics, rate, fabric, library, setting, collective = key
    host = _host(gpu, gpus, nics, rate, cluster, fabric)
    if host is None or not nodes:
        return None
    sizes = sorted(times) if len(times) <= FEW_SIZES else one_per_octave(times)
    return Sweep(
        cluster=cluster,
        fabric_class=fabric_class(cluster, fabric, setting, int(nodes)),
        fabric=fabric,
        library=library,
        setting=setting,
        collective=collective,
        source=source,
        host=host,
        hosts=int(nodes),
        size=np.array(sizes),
        time_us=np.array([float(np.median(times[size])) for size in sizes]),
        repeats=max(len(times[size]) for size in sizes),
        spread=float(np.median([max(times[size]) / min(times[size]) for size in sizes])),
    )


def one_per_octave(sizes: Iterable[float]) -> list[float]:
    """Return at most one size for each power of two, the nearest, in rising order: linear steps would count large sizes
    hundreds of times."""
    nearest: dict[int, float] = {}
    for size in sizes:
        power = round(math.log2(size))
        if power not in nearest or abs(math.log2(size) - power) < abs(math.log2(nearest[power]) - power):
            nearest[power] = size
    return sorted(nearest.values())


def _host(gpu: str, gpus: str, nics: str, rate: str, cluster: str, fabric: str) -> HostSpec | None:
    """Return the description of a cluster's hosts; None if it is unknown, or they have no accelerators."""
    generation = next((known for part, known in GENERATION_OF.items() if part in gpu), None)
    if "H100/H200" in gpu:
        generation = "hopper"
    if generation is None or not int(gpus or 0) or not nics or not rate:
        return None
    if cluster.startswith("vidur"):  # whole machines have eight accelerators; those that take part use their own NICs
        nics = str(max(1, int(nics) * int(gpus) // 8))
    scale_up = next((gbytes for part, gbytes in SCALE_UP_GBYTES.items() if part in gpu), None)
    is_amd_processor = gpu.startswith("MI") or any(name in cluster for name in AMD_PROCESSORS)
    return HostSpec(
        gpus=int(gpus),
        generation=generation,
        nics=int(nics),
        nic_gbytes=float(rate) / 8,
        cpu="amd" if is_amd_processor else "intel",
        nvlink=scale_up,
        nvls=not gpu.startswith("MI"),
        tuner=cluster.startswith(TUNED) and "sockets" not in fabric,
    )


def fabric_class(cluster: str, fabric: str, setting: str, hosts: int) -> str:
    """Return the class of a fabric and its software, whose constants are fitted together (our classes)."""
    text = f"{cluster} {fabric} {setting}"
    if hosts == 1:
        return ONE_HOST
    if cluster.startswith(("thomaslie", "MOC", "GCP A3 Ultra")):
        return "host-path"
    if cluster.startswith("vidur"):
        return "unstated"
    if "TCPXO" in text and "no TCPXO" not in text:
        return "tcpxo"
    if "TCP" in text or "no OFI plugin" in text or "sockets" in text:
        return "sockets"
    if "Slingshot" in text:
        return "slingshot"
    if "EFA" in text:
        return "efa-1" if cluster.startswith("AWS p4") else "efa-2"
    return "verbs"
