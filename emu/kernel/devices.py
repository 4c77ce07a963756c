"""Nodes and cables: one namespace per node, one pair of virtual devices per cable - or two, with the wires in between.

    n0 [p0] ======== [p1] n4                    without netem: a cable has no latency
    n0 [p0] == [w0]  wires  [w1] == [p1] n4     with netem: what comes in at w0 leaves through w1, whose root is netem

The device of port i is p<i> and has the interface number DEVICE + i in whatever namespace it is; the middle of its
cable is w<i> with WIRE + i. So a BPF program knows by the number alone which port it is at.

A packet is one packet on its way through all this: nothing may glue packets together (offloads off), ask for addresses
(neighbours are permanent), or send by itself (no IPv6, no redirects).
"""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from gradwire.emu.kernel import queueing
from gradwire.emu.planning.plan import Plan, Port, host_address, port_address, port_mac
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.namespaces import Namespaces, batch, inside, shown
from gradwire.scenarios.json_data import JsonView

DEVICE = 1000
WIRE = 1 << 20
WIRES = "wires"
"""Name of the namespace with the middles of the cables."""

ALL_NODES = {
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/ipv4/conf/all/accept_redirects": "0",
    "net/ipv4/conf/default/accept_redirects": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
SWITCHES = {"net/ipv4/ip_forward": "1", "net/ipv4/fib_multipath_hash_policy": "1"}
HOSTS = {"net/ipv4/ip_forward": "0"}
MAY_MISS = (
    "net/ipv6/conf/all/disable_ipv6",
    "net/ipv6/conf/default/disable_ipv6",
    "net/ipv4/fib_multipath_hash_policy",
)

SIOCETHTOOL = 0x8946
OFFLOADS = {"TSO": (0x1E, 0x1F), "GSO": (0x23, 0x24), "GRO": (0x2B, 0x2C)}
"""Requests of ethtool that read and set [linux/ethtool.h]."""


def space(node: int) -> str:
    """Name of a node's namespace; scenarios' names may hold characters that a file's may not."""
    return f"n{node}"


def wire_device(port: int) -> str:
    """The middle of the cable, on the side of this port."""
    return f"w{port}"


def largest_packet(plan: Plan) -> int:
    """MTU of every device: the largest frame without its Ethernet header; never less than IPv4 asks of a host."""
    return max(plan.largest_frame() - 14, 576)


def cable_lines(plan: Plan, wired: bool) -> list[str]:
    """`ip` lines that make all devices in their namespaces."""
    mtu = largest_packet(plan)

    def end(port: Port) -> str:
        return (
            f"name {port.device} index {DEVICE + port.number} netns {space(port.src)} "
            f"address {port_mac(port.number)} mtu {mtu} txqueuelen 1000"
        )

    lines = []
    if wired:
        for port in plan.ports:
            middle = f"name {wire_device(port.number)} index {WIRE + port.number} netns {WIRES} mtu {mtu}"
            lines.append(f"link add {end(port)} type veth peer {middle}")
    else:
        for one, other in zip(plan.ports[::2], plan.ports[1::2], strict=True):
            lines.append(f"link add {end(one)} type veth peer {end(other)}")
    return lines


def node_lines(plan: Plan, node: int) -> list[str]:
    """`ip` lines of one node: devices up, addresses, neighbours; a host's route to everybody."""
    lines = ["link set lo up"]
    ports = plan.of_node(node)
    is_host = node < plan.host_count
    for port in ports:
        far = port.number ^ 1
        own = host_address(node) if is_host else port_address(port.number)
        lines += [
            f"link set {port.device} gso_max_segs 1 up",
            f"address add {own}/32 dev {port.device}",
            f"neigh add {port_address(far)} lladdr {port_mac(far)} dev {port.device} nud permanent",
        ]
    if is_host and ports:
        first = ports[0]
        gateway = port_address(first.number ^ 1)
        lines.append(
            f"route add 10.0.0.0/8 via {gateway} dev {first.device} src {host_address(node)} onlink"
            + kernel_tcp.metric_words(kernel_tcp.metrics(plan, kernel_tcp.tick_ns()))
        )
    return lines


def make_devices(plan: Plan, spaces: Namespaces, wired: bool, routes: Callable[[int], list[str]]) -> None:
    """Everything but queues. `routes`: `ip` lines of a switch."""
    names = [space(node) for node in range(plan.node_count)]
    spaces.make([*names, WIRES] if wired else names)
    for node, name in enumerate(names):
        own = SWITCHES
        if node < plan.host_count:
            own = HOSTS
            for port in plan.of_node(node)[:1]:
                own = own | kernel_tcp.sysctls(plan, port, queueing.ahead_ps(plan, port))
        spaces.set_sysctls(name, ALL_NODES | own, MAY_MISS)
    if wired:
        spaces.set_sysctls(WIRES, ALL_NODES, MAY_MISS)
    batch("ip", None, cable_lines(plan, wired))
    for node, name in enumerate(names):
        batch("ip", name, node_lines(plan, node) + (routes(node) if node >= plan.host_count else []))
        without_offloads(spaces, name, [port.device for port in plan.of_node(node)])
    if wired:
        devices = [wire_device(port.number) for port in plan.ports]
        batch("ip", WIRES, [f"link set {device} gso_max_segs 1 up" for device in devices])
        without_offloads(spaces, WIRES, devices)


def without_offloads(spaces: Namespaces, name: str, devices: Iterable[str]) -> None:
    """Segmentation and its opposite off, and read back: queues shall see packets as they are on a link."""
    with inside(spaces[name]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anything:
        for device in devices:
            for what, (read, write) in OFFLOADS.items():
                _ethtool(anything, device, write, 0)
                if _ethtool(anything, device, read, 0):
                    raise TestbedError(
                        f"{what} stays on at {device}", f"namespace {name}", "a device without offloads"
                    )


def _ethtool(any_socket: socket.socket, device: str, command: int, value: int) -> int:
    """One old-style ethtool request; the value that it leaves."""
    words = array("I", [command, value])
    request = struct.pack("16sP", device.encode(), words.buffer_info()[0])
    try:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    except OSError as error:
        raise TestbedError(
            f"ethtool on {device} fails: {error.strerror}", device, "a device with offloads to switch"
        ) from None
    return words[1]


QUESTIONS = ("address show", "neigh show")
"""What to ask `ip` for `check_node`."""


def check_node(plan: Plan, node: int, links: Any, neighbours: Any) -> None:
    """Compare a node's devices, addresses and neighbours with what was asked; TestbedError at the first difference."""
    mtu = largest_packet(plan)
    found = {link["ifname"]: link for link in links}
    known = {(each["dev"], each["dst"]): each for each in neighbours}
    for port in plan.of_node(node):
        far = port.number ^ 1
        own = host_address(node) if node < plan.host_count else port_address(port.number)
        link = found.get(port.device, {})
        compare(link, {"ifindex": DEVICE + port.number, "mtu": mtu, "address": port_mac(port.number),
                       "gso_max_segs": 1}, f"{port.device} of {plan.names[node]}")  # fmt: skip
        if {"UP", "LOWER_UP"} - set(link.get("flags", ())):
            raise TestbedError(
                f"{port.device} of {plan.names[node]} is not up", space(node), "UP, LOWER_UP"
            )
        addresses = [info.get("local") for info in link.get("addr_info", ())]
        if addresses != [own]:
            raise TestbedError(
                f"{port.device} of {plan.names[node]} has the addresses {addresses}", space(node), own
            )
        neighbour = known.get((port.device, port_address(far)), {})
        compare(neighbour, {"lladdr": port_mac(far), "state": ["PERMANENT"]},
                f"neighbour of {port.device} of {plan.names[node]}")  # fmt: skip
    extra = set(found) - {port.device for port in plan.of_node(node)} - _BORN
    if extra:
        raise TestbedError(
            f"{plan.names[node]} has devices that nobody asked for: {', '.join(sorted(extra))}",
            space(node),
        )


def check_wires(plan: Plan) -> None:
    """Compare the devices of cables with what was asked; TestbedError at the first difference."""
    mtu = largest_packet(plan)
    found = {link["ifname"]: link for link in shown("ip", WIRES, ["link show"])[0]}
    for port in plan.ports:
        device = wire_device(port.number)
        wanted = {"ifindex": WIRE + port.number, "mtu": mtu, "gso_max_segs": 1}
        compare(found.get(device, {}), wanted, f"{device}, the cable of {port.name}")


_BORN = {"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
"""Devices that a kernel puts into every new namespace."""


def compare(found: JsonView, wanted: JsonView, what: str) -> None:
    """TestbedError unless `found` has all that is wanted."""
    for key, value in wanted.items():
        if found.get(key) != value:
            raise TestbedError(
                f"{what}: {key} is {found.get(key)}, read back from the kernel", what, f"{key} {value}"
            )
