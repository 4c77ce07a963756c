"""From a scenario to a plan: what the testbed is to do, and everything it cannot do, said at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.components.transports.dlcp import Dlcp
from gradwire.emu.planning.ability import available, lacking
from gradwire.emu.planning.changes import Change
from gradwire.emu.planning.faults import changes_of, why_not
from gradwire.emu.planning.plan import Plan, Port, Queues, TransportPlan
from gradwire.emu.planning.programs import transport_of_programs
from gradwire.emu.programs.described import Programs
from gradwire.emu.transports.rules import transport_class
from gradwire.experiment.resolved import Resolved
from gradwire.experiment.routing import Routing
from gradwire.experiment.topology import Network
from gradwire.scenarios.components import components
from gradwire.scenarios.errors import Mistake, ScenarioError, names_scenario
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.schema.transport_base import Tcp, Transport
from gradwire.scenarios.units import format_rate
from gradwire.scenarios.user_classes import table_for

BALANCERS = tuple(sorted({name for each in components("switch").values() for name in each.balancers}))
"""Those that some switch backend has."""
MOST_HOSTS = 64
"""Processes, network namespaces and cables of one machine; our choice."""


@names_scenario
def check_scenario(scenario: Scenario, programs: bool = False) -> None:
    """Raise ScenarioError with everything in the scenario that the testbed cannot do, whatever the backend; or, with
    `programs`, that it cannot do beside programs of the user's own."""
    wrong: list[Mistake] = []

    def no(where: str, what: str, value: object, expected: str) -> None:
        wrong.append(Mistake(where, what, value, expected))

    there = "the simulator (gradwire run)"
    switch = scenario.switch
    for field in ("drr_quantum", "shared_buffer", "ecn_ceiling", "trim_threshold"):
        value = getattr(switch, field)
        if value is not None:
            no(f"switch.{field}", "is nothing that the testbed's switches can do", value, f"nothing, or {there}")
    for field in ("shortest_first", "pfc"):
        if getattr(switch, field):
            no(f"switch.{field}", "is nothing that the testbed's switches can do", True, f"false, or {there}")
    if switch.aggregation_slots and any(job.exchange.aggregates for job in scenario.job):
        what = "is nothing that the testbed's switches can do: they do not add up what packets carry"
        no("switch.aggregation_slots", what, switch.aggregation_slots, f"0, or {there}")
    if switch.queue_policy not in ("threshold", "red"):
        what = "is compiled into the simulator; queues of the testbed mark and drop by a threshold only"
        no("switch.policy", what, switch.queue_policy, f'"threshold", or {there}')
    if scenario.load_balancing not in BALANCERS:
        no(
            "load_balancing", "is not available on the testbed", scenario.load_balancing,
            f"{', '.join(BALANCERS)}, or {there}",
        )  # fmt: skip
    for number, transport in enumerate(scenario.transports):
        if why := lacking(transport, _folder(scenario)):
            users = [
                f"{name}[{place}].transport"
                for name in ("job", "traffic")
                for place, table in enumerate(getattr(scenario, name))
                if scenario.transport_of(table) == number and table.transport is not None
            ]
            no(
                users[0] if users else "transport", f"wants what the testbed has not got: {'; '.join(why)}",
                transport.kind, f"{', '.join(available())}, or {there}",
            )  # fmt: skip
    for number, fault in enumerate(scenario.fault):
        if reason := why_not(fault, programs):
            expected = "faults that cut cables, lose packets or pause hosts"
            no(f"fault[{number}]", reason, fault.kind, expected if programs else f"another kind of fault, or {there}")
    if programs:
        for number, job in enumerate(scenario.job):
            what = "is replayed by gradwire's own hosts, and the command is what runs at them here"
            no(f"job[{number}]", what, job.name, "no jobs, or gradwire emulate")
        if "transport" in scenario.model_fields_set and not scenario.traffic:
            what = "carries nothing here: programs open connections of their own, by their kernel's TCP"
            no("transport", what, scenario.transport.kind, "exec.congestion, or [[traffic]] that it carries")
        if scenario.emulation.hosts:
            what = "are machines with networks of their own, where a command is started by torchrun or ssh"
            no("emulation.hosts", what, None, "none of them")
    elif not scenario.senders:
        no("exec", "is a network for gradwire exec, and nothing else is sent", None, "a [[job]] or [[traffic]]")
    if scenario.output.packet_log:
        no("output.packet_log", "is kept by the simulator only", True, "gradwire emulate --pcap")
    if scenario.output.delays:
        no("output.delays", "are counted by the simulator only", True, "false")
    for field, values in kernel_settings(scenario).items():
        if len(values) > 1:
            no(
                f"transport.{field}",
                f"is not the same for {' and '.join(values.values())}, which share their hosts' kernels",
                None, "one value",
            )  # fmt: skip
    if wrong:
        raise ScenarioError("the testbed cannot run this scenario", mistakes=wrong)


def kernel_settings(scenario: Scenario) -> dict[str, dict[int, str]]:
    """What the kernel's TCP takes from its host and not from a socket: by field, the values that the scenario's
    transports want, each with the kind of the first of them."""
    wanted: dict[str, dict[int, str]] = {"min_rto": {}, "initial_window": {}, "ecn": {}}
    for transport in scenario.transports:
        if isinstance(transport, Tcp) and transport.congestion():
            wanted["min_rto"].setdefault(transport.min_rto, transport.kind)
            wanted["initial_window"].setdefault(transport.initial_window, transport.kind)
            if transport.kind != "dctcp":  # which asks for marks by itself
                wanted["ecn"].setdefault(transport.ecn_capable, transport.kind)
    return wanted


def kernel_options(scenario: Scenario) -> Json:
    """The smallest time-out, in ns, the initial window, in packets, and whether to ask for marks, of a scenario that
    `check_scenario` has passed."""
    wanted = kernel_settings(scenario)
    options: Json = {}
    over_tcp = scenario.emulation.side_channel == "tcp"
    dlcp = [each.probe_timeout for each in scenario.transports if isinstance(each, Dlcp) and over_tcp]
    if wanted["min_rto"]:
        options["min_rto_ns"] = next(iter(wanted["min_rto"])) // 1000
        options["initcwnd"] = next(iter(wanted["initial_window"]))
    elif dlcp:
        # the side channel repeats what is lost as soon as a Probe would be repeated, not after 200 ms
        options["min_rto_ns"] = min(dlcp) // 1000
    if scenario.emulation.loss_recovery == "classic":
        options["loss_recovery"] = "classic"
    if scenario.emulation.host_queue == "packet":
        options["host_queue"] = "packet"
    if not over_tcp:
        options["side_channel"] = "udp"
    # Probes are dropped by choice unless they are ECN-capable; asking for marks makes them, and all other TCP, so
    if True in wanted["ecn"] or (dlcp and not wanted["ecn"]):
        options["tcp_ecn"] = 1
    return options


@names_scenario
def fault_changes(scenario: Scenario, network: Network) -> tuple[Change, ...]:
    """Return what the faults of a scenario change, in the words of a plan.

    Raises
    ------
    ScenarioError
        Faults of what the network has not got.
    """
    mistakes: list[Mistake] = []
    changes = changes_of(scenario.fault, network, mistakes)
    if mistakes:
        raise ScenarioError("the testbed cannot run this scenario", mistakes=mistakes)
    return changes


@names_scenario
def make_plan(
    scenario: Scenario,
    resolved: Resolved,
    *,
    clock: str,
    switch: str,
    captures: Sequence[str] = (),
    options: JsonView | None = None,
    programs: Programs | None = None,
) -> Plan:
    """The plan of a scenario; `switch` is a backend that has been found to be able to run it. `programs`: what runs
    across it besides.

    Raises
    ------
    ScenarioError
        Too many hosts, or faults of what the network has not got.
    """
    network, routing = resolved.network, resolved.routing
    if network.host_count > MOST_HOSTS:
        raise ScenarioError(
            f"{network.host_count} hosts, each of them processes on this machine",
            where="topology",
            expected=f"at most {MOST_HOSTS}, or the simulator (gradwire run)",
        )
    changes = fault_changes(scenario, network)
    return Plan(
        name=scenario.name,
        seed=scenario.seed,
        names=tuple(network.names),
        host_count=network.host_count,
        ports=ports_of(network),
        routes=routes_of(network, routing),
        queues=Queues(
            scenario.switch.queues,
            scenario.switch.buffer,
            scenario.switch.thresholds(),
            scenario.switch.selective_drop,
            scenario.switch.limits(),
        ),
        balancing=scenario.load_balancing,
        transports=(
            *(transport_plan(each, _folder(scenario)) for each in scenario.transports),
            *(() if programs is None else (transport_of_programs(scenario),)),
        ),
        software_latency_ps=scenario.host.software_latency,
        program=resolved.program,
        clock=clock,
        switch=switch,
        duration_ps=scenario.duration,
        sample_ps=scenario.output.queue_samples,
        sample_ports=sampled_ports(scenario.output.sample_ports, network),
        captures=tuple(captures),
        options=dict(options or {}),
        changes=changes,
        programs=programs,
    )


def _folder(scenario: Scenario) -> str | None:
    """Where the scenario's own classes lie."""
    return str(scenario.folder) if scenario.folder else None


def transport_plan(table: Transport, folder: str | None) -> TransportPlan:
    """What the inside needs to know of a transport, given its table: packets are as long as they are simulated."""
    if ":" in table.kind:
        table = table_for(transport_class(table.kind, folder), table)
    plan = TransportPlan(
        table.kind, table.payload, table.overhead, table.wire, table.model_dump(), congestion=table.congestion()
    )
    if plan.by_kernel:
        return plan
    owner, settings = transport_class(table.kind, folder), plan.parameters
    return replace(
        plan, overhead=Bytes(owner.data_overhead), wire="udp", answer=Bytes(owner.control_bytes), folder=folder,
        important=bool(owner.important(settings)),
    )  # fmt: skip


def sampled_ports(names: Sequence[str] | None, network: Network) -> tuple[int, ...]:
    """Numbers of ports by their names or those of nodes (all their ports); None: all ports of switches.

    ScenarioError with every name that is neither.
    """
    ports = ports_of(network)
    if names is None:
        return tuple(port.number for port in ports if port.src >= network.host_count)
    known = {port.name for port in ports} | set(network.names)
    like = f"a node such as {network.names[-1]} or a port such as {ports[-1].name}"
    wrong = [
        Mistake(f"output.sample_ports[{number}]", "is no port and no node", name, like)
        for number, name in enumerate(names)
        if name not in known
    ]
    if wrong:
        raise ScenarioError("the ports to be sampled are not in the network", mistakes=wrong)
    return tuple(port.number for port in ports if port.name in names or network.names[port.src] in names)


def ports_of(network: Network) -> tuple[Port, ...]:
    """The directed links of a network, by number."""
    names = network.names
    columns = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss)
    return tuple(
        Port(number, int(a), int(b), Bps(int(rate)), Ps(int(latency)), float(loss), f"{names[a]}->{names[b]}")
        for number, (a, b, rate, latency, loss) in enumerate(
            zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        )
    )


def routes_of(network: Network, routing: Routing) -> dict[tuple[int, int], tuple[int, ...]]:
    """(switch, host) -> the equally good ports of the switch towards the host; none where there is no way."""
    first = network.host_count
    found: dict[tuple[int, int], tuple[int, ...]] = {}
    for switch in range(len(network.names) - first):
        for host in range(first):
            edge = int(routing.edge_of[host])
            if edge == switch:
                found[first + switch, host] = (int(routing.down_link[host]),)
            elif ways := routing.next_links(switch, edge):
                found[first + switch, host] = ways
    return found


def check_rates(plan: Plan, reachable: int) -> None:
    """Raise ScenarioError if a link is faster than this machine can imitate on the wall clock.

    `reachable` : `gradwire.emu.planning.probe.Kernel.reachable_bps`. Where nothing could be tried, nothing is
    refused: only a backend that needs no queueing discipline runs there, and that one counts how late it is.
    """
    fastest = max(plan.ports, key=lambda port: port.rate)
    if plan.clock != "wall" or reachable < 0 or fastest.rate <= reachable:
        return
    if reachable == 0:
        raise ScenarioError(
            f"{fastest.name} has {format_rate(fastest.rate)}, and this machine kept none of the rates that were tried "
            "on the wall clock: it is too slow or too busy",
            where="link.rate",
            expected="another try when it has nothing else to do, or --clock virtual",
        )
    raise ScenarioError(
        f"{fastest.name} has {format_rate(fastest.rate)}, out of reach of this machine on the wall clock",
        where="link.rate",
        expected=f"at most {format_rate(reachable)}, such as --set link.rate={format_rate(reachable)}, "
        "or --clock virtual",
    )
