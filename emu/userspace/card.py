"""A host's NIC for the kernel's TCP: what holds packets back until the line is free.

A TUN device takes whatever it is given, at once and without end. TCP reckons with a NIC that does not: while more than
a millisecond of a connection's packets waits at the device, it makes no more of them [net/ipv4/tcp_output.c, "TCP small
queues"], and what it has not made it can still change its mind about. So in front of the device stand the queues that
hosts of the kernel's own backends have (`gradwire.emu.kernel.queueing`), at the rate of the cable: a packet comes to
the switch when its transmission begins.

Everything here is done in the host's namespace by the thread that is in it.
"""

from __future__ import annotations

from gradwire.emu.kernel import queueing
from gradwire.emu.planning.plan import Plan
from gradwire.emu.planning.probe import Kernel
from gradwire.emu.system.namespaces import batch
from gradwire.scenarios.wire import ETHERNET

NEEDED = (("qdisc", "htb"), ("qdisc", "bfifo"), ("classifier", "u32"), ("tool", "tc"))


def wanted(plan: Plan) -> bool:
    """Whether anybody sends by the kernel's TCP. Our own transports keep to the line's rate by themselves."""
    return any(transport.by_kernel for transport in plan.transports)


def lacking(kernel: Kernel | None) -> list[str]:
    """What a kernel does not have of what this needs, by name."""
    if kernel is None:
        return ["nobody has asked the kernel"]
    return [name for kind, name in NEEDED if not kernel.has(kind, name)]


def make(plan: Plan, host: int) -> None:
    """Queues of a host's port, compared with what the kernel then says."""
    (port,) = plan.of_node(host)
    batch("ip", None, [f"link set {port.device} gso_max_segs 1"])
    lines = queueing.htb_lines(plan, port, header=ETHERNET)  # the device's packets have no Ethernet header
    for queue in range(plan.queues.count):
        lines.append(queueing.leaf_line(port, queue, queueing.HOST_LIMIT))
    batch("tc", None, lines + queueing.dscp_filters(plan, port))
    questions = queueing.dscp_questions([port])
    _, answers = queueing.check_htb(plan, host, None, {}, lambda port, queue: queueing.HOST_LIMIT, questions)
    queueing.check_dscp_filters(plan, [port], answers)
