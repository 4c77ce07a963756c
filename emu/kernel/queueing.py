"""A port's queues: strict priorities at a rate, by two htb, one in the other.

    htb 1:   class 1:1      the link: its rate, and how far it may catch up
    htb 2:   class 2:10 ..  below it, one per queue, in order of priority, each with a queue of its own below. Their
                            rates are so high that they always may send: what is left of htb is the order

htb lets a packet go when the link's credit is not negative, and takes its bytes afterwards: at the start of its
transmission. The credit is capped at `slack`: about nothing, if the clock never lags; otherwise a packet or two that
may go early after an idle time, so that a machine that wakes up late does not lose the rate. `tc` takes it in bytes and
makes whole microseconds of it, rounded down.

The usual way is one htb whose classes borrow from a parent. There each class has a rate of its own, on which it sends
its first packet even while the link is busy, and another one every minute. This kind of htb is what `prio` would be,
which fewer kernels have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from gradwire.emu.planning.plan import Plan, Port
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import in_namespace, run_tool, shown
from gradwire.scenarios.json_data import Json
from gradwire.scenarios.wire import MIN_FRAME

FIRST_CLASS = 0x10
WALL_FRAMES = 2
"""On the wall clock a port may be so many of the largest frames ahead, or"""
WALL_SLACK_NS = 200_000
"""so long, whichever is more: about what timers of a quiet machine are late at worst."""
FREE = 400_000_000_000
"""bit/s that a queue may take, more than any link has; and how many frames at once."""
FREE_FRAMES = 64
HOST_LIMIT = 1 << 30
"""Bytes; a host's queues are not limited in the plan, and never come near."""
TOLERANCE = 0.003
"""tc prints rates with three or four digits."""


@dataclass(frozen=True)
class Class:
    """What a class of htb is to be."""

    parent: str
    rate: int
    ceil: int
    prio: int | None


def slack_bytes(plan: Plan, port: Port, early_ns: int = 0) -> int:
    """How many bytes ahead a port may be; `early_ns`: under virtual time, where nothing is late."""
    if plan.clock == "virtual":
        return max(1, port.rate * early_ns // 8_000_000_000)
    return max(WALL_FRAMES * plan.largest_frame(), port.rate * WALL_SLACK_NS // 8_000_000_000)


def ahead_ps(plan: Plan, port: Port) -> int:
    """How long a port may be ahead of its rate on the wall clock; 0 under virtual time."""
    return 0 if plan.clock == "virtual" else slack_bytes(plan, port) * 8_000_000_000_000 // port.rate


def class_of(queue: int) -> str:
    return f"2:{FIRST_CLASS + queue:x}"


def handle_of(queue: int) -> str:
    return f"{FIRST_CLASS + queue:x}:"


def htb_lines(plan: Plan, port: Port, *, header: int = 0, early_ns: int = 0) -> list[str]:
    """`tc` lines of a port without its leaves and filters.

    `header`: bytes on the link that its device knows nothing of. `early_ns`: see `slack_bytes`.
    """
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
    """A queue that only drops, when it holds so many bytes."""
    return f"qdisc add dev {port.device} parent {class_of(queue)} handle {handle_of(queue)} bfifo limit {limit}"


def dscp_filters(plan: Plan, port: Port) -> list[str]:
    """Every packet into the queue of its DSCP, by u32."""
    return [
        f"filter add dev {port.device} parent 2: protocol ip prio 1 u32 match ip tos {(7 - queue) << 5:#x} 0xe0 "
        f"flowid {class_of(queue)}"
        for queue in range(plan.queues.count)
    ]


def dscp_questions(ports: Sequence[Port]) -> list[str]:
    """What to ask `tc` for `check_dscp_filters`."""
    return [f"filter show dev {port.device} parent 2:" for port in ports]


def check_dscp_filters(plan: Plan, ports: Sequence[Port], answers: Sequence[Any]) -> None:
    """Compare the filters of ports of one node with `dscp_filters`."""
    wanted = sorted(class_of(queue) for queue in range(plan.queues.count))
    for port, filters in zip(ports, answers, strict=True):
        flows = sorted(each["options"]["flowid"] for each in filters if "flowid" in each.get("options", {}))
        if flows != wanted:
            raise TestbedError(
                f"{port.name} has filters to {flows}, read back from the kernel", port.device, "one per queue"
            )


def leaf_limit(plan: Plan, port: Port, queue: int) -> int:
    """Bytes that a leaf may hold at most."""
    return HOST_LIMIT if port.src < plan.host_count else plan.queues.limit(queue)


def check_htb(
    plan: Plan,
    node: int,
    space: str | None,
    reds: Mapping[tuple[int, int], int],
    limit: Callable[[Port, int], int],
    more: Sequence[str] = (),
) -> tuple[list[Json], list[Any]]:
    """Compare a node's htb with what was asked; the node's queueing disciplines as `tc -j` shows them, and what it
    answers to `more` questions, for which another process would take longer than they do.

    `space`: the name of its namespace, None if that is this thread's; `reds`: the leaves that are red and not bfifo, by
    port and queue; `limit`: bytes in a bfifo of a port and queue.
    """
    disciplines, *answers = shown("tc", space, ["qdisc show", *more])
    ports = plan.of_node(node)
    by_place = {(each["dev"], each.get("parent", "root")): each for each in disciplines}
    for port in ports:
        where = f"{port.device} of {plan.names[node]}"
        last = FIRST_CLASS + plan.queues.count - 1
        for place, default in (("root", 1), ("1:1", last)):
            got = by_place.get((port.device, place), {})
            if got.get("kind") != "htb" or int(got["options"]["default"], 0) != default:
                raise TestbedError(
                    f"{where}: at {place} is {got.get('kind')}, read back from the kernel",
                    where,
                    f"htb default {default:x}",
                )
        for queue in range(plan.queues.count):
            leaf = by_place.get((port.device, class_of(queue)), {})
            kind = "red" if (port.number, queue) in reds else "bfifo"
            if leaf.get("kind") != kind or leaf.get("handle") != handle_of(queue):
                raise TestbedError(
                    f"{where}: queue {queue} is {leaf.get('kind')}, read back from the kernel", where, kind
                )
            if kind == "bfifo" and leaf["options"].get("limit") != limit(port, queue):
                raise TestbedError(
                    f"{where}: queue {queue} holds {leaf['options']}, read back from the kernel",
                    where,
                    f"limit {limit(port, queue)}",
                )
    if ports:
        for port, found in zip(ports, read_classes(space, [port.device for port in ports]), strict=True):
            wanted = {"1:1": Class("root", port.rate, port.rate, 0)}
            for queue in range(plan.queues.count):
                wanted[class_of(queue)] = Class("root", FREE, FREE, queue)
            _same_classes(wanted, found, f"{port.device} of {plan.names[node]}")
    return list(disciplines), answers


def read_classes(space: str | None, devices: Sequence[str]) -> list[dict[str, Class]]:
    """htb's classes of each device; `tc` of iproute2 6.1 shows them as text only, and does not say of which device."""
    # so each device's disciplines are asked for first, whose lines part the answers
    questions = [f"{what} show dev {device}" for device in devices for what in ("qdisc", "class")]
    answer = run_tool(["tc", *in_namespace(space), "-d", "-batch", "-"], "\n".join(questions) + "\n")
    found: list[dict[str, Class]] = []
    before = ""
    for line in answer.splitlines():
        words = line.split()
        if words[:1] == ["qdisc"] and before != "qdisc":
            found.append({})
        if words[:2] == ["class", "htb"]:
            value = dict(pairwise(words))
            found[-1][words[2]] = Class(
                "root" if "root" in words else value["parent"],
                parse_rate(value["rate"]), parse_rate(value["ceil"]), int(value["prio"]) if "prio" in value else None,
            )  # fmt: skip
        before = words[0] if words else before
    if len(found) != len(devices):
        raise TestbedError(
            f"tc tells of {len(found)} of {len(devices)} devices", space or "", "classes of all of them"
        )
    return found


def parse_rate(text: str) -> int:
    """bit/s from tc's way of writing it."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)bit", text)
    if match is None:
        raise TestbedError(
            f"tc shows a rate as {text!r}", "tc class show", "a number with bit, Kbit, Mbit, Gbit"
        )
    return round(float(match[1]) * 1000 ** " KMGT".index(match[2] or " "))


def _same_classes(wanted: dict[str, Class], found: dict[str, Class], where: str) -> None:
    for name in wanted.keys() | found.keys():
        ask, got = wanted.get(name), found.get(name)
        alike = (
            ask is not None and got is not None and (ask.parent, ask.prio) == (got.parent, got.prio)
            and abs(ask.rate - got.rate) <= TOLERANCE * ask.rate and abs(ask.ceil - got.ceil) <= TOLERANCE * ask.ceil
        )  # fmt: skip
        if not alike:
            raise TestbedError(f"{where}: class {name} is {got}, read back from the kernel", where, str(ask))
