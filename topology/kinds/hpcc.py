"""The topology kind `hpcc`: networks in the format of the HPCC and ConWeave simulators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.network.topology import GraphFile
from gradwire.topology.cables import LinkSpec, Override

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario
    from gradwire.topology.network import Network


class HpccTopology(GraphFile):
    """A `topology.txt` of the HPCC and ConWeave simulators: "nodes switches links", the switches' numbers, then `src
    dst rate delay loss` per cable. Hosts are h<number>, switches s<number>; there is no `[link]`."""

    kind: Literal["hpcc"]
    file: Annotated[str, Field(min_length=1)]
    """Relative to the scenario file."""

    def mistakes(self, scenario: Scenario) -> Iterator[Mistake]:
        if scenario.link.model_fields_set:
            what = "would have no effect: the topology file has the properties of every cable"
            yield Mistake("link", what, None, "no [link]; [[link_override]] changes single cables", ("topology",))

    def network(self, link: LinkSpec, overrides: Iterable[Override]) -> Network:
        from gradwire.topology.kinds.hpcc_files import read_hpcc

        return read_hpcc(self.file, overrides=overrides)
