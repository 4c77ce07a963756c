"""`Node` models the compute time of a training step on a many-core machine with shared memory bandwidth.

A step alternates between matrix products, which the cores divide among them, and passes over memory, whose bandwidth
they share [code: github.com/NU-CUCIS/pcnn]. The two take turns, so their times add up:

    products = pictures x operations / (peak of a core x kernel efficiency x speed-up of the cores)
    passes   = (pictures x memory bytes + 3 x parameter bytes) / min(cores x a core's bandwidth, the node's bandwidth)

The speed-up of k cores is Amdahl's, 1 / (s + (1 - s) / k). The serial share s stands for everything that keeps the
cores of a node from multiplying k times as fast as one: turbo clocks of a single core, matrices too small for all
cores, two sockets, loops of one thread. It is the one parameter that is calibrated (`strong_scaling`).
"""

from __future__ import annotations

from dataclasses import dataclass

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.reproduce.scaling.training_work import TrainingWork

SECOND_PS = 1e12
PARAMETER_PASSES = 3
"""Parameters are read forward and backward, and their gradients written, once per step."""
OPTIMIZER_PASSES = 5
"""Values that the optimiser reads and writes per parameter: gradient, parameter twice, momentum twice."""


@dataclass(frozen=True)
class Node:
    """A node of identical cores.

    cores : number of cores.
    core_flops : peak of a core in single precision, operations per second.
    core_bandwidth : bytes per second between one busy core and memory.
    memory_bandwidth : bytes per second between all cores together and memory.
    kernel_efficiency : share of its peak that a core reaches in a matrix product.
    serial_share : share of one core's time in matrix products that more cores do not shorten, 0 to 1.
    """

    cores: int
    core_flops: float
    core_bandwidth: float
    memory_bandwidth: float
    kernel_efficiency: float
    serial_share: float

    def compute_ps(self, work: TrainingWork, pictures: float, cores: int | None = None) -> float:
        """Return the forward and backward time of a step, in picoseconds, on all cores or on some."""
        used = self._used(cores)
        speed_up = 1 / (self.serial_share + (1 - self.serial_share) / used)
        products = pictures * work.flops / (self.core_flops * self.kernel_efficiency * speed_up)
        moved = pictures * work.memory_bytes + PARAMETER_PASSES * work.parameter_bytes
        return SECOND_PS * (products + moved / self._bandwidth(used))

    def optimizer_ps(self, work: TrainingWork, cores: int | None = None) -> float:
        """Return the time of updating all parameters, in picoseconds."""
        return SECOND_PS * OPTIMIZER_PASSES * work.parameter_bytes / self._bandwidth(self._used(cores))

    def _used(self, cores: int | None) -> int:
        if cores is not None and not 1 <= cores <= self.cores:
            raise ScenarioError(f"a node has no {cores} cores", "cores", f"1 to {self.cores}")
        return cores or self.cores

    def _bandwidth(self, cores: int) -> float:
        return min(cores * self.core_bandwidth, self.memory_bandwidth)


HASWELL = Node(
    cores=32, core_flops=73.6e9, core_bandwidth=12e9, memory_bandwidth=115e9, kernel_efficiency=0.8, serial_share=0.0563
)
"""A node of Cori Phase I: two Xeon E5-2698 v3 of 16 cores at 2.3 GHz, DDR4-2133.

32 cores of 36.8 GFLOP/s in double precision [NERSC's page on Cori's configuration], twice as many in single precision.
STREAM reaches 110 to 120 GB/s on all cores, of 136.5 GB/s in theory, and 10 to 20 GB/s on one [recalled]. A matrix
product of MKL reaches about 80 % of the peak [ours]. The serial share is calibrated, see `strong_scaling`.
"""

KNL = Node(
    cores=68,
    core_flops=89.6e9,
    core_bandwidth=10e9,
    memory_bandwidth=350e9,
    kernel_efficiency=HASWELL.kernel_efficiency,
    serial_share=HASWELL.serial_share,
)
"""A node of Cori Phase II: one Xeon Phi 7250 of 68 cores at 1.4 GHz [NERSC's page on Cori's configuration].

64 single-precision operations per cycle and core. Its fast memory as a cache reaches 350 GB/s, and one core 10 GB/s
[recalled]. Efficiency and serial share are those of the Haswell node [ours].
"""
