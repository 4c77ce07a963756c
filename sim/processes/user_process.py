"""`Wires` lets user-defined SimPy processes send messages over the simulated network of a scenario.

    wires = Wires(gradwire.load_scenario("incast"))

    def pull_from_all(server):
        sent = [wires.send(host, server, "100kB") for host in wires.hosts if host != server]
        yield wires.env.all_of(sent)
        print(wires.env.now, "all messages have arrived")

    wires.run(pull_from_all("h0"))

A scenario gives the network, its switches and transports; its jobs are ignored, and so is its traffic unless
`with_traffic`. Time is SimPy's, in integer picoseconds. Every message costs Python time: communication that is known
beforehand runs faster as a program (`gradwire.workload.program`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from numbers import Real
from typing import TYPE_CHECKING, Any

import simpy

from gradwire.jit.limits import MAX_PACKETS
from gradwire.result_store.row_blocks import ColumnStore
from gradwire.result_store.table_schema import KINDS
from gradwire.scenarios.errors import GradwireError, ScenarioError
from gradwire.scenarios.loading.load import as_scenario
from gradwire.scenarios.schema.network.network import MAX_QUEUES
from gradwire.scenarios.units import Bytes, Ps, UnitError, format_size, parse_size
from gradwire.scenarios.validation.argument_checks import require_instance, require_integer
from gradwire.sim.message_table import MessageRows, message_counts
from gradwire.sim.processes.coupling import Coupling
from gradwire.sim.processes.message import Message
from gradwire.sim.stall_timeout import stall_timeout_ps
from gradwire.topology import network_of
from gradwire.topology.routing import build_routing
from gradwire.workload.resolve import make_traffic

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from gradwire.scenarios.schema.scenario import Scenario

Process = Generator[simpy.Event, object, object]


def _where(process: simpy.Process) -> str:
    """Return the function, file and line at which a process, or a generator that it delegates to, waits."""
    inner: Any = process._generator
    while getattr(inner, "gi_yieldfrom", None) is not None and hasattr(inner.gi_yieldfrom, "gi_frame"):
        inner = inner.gi_yieldfrom
    line = f":{inner.gi_frame.f_lineno}" if inner.gi_frame is not None else ""
    return f"process {process.name} waits at {inner.gi_code.co_filename}{line}"


class Wires:
    """The network of a scenario, for SimPy processes.

    Attributes
    ----------
    env : the SimPy environment of the processes; `env.now` is in picoseconds.
    hosts : names of the NICs that can send and receive: of hosts, or "h0.nic1" where a host has several.
    """

    def __init__(self, scenario: Scenario | str | Path, *, threads: int = 1, with_traffic: bool = False) -> None:
        """Build the network of a scenario or of a named one. Raises ScenarioError if it cannot be simulated."""
        from gradwire.sim.simulate import check_simulated, packet_fabric

        scenario = as_scenario(scenario, "Wires(scenario)")
        require_integer(threads, "Wires(threads)", 1, ScenarioError)
        check_simulated(scenario)
        self.scenario = scenario
        network = network_of(scenario)
        routing = build_routing(network)
        fabric = packet_fabric(scenario, network, routing, threads)
        patience = stall_timeout_ps(scenario, network, routing)
        self._coupling = Coupling(
            fabric, scenario.host.software_latency, network.names, bool(scenario.output.packet_log), patience
        )
        self._index, self.env = network.index, self._coupling.env
        self.hosts = tuple(network.names[: network.host_count])
        if with_traffic:
            for part in make_traffic(scenario, network):
                self._coupling.play(part)

    def send(
        self,
        src: str,
        dst: str,
        nbytes: int | str,
        *,
        priority: int = 0,
        bound: float = 0.0,
        transport: int = 0,
        kind: str = "flow",
        job: str = "own",
    ) -> simpy.Event:
        """Send a message, which enters the network one software latency from now.

        Returns an event that happens at delivery; its value is the `gradwire.sim.processes.message.Message`, with the
        bytes received and lost.

        Parameters
        ----------
        nbytes : bytes, or a size such as "4MiB".
        bound : the share of bytes that may be lost, if the transport supports loss bounds.
        transport : number among the scenario's transports.
        priority : 0 (served first) to 7.
        kind, job : labels for the table of messages; `kind` is one of `gradwire.result_store.table_schema.KINDS`.

        Raises
        ------
        GradwireError
            An argument is invalid.
        """
        if kind not in KINDS:
            raise GradwireError(f"unknown kind of message {kind!r}", "send(kind)", ", ".join(KINDS))
        for name, argument in ((src, "src"), (dst, "dst")):
            if not isinstance(name, str) or name not in self._index or self._index[name] >= len(self.hosts):
                hosts = f"hosts are {self.hosts[0]} to {self.hosts[-1]}"
                raise GradwireError(f"there is no host {name!r}", f"send({argument})", hosts)
        if src == dst:
            raise GradwireError(f"{src!r} cannot send to itself", "send(dst)", "another host")
        if not _is_whole(priority) or not 0 <= priority < MAX_QUEUES:
            raise GradwireError(f"invalid priority {priority!r}", "send(priority)", f"0 (first) to {MAX_QUEUES - 1}")
        if isinstance(bound, bool) or not isinstance(bound, Real) or not 0 <= bound <= 1:
            raise GradwireError(f"invalid loss bound {bound!r}", "send(bound)", "a number from 0 to 1")
        if not _is_whole(transport) or not 0 <= transport < len(self.scenario.transports):
            numbers = f"0 to {len(self.scenario.transports) - 1}, the scenario's transports"
            raise GradwireError(f"invalid transport number {transport!r}", "send(transport)", numbers)
        require_instance(job, str, "send(job)", "a name for the table of messages", GradwireError)
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
        """Run until these processes end or `until` in picoseconds; return True if all have ended.

        Raises
        ------
        GradwireError
            A process is not a generator, or `until` is not a time.
        StallError
            The processes wait for something that cannot happen.
        Exception
            An exception that a process raised, unchanged.
        """
        for process in processes:
            expected = "generators, such as process() for a function with `yield`"
            require_instance(process, Generator, "run(processes)", expected, GradwireError)
        if until is not None:
            require_integer(until, "run(until)", 0, GradwireError)
        running = [self.env.process(process) for process in processes]
        all_ended: Callable[[], bool] = lambda: all(task.triggered for task in running)  # noqa: E731
        waiting: Callable[[], list[str]] = lambda: [_where(task) for task in running if task.is_alive]  # noqa: E731
        reached = self._coupling.run(all_ended, until=until, waiting=waiting)
        for task in running:  # the last process to end may have failed without anything waiting for it
            if task.triggered and not task.ok and isinstance(task.value, BaseException):
                raise task.value
        return reached

    @property
    def messages(self) -> pyarrow.Table:
        """The table of the messages sent so far, as in a Result."""
        coupling, now = self._coupling, Ps(int(self.env.now))
        counts = message_counts(coupling.fabric.finish())
        rows = MessageRows(coupling.names, [transport.payload for transport in self.scenario.transports], ColumnStore())
        rows.add_messages(coupling.messages, counts)
        for track in coupling.tracks:
            for step in track.steps:
                rows.add_step(track.part.table, step, counts, now)
        return rows.table().table()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _size(nbytes: int | str, most: int) -> Bytes:
    """Return the bytes of a message, given as a number or a size. Raises `GradwireError` if invalid or above `most`."""
    expected = 'whole bytes, at least 1, or a size such as "4MiB"'
    size: object = nbytes
    if isinstance(nbytes, str):
        try:
            size = parse_size(nbytes)
        except UnitError as error:
            raise GradwireError(f"{nbytes!r} {error.what}", "send(nbytes)", expected) from None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise GradwireError(f"invalid message size {nbytes!r}", "send(nbytes)", expected)
    if size > most:
        expected = f"at most {format_size(most)}"
        raise GradwireError(f"message size {nbytes!r} is too large", "send(nbytes)", expected)
    return Bytes(size)
