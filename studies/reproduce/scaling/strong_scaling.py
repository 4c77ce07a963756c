"""Predicts strong-scaling speed-ups (Lee et al.) by number of nodes, and calibrates the node model's serial share.

The serial share of a node's cores is calibrated to one published number, VGG-16's speed-up of 2516.36 on 256 nodes over
one core [abstract]. VGG-16 is the better choice of the two: it spends most of its time in matrix products, and only
those have a parameter. Speed-ups of other models and machines are predictions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.reproduce.scaling.line_model import LineModel, slowest_factor
from gradwire.studies.reproduce.scaling.node import HASWELL, Node
from gradwire.studies.reproduce.scaling.training_work import TrainingWork, training_work
from gradwire.traces.trace import load_trace

BISECTIONS = 20
PUBLISHED_VGG16 = 2516.36
"""Speed-up of VGG-16 on 8192 cores over one core [abstract]."""
CORI_NODES = 256
"""8192 cores of 32 a node [recalled]."""


@dataclass(frozen=True)
class StrongScaling:
    """Steps of a fixed number of pictures on identical nodes.

    work : of the model. trace : name of the trace whose tensors are exchanged, in the times of its layers.
    pictures : of one step, on all nodes: 256 [code README] for pictures of ImageNet.
    line_rate : bytes per second of a node; 10 GB/s for Aries [recalled].
    latency_ps : of an operation, 1.75 us: three links and the hosts' software in the scenario `lee` [ours].
    jitter : of compute times, as in the scenario [ours].
    """

    work: TrainingWork
    trace: str
    node: Node = HASWELL
    pictures: int = 256
    line_rate: float = 10e9
    latency_ps: float = 1.75e6
    jitter: float = 0.02

    def alone_ps(self, cores: int | None = None) -> float:
        """Return the time of a step without a network, on one node or on some of its cores, in picoseconds."""
        return self.node.compute_ps(self.work, self.pictures, cores) + self.node.optimizer_ps(self.work, cores)

    def compute_ps(self, nodes: int) -> float:
        """Return the forward and backward time of one of `nodes` nodes, in picoseconds."""
        return self.node.compute_ps(self.work, self._share(nodes))

    def iteration_ps(self, nodes: int) -> float:
        """Return the time of a step on some nodes by the model of one line, in picoseconds."""
        model = LineModel(load_trace(self.trace), nodes, self._share(nodes), self.line_rate, self.latency_ps)
        slowest_ps = self.compute_ps(nodes) * slowest_factor(nodes, self.jitter)
        return model.iteration_ps(slowest_ps, self.node.optimizer_ps(self.work))

    def speed_up(self, nodes: int, over_cores: int | None = None) -> float:
        """Return how many times faster some nodes are than one node, or than some of its cores."""
        return self.alone_ps(over_cores) / self.iteration_ps(nodes)

    def calibrated(self, nodes: int, speed_up: float) -> Node:
        """Return the node with the serial share at which `nodes` nodes are that many times faster than one core. Raises
        `ScenarioError` if no share does that."""

        def at(share: float) -> float:
            return replace(self, node=replace(self.node, serial_share=share)).speed_up(nodes, over_cores=1)

        low, high = 0.0, 1.0
        if not at(high) <= speed_up <= at(low):
            expected = f"{at(high):.0f} to {at(low):.0f} on {nodes} nodes"
            raise ScenarioError(f"no serial share gives a speed-up of {speed_up:g}", "calibration", expected)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if at(middle) > speed_up else (low, middle)
        return replace(self.node, serial_share=(low + high) / 2)

    def _share(self, nodes: int) -> int:
        if nodes < 1 or self.pictures % nodes:
            raise ScenarioError(f"{nodes} nodes do not share {self.pictures} pictures", "nodes", "a divisor of them")
        return self.pictures // nodes


MODELS = {
    "VGG-16": ("vgg16", 224, "vgg16-gpu", 256),
    "ResNet-50": ("resnet50", 224, "resnet50-v100", 256),
    "ResNet-20": ("resnet20", 32, "resnet20", 128),
}
"""Built-in model, size of its pictures, trace, and pictures of a step [code README; VGG-16's: ours], by name."""


def scaling_of(model: str, node: Node = HASWELL) -> StrongScaling:
    """Return the strong scaling of one of `MODELS` on such nodes."""
    name, size, trace, pictures = MODELS[model]
    return StrongScaling(training_work(name, size), trace, node, pictures)


def predicted_speed_up(node: Node = HASWELL, traffic: float = 1.0, **inputs: float) -> float:
    """Return ResNet-50's predicted speed-up on 256 nodes over one core, the node calibrated to VGG-16's.

    node : its serial share is ignored. traffic : factor of the memory traffic of both models.
    inputs : changed fields of `StrongScaling`, such as `pictures` or `line_rate`.
    """

    def changed(model: str, node: Node) -> StrongScaling:
        scaling = replace(scaling_of(model, node), **inputs)  # type: ignore[arg-type]
        return replace(scaling, work=replace(scaling.work, memory_bytes=traffic * scaling.work.memory_bytes))

    calibrated = changed("VGG-16", node).calibrated(CORI_NODES, PUBLISHED_VGG16)
    return changed("ResNet-50", calibrated).speed_up(CORI_NODES, over_cores=1)
