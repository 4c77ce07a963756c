"""Networks in the format of the HPCC and ConWeave simulators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.experiment.topology.cables import LinkSpec, Override
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.topology import GraphFile

if TYPE_CHECKING:
    from gradwire.experiment.topology.network import Network
    from gradwire.scenarios.schema.scenario import Scenario


class Hpcc(GraphFile):
    """A `topology.txt` of the HPCC and ConWeave simulators: "nodes switches links", the switches' numbers, then
    `src dst rate delay loss` per cable. Hosts are h<number>, switches s<number>; there is no `[link]`."""

    kind: Literal["hpcc"]
    file: Annotated[str, Field(min_length=1)]
    """Relative to the scenario file."""

    def mistakes(self, scenario: Scenario) -> Iterator[Mistake]:
        if scenario.link.model_fields_set:
            what = "would not be used: the file of the topology says what every cable is like"
            yield Mistake("link", what, None, "no [link]; [[link_override]] changes single cables", ("topology",))

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        from gradwire.experiment.topology.hpcc import read_hpcc

        return read_hpcc(self.file, overrides=overrides)
