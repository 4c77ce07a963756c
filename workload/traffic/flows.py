"""The table of flow lists in the format of HPCC's simulator: see `gradwire.workload.traffic.flow_list`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.network.traffic import FileTraffic

if TYPE_CHECKING:
    from gradwire.workload.traffic.base import Flows, TrafficSetting


class FlowList(FileTraffic):
    """Flows from a file in the format of HPCC: their number, then lines `src dst group port bytes start-in-seconds`."""

    kind: Literal["flows"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. Lines without the port, as in ConWeave, are accepted; all lines have the
    same number of words. The group and the port are ignored: `priority` sets the queue. In a topology of kind "hpcc"
    the ends are its node ids and `hosts` lists the allowed ones; otherwise they count `hosts` from 0, in order."""
    align: Flag = False
    """If true, times of the file are shifted so that the first flow starts at `start`."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        from gradwire.workload.traffic.flow_list import read_flow_list

        return "file", int(read_flow_list(Path(self.file), f"{where}.file", hosts)[:, 2].max(initial=0))

    def check_hosts(self, setting: TrafficSetting) -> None:
        from gradwire.workload.traffic.flow_list import read_flow_list

        read_flow_list(Path(self.file), f"{setting.where}.file", len(setting.hosts), setting.node_hosts)

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        from gradwire.workload.traffic.flow_list import flow_list

        return flow_list(setting, self)
