"""Processes of your own: a job, a controller, an experiment, written in SimPy against the packet engine.

    wires = Wires(gradwire.load_scenario("incast"))

    def asks_everybody(server):
        sent = [wires.send(host, server, "100kB") for host in wires.hosts if host != server]
        yield wires.env.all_of(sent)
        print(wires.env.now, "all of them have arrived")

    wires.run(asks_everybody("h0"))

A scenario gives the network, its switches and transports; what it has of jobs and traffic is left out, unless
`with_traffic`. Time is SimPy's, in integer picoseconds. A process costs Python for every message: what is known
beforehand runs faster as a program (`gradwire.experiment.program`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import simpy

from gradwire.experiment.resolve import traffic_of
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import build_network
from gradwire.scenarios.blocks import Shelf
from gradwire.scenarios.load import scenario_of
from gradwire.scenarios.result import KINDS
from gradwire.scenarios.units import Bytes, Ps, parse_size
from gradwire.sim.coupling import Coupling, Message
from gradwire.sim.message_table import MessageRows, counts_of
from gradwire.sim.patience import patience_ps

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from gradwire.scenarios.schema.scenario import Scenario

Process = Generator[simpy.Event, object, object]


def _where(process: simpy.Process) -> str:
    """What a process waits at: its function, file and line; inside what it has given way to, if it has."""
    inner: Any = process._generator
    while getattr(inner, "gi_yieldfrom", None) is not None and hasattr(inner.gi_yieldfrom, "gi_frame"):
        inner = inner.gi_yieldfrom
    line = f":{inner.gi_frame.f_lineno}" if inner.gi_frame is not None else ""
    return f"process {process.name} waits at {inner.gi_code.co_filename}{line}"


class Wires:
    """The network of a scenario, for processes.

    Attributes
    ----------
    env : the SimPy environment that processes live in; `env.now` is picoseconds.
    hosts : names of the NICs that can send and receive: of hosts, or "h0.nic1" where they have several.
    """

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1, with_traffic: bool = False) -> None:
        """Of a scenario, or of one that is named. Raises ScenarioError if it cannot be simulated."""
        from gradwire.sim.simulate import check_simulated, packet_fabric

        scenario = scenario_of(scenario, "Wires(scenario)")
        check_simulated(scenario)
        self.scenario = scenario
        network = build_network(scenario.topology, scenario.link)
        routing = build_routing(network)
        fabric = packet_fabric(scenario, network, routing, threads)
        patience = patience_ps(scenario, network, routing)
        self._coupling = Coupling(
            fabric, scenario.host.software_latency, network.names, bool(scenario.output.packet_log), patience
        )
        self._index, self.env = network.index, self._coupling.env
        self.hosts = tuple(network.names[: network.host_count])
        if with_traffic:
            for part in traffic_of(scenario, network):
                self._coupling.play(part)

    def send(
        self, src: str, dst: str, nbytes: int | str, *, priority: int = 0, bound: float = 0.0, transport: int = 0,
        kind: str = "flow", job: str = "own",
    ) -> simpy.Event:  # fmt: skip
        """Send a message, which enters the network one software latency from now. The event happens when it has been
        delivered; its value is the `gradwire.sim.coupling.Message`, with what was received and lost.

        Parameters
        ----------
        nbytes : or a size such as "4MiB".
        bound : the share that may be missing at delivery, where the transport takes one.
        transport : number among the scenario's transports.
        kind : one of `gradwire.scenarios.result.KINDS`; `job` : both are for the table of messages only.
        """
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no kind of message: {', '.join(KINDS)}")
        for name in (src, dst):
            if name not in self._index or self._index[name] >= len(self.hosts):
                raise ValueError(f"there is no host {name!r}: hosts are {self.hosts[0]} to {self.hosts[-1]}")
        size = parse_size(nbytes) if isinstance(nbytes, str) else Bytes(nbytes)
        done = self.env.event()

        def arrived(message: Message) -> None:
            done.succeed(message)

        self._coupling.send(
            Message(
                job, kind, 0, -1, len(self._coupling.messages), self._index[src], self._index[dst], size, priority,
                bound, None, arrived, start_ps=Ps(int(self.env.now)), transport=transport,
            )
        )  # fmt: skip
        return done

    def run(self, *processes: Process, until: Ps | None = None) -> bool:
        """Run until these processes are over, or to a time in picoseconds; whether they are.

        Raises
        ------
        StallError
            They wait for something that cannot happen.
        """
        started = [self.env.process(process) for process in processes]
        over: Callable[[], bool] = lambda: all(each.triggered for each in started)  # noqa: E731
        waiting: Callable[[], list[str]] = lambda: [_where(each) for each in started if each.is_alive]  # noqa: E731
        return self._coupling.run(over, until=until, waiting=waiting)

    @property
    def messages(self) -> pyarrow.Table:
        """The table of the messages sent so far, as in a Result."""
        coupling, now = self._coupling, Ps(int(self.env.now))
        counts = counts_of(coupling.fabric.finish())
        rows = MessageRows(coupling.names, [transport.payload for transport in self.scenario.transports], Shelf())
        rows.add_messages(coupling.messages, counts)
        for track in coupling.tracks:
            for step in track.steps:
                rows.add_step(track.part.table, step, counts, now)
        return rows.kept().table()
