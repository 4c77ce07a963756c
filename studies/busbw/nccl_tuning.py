"""NCCL's tuning constants: latencies and bandwidths from which it chooses an algorithm and a protocol.

The figures are facts of NCCL 2.28 and later, src/graph/tuning.cc (`ncclTunerConstantsDefaults`, `ncclTopoTuneModel`,
`ncclTopoGetAlgoTime`) and src/graph/topo.h. Latencies are in microseconds, bandwidths in GB/s. Protocols are numbered
LL, LL128, Simple.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LL, LL128, SIMPLE = range(3)
PROTOCOLS = ("LL", "LL128", "Simple")
RING, TREE, NVLS, NVLS_TREE, PEERS = "ring", "tree", "nvls", "nvls_tree", "p2p"
ALGORITHMS = (RING, TREE, NVLS, NVLS_TREE, PEERS)
"""Algorithms by name; `p2p`, sends and receives without an algorithm, is our name."""

Triple = tuple[float, float, float]

BASE_LATENCY: Mapping[str, Triple] = MappingProxyType(
    {TREE: (6.8, 14.0, 8.4), RING: (6.6, 14.0, 8.4), NVLS: (0, 0, 0), NVLS_TREE: (0, 0, 0), PEERS: (6.6, 14.0, 8.4)}
)
"""Latency of a collective without steps [baseLatencies]; for `p2p` that of a ring (our choice)."""
NVLINK_LATENCY: Mapping[str, Triple] = MappingProxyType(
    {TREE: (0.6, 1.25, 4.0), RING: (0.6, 1.9, 3.4), NVLS: (0, 0, 25.0), NVLS_TREE: (0, 0, 25.0)}
)
"""Latency of a step over NVLink [hwLatencies, NVLINK]."""
PCI_LATENCY: Mapping[str, Triple] = MappingProxyType({TREE: (1.0, 1.9, 4.0), RING: (1.0, 2.5, 5.7)})
"""Latency of a step over PCIe [hwLatencies, PCI]."""
NETWORK_LATENCY: Mapping[str, Triple] = MappingProxyType(
    {TREE: (5.0, 8.5, 14.0), RING: (2.7, 4.0, 14.0), NVLS_TREE: (0, 0, 20.9)}
)
"""Latency of a step over the network [hwLatencies, NET]."""

GENERATIONS = ("volta", "ampere", "hopper", "blackwell")
NVLINK_BANDWIDTH: Mapping[str, float] = MappingProxyType(
    {"volta": 6 * 20.0, "ampere": 12 * 20.0, "hopper": 18 * 20.6, "blackwell": 18 * 40.1}
)
"""Bandwidth of all NVLinks of a GPU in one direction, as NCCL counts it [topo.h: links times SMxx_NVLINK_BW]."""
LL_MOST: Mapping[str, Triple] = MappingProxyType(
    {
        "volta": (39.0, 39.0, 20.4),
        "ampere": (87.7, 22.5, 19.0),
        "hopper": (141.0, 45.0, 35.0),
        "blackwell": (282.0, 90.0, 70.0),
    }
)
"""Largest bandwidth of LL on 1, 2 and more hosts [llMaxBws]. On several hosts NCCL takes the row "volta" for Intel
processors and "ampere" for AMD ones."""
RING_LL128_PER_CHANNEL: Mapping[str, float] = MappingProxyType(
    {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
)
TREE_LL128_PER_CHANNEL: Mapping[str, Triple] = MappingProxyType(
    {
        "volta": (20.0, 20.0, 20.0),
        "ampere": (20.0, 20.0, 20.0),
        "hopper": (36.7, 36.7, 29.0),
        "blackwell": (55.6, 31.67, 20.0),
    }
)
TREE_PER_CHANNEL: Mapping[str, Triple] = MappingProxyType(
    {
        "volta": (26.5, 18.5, 10.0),
        "ampere": (24.0, 23.6, 17.8),
        "hopper": (38.7, 41.4, 36.0),
        "blackwell": (70.0, 42.8, 24.0),
    }
)
NVLS_TREE_PER_CHANNEL: Mapping[str, Triple] = MappingProxyType(
    {"hopper": (0, 57.7, 45.5), "blackwell": (0, 96.0, 80.0)}
)
"""Largest bandwidth of a channel on 1, 2 and more hosts [perChMax...]."""
NVLS_EFFICIENCY: Mapping[str, float] = MappingProxyType({"hopper": 0.85, "blackwell": 0.74})

TREE_CORRECTION: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (*[0.9] * 7, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
)
"""Share of a tree's bandwidth by protocol and power of two of the size, from 64 bytes [treeCorrectionFactor]."""

RING_PLATEAU, RING_PLATEAU_VOLTA = 1.4, 1.9
"""Factor of a Simple ring's latency in an all-reduce on several hosts, from 64 bytes per channel and rank on."""
CHUNK_BYTES = 4 * 2**20 // 8
"""Bytes of a step of Simple: an eighth of the buffer of 4 MiB [src/init.cc, NCCL_STEPS]."""
P2P_LL_BYTES = 16384
"""Largest message that a send carries by LL [NCCL_P2P_LL_THRESHOLD]."""
NETWORK_OVERHEAD = 1.0
"""Time to post an operation to the network; three times that for Simple [getNetOverhead]. NCCL takes 2 us with AMD
processors, which measured times do not show."""
PROTOCOL_SHARE: Triple = (0.5, 120 / 128, 1.0)
"""Share of the bytes on a wire that is data: LL sends a flag with every 4 bytes, LL128 one per 128."""
