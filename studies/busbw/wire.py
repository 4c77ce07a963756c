"""`PacketWire` simulates the part of a collective between hosts on the packet engine.

Trees are simulated as chunks that wait for each other (traffic `tree_chunks`): the time is that of more chunks in the
steady state, and the fill of the pipeline is left to the time model. In all other patterns every flow is one message
from host to host on each rail, and all begin together; the time is that of the last. NCCL sends chunks there as well,
but on a busy wire they follow each other, which is one long flow on one path, as its connections stay the same.

Sizes on the wire are powers of two up to a budget of packets, and times between two of them are interpolated. Beyond
the budget flows are in a steady state: time grows as from the second largest to the largest simulated size.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from gradwire.scenarios.arrays import Floats
from gradwire.sim.simulate import simulate
from gradwire.studies.busbw.nccl_tuning import CHUNK_BYTES
from gradwire.studies.busbw.presets import Preset
from gradwire.studies.busbw.traffic_patterns import Pattern, pattern_of

PACKET_BUDGET = 1 << 21
"""Most data packets of one simulation."""
TREE_CHUNKS = 8
"""Chunks that a short message has on an edge of a tree."""
WARM_CHUNKS, MEASURED_CHUNKS = 32, 96
"""Chunks of a tree after which its pipeline is full, and all that are simulated."""
LEAST_POWER, MOST_POWER = 6, 26
"""Smallest and largest size of a flow that is simulated, as powers of two: 64 bytes and 64 MiB."""


class PacketWire:
    """The network of a preset between `hosts` hosts, simulated with `threads` threads."""

    def __init__(self, preset: Preset, hosts: int, threads: int = 1) -> None:
        self.preset, self.hosts, self.threads = preset, hosts, threads
        self.rails = preset.topology.cards
        self.payload = int(preset.scenario(2).transport.payload)
        self._times: dict[tuple[str, int], float] = {}
        self.simulations = 0
        self.extrapolated_from: dict[str, int] = {}
        """Largest simulated bytes of a flow by pattern, where larger ones were asked for."""

    @property
    def latency_us(self) -> float:
        """One-way time of one short packet to the farthest neighbour in a ring, in microseconds."""
        return self._time("ring", LEAST_POWER) if self.hosts > 1 else 0.0

    def busy_us(self, pattern: Pattern, nbytes: Floats) -> Floats:
        """Return the microseconds in which every flow of a pattern carries `nbytes`, without the latency."""
        sizes = np.maximum(np.asarray(nbytes, dtype=float), 1.0)
        most = self._most_power(pattern)
        powers = np.arange(LEAST_POWER, max(LEAST_POWER + 1, min(most, int(np.ceil(np.log2(sizes.max())))) + 1))
        times = np.array([self._busy(pattern, int(power)) for power in powers])
        grid = 2.0**powers
        result = np.interp(sizes, np.concatenate(([0.0], grid)), np.concatenate(([0.0], times)))
        beyond = sizes > grid[-1]
        if beyond.any():
            self.extrapolated_from[pattern.name] = int(grid[-1])
            slope = (times[-1] - times[-2]) / (grid[-1] - grid[-2])
            if pattern.name == "double_tree":
                slope = times[-1] / grid[-1]
            result[beyond] = times[-1] + slope * (sizes[beyond] - grid[-1])
        return np.asarray(result)

    def _busy(self, pattern: Pattern, power: int) -> float:
        """Return the busy time of a pattern whose flows carry 2^power bytes, in microseconds."""
        if pattern.name == "double_tree":
            return self._time(pattern.name, power)
        return max(0.0, self._time(pattern.name, power) - self.latency_us)

    def _most_power(self, pattern: Pattern) -> int:
        """Return the largest power of two of a flow's bytes that is within the budget."""
        if pattern.name == "double_tree":
            return int(np.log2(CHUNK_BYTES * TREE_CHUNKS))
        packets = PACKET_BUDGET / max(1, len(pattern.src) * self.rails)
        return max(LEAST_POWER + 2, min(MOST_POWER, int(np.log2(max(packets, 1) * self.payload))))

    def _time(self, name: str, power: int) -> float:
        """Return the simulated time of flows of 2^power bytes, in microseconds; of a tree the time in steady state."""
        if (name, power) not in self._times:
            nbytes = 1 << power
            if name == "double_tree":
                chunk = {
                    "kind": "tree_chunks",
                    "name": name,
                    "size": f"{nbytes // TREE_CHUNKS}B",
                    "rails": self.tree_rails,
                }
                few, many = (self._end({**chunk, "chunks": count}) for count in (WARM_CHUNKS, MEASURED_CHUNKS))
                self._times[name, power] = (many - few) * TREE_CHUNKS / (MEASURED_CHUNKS - WARM_CHUNKS)
            else:
                self._times[name, power] = self._flows(pattern_of(name, self.hosts), nbytes)
        return self._times[name, power]

    @property
    def tree_rails(self) -> int:
        """Rails on which trees are simulated: all, or one beyond the budget, as rails have no cable in common."""
        packets = CHUNK_BYTES // self.payload * len(pattern_of("double_tree", self.hosts).src) * MEASURED_CHUNKS
        return self.rails if packets * self.rails <= 2 * PACKET_BUDGET else 1

    def _flows(self, pattern: Pattern, nbytes: int) -> float:
        """Return the end of the last of all flows of a pattern."""
        ends = np.repeat(np.stack((pattern.src, pattern.dst), axis=1), self.rails, axis=0)  # a flow on each rail
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "flows.txt"
            lines = [f"{src} {dst} 0 0 {nbytes} 0" for src, dst in ends.tolist()]
            path.write_text("\n".join([str(len(lines)), *lines, ""]), encoding="utf-8")
            return self._end({"kind": "flows", "name": pattern.name, "file": str(path)})

    def _end(self, traffic: dict[str, Any]) -> float:
        """Run the packet engine; return the end of the last message in microseconds."""
        result = simulate(self.preset.scenario(self.hosts, [traffic]), threads=self.threads)
        self.simulations += 1
        return float(np.max(result.messages.column("end_ps").to_numpy())) / 1e6
