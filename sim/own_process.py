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
from numbers import Real
from typing import TYPE_CHECKING, Any

import simpy

from gradwire.components.limits import MAX_PACKETS
from gradwire.experiment.resolve import traffic_of
from gradwire.experiment.routing import build_routing
from gradwire.experiment.topology import network_of
from gradwire.scenarios.blocks import Shelf
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.given import instance_of, whole_number
from gradwire.scenarios.load import scenario_of
from gradwire.scenarios.result import KINDS
from gradwire.scenarios.schema.network import MAX_QUEUES
from gradwire.scenarios.units import Bytes, Ps, UnitError, format_size, parse_size
from gradwire.sim.coupling import Coupling
from gradwire.sim.message import Message
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
        whole_number(threads, "Wires(threads)", 1, ScenarioError)
        check_simulated(scenario)
        self.scenario = scenario
        network = network_of(scenario)
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
        delivered; its value is the `gradwire.sim.message.Message`, with what was received and lost.

        Parameters
        ----------
        nbytes : or a size such as "4MiB".
        bound : the share that may be missing at delivery, where the transport takes one.
        transport : number among the scenario's transports.
        priority : the class, 0 is served first, to 7.
        kind : one of `gradwire.scenarios.result.KINDS`; `job` : both are for the table of messages only.

        Raises
        ------
        GradwireError
            An argument cannot be used.
        """
        if kind not in KINDS:
            raise GradwireError(f"{kind!r} is no kind of message", "send(kind)", ", ".join(KINDS))
        for name, what in ((src, "src"), (dst, "dst")):
            if not isinstance(name, str) or name not in self._index or self._index[name] >= len(self.hosts):
                hosts = f"hosts are {self.hosts[0]} to {self.hosts[-1]}"
                raise GradwireError(f"there is no host {name!r}", f"send({what})", hosts)
        if src == dst:
            raise GradwireError(f"{src!r} cannot send to itself", "send(dst)", "another host")
        if not _whole(priority) or not 0 <= priority < MAX_QUEUES:
            raise GradwireError(f"{priority!r} is no priority", "send(priority)", f"0 (first) to {MAX_QUEUES - 1}")
        if isinstance(bound, bool) or not isinstance(bound, Real) or not 0 <= bound <= 1:
            raise GradwireError(f"{bound!r} is no share", "send(bound)", "a number from 0 to 1")
        if not _whole(transport) or not 0 <= transport < len(self.scenario.transports):
            there = f"0 to {len(self.scenario.transports) - 1}, among the scenario's"
            raise GradwireError(f"{transport!r} is no transport", "send(transport)", there)
        instance_of(job, str, "send(job)", "a name for the table of messages", GradwireError)
        size = _size(nbytes, self.scenario.transports[transport].payload * MAX_PACKETS)
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
        GradwireError
            One of them is no generator, or `until` is no time.
        StallError
            They wait for something that cannot happen.
        Exception
            What one of them has raised, as it is.
        """
        for process in processes:
            expected = "generators, such as mine() of a function with `yield` in it"
            instance_of(process, Generator, "run(processes)", expected, GradwireError)
        if until is not None:
            whole_number(until, "run(until)", 0, GradwireError)
        started = [self.env.process(process) for process in processes]
        over: Callable[[], bool] = lambda: all(each.triggered for each in started)  # noqa: E731
        waiting: Callable[[], list[str]] = lambda: [_where(each) for each in started if each.is_alive]  # noqa: E731
        reached = self._coupling.run(over, until=until, waiting=waiting)
        for each in started:  # the last one to end may have failed at the very end, which nobody has looked at yet
            if each.triggered and not each.ok and isinstance(each.value, BaseException):
                raise each.value
        return reached

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


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(nbytes: int | str, most: int) -> Bytes:
    """Bytes of a message, given as such or as a size; at most `most`. Raises `GradwireError`."""
    expected = 'whole bytes, at least 1, or a size such as "4MiB"'
    size: object = nbytes
    if isinstance(nbytes, str):
        try:
            size = parse_size(nbytes)
        except UnitError as error:
            raise GradwireError(f"{nbytes!r} {error.what}", "send(nbytes)", expected) from None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise GradwireError(f"{nbytes!r} is no size", "send(nbytes)", expected)
    if size > most:
        expected = f"at most {format_size(most)}"
        raise GradwireError(f"{nbytes!r} is more than a message can have", "send(nbytes)", expected)
    return Bytes(size)
