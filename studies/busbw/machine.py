"""Hosts and fitted constants of a cluster, which the time model needs beside the network."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.studies.busbw.nccl_tuning import NVLINK_BANDWIDTH
from gradwire.studies.busbw.traffic_patterns import Pattern


@dataclass(frozen=True)
class HostSpec:
    """A host with accelerators.

    gpus : accelerators per host that take part.
    generation : of `nccl_tuning.GENERATIONS`; accelerators of other makers take the one of similar age (our choice).
    nics : network cards of a host, `nic_gbytes` GB/s each.
    cpu : "intel", "amd" or "arm"; NCCL's model depends on it.
    nvlink : GB/s of an accelerator's scale-up links in one direction; by default those of its generation.
    nvls : True if the scale-up switch sums (NVLink SHARP) and NCCL uses it.
    channels : NCCL's channels between hosts; by default two per NIC, 2 to 16.
    tuner : True if a tuner plugin takes the fastest algorithm; else NCCL chooses by its own model.
    """

    gpus: int
    generation: str
    nics: int
    nic_gbytes: float
    cpu: str = "intel"
    nvlink: float | None = None
    nvls: bool = True
    channels: int | None = None
    tuner: bool = False

    @property
    def nvlink_gbytes(self) -> float:
        """GB/s of an accelerator's scale-up links in one direction."""
        return NVLINK_BANDWIDTH[self.generation] if self.nvlink is None else self.nvlink

    @property
    def channel_count(self) -> int:
        """Channels of a collective between hosts."""
        if self.channels is not None:
            return self.channels
        return max(2, min(16, 2 * self.nics)) if self.nics else 16


@dataclass(frozen=True)
class Constants:
    """Few constants of a fabric class that are fitted to measured clusters; the rest is NCCL's or simulated.

    launch_us : time of every collective beside NCCL's base latency.
    step_us : latency of a step between hosts beside NCCL's: proxy, network card, driver.
    flush_us : the same for Simple, which flushes after it has received.
    efficiency : data rate of rings and trees over what the simulated wire carries.
    host_gbytes : GB/s that a host's software or its memory passes on in each direction, whatever its NICs carry:
        sockets, and paths through host memory.
    p2p_efficiency : the same as `efficiency` for sends and receives (alltoall).
    peer_us : time of each peer in an alltoall.
    fill : time to fill the pipeline of a tree, over chunk time times depth.
    nvlink_efficiency : data rate of rings and trees inside a host over that of NCCL's model.
    nvls_efficiency : the same for sums in the scale-up switch.
    """

    launch_us: float = 3.0
    step_us: float = 1.0
    flush_us: float = 2.0
    efficiency: float = 0.93
    host_gbytes: float = 1e5
    p2p_efficiency: float = 0.85
    peer_us: float = 3.0
    fill: float = 1.0
    nvlink_efficiency: float = 0.95
    nvls_efficiency: float = 0.8

    def as_dict(self) -> dict[str, float]:
        """Return the constants by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}


class Wire(Protocol):
    """The network between hosts."""

    @property
    def latency_us(self) -> float:
        """One-way time of one packet on the idle network, in microseconds."""

    def busy_us(self, pattern: Pattern, nbytes: Floats) -> Floats:
        """Return the microseconds in which every flow of a pattern carries `nbytes` per unit, without the latency."""


class FluidWire:
    """An ideal network: every NIC is busy for the bytes that enter or leave it, headers included.

    gbytes : GB/s of a NIC. `payload_share` : share of data in the bytes of a packet.
    """

    def __init__(self, gbytes: float, latency_us: float = 2.0, payload_share: float = 4096 / (4096 + 62 + 24)) -> None:
        self.gbytes, self.latency_us, self.payload_share = gbytes, latency_us, payload_share

    def busy_us(self, pattern: Pattern, nbytes: Floats) -> Floats:
        return np.asarray(nbytes, dtype=float) * pattern.load / (self.gbytes * self.payload_share * 1000)
