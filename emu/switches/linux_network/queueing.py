"""Writes the `tc` lines of a port's queues, strict priorities at a rate by two nested htb, and verifies them.

    htb 1:   class 1:1      the link: its rate, and the credit by which it may catch up
    htb 2:   class 2:10 ..  below it, one per queue in order of priority, each with a leaf queue. Their rates are so
    high
                            that they may always send: htb only defines the order

htb releases a packet if the link's credit is not negative, and subtracts its bytes then: at the start of its
transmission. The credit is capped at `slack`: about zero if the clock never lags; otherwise a packet or two that may
leave early after an idle time, so that a machine that wakes up late does not lose rate. `tc` takes it in bytes and
converts it to whole microseconds, rounded down.

The usual way is one htb whose classes borrow from a parent. But each class has a rate of its own, at which it sends its
first packet even while the link is busy, and another one every minute. The nested htb acts as `prio` would, which fewer
kernels have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradwire.emu.planning.plan import Port, TestbedPlan
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import in_namespace, query_json, run_tool
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import MIN_FRAME

FIRST_CLASS = 0x10
WALL_FRAMES = 2
"""Credit of a port on the wall clock in largest frames, or"""
WALL_SLACK_NS = 200_000
"""in time, whichever is more: about the maximum timer lateness of an idle machine."""
FREE = 400_000_000_000
"""bit/s of a queue, more than any link has; and its burst in frames."""
FREE_FRAMES = 64
HOST_LIMIT = 1 << 30
"""Bytes; a host's queues are unlimited in the plan, and never get near this."""
TOLERANCE = 0.003
"""Relative tolerance of rates, which tc prints with three or four digits."""


@dataclass(frozen=True)
class HtbClass:
    """The parameters of an htb class."""

    parent: str
    rate: int
    ceil: int
    prio: int | None


def slack_bytes(plan: TestbedPlan, port: Port, early_ns: int = 0) -> int:
    """Return the bytes by which a port may be ahead; `early_ns`: in virtual time, where nothing is late."""
    if plan.clock == "virtual":
        return max(1, port.rate * early_ns // 8_000_000_000)
    return max(WALL_FRAMES * plan.largest_frame(), port.rate * WALL_SLACK_NS // 8_000_000_000)


def ahead_ps(plan: TestbedPlan, port: Port) -> int:
    """Return the time by which a port may be ahead of its rate on the wall clock; 0 in virtual time."""
    return 0 if plan.clock == "virtual" else slack_bytes(plan, port) * 8_000_000_000_000 // port.rate


def class_of(queue: int) -> str:
    return f"2:{FIRST_CLASS + queue:x}"


def handle_of(queue: int) -> str:
    return f"{FIRST_CLASS + queue:x}:"


def htb_lines(plan: TestbedPlan, port: Port, *, header: int = 0, early_ns: int = 0) -> list[str]:
    """Return `tc` lines of a port without its leaves and filters. `header`: bytes on the link unknown to its device.
    `early_ns`: see `slack_bytes`."""
    frame = plan.largest_frame()
    slack = slack_bytes(plan, port, early_ns)
    device = port.device
    last = FIRST_CLASS + plan.queues.count - 1
    lines = [
        f"qdisc add dev {device} root handle 1: htb default 1",
        f"class add dev {device} parent 1: classid 1:1 htb rate {port.rate}bit ceil {port.rate}bit "
        f"burst {slack} cburst {slack} quantum {max(frame, 1000)}"
        + (f" overhead {header} mpu {MIN_FRAME}" if header else ""),
        f"qdisc add dev {device} parent 1:1 handle 2: htb default {last:x}",
    ]
    credit = FREE_FRAMES * frame
    for queue in range(plan.queues.count):
        lines.append(
            f"class add dev {device} parent 2: classid {class_of(queue)} htb rate {FREE}bit ceil {FREE}bit "
            f"burst {credit} cburst {credit} prio {queue} quantum {max(frame, 1000)}"
        )
    return lines


def leaf_line(port: Port, queue: int, limit: int) -> str:
    """Return the `tc` line of a tail-drop queue of `limit` bytes."""
    return f"qdisc add dev {port.device} parent {class_of(queue)} handle {handle_of(queue)} bfifo limit {limit}"


def dscp_filters(plan: TestbedPlan, port: Port) -> list[str]:
    """Return u32 filters that put every packet into the queue of its DSCP."""
    return [
        f"filter add dev {port.device} parent 2: protocol ip prio 1 u32 match ip tos {(7 - queue) << 5:#x} 0xe0 "
        f"flowid {class_of(queue)}"
        for queue in range(plan.queues.count)
    ]


def dscp_queries(ports: Sequence[Port]) -> list[str]:
    return [f"filter show dev {port.device} parent 2:" for port in ports]


def check_dscp_filters(plan: TestbedPlan, ports: Sequence[Port], answers: Sequence[Any]) -> None:
    expected = sorted(class_of(queue) for queue in range(plan.queues.count))
    for port, filters in zip(ports, answers, strict=True):
        flows = sorted(entry["options"]["flowid"] for entry in filters if "flowid" in entry.get("options", {}))
        if flows != expected:
            raise TestbedError(f"filters of {port.name} differ: the kernel has {flows}", port.device, "one per queue")


def leaf_limit(plan: TestbedPlan, port: Port, queue: int) -> int:
    """Return the bytes that a leaf may hold at most."""
    return HOST_LIMIT if port.src < plan.host_count else plan.queues.limit(queue)


def check_htb(
    plan: TestbedPlan,
    node: int,
    space: str | None,
    reds: Mapping[tuple[int, int], int],
    limit: Callable[[Port, int], int],
    more: Sequence[str] = (),
) -> tuple[list[Json], list[Any]]:
    """Compare a node's htb with the plan; return its queueing disciplines and the answers to `more` queries.

    The queries are combined because a process of `tc` takes longer than they do.

    space : name of its namespace, None for this thread's.
    reds : the leaves that are red instead of bfifo, by port and queue.
    limit : bytes in a bfifo of a port and queue.
    """
    disciplines, *answers = query_json("tc", space, ["qdisc show", *more])
    ports = plan.ports_of_node(node)
    by_place = {(discipline["dev"], discipline.get("parent", "root")): discipline for discipline in disciplines}
    for port in ports:
        where = f"{port.device} of {plan.names[node]}"
        last = FIRST_CLASS + plan.queues.count - 1
        for parent, default in (("root", 1), ("1:1", last)):
            actual = by_place.get((port.device, parent), {})
            if actual.get("kind") != "htb" or int(actual["options"]["default"], 0) != default:
                raise TestbedError(
                    f"{where}: the kernel has {actual.get('kind')} at {parent}", where, f"htb default {default:x}"
                )
        for queue in range(plan.queues.count):
            leaf = by_place.get((port.device, class_of(queue)), {})
            kind = "red" if (port.number, queue) in reds else "bfifo"
            if leaf.get("kind") != kind or leaf.get("handle") != handle_of(queue):
                raise TestbedError(f"{where}: the kernel has {leaf.get('kind')} at queue {queue}", where, kind)
            if kind == "bfifo" and leaf["options"].get("limit") != limit(port, queue):
                raise TestbedError(
                    f"{where}: the kernel has {leaf['options']} at queue {queue}", where, f"limit {limit(port, queue)}"
                )
    if ports:
        for port, actual_classes in zip(ports, read_classes(space, [port.device for port in ports]), strict=True):
            expected = {"1:1": HtbClass("root", port.rate, port.rate, 0)}
            for queue in range(plan.queues.count):
                expected[class_of(queue)] = HtbClass("root", FREE, FREE, queue)
            _same_classes(expected, actual_classes, f"{port.device} of {plan.names[node]}")
    return list(disciplines), answers


def read_classes(space: str | None, devices: Sequence[str]) -> list[dict[str, HtbClass]]:
    """Return htb's classes of each device, parsed from text, since `tc` of iproute2 6.1 does not name the device."""
    # each device's disciplines are queried first, so that their lines separate the answers
    questions = [f"{kind} show dev {device}" for device in devices for kind in ("qdisc", "class")]
    answer = run_tool(["tc", *in_namespace(space), "-d", "-batch", "-"], "\n".join(questions) + "\n")
    classes: list[dict[str, HtbClass]] = []
    previous = ""
    for line in answer.splitlines():
        words = line.split()
        if words[:1] == ["qdisc"] and previous != "qdisc":
            classes.append({})
        if words[:2] == ["class", "htb"]:
            value = dict(pairwise(words))
            classes[-1][words[2]] = HtbClass(
                "root" if "root" in words else value["parent"],
                parse_rate(value["rate"]),
                parse_rate(value["ceil"]),
                int(value["prio"]) if "prio" in value else None,
            )
        previous = words[0] if words else previous
    if len(classes) != len(devices):
        raise TestbedError(f"tc lists {len(classes)} of {len(devices)} devices", space or "", "classes of all of them")
    return classes


def parse_rate(text: str) -> int:
    """Return bit/s from tc's notation."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)bit", text)
    if match is None:
        raise TestbedError(f"tc shows a rate as {text!r}", "tc class show", "a number with bit, Kbit, Mbit, Gbit")
    return round(float(match[1]) * 1000 ** " KMGT".index(match[2] or " "))


def _same_classes(expected: dict[str, HtbClass], actual: dict[str, HtbClass], where: str) -> None:
    for name in expected.keys() | actual.keys():
        expected_class, actual_class = expected.get(name), actual.get(name)
        is_equal = (
            expected_class is not None
            and actual_class is not None
            and (expected_class.parent, expected_class.prio) == (actual_class.parent, actual_class.prio)
            and abs(expected_class.rate - actual_class.rate) <= TOLERANCE * expected_class.rate
            and abs(expected_class.ceil - actual_class.ceil) <= TOLERANCE * expected_class.ceil
        )
        if not is_equal:
            raise TestbedError(f"{where}: the kernel has {actual_class} as class {name}", where, str(expected_class))
