"""Converts a scenario's faults to changes of the testbed, and reports those it cannot apply or applies differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.emu.planning.plan import PS_PER_NS, Change
from gradwire.scenarios.errors import Mistake, ScenarioError, with_scenario_location
from gradwire.scenarios.schema.network.fault import Fault, HostFault, LinkFault, SwitchFault
from gradwire.scenarios.schema.scenario import Scenario
from gradwire.topology import Network


def unsupported_reason(fault: Fault, programs: bool) -> str:
    """Return why the testbed cannot apply a fault, or not to user `programs`; "" if it can."""
    if fault.most_rate is not None:
        return "changes the rate of a cable, which the testbed cannot change during a run"
    if programs and fault.slowness != 1.0:
        return "makes computing slower, which gradwire cannot do to user programs"
    return ""


@with_scenario_location
def fault_changes(scenario: Scenario, network: Network) -> tuple[Change, ...]:
    """Return the changes that the faults of a scenario make, in order of time. Of several faults at once the worst loss
    counts, and slowness multiplies. Raises ScenarioError: a fault names a part that the network does not have."""
    faults, mistakes = scenario.fault, list[Mistake]()
    ports = [_ports(index, fault, network, mistakes) for index, fault in enumerate(faults)]
    hosts = [_hosts(index, fault, network, mistakes) for index, fault in enumerate(faults)]
    if mistakes:
        raise ScenarioError("the testbed cannot run this scenario", mistakes=mistakes)
    times = sorted({time for fault in faults for time in (fault.at, fault.until) if time is not None})
    base_loss = {port: float(network.link_loss[port]) for fault_ports in ports for port in fault_ports}
    loss, still, slow = dict(base_loss), set[int](), dict[int, float]()
    changes = []
    for time in times:
        loss_now, still_now, slow_now = dict(base_loss), set[int](), dict[int, float]()
        for fault, ports_of_fault, hosts_of_fault in zip(faults, ports, hosts, strict=True):
            if fault.at <= time and (fault.until is None or time < fault.until):
                least = 1.0 if fault.cuts else fault.least_loss
                loss_now |= {port: max(loss_now[port], least) for port in ports_of_fault}
                still_now |= set(hosts_of_fault) if fault.stops else set()
                if fault.slowness != 1.0:
                    slow_now |= {host: slow_now.get(host, 1.0) * fault.slowness for host in hosts_of_fault}
        changes.append(
            Change(
                time // PS_PER_NS,
                tuple((port, value) for port, value in sorted(loss_now.items()) if loss[port] != value),
                tuple(sorted(still_now - still)),
                tuple(sorted(still - still_now)),
                tuple(
                    (host, slow_now.get(host, 1.0))
                    for host in sorted(slow.keys() | slow_now.keys())
                    if slow.get(host, 1.0) != slow_now.get(host, 1.0)
                ),
            )
        )
        loss, still, slow = loss_now, still_now, slow_now
    return tuple(changes)


def fault_departures(
    changes: Sequence[Change], routes: Mapping[tuple[int, int], Sequence[int]], programs: bool
) -> list[str]:
    """Return messages about the ways in which faults differ from those of the simulator."""
    messages = []
    if any(loss == 1.0 for change in changes for _, loss in change.loss):
        messages.append("packets on a cut cable count as lost on the link (drops_loss)")
        if any(len(ports) > 1 for ports in routes.values()):
            messages.append("routes do not avoid a cut cable (noticed_after)")
    if any(change.stop for change in changes):
        what = "its programs pause" if programs else "its agent pauses"
        messages.append(f"a paused host: {what}, but its kernel still answers")
    return messages


def _ports(index: int, fault: Fault, network: Network, mistakes: list[Mistake]) -> list[int]:
    ends = list(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    names = network.names
    if isinstance(fault, LinkFault):
        one, other = fault.between
        directions = {(one, other)} | (set() if fault.one_way else {(other, one)})
        ports = [port for port, (a, b) in enumerate(ends) if (names[a], names[b]) in directions]
        if not ports:
            example = f"{names[ends[0][0]]} and {names[ends[0][1]]}"
            mistakes.append(
                Mistake(f"fault[{index}].between", "no such cable", list(fault.between), f"such as {example}")
            )
        return ports
    if isinstance(fault, SwitchFault):
        ports = [port for port, (a, b) in enumerate(ends) if fault.switch in (names[a], names[b])]
        if fault.switch not in names[network.host_count :]:
            expected = ", ".join(names[network.host_count :][:6])
            mistakes.append(Mistake(f"fault[{index}].switch", "no such switch", fault.switch, expected))
        return ports
    return []


def _hosts(index: int, fault: Fault, network: Network, mistakes: list[Mistake]) -> list[int]:
    if not isinstance(fault, HostFault):
        return []
    hosts = network.names[: network.host_count]
    if fault.host not in hosts:
        mistakes.append(Mistake(f"fault[{index}].host", "no such host", fault.host, f"{hosts[0]} to {hosts[-1]}"))
        return []
    return [hosts.index(fault.host)]
