"""Declares the scenario's table `[emulation]`, options of runs on real sockets (`gradwire emulate`); the simulator
ignores them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.schema.base import ScenarioTable, single_mistake
from gradwire.scenarios.schema.effect_conditions import Precondition
from gradwire.scenarios.units import UnitError

if TYPE_CHECKING:
    Backend = str
else:
    Backend = Literal["auto", *components("switch")]


def _address(value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise UnitError("is not an IPv4 address", "such as 192.0.2.10") from None


KERNEL_TCP = Precondition(
    lambda at: not at.scenario.senders or any(":" in each.kind or each.congestion() for _, each in at.carried()),
    "the kernel's TCP carries nothing",
    'a transport that it carries, such as "cubic"',
)


class RealHost(ScenarioTable):
    """Real machine in the role of one of the scenario's hosts."""

    name: Annotated[str, Field(min_length=1)]
    """The scenario's host, such as "h0"."""
    address: Annotated[str, BeforeValidator(_address)]
    """Its IPv4 address in the measured network."""
    ssh: str = ""
    """Destination on which ssh starts the agent, such as "user@node0"."""
    command: tuple[str, ...] = ()
    """Instead of ssh: a command that starts an agent (`python -m gradwire.emu.agent`) on its standard input and output.
    """
    python: str = "python3"
    """Remote interpreter that can import this project."""

    def conflicts(self) -> Iterator[Mistake]:
        if bool(self.ssh) == bool(self.command):
            what = "and command are both set" if self.ssh else "and command are both missing"
            yield Mistake("ssh", what, self.ssh or None, "one of them")
        if self.ssh.startswith("-"):
            yield Mistake("ssh", "is an option of ssh, not a machine", self.ssh, 'such as "user@node0"')


class Emulation(ScenarioTable):
    """Options for running the scenario on real sockets; options of the command line take precedence."""

    clock: Literal["wall", "virtual"] = "wall"
    """wall: as fast as the machine's kernel, some hundred Mbit/s at most; virtual: inside a kernel whose time stops
    while anything computes, repeatable to the byte and at any rate."""
    switch: Backend = "auto"
    """Switch backend (docs/testbed.md); auto: the one that deviates least from the scenario on this machine."""
    loss_recovery: Annotated[Literal["kernel", "classic"], KERNEL_TCP] = "kernel"
    """TCP: kernel, with RACK and tail loss probes (RFC 8985); classic, without them, by duplicate acknowledgements and
    time-outs alone (RFC 6675), like the simulator."""
    host_queue: Annotated[Literal["kernel", "packet"], KERNEL_TCP] = "kernel"
    """TCP: the queue at a host's NIC. kernel: the kernel's, a millisecond or two of every connection in creation order,
    like the simulator with the transport's `small_queues`, which `gradwire fidelity` then uses; packet: one packet of
    every connection, so that they take turns, like the simulator without."""
    side_channel: Annotated[
        Literal["tcp", "udp"],
        Precondition(
            lambda at: (
                not at.scenario.senders or any(":" in each.kind or each.kind == "dlcp" for _, each in at.carried())
            ),
            "nothing goes over DLCP",
            'transport = "dlcp"',
        ),
    ] = "tcp"
    """DLCP's Stop, Probe and Bitmap: over TCP, which acknowledges and retransmits them itself; or as UDP packets that
    only DLCP's own rules retransmit, as in the simulator."""
    hosts: tuple[RealHost, ...] = ()
    """Real machines, one for every host that the scenario uses. Their own network is measured then; the scenario's
    topology, links and switches only describe it."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, table: Any) -> Any:
        if isinstance(table, dict) and "connections" in table:
            expected = f'transport = {{ ..., connections = "{table["connections"]}" }}'
            raise single_mistake("connections", "is now a key of the transport", table["connections"], expected)
        return table

    def conflicts(self) -> Iterator[Mistake]:
        for field in ("name", "address"):
            values = [getattr(host, field) for host in self.hosts]
            if len(set(values)) != len(values):
                yield Mistake("hosts", f"repeat a {field}", values, "distinct ones")
        if self.hosts and self.clock == "virtual":
            yield Mistake("clock", "cannot be virtual on real machines", "virtual", '"wall", or no hosts')
