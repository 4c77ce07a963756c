"""From a scenario's faults to changes of the testbed's network and hosts, and why some cannot be had there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradwire.emu.planning.changes import PS_PER_NS, Change
from gradwire.experiment.topology import Network
from gradwire.scenarios.errors import Mistake
from gradwire.scenarios.schema.fault import Fault, HostFault, LinkFault, SwitchFault


def why_not(fault: Fault, programs: bool) -> str:
    """Why a fault cannot happen on the testbed, or to `programs` of the user's own there; "" if it can."""
    if fault.most_rate is not None:
        return "changes the rate of a cable, which ports of the testbed keep"
    if programs and fault.slowness != 1.0:
        return "makes computing slower, and what programs compute is theirs"
    return ""


def changes_of(faults: Sequence[Fault], network: Network, mistakes: list[Mistake]) -> tuple[Change, ...]:
    """What faults do, in the order of time: of several at once the worst counts, and slowness multiplies. Names that
    are none become mistakes."""
    ports = [_ports(place, fault, network, mistakes) for place, fault in enumerate(faults)]
    hosts = [_hosts(place, fault, network, mistakes) for place, fault in enumerate(faults)]
    times = sorted({time for fault in faults for time in (fault.at, fault.until) if time is not None})
    own = {port: float(network.link_loss[port]) for each in ports for port in each}
    loss, still, slow = dict(own), set[int](), dict[int, float]()
    found = []
    for time in times:
        loss_now, still_now, slow_now = dict(own), set[int](), dict[int, float]()
        for fault, its, their in zip(faults, ports, hosts, strict=True):
            if fault.at <= time and (fault.until is None or time < fault.until):
                least = 1.0 if fault.cuts else fault.least_loss
                loss_now |= {port: max(loss_now[port], least) for port in its}
                still_now |= set(their) if fault.stops else set()
                if fault.slowness != 1.0:
                    slow_now |= {host: slow_now.get(host, 1.0) * fault.slowness for host in their}
        found.append(
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
    return tuple(found)


def differences(
    changes: Sequence[Change], routes: Mapping[tuple[int, int], Sequence[int]], programs: bool
) -> list[str]:
    """What faults do otherwise than in the simulator, in words."""
    found = []
    if any(loss == 1.0 for change in changes for _, loss in change.loss):
        found.append("what is sent over a cut cable counts as lost on it (drops_loss)")
        if any(len(ports) > 1 for ports in routes.values()):
            found.append("routes do not follow a cut cable (noticed_after)")
    if any(change.stop for change in changes):
        what = "its programs stand still" if programs else "its agent stands still"
        found.append(f"a paused host: {what}, its kernel goes on answering")
    return found


def _ports(place: int, fault: Fault, network: Network, mistakes: list[Mistake]) -> list[int]:
    ends = list(zip(network.link_src.tolist(), network.link_dst.tolist(), strict=True))
    names = network.names
    if isinstance(fault, LinkFault):
        one, other = fault.between
        wanted = {(one, other)} | (set() if fault.one_way else {(other, one)})
        found = [port for port, (a, b) in enumerate(ends) if (names[a], names[b]) in wanted]
        if not found:
            like = f"{names[ends[0][0]]} and {names[ends[0][1]]}"
            mistakes.append(Mistake(f"fault[{place}].between", "has no cable", list(fault.between), f"such as {like}"))
        return found
    if isinstance(fault, SwitchFault):
        found = [port for port, (a, b) in enumerate(ends) if fault.switch in (names[a], names[b])]
        if fault.switch not in names[network.host_count :]:
            expected = ", ".join(names[network.host_count :][:6])
            mistakes.append(Mistake(f"fault[{place}].switch", "is no switch", fault.switch, expected))
        return found
    return []


def _hosts(place: int, fault: Fault, network: Network, mistakes: list[Mistake]) -> list[int]:
    if not isinstance(fault, HostFault):
        return []
    hosts = network.names[: network.host_count]
    if fault.host not in hosts:
        mistakes.append(Mistake(f"fault[{place}].host", "is no host", fault.host, f"{hosts[0]} to {hosts[-1]}"))
        return []
    return [hosts.index(fault.host)]
