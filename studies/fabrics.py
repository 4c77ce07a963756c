"""Fabrics of `gradwire new scenario`: topology, link, switch, transport, and policies that might help.

Rates and sizes are those of common machines; everything that a paper or a manual does not fix is [ours], and stands in
the written scenario, with a comment, to be changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gradwire.scenarios.errors import ScenarioError

GPUS_PER_HOST = 8


@dataclass(frozen=True)
class FabricPreset:
    """A fabric by name. `title` : one line. `tables` : TOML for a number of GPUs. `has_accelerators` : hosts have
    several GPUs, joined by scale-up links."""

    name: str
    title: str
    tables: Callable[[int], str]
    policies: str
    has_accelerators: bool = True


def _rails(gbps: int, scale_up: int, generation: str) -> Callable[[int], str]:
    def tables(gpus: int) -> str:
        hosts, remainder = divmod(gpus, GPUS_PER_HOST)
        if remainder or hosts < 2:
            expected = f"a multiple of {GPUS_PER_HOST} from {2 * GPUS_PER_HOST} on, or --fabric leaf-spine-100g"
            raise ScenarioError(f"is {gpus}", "--gpus", expected)
        return f"""\
transport = {{ kind = "dcqcn", payload = "4096B" }}  # RoCE, as on most such clusters
load_balancing = "ecmp"  # a path for each flow

[topology]
kind = "rail"
hosts = {hosts}
cards = {GPUS_PER_HOST}  # a network card for every GPU
hosts_per_group = {-(-hosts // 2) if hosts <= 64 else 32}  # hosts that share rail switches
spines = {GPUS_PER_HOST}

[host]
gpus = {GPUS_PER_HOST}
scale_up_rate = "{scale_up}Gbps"  # NVLink of {generation}, one direction
scale_up_latency = "500ns"

[link]
rate = "{gbps}Gbps"
latency = "500ns"  # 100 m of fibre

[switch]
pfc = true  # RoCE loses nothing: switches pause their neighbours
pfc_threshold = "{10 * gbps}KB"
ecn_threshold = "{4 * gbps}KB"  # Kmin, Kmax and Pmax of HPCC's configuration: 4 and
ecn_ceiling = "{16 * gbps}KB"  # 16 KB per Gbps, 0.2
ecn_probability = 0.2
"""

    return tables


def _leaf_spine(gpus: int) -> str:
    if gpus < 2:
        raise ScenarioError(f"is {gpus}", "--gpus", "2 or more")
    per_leaf = next(size for size in range(min(16, -(-gpus // 2)), 0, -1) if gpus % size == 0)
    return f"""\
transport = {{ kind = "dctcp", payload = "4096B", min_rto = "2ms" }}
load_balancing = "ecmp"  # a path for each flow

[topology]
kind = "leaf_spine"
leaves = {gpus // per_leaf}
hosts_per_leaf = {per_leaf}
spines = {max(2, per_leaf // 2)}  # half as many as hosts of a leaf: two to one

[link]
rate = "100Gbps"
latency = "500ns"  # 100 m of fibre

[switch]
buffer = "512KiB"  # of a port
ecn_threshold = "96KiB"  # as in the demo
"""


def _policies(kind: str, today: str, other: str, transport: str, balancer: str, rate: int) -> str:
    return f"""\
[[policy]]
name = "{kind}"
label = "{today}"

[[policy]]
name = "sprayed"
label = "{other}"
[policy.set]
transport = {transport}
load_balancing = "{balancer}"  # a path for each packet

[[policy]]
name = "faster"
label = "{today}, {2 * rate} Gbps"
[policy.set]
link.rate = "{2 * rate}Gbps"
"""


_ROCE = ("as-built", "DCQCN, ECMP", "NSCC, REPS", '{ kind = "nscc", payload = "4096B", trimming = false }', "reps")
_TCP = ("as-built", "DCTCP, ECMP", "NSCC, spraying", '{ kind = "nscc", payload = "4096B", trimming = false }', "reps")

FABRICS: dict[str, FabricPreset] = {
    fabric.name: fabric
    for fabric in (
        FabricPreset(
            "rail-400g",
            "hosts of 8 GPUs with 8 cards of 400 Gbps on rails, RoCE (H100)",
            _rails(400, 3600, "an H100"),
            _policies(*_ROCE, 400),
        ),
        FabricPreset(
            "rail-200g",
            "hosts of 8 GPUs with 8 cards of 200 Gbps on rails, RoCE (A100)",
            _rails(200, 2400, "an A100"),
            _policies(*_ROCE, 200),
        ),
        FabricPreset(
            "leaf-spine-100g",
            "hosts with one GPU and one card of 100 Gbps, leaves and spines, TCP",
            _leaf_spine,
            _policies(*_TCP, 100),
            has_accelerators=False,
        ),
    )
}
"""Fabrics by name."""
