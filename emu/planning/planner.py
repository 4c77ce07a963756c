"""Converts a scenario to a `TestbedPlan`, or reports in one error everything in it that the testbed cannot do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradwire.emu.planning.capabilities import available_transports, missing_features
from gradwire.emu.planning.faults import fault_changes, unsupported_reason
from gradwire.emu.planning.plan import Port, Queues, TestbedPlan, TransportPlan
from gradwire.emu.planning.user_programs import transport_of_programs
from gradwire.emu.transports.simulator_rules import transport_class
from gradwire.emu.user_programs.programs import Programs
from gradwire.protocols.transports.dlcp.dlcp import Dlcp
from gradwire.scenarios.errors import Mistake, ScenarioError, with_scenario_location
from gradwire.scenarios.inner_units import Bps, Bytes, Ps
from gradwire.scenarios.json_data import Json, JsonView
from gradwire.scenarios.loading.registry import components
from gradwire.scenarios.loading.user_classes import validate_user_table
from gradwire.scenarios.schema.exec import Exec
from gradwire.scenarios.schema.network.transport_base import Tcp, Transport
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.scenarios.units import format_rate, format_time
from gradwire.scenarios.wire import ETHERNET
from gradwire.topology import Network
from gradwire.topology.routing import Routing
from gradwire.workload.resolve import Resolved

BALANCERS = tuple(sorted({name for each in components("switch").values() for name in each.balancers}))
"""Load balancers that at least one switch backend implements."""
MAX_HOSTS = 64
"""Limit on the processes, network namespaces and cables of one machine; our choice."""


@with_scenario_location
def check_scenario(scenario: Scenario, programs: bool = False) -> None:
    """Raise ScenarioError listing everything in the scenario that no backend of the testbed can do. With `programs`,
    also everything that cannot be combined with user programs."""
    mistakes: list[Mistake] = []

    def reject(where: str, what: str, value: object, expected: str) -> None:
        mistakes.append(Mistake(where, what, value, expected))

    alternative, unsupported = "the simulator (gradwire run)", "not supported by the testbed's switches"
    switch = scenario.switch
    for field in ("drr_quantum", "shared_buffer", "ecn_ceiling", "trim_threshold"):
        if (value := getattr(switch, field)) is not None:
            reject(f"switch.{field}", unsupported, value, f"none, or {alternative}")
    if switch.override:
        reject("switch.override", "not supported: queues of the testbed are alike", len(switch.override), alternative)
    for field in ("shortest_first", "pfc"):
        if getattr(switch, field):
            reject(f"switch.{field}", unsupported, True, f"false, or {alternative}")
    if switch.aggregation_slots and any(job.exchange.aggregates for job in scenario.job):
        what = f"{unsupported}, which do not aggregate packets"
        reject("switch.aggregation_slots", what, switch.aggregation_slots, f"0, or {alternative}")
    for number, job in enumerate(scenario.job):
        if getattr(job.exchange, "skip_zeros", False):
            what = "simulated only: the testbed's workers send whole partitions"
            reject(f"job[{number}].exchange.skip_zeros", what, True, f"false, or {alternative}")
    if switch.queue_policy not in ("threshold", "red"):
        what = "exists only in the simulator; queues of the testbed mark and drop at a threshold"
        reject("switch.policy", what, switch.queue_policy, f'"threshold", or {alternative}')
    if scenario.load_balancing not in BALANCERS:
        expected = f"{', '.join(BALANCERS)}, or {alternative}"
        reject("load_balancing", "not available on the testbed", scenario.load_balancing, expected)
    for number, transport in enumerate(scenario.transports):
        if missing := missing_features(transport, _folder(scenario)):
            users = [
                f"{name}[{index}].transport"
                for name in ("job", "traffic")
                for index, table in enumerate(getattr(scenario, name))
                if scenario.transport_of(table) == number and table.transport is not None
            ]
            what, expected = f"needs what the testbed lacks: {'; '.join(missing)}", ", ".join(available_transports())
            reject(users[0] if users else "transport", what, transport.kind, f"{expected}, or {alternative}")
    for number, fault in enumerate(scenario.fault):
        if reason := unsupported_reason(fault, programs):
            expected = f"another kind of fault, or {alternative}"
            expected = "faults that cut cables, lose packets or pause hosts" if programs else expected
            reject(f"fault[{number}]", reason, fault.kind, expected)
    if programs:
        for number, job in enumerate(scenario.job):
            what = "is replayed by gradwire's hosts, but here the hosts run the command"
            reject(f"job[{number}]", what, job.name, "no jobs, or gradwire emulate")
        if "transport" in scenario.model_fields_set and not scenario.traffic:
            what = "has no effect: programs open their own connections over the kernel's TCP"
            reject("transport", what, scenario.transport.kind, "exec.congestion, or [[traffic]] that it carries")
        if scenario.emulation.hosts:
            what = "not supported: on separate machines, start the command by torchrun or ssh"
            reject("emulation.hosts", what, None, "none of them")
    elif not scenario.senders:
        reject("exec", "is for gradwire exec only: no job or traffic", None, "a [[job]] or [[traffic]]")
    if scenario.output.packet_log:
        reject("output.packet_log", "written by the simulator only", True, "gradwire emulate --pcap")
    if scenario.output.delays:
        reject("output.delays", "counted by the simulator only", True, "false")
    for field, values in kernel_settings(scenario).items():
        if len(values) > 1:
            what = f"differs between {' and '.join(values.values())}, which share the kernels of their hosts"
            reject(f"transport.{field}", what, None, "one value")
    if mistakes:
        raise ScenarioError("the testbed cannot run this scenario", mistakes=mistakes)


def kernel_settings(scenario: Scenario) -> dict[str, dict[int, str]]:
    """Return the TCP settings that a host's kernel has only once, by field. Each maps the values that the scenario's
    transports request to the kind of the first that does."""
    settings: dict[str, dict[int, str]] = {"min_rto": {}, "initial_window": {}, "ecn": {}}
    for transport in scenario.transports:
        if isinstance(transport, Tcp) and transport.congestion():
            settings["min_rto"].setdefault(transport.min_rto, transport.kind)
            settings["initial_window"].setdefault(transport.initial_window, transport.kind)
            if transport.kind != "dctcp":  # DCTCP always uses ECN
                settings["ecn"].setdefault(transport.ecn_capable, transport.kind)
    return settings


def kernel_options(scenario: Scenario) -> Json:
    """Return the options of the host kernels for a scenario that has passed `check_scenario`. They include the minimum
    RTO in ns, the initial window in packets, and ECN."""
    settings = kernel_settings(scenario)
    options: Json = {}
    over_tcp = scenario.emulation.side_channel == "tcp"
    dlcp = [transport.probe_timeout for transport in scenario.transports if isinstance(transport, Dlcp) and over_tcp]
    if settings["min_rto"]:
        options["min_rto_ns"] = next(iter(settings["min_rto"])) // 1000
        options["initcwnd"] = next(iter(settings["initial_window"]))
    elif dlcp:
        # the side channel retransmits as early as a Probe would be repeated, not after 200 ms
        options["min_rto_ns"] = min(dlcp) // 1000
    if scenario.emulation.loss_recovery == "classic":
        options["loss_recovery"] = "classic"
    if scenario.emulation.host_queue == "packet":
        options["host_queue"] = "packet"
    if not over_tcp:
        options["side_channel"] = "udp"
    # selective drop hits Probes unless they are ECN-capable; this makes all TCP so
    if True in settings["ecn"] or (dlcp and not settings["ecn"]):
        options["tcp_ecn"] = 1
    return options


def traffic_side_effects(scenario: Scenario, plan: TestbedPlan) -> list[str]:
    """Return messages about IP packets and TCP settings of user programs that differ from [exec] because of the
    traffic, which shares their devices and kernels."""
    table = scenario.exec or Exec()
    if not scenario.traffic:
        return []
    messages = []
    if (size := plan.largest_frame() - ETHERNET) > table.mtu:
        messages.append(
            f"IP packets of programs have up to {size} bytes instead of {table.mtu} (exec.mtu), the size of the "
            "traffic's packets: lower the payload of its transport"
        )
    options, tcp_settings = kernel_options(scenario), []
    if "min_rto_ns" in options and table.min_rto is None:
        tcp_settings.append(f"a minimum RTO of {format_time(Ps(options['min_rto_ns'] * 1000))}")
    if "initcwnd" in options:
        tcp_settings.append(f"an initial window of {options['initcwnd']} packets")
    if "tcp_ecn" in options and not table.ecn:
        tcp_settings.append("ECN")
    if tcp_settings:
        messages.append(f"TCP of programs shares settings of the traffic at their hosts: {', '.join(tcp_settings)}")
    return messages


@with_scenario_location
def make_plan(
    scenario: Scenario,
    resolved: Resolved,
    *,
    clock: str,
    switch: str,
    captures: Sequence[str] = (),
    options: JsonView | None = None,
    programs: Programs | None = None,
) -> TestbedPlan:
    """Return the plan of a scenario; `switch` is a backend that can run it.

    programs : user programs that run across the network as well.

    Raises ScenarioError: too many hosts, or a fault names a part that the network does not have.
    """
    network, routing = resolved.network, resolved.routing
    if network.host_count > MAX_HOSTS:
        raise ScenarioError(
            f"{network.host_count} hosts, each with processes on this machine",
            where="topology",
            expected=f"at most {MAX_HOSTS}, or the simulator (gradwire run)",
        )
    changes = fault_changes(scenario, network)
    return TestbedPlan(
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
            *(transport_plan(table, _folder(scenario)) for table in scenario.transports),
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
    return str(scenario.folder) if scenario.folder else None


def transport_plan(table: Transport, folder: str | None) -> TransportPlan:
    """Return the plan of a transport; its packets are as long as in the simulator."""
    if ":" in table.kind:
        table = validate_user_table(transport_class(table.kind, folder), table)
    plan = TransportPlan(
        table.kind, table.payload, table.overhead, table.wire, table.model_dump(), congestion=table.congestion()
    )
    if plan.by_kernel:
        return plan
    owner, settings = transport_class(table.kind, folder), plan.parameters
    return replace(
        plan,
        overhead=Bytes(owner.data_overhead),
        wire="udp",
        answer=Bytes(owner.control_bytes),
        folder=folder,
        important=bool(owner.important(settings)),
    )


def sampled_ports(names: Sequence[str] | None, network: Network) -> tuple[int, ...]:
    """Return the numbers of ports given by port or node name; None means all switch ports. Raises ScenarioError with
    every unknown name."""
    ports = ports_of(network)
    if names is None:
        return tuple(port.number for port in ports if port.src >= network.host_count)
    known_names = {port.name for port in ports} | set(network.names)
    example = f"a node such as {network.names[-1]} or a port such as {ports[-1].name}"
    mistakes = [
        Mistake(f"output.sample_ports[{number}]", "no such port or node", name, example)
        for number, name in enumerate(names)
        if name not in known_names
    ]
    if mistakes:
        raise ScenarioError("the ports to be sampled are not in the network", mistakes=mistakes)
    return tuple(port.number for port in ports if port.name in names or network.names[port.src] in names)


def ports_of(network: Network) -> tuple[Port, ...]:
    """Return the directed links of a network by number."""
    names = network.names
    columns = (network.link_src, network.link_dst, network.link_rate, network.link_latency, network.link_loss)
    return tuple(
        Port(number, int(a), int(b), Bps(int(rate)), Ps(int(latency)), float(loss), f"{names[a]}->{names[b]}")
        for number, (a, b, rate, latency, loss) in enumerate(
            zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        )
    )


def routes_of(network: Network, routing: Routing) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return (switch, host) -> the equally good ports of the switch towards the host; no entry if unreachable."""
    first = network.host_count
    routes: dict[tuple[int, int], tuple[int, ...]] = {}
    for switch in range(len(network.names) - first):
        for host in range(first):
            edge = int(routing.edge_of[host])
            if edge == switch:
                routes[first + switch, host] = (int(routing.down_link[host]),)
            elif ports := routing.next_links(switch, edge):
                routes[first + switch, host] = ports
    return routes


def check_rates(plan: TestbedPlan, reachable: int) -> None:
    """Raise ScenarioError if a link is faster than this machine can emulate on the wall clock.

    reachable : `gradwire.emu.planning.probe.KernelFeatures.reachable_bps`. If no rate could be measured, none is
        rejected: only a backend without queueing disciplines runs there, and it records its own lateness.
    """
    fastest = max(plan.ports, key=lambda port: port.rate)
    if plan.clock != "wall" or reachable < 0 or fastest.rate <= reachable:
        return
    if reachable == 0:
        raise ScenarioError(
            f"{fastest.name} has {format_rate(fastest.rate)}, but this machine sustained none of the rates tried on "
            "the wall clock: it is too slow or too busy",
            where="link.rate",
            expected="another try on an idle machine, or --clock virtual",
        )
    raise ScenarioError(
        f"{fastest.name} has {format_rate(fastest.rate)}, too fast for this machine on the wall clock",
        where="link.rate",
        expected=f"at most {format_rate(reachable)}, such as --set link.rate={format_rate(reachable)}, "
        "or --clock virtual",
    )
