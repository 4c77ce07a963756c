"""The table of htsim's traffic matrices: see `gradwire.workload.traffic.matrix_file`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.network.traffic import FileTraffic

if TYPE_CHECKING:
    from gradwire.workload.traffic.base import Flows, TrafficSetting


class Matrix(FileTraffic):
    """A traffic matrix of htsim (.cm): `Nodes`, `Connections`, and lines `src->dst id N start TIME size BYTES`."""

    kind: Literal["matrix"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. A flow may wait for triggers that fire at its own host."""
    start_unit: Literal["us", "ps"] | None = None
    """Unit of `start` in the file: "us" as in htsim_uec of uet-htsim, which truncates to whole microseconds (here they
    are exact); "ps" as in csg-htsim, and in htsim_ndp, htsim_hpcc, htsim_eqds and htsim_roce of uet-htsim. The file
    does not contain it, so it is required unless every start is 0."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        from gradwire.workload.traffic.matrix_file import read_matrix

        connections, *_ = read_matrix(Path(self.file), f"{where}.file", hosts, self.start_unit)
        return "file", max((connection.nbytes for connection in connections), default=0)

    def check_hosts(self, setting: TrafficSetting) -> None:
        self.largest(setting.where, len(setting.hosts))

    def flows_of(self, setting: TrafficSetting) -> Iterator[Flows]:
        from gradwire.workload.traffic.matrix_file import matrix

        return matrix(setting, self)
