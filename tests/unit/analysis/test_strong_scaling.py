"""The model of strong scaling against numbers by hand, and what is calibrated against the published number."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import exp

import pytest

from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.reproduce.scaling.line_model import LineModel, slowest_factor
from gradwire.studies.reproduce.scaling.node import HASWELL, KNL, Node
from gradwire.studies.reproduce.scaling.strong_scaling import (
    CORI_NODES,
    PUBLISHED_VGG16,
    predicted_speed_up,
    scaling_of,
)
from gradwire.studies.reproduce.scaling.training_work import TrainingWork, training_work
from gradwire.traces.trace import load_trace
from gradwire.workload.collectives.exchanges.overlapped_steps import groups_of, operations_of
from gradwire.workload.replay import Timetable

WORK = TrainingWork(flops=6e9, memory_bytes=2e9, parameter_bytes=1e9)
NODE = Node(cores=4, core_flops=2e9, core_bandwidth=1e9, memory_bandwidth=3e9, kernel_efficiency=0.5, serial_share=0.25)


def test_vgg16_work_by_hand() -> None:
    """Convolutions of 3x3 with columns of nine inputs each; the first one passes no errors on."""
    channels = [3, 64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    sides = [224] * 2 + [112] * 2 + [56] * 3 + [28] * 3 + [14] * 3
    layers = list(zip(pairwise(channels), sides, strict=True))
    multiplied = [9 * before * after * side**2 for (before, after), side in layers]
    dense = 25088 * 4096 + 4096 * 4096 + 4096 * 1000
    columns = [9 * before * side**2 for (before, _), side in layers]
    inputs = [before * side**2 for (before, _), side in layers]
    outputs = [after * side**2 for (_, after), side in layers]
    values = 6 * sum(columns) - 2 * columns[0] + 4 * sum(inputs) - 2 * inputs[0] + 12 * sum(outputs)
    work = training_work("vgg16", 224)
    assert work.flops == 6 * (sum(multiplied) + dense) - 2 * multiplied[0]
    assert work.memory_bytes == 4 * values
    assert work.parameter_bytes == 4 * 138_357_544
    assert sum(multiplied) + dense == pytest.approx(15.5e9, rel=0.01), "multiplications of a forward pass [recalled]"


def test_resnet_work_counts_norms_and_residual_blocks() -> None:
    """ResNet-20: three stages of six convolutions, each with a batch norm; three blocks add a shortcut per stage."""
    convolutions = [(3, 16, 32, 32), *[(16, 16, 32, 32)] * 6]
    convolutions += [(16, 32, 32, 16), *[(32, 32, 16, 16)] * 5, (32, 64, 16, 8), *[(64, 64, 8, 8)] * 5]
    values = 0
    for number, (before, after, side_before, side) in enumerate(convolutions):
        products = 3 if number else 2
        values += 2 * products * 9 * before * side**2 + (2 * products - 2) * before * side_before**2
        values += (12 + 42) * after * side**2
    values += 10 * 3 * (16 * 32**2 + 32 * 16**2 + 64 * 8**2)
    assert training_work("resnet20", 32).memory_bytes == 4 * values
    assert training_work("resnet50", 224).flops == pytest.approx(6 * 4.1e9, rel=0.02), (
        "4.1 G multiplications [recalled]"
    )


def test_work_of_a_text_model_is_refused() -> None:
    with pytest.raises(ScenarioError, match="lstm does not take pictures of 224 pixels"):
        training_work("lstm", 224)


@pytest.mark.parametrize(
    ("cores", "seconds"),
    [
        (1, 2 * 6 / 1 + (2 * 2 + 3) / 1),
        (2, 12 * (0.25 + 0.75 / 2) + 7 / 2),
        (None, 12 * (0.25 + 0.75 / 4) + 7 / 3),  # memory gives four cores the bandwidth of three
    ],
)
def test_compute_time_of_two_pictures_by_hand(cores: int | None, seconds: float) -> None:
    assert NODE.compute_ps(WORK, 2, cores) == pytest.approx(1e12 * seconds)


def test_optimizer_time_is_five_passes_over_parameters() -> None:
    assert NODE.optimizer_ps(WORK) == pytest.approx(5e12 / 3)
    assert NODE.optimizer_ps(WORK, cores=1) == pytest.approx(5e12)


@pytest.mark.parametrize("cores", [0, 5])
def test_node_refuses_cores_that_it_lacks(cores: int) -> None:
    with pytest.raises(ScenarioError, match=f"a node has no {cores} cores; expected 1 to 4"):
        NODE.compute_ps(WORK, 1, cores)


def test_slowest_of_one_node_has_median_time() -> None:
    assert slowest_factor(1, 0.5) == 1
    assert slowest_factor(256, 0.02) == pytest.approx(exp(0.02 * 2.82), rel=1e-3)


def test_iteration_on_a_fast_line_is_computing_and_an_nth_of_the_update() -> None:
    model = LineModel(load_trace("vgg16-gpu"), nodes=16, pictures=16, line_rate=1e30, latency_ps=0)
    assert model.iteration_ps(1e12, 160e9) == pytest.approx(1e12 + 10e9)


def test_iteration_without_computing_is_the_time_of_all_operations() -> None:
    """The communication thread is never idle."""
    trace = load_trace("resnet50-v100")
    order = [tensor for moment in Timetable.of(trace.iterations[0]).ready for tensor in moment]
    operations = operations_of(groups_of(trace.tensors, True), order, 16, 1)
    line_ps = sum(1e6 + 15 * operation.nbytes / 10e9 * 1e12 for operation in operations)
    model = LineModel(trace, nodes=16, pictures=1, line_rate=10e9, latency_ps=1e6)
    assert model.iteration_ps(1.0, 0.0) == pytest.approx(line_ps, rel=1e-6)


def test_serial_share_is_calibrated_to_the_published_number() -> None:
    node = replace(HASWELL, serial_share=0.5)
    calibrated = scaling_of("VGG-16", node).calibrated(CORI_NODES, PUBLISHED_VGG16)
    assert round(calibrated.serial_share, 4) == HASWELL.serial_share == KNL.serial_share
    assert scaling_of("VGG-16", calibrated).speed_up(CORI_NODES, over_cores=1) == pytest.approx(2516.36, rel=1e-3)
    assert predicted_speed_up(node) == pytest.approx(scaling_of("ResNet-50").speed_up(256, over_cores=1), rel=2e-3)


def test_speed_up_over_cores_of_one_node_needs_no_network() -> None:
    scaling = scaling_of("ResNet-50")
    assert scaling.alone_ps(1) == HASWELL.compute_ps(scaling.work, 256, 1) + HASWELL.optimizer_ps(scaling.work, 1)
    assert scaling.speed_up(64) < 64 < scaling.speed_up(128) < 128


def test_calibration_to_an_impossible_number_is_refused() -> None:
    slow = replace(scaling_of("VGG-16"), line_rate=1e9)
    with pytest.raises(ScenarioError, match=r"no serial share gives a speed-up of 2516\.36; expected"):
        slow.calibrated(CORI_NODES, PUBLISHED_VGG16)


def test_nodes_that_do_not_share_the_pictures_are_refused() -> None:
    with pytest.raises(ScenarioError, match="48 nodes do not share 256 pictures"):
        scaling_of("VGG-16").speed_up(48)
