"""Traffic matrices of htsim: see `gradwire.experiment.traffic.matrix`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.schema.traffic import FromFile

if TYPE_CHECKING:
    from gradwire.experiment.traffic.base import Flows, Setting


class Matrix(FromFile):
    """A traffic matrix of htsim (.cm): `Nodes`, `Connections`, and lines `src->dst id N start TIME size BYTES`."""

    kind: Literal["matrix"]
    file: Annotated[str, Field(min_length=1)]
    """Path, relative to the scenario file. A flow may wait for triggers that fire at its own host."""
    start_unit: Literal["us", "ps"] | None = None
    """Unit of `start` in the file: "us" as htsim_uec of uet-htsim reads it, cut to whole microseconds there and exact
    here; "ps" as in csg-htsim, and in htsim_ndp, htsim_hpcc, htsim_eqds and htsim_roce of uet-htsim. The file does not
    say, so it is needed unless every start is 0."""

    def largest(self, where: str, hosts: int | None) -> tuple[str, int]:
        from gradwire.experiment.traffic.matrix import read

        connections, *_ = read(Path(self.file), f"{where}.file", hosts, self.start_unit)
        return "file", max((each.nbytes for each in connections), default=0)

    def check_hosts(self, setting: Setting) -> None:
        self.largest(setting.where, len(setting.hosts))

    def flows_of(self, setting: Setting) -> Iterator[Flows]:
        from gradwire.experiment.traffic.matrix import matrix

        return matrix(setting, self)
