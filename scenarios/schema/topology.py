"""What the [topology] tables of all kinds have in common.

Each kind is a class in a file of its own (see `gradwire.scenarios.components`): its keys, how large it is, and the
generator or reader that makes the network.

Names of nodes in the built-in topologies: hosts are h0, h1, ...; each kind says what its switches are called. A file
brings its own names. Cables are like [link] unless their tier has a rate or latency of its own here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.base import Table

if TYPE_CHECKING:
    from gradwire.scenarios.schema.scenario import Scenario

MAX_HOSTS = 262_144
"""What the simulator can address; hosts with several network cards count by their cards."""

MAX_SWITCHES = 16_384
"""Routing keeps what every switch knows of every other one: 1.6 GB for so many."""

MAX_CABLES = 1_000_000
"""The simulator keeps about 2 kB for each."""


class TopologyTable(Table, ABC):
    """What all kinds answer. A class derived from it with a `kind` is a topology with all there is to know of it."""

    circular: ClassVar[bool] = False
    """Whether shortest paths can form a ring, in which all may wait for each other where links can be stopped."""

    kind: str

    @property
    def several_paths(self) -> bool:
        """Return True if there can be several shortest paths between two hosts."""
        return True

    @property
    def racks(self) -> tuple[int, ...] | None:
        """Return how many hosts hang on each switch, h0, h1, ... switch by switch; None if the kind does not tell."""
        return None

    @property
    @abstractmethod
    def host_count(self) -> int | None:
        """None where it is unknown before a file has been read."""

    @property
    def card_count(self) -> int | None:
        """Network cards of all hosts; None where it is unknown before a file has been read."""
        return self.host_count

    @property
    def size(self) -> tuple[int, int] | None:
        """(switches, cables), at least roughly; None where it is unknown before a file has been read."""
        return None

    @property
    def longest_path(self) -> int:
        """Switches on the longest shortest path, where they may be many; 0 where they are few, or unknown before a file
        has been read."""
        return 0

    def cables(self, rate: int, latency: int) -> tuple[tuple[int, int], ...]:
        """Rate and latency of the cables between switches, by tier, when [link] has `rate` and `latency`."""
        return ()

    @property
    def path(self) -> str | None:
        """The file that the network is read from, which the key `file` names; None where there is none."""
        return None

    def at(self, file: str) -> Self:
        """The same with another file."""
        return self

    def mistakes(self, scenario: Scenario) -> Iterator[Mistake]:
        """What of the scenario does not fit this kind of topology, with paths from the top of the scenario."""
        return iter(())

    @abstractmethod
    def network(self, link: Any, overrides: Iterable[Any]) -> Any:
        """The network, a `gradwire.experiment.topology.network.Network`. `link`: what cables are like, a `LinkSpec`;
        `overrides`: exceptions for single ones, `Override`s (`gradwire.experiment.topology.cables`)."""

    def given(self, *leave_out: str) -> dict[str, Any]:
        """The values by key, for a generator that takes them by the same names."""
        return {name: getattr(self, name) for name in type(self).model_fields if name not in (*leave_out, "kind")}


class GraphFile(TopologyTable):
    """A topology whose nodes and cables are in a file."""

    file: Annotated[str, Field(min_length=1)]

    @property
    def host_count(self) -> int | None:
        """Unknown before the file has been read."""
        return None

    @property
    def path(self) -> str | None:
        return self.file

    def at(self, file: str) -> Self:
        return self.model_copy(update={"file": file})


def given_or(value: int | None, default: int) -> int:
    """A value, or the default where none was given."""
    return default if value is None else value
