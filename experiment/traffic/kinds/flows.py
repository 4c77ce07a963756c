"""Flow lists as HPCC's simulator reads them: see `gradwire.experiment.traffic.flow_list`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.base import Flag
from gradwire.scenarios.schema.traffic import FromFile

if TYPE_CHECKING:
    from gradwire.experiment.traffic.base import Flows, Setting


class FlowList(FromFile):
    """Flows from a file in the format of HPCC: their number, then lines `src dst group port bytes start-in-seconds`."""

    kind: Literal["flows"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. Lines without the port, as ConWeave has them, are read as well; all lines
    have as many words. The group and the port are not used: `priority` says which queue. In a topology of kind "hpcc"
    the ends are its node ids and `hosts` says which may take part; elsewhere they count `hosts` from 0, in order."""
    align: Flag = False
    """Whether the first flow starts at `start`, and not the file's time later."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        from gradwire.experiment.traffic.flow_list import read

        return "file", int(read(Path(self.file), f"{where}.file", hosts)[:, 2].max(initial=0))

    def check_hosts(self, setting: Setting) -> None:
        from gradwire.experiment.traffic.flow_list import read

        read(Path(self.file), f"{setting.where}.file", len(setting.hosts), setting.node_hosts)

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        from gradwire.experiment.traffic.flow_list import flow_list

        return flow_list(setting, self)
