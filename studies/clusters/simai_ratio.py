"""SimAI's published table of bus bandwidth over that of the NICs, beside the same ratio of the model.

The table is `nic_ratio.csv` of aliyun/SimAI for hosts of eight accelerators; its origin is not stated. Ours is that
of a ring all-reduce on DGX A100 and H100 hosts (presets a100-hdr and h100-rail) with an ideal wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from gradwire.analysis.comparison.tables import Grid
from gradwire.scenarios.units import format_size
from gradwire.studies.busbw.collectives import COLLECTIVES
from gradwire.studies.busbw.machine import FluidWire
from gradwire.studies.busbw.presets import load_preset
from gradwire.studies.busbw.time_model import TimeModel, choose

SIZES = (1 << 24, 1 << 27, 1 << 30, 1 << 34)
PUBLISHED: Mapping[int, tuple[float, ...]] = MappingProxyType(
    {2: (0.32, 0.67, 0.92, 0.96), 16: (0.05, 0.38, 0.76, 0.96), 128: (0.0087, 0.053, 0.315, 0.919)}
)
"""Ratio by hosts, for `SIZES`."""


def ring_ratios(preset_name: str, hosts: int) -> list[float]:
    """Return the bus bandwidth of ring all-reduces of `SIZES` over the rate of a host's NICs."""
    preset = load_preset(preset_name)
    host = preset.host_spec()
    model = TimeModel(host, hosts, preset.fitted_constants(), FluidWire(host.nic_gbytes))
    sizes = np.array(SIZES, dtype=float)
    rings = [each for each in model.estimates("all_reduce", sizes) if each.algorithm == "ring"]
    times, _ = choose(rings)
    factor = COLLECTIVES["all_reduce"].factor(model.ranks)
    return [float(ratio) for ratio in sizes / times / 1000 * factor / (host.nics * host.nic_gbytes)]


def ratio_grid() -> Grid:
    """Return the published ratios beside ours."""
    ours = {(name, hosts): ring_ratios(name, hosts) for name in ("a100-hdr", "h100-rail") for hosts in PUBLISHED}
    rows = []
    for hosts, published in PUBLISHED.items():
        for index, (size, ratio) in enumerate(zip(SIZES, published, strict=True)):
            figures = [f"{ours[name, hosts][index]:.3g}" for name in ("a100-hdr", "h100-rail")]
            rows.append([f"{hosts} hosts, {format_size(size)}", f"{ratio:.3g}", *figures])
    return Grid("busbw over the rate of the NICs", ["", "SimAI nic_ratio", "ours, a100-hdr", "ours, h100-rail"], rows)
