"""How a scenario is run on real sockets: `gradwire emulate`. The simulator does not look at it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from gradwire.scenarios.components import components
from gradwire.scenarios.schema.base import Table, refuse
from gradwire.scenarios.schema.effect_conditions import Needs
from gradwire.scenarios.units import UnitError

if TYPE_CHECKING:
    Backend = str
else:
    Backend = Literal["auto", *components("switch")]


def _address(value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise UnitError("is no IPv4 address", "such as 192.0.2.10") from None


KERNEL_TCP = Needs(
    lambda at: not at.scenario.senders or any(":" in each.kind or each.congestion() for _, each in at.carried()),
    "the kernel's TCP carries nothing", 'a transport that it carries, such as "cubic"',
)


class RealHost(Table):
    """A machine that plays one of the scenario's hosts."""

    name: Annotated[str, Field(min_length=1)]
    """The scenario's host, such as "h0"."""
    address: Annotated[str, BeforeValidator(_address)]
    """Its IPv4 address in the network that is to be measured."""
    ssh: str = ""
    """Where the agent is started: what ssh takes, such as "user@node0"."""
    command: tuple[str, ...] = ()
    """Instead of ssh: a command that starts an agent (`python -m gradwire.emu.agent`) with its standard input and
    output."""
    python: str = "python3"
    """The interpreter over there that can import this project."""

    @model_validator(mode="after")
    def _one_way(self) -> RealHost:
        if bool(self.ssh) == bool(self.command):
            what = "and command are both given" if self.ssh else "and command are both missing"
            raise refuse("ssh", what, self.ssh or None, "one of them")
        if self.ssh.startswith("-"):
            raise refuse("ssh", "is an option of ssh and no machine", self.ssh, 'such as "user@node0"')
        return self


class Emulation(Table):
    """How to run the scenario on real sockets; what the command line says goes before it."""

    clock: Literal["wall", "virtual"] = "wall"
    """wall: as fast as the machine's kernel is, some hundred Mbit/s at most; virtual: inside a kernel whose time stands
    still while anything computes, repeatable to the byte and as fast as one likes."""
    switch: Backend = "auto"
    """What the switches are made of (docs/testbed.md); auto: what departs least from the scenario on this machine."""
    loss_recovery: Annotated[Literal["kernel", "classic"], KERNEL_TCP] = "kernel"
    """TCP: as the kernel does it, with RACK and tail loss probes (RFC 8985), or without them, by duplicate
    acknowledgements and time-outs alone (RFC 6675), as the simulator does it."""
    host_queue: Annotated[Literal["kernel", "packet"], KERNEL_TCP] = "kernel"
    """TCP: what waits at a host's network card: what the kernel puts there, a millisecond or two of every connection in
    the order in which it was made, as in the simulator with `small_queues` of the transport, which `gradwire fidelity`
    asks for then; or one packet of every connection, so that they take turns, as in the simulator without."""
    side_channel: Annotated[
        Literal["tcp", "udp"],
        Needs(lambda at: not at.scenario.senders
              or any(":" in each.kind or each.kind == "dlcp" for _, each in at.carried()),
              "nothing goes over DLCP", 'transport = "dlcp"'),
    ] = "tcp"
    """DLCP's Stop, Probe and Bitmap: over TCP, which acknowledges and repeats them by itself; or as packets over UDP
    that nobody repeats but DLCP's own rules, as in the simulator."""
    hosts: tuple[RealHost, ...] = ()
    """Real machines, one for every host that the scenario uses; their own network is what is measured then, and the
    scenario's topology, links and switches only say what it is like."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, dict) and "connections" in given:
            where = f'transport = {{ ..., connections = "{given["connections"]}" }}'
            raise refuse("connections", "is the transport's, in the simulator as well", given["connections"], where)
        return given

    @model_validator(mode="after")
    def _distinct(self) -> Emulation:
        for field in ("name", "address"):
            values = [getattr(host, field) for host in self.hosts]
            if len(set(values)) != len(values):
                raise refuse("hosts", f"give a {field} twice", values, "distinct ones")
        if self.hosts and self.clock == "virtual":
            raise refuse("clock", "cannot be virtual on real machines", "virtual", '"wall", or no hosts')
        return self
