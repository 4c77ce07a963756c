"""Makes and verifies network namespaces (one per node) and virtual devices (one or two pairs per cable) of a plan.

    n0 [p0] ======== [p1] n4                    without netem: a cable has no latency
    n0 [p0] == [w0]  wires  [w1] == [p1] n4     with netem: packets enter at w0 and leave through w1, whose root is
    netem

The device of port i is p<i> with interface number DEVICE + i in every namespace; the middle of its cable is w<i> with
WIRE + i. So a BPF program knows its port by the number alone.

Packets must stay single packets: offloads are off, neighbours are permanent (no ARP), and nothing is sent by itself (no
IPv6, no redirects).
"""

from __future__ import annotations

import fcntl
import socket
import struct
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from gradwire.emu.planning.plan import Port, TestbedPlan, host_address, port_address, port_mac
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.switches.linux_network import queueing
from gradwire.emu.system import kernel_tcp
from gradwire.emu.system.namespaces import Namespaces, batch, inside, query_json
from gradwire.scenarios.json_data import JsonView

DEVICE = 1000
WIRE = 1 << 20
WIRES = "wires"
"""Namespace of the middles of the cables."""

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
"""ethtool requests to read and set an offload [linux/ethtool.h]."""


def namespace_name(node: int) -> str:
    """Return the name of a node's namespace; scenario names may have characters that file names may not."""
    return f"n{node}"


def wire_device(port: int) -> str:
    """Return the device in the middle of the cable, on the side of this port."""
    return f"w{port}"


def largest_packet(plan: TestbedPlan) -> int:
    """Return the MTU of every device: the largest frame without its Ethernet header; at least IPv4's minimum."""
    return max(plan.largest_frame() - 14, 576)


def cable_lines(plan: TestbedPlan, wired: bool) -> list[str]:
    """Return `ip` lines that make all devices in their namespaces."""
    mtu = largest_packet(plan)

    def end(port: Port) -> str:
        return (
            f"name {port.device} index {DEVICE + port.number} netns {namespace_name(port.src)} "
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


def node_lines(plan: TestbedPlan, node: int) -> list[str]:
    """Return `ip` lines of one node: devices up, addresses, neighbours, and a host's route to all hosts."""
    lines = ["link set lo up"]
    ports = plan.ports_of_node(node)
    is_host = node < plan.host_count
    for port in ports:
        far = port.number ^ 1
        address = host_address(node) if is_host else port_address(port.number)
        lines += [
            f"link set {port.device} gso_max_segs 1 up",
            f"address add {address}/32 dev {port.device}",
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


def make_devices(plan: TestbedPlan, spaces: Namespaces, wired: bool, routes: Callable[[int], list[str]]) -> None:
    """Make everything except queues; `routes`: function from a switch to its `ip` lines."""
    names = [namespace_name(node) for node in range(plan.node_count)]
    spaces.make([*names, WIRES] if wired else names)
    for node, name in enumerate(names):
        sysctls = SWITCHES
        if node < plan.host_count:
            sysctls = HOSTS
            for port in plan.ports_of_node(node)[:1]:
                sysctls = sysctls | kernel_tcp.sysctls(plan, port, queueing.ahead_ps(plan, port))
        spaces.set_sysctls(name, ALL_NODES | sysctls, MAY_MISS)
    if wired:
        spaces.set_sysctls(WIRES, ALL_NODES, MAY_MISS)
    batch("ip", None, cable_lines(plan, wired))
    for node, name in enumerate(names):
        batch("ip", name, node_lines(plan, node) + (routes(node) if node >= plan.host_count else []))
        without_offloads(spaces, name, [port.device for port in plan.ports_of_node(node)])
    if wired:
        devices = [wire_device(port.number) for port in plan.ports]
        batch("ip", WIRES, [f"link set {device} gso_max_segs 1 up" for device in devices])
        without_offloads(spaces, WIRES, devices)


def without_offloads(spaces: Namespaces, name: str, devices: Iterable[str]) -> None:
    """Disable segmentation offloads and read them back: queues must see packets as on a link."""
    with inside(spaces[name]), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for device in devices:
            for offload, (read, write) in OFFLOADS.items():
                _ethtool(any_socket, device, write, 0)
                if _ethtool(any_socket, device, read, 0):
                    raise TestbedError(
                        f"{offload} cannot be disabled at {device}", f"namespace {name}", "a device without offloads"
                    )


def _ethtool(any_socket: socket.socket, device: str, command: int, value: int) -> int:
    words = array("I", [command, value])
    request = struct.pack("16sP", device.encode(), words.buffer_info()[0])
    try:
        fcntl.ioctl(any_socket, SIOCETHTOOL, request)
    except OSError as error:
        raise TestbedError(
            f"ethtool on {device} failed: {error.strerror}", device, "a device with configurable offloads"
        ) from None
    return words[1]


QUERIES = ("address show", "neigh show")
"""Queries to `ip` for `check_node`."""


def check_node(plan: TestbedPlan, node: int, links: Any, neighbours: Any) -> None:
    """Compare a node's devices, addresses and neighbours with the plan; raise TestbedError at the first difference."""
    mtu = largest_packet(plan)
    links_by_name = {link["ifname"]: link for link in links}
    neighbours_by_address = {(entry["dev"], entry["dst"]): entry for entry in neighbours}
    for port in plan.ports_of_node(node):
        far = port.number ^ 1
        address = host_address(node) if node < plan.host_count else port_address(port.number)
        link = links_by_name.get(port.device, {})
        compare(
            link,
            {"ifindex": DEVICE + port.number, "mtu": mtu, "address": port_mac(port.number), "gso_max_segs": 1},
            f"{port.device} of {plan.names[node]}",
        )
        if {"UP", "LOWER_UP"} - set(link.get("flags", ())):
            raise TestbedError(f"{port.device} of {plan.names[node]} is not up", namespace_name(node), "UP, LOWER_UP")
        addresses = [info.get("local") for info in link.get("addr_info", ())]
        if addresses != [address]:
            raise TestbedError(
                f"{port.device} of {plan.names[node]} has the addresses {addresses}", namespace_name(node), address
            )
        neighbour = neighbours_by_address.get((port.device, port_address(far)), {})
        compare(
            neighbour,
            {"lladdr": port_mac(far), "state": ["PERMANENT"]},
            f"neighbour of {port.device} of {plan.names[node]}",
        )
    extra = set(links_by_name) - {port.device for port in plan.ports_of_node(node)} - _DEFAULT_DEVICES
    if extra:
        raise TestbedError(
            f"{plan.names[node]} has unexpected devices: {', '.join(sorted(extra))}", namespace_name(node)
        )


def check_wires(plan: TestbedPlan) -> None:
    """Compare the devices of cables with the plan; raise TestbedError at the first difference."""
    mtu = largest_packet(plan)
    links_by_name = {link["ifname"]: link for link in query_json("ip", WIRES, ["link show"])[0]}
    for port in plan.ports:
        device = wire_device(port.number)
        expected = {"ifindex": WIRE + port.number, "mtu": mtu, "gso_max_segs": 1}
        compare(links_by_name.get(device, {}), expected, f"{device}, the cable of {port.name}")


_DEFAULT_DEVICES = {"lo", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "sit0", "ip6tnl0", "ip6gre0"}
"""Devices that a kernel creates in every new namespace."""


def compare(actual: JsonView, wanted: JsonView, what: str) -> None:
    """Raise TestbedError unless `actual` has all wanted values."""
    for key, value in wanted.items():
        if actual.get(key) != value:
            raise TestbedError(f"{what}: the kernel has {key} {actual.get(key)}", what, f"{key} {value}")
