"""Declares the base classes of [topology] tables and size limits; each kind in `gradwire.topology.kinds` counts hosts
and builds the network.

Each kind is a class in its own file (see `gradwire.scenarios.loading.registry`): its keys, its size, and the generator
or reader of the network.

Names of nodes in the built-in topologies: hosts are h0, h1, ...; each kind names its switches. A file has its own
names. Cables are like [link] unless their tier has its own rate or latency here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import FileNamingTable

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

MAX_HOSTS = 262_144
"""Address limit of the simulator; hosts with several NICs count by their NICs."""

MAX_SWITCHES = 16_384
"""Routing stores data for every pair of switches: 1.6 GB for this many."""

MAX_CABLES = 1_000_000
"""The simulator stores about 2 kB for each."""


class TopologyTable(FileNamingTable, ABC):
    """Base of all kinds. A subclass with a `kind` is a complete topology."""

    circular: ClassVar[bool] = False
    """True if shortest paths can form a cycle, which may deadlock if links can be paused."""

    kind: str

    @property
    def several_paths(self) -> bool:
        """Return True if there can be several shortest paths between two hosts."""
        return True

    @property
    def racks(self) -> tuple[int, ...] | None:
        """Return the number of hosts at each switch, h0, h1, ... switch by switch; None if unknown."""
        return None

    @property
    @abstractmethod
    def host_count(self) -> int | None:
        """Number of hosts; None before a file has been read."""

    @property
    def card_count(self) -> int | None:
        """NICs of all hosts; None before a file has been read."""
        return self.host_count

    @property
    def size(self) -> tuple[int, int] | None:
        """(switches, cables), at least roughly; None before a file has been read."""
        return None

    @property
    def longest_path(self) -> int:
        """Switches on the longest shortest path, if there may be many; 0 if few, or before a file has been read."""
        return 0

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        """Return rate and latency of the cables between switches, by tier, for the `rate` and `latency` of [link]."""
        return ()

    def mistakes(self, scenario: Scenario) -> Iterator[Mistake]:
        """Yield the scenario's conflicts with this kind of topology, with paths from the top of the scenario."""
        return iter(())

    @abstractmethod
    def network(self, link: Any, overrides: Iterable[Any]) -> Any:
        """Return the `gradwire.topology.network.Network`. `link`: default of cables, a `LinkSpec`; `overrides`:
        exceptions for single cables, `Override`s (`gradwire.topology.cables`)."""

    def parameters(self, *leave_out: str) -> dict[str, Any]:
        """Return the values by key, for a generator with parameters of the same names."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in (*leave_out, "kind")}


class GraphFile(TopologyTable):
    """Topology whose nodes and cables are in a file."""

    file: Annotated[str, Field(min_length=1)]

    @property
    def host_count(self) -> int | None:
        """Unknown before the file has been read."""
        return None


class CableFile(GraphFile):
    """Topology whose file also has the properties of every cable, so that there is no [link]."""

    def mistakes(self, scenario: Scenario) -> Iterator[Mistake]:
        if scenario.link.model_fields_set:
            what = "would have no effect: the topology file has the properties of every cable"
            yield Mistake("link", what, None, "no [link]; [[link_override]] changes single cables", ("topology",))


def value_or(value: int | None, default: int) -> int:
    """Return a value, or the default for None."""
    return default if value is None else value
