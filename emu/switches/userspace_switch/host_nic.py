"""Makes kernel queues at a host's TUN device that hold the kernel's TCP packets back until the line is free.

A TUN device accepts packets without limit. TCP expects a NIC that does not: while more than a millisecond of a
connection's packets waits at the device, it makes no more [net/ipv4/tcp_output.c, "TCP small queues"], and can still
change its decisions. So the queues of hosts of the kernel's backends
(`gradwire.emu.switches.linux_network.queueing`) stand before the device, at the rate of the cable: a packet reaches the
switch when its transmission begins.

Everything here runs in a thread in the host's namespace.
"""

from __future__ import annotations

from gradwire.emu.planning.kernel_features import KernelFeatures
from gradwire.emu.planning.plan import TestbedPlan
from gradwire.emu.switches.linux_network import queueing
from gradwire.emu.system.namespaces import batch
from gradwire.scenarios.wire import ETHERNET

NEEDED = (("qdisc", "htb"), ("qdisc", "bfifo"), ("classifier", "u32"), ("tool", "tc"))


def is_needed(plan: TestbedPlan) -> bool:
    """Return True if a transport uses the kernel's TCP. Other transports pace themselves to the line's rate."""
    return any(transport.by_kernel for transport in plan.transports)


def missing_features(kernel: KernelFeatures | None) -> list[str]:
    if kernel is None:
        return ["an unknown kernel feature (kernel not probed)"]
    return [name for kind, name in NEEDED if not kernel.has(kind, name)]


def make(plan: TestbedPlan, host: int) -> None:
    """Make the queues of a host's port and compare them with the kernel's state."""
    (port,) = plan.ports_of_node(host)
    batch("ip", None, [f"link set {port.device} gso_max_segs 1"])
    lines = queueing.htb_lines(plan, port, header=ETHERNET)  # the device's packets have no Ethernet header
    for queue in range(plan.queues.count):
        lines.append(queueing.leaf_line(port, queue, queueing.HOST_LIMIT))
    batch("tc", None, lines + queueing.dscp_filters(plan, port))
    questions = queueing.dscp_queries([port])
    _, answers = queueing.check_htb(plan, host, None, {}, lambda port, queue: queueing.HOST_LIMIT, questions)
    queueing.check_dscp_filters(plan, [port], answers)
