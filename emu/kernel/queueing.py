"""A port's queues: strict priorities at a rate, by htb.

    htb 1:   class 1:1      the link: its rate, and how far it may catch up
             class 1:10 ..  one per queue: no rate of its own worth mentioning, borrows the link's in order of priority
                            with a queue below

htb lets a packet go when the link's credit is not negative, and takes its bytes afterwards: at the start of its
transmission. The credit is capped at `slack`: nothing, if the clock never lags; otherwise a packet or two that may go
early after an idle time, so that a machine that wakes up late does not lose the rate.

A class may send its first packet on the rate of its own (8 bit/s), once, even while the link is busy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from emu.namespaces import run_tool, shown
from emu.plan import Plan, Port
from emu.switches.base import TestbedError

FIRST_CLASS = 0x10
SLACK_NS = 512
"""Under virtual time: two steps of User-Mode Linux's clock, so that rounding does not cost rate."""
WALL_FRAMES = 2
"""On the wall clock a port may be so many of the largest frames ahead, or"""
WALL_SLACK_NS = 200_000
"""so long, whichever is more: about what timers of a quiet machine are late at worst."""
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


def slack_bytes(plan: Plan, port: Port) -> int:
    """How many bytes ahead a port may be."""
    if plan.clock == "virtual":
        return max(1, port.rate * SLACK_NS // 8_000_000_000)
    return max(WALL_FRAMES * plan.largest_frame(), port.rate * WALL_SLACK_NS // 8_000_000_000)


def class_of(queue: int) -> str:
    return f"1:{FIRST_CLASS + queue:x}"


def handle_of(queue: int) -> str:
    return f"{FIRST_CLASS + queue:x}:"


def htb_lines(plan: Plan, port: Port) -> list[str]:
    """`tc` lines of a port without its leaves and filters."""
    frame = plan.largest_frame()
    slack = slack_bytes(plan, port)
    device = port.device
    last = FIRST_CLASS + plan.queues.count - 1
    lines = [
        f"qdisc add dev {device} root handle 1: htb default {last:x}",
        f"class add dev {device} parent 1: classid 1:1 htb rate {port.rate}bit ceil {port.rate}bit "
        f"burst {slack} cburst {slack} quantum {max(frame, 1000)}",
    ]
    for queue in range(plan.queues.count):
        lines.append(
            f"class add dev {device} parent 1:1 classid {class_of(queue)} htb rate 8bit ceil {port.rate}bit "
            f"burst 1 cburst {slack + 2 * frame} prio {queue} quantum {max(frame, 1000)}"
        )
    return lines


def leaf_limit(plan: Plan, port: Port) -> int:
    """Bytes that a leaf may hold at most."""
    return HOST_LIMIT if port.src < plan.host_count else plan.queues.buffer


def check_htb(plan: Plan, node: int, space: str, leaf_kinds: Mapping[tuple[int, int], str]) -> list[dict[str, Any]]:
    """Compare a node's htb with what was asked; the node's queueing disciplines as `tc -j` shows them. `leaf_kinds`: of
    leaves that are not bfifo, by port and queue."""
    (disciplines,) = shown("tc", space, ["qdisc show"])
    ports = plan.of_node(node)
    by_place = {(each["dev"], each.get("parent", "root")): each for each in disciplines}
    for port in ports:
        where = f"{port.device} of {plan.names[node]}"
        root = by_place.get((port.device, "root"), {})
        last = FIRST_CLASS + plan.queues.count - 1
        if root.get("kind") != "htb" or int(root["options"]["default"], 0) != last:
            raise TestbedError(f"{where}: the root is {root.get('kind')}, read back from the kernel", where, f"htb default {last:x}")
        for queue in range(plan.queues.count):
            leaf = by_place.get((port.device, class_of(queue)), {})
            kind = leaf_kinds.get((port.number, queue), "bfifo")
            if leaf.get("kind") != kind or leaf.get("handle") != handle_of(queue):
                raise TestbedError(f"{where}: queue {queue} is {leaf.get('kind')}, read back from the kernel", where, kind)
        wanted = {"1:1": Class("root", port.rate, port.rate, None)}
        for queue in range(plan.queues.count):
            wanted[class_of(queue)] = Class("1:1", 8, port.rate, queue)
        _same_classes(wanted, read_classes(space, port.device), where)
    return list(disciplines)


def read_classes(space: str, device: str) -> dict[str, Class]:
    """htb's classes of a device; `tc` of iproute2 6.1 shows them as text only."""
    found = {}
    for line in run_tool(["tc", "-n", space, "-d", "class", "show", "dev", device]).splitlines():
        words = line.split()
        if words[:2] != ["class", "htb"]:
            continue
        value = dict(zip(words, words[1:], strict=False))
        found[words[2]] = Class(
            "root" if "root" in words else value["parent"],
            parse_rate(value["rate"]), parse_rate(value["ceil"]), int(value["prio"]) if "prio" in value else None,
        )  # fmt: skip
    return found


def parse_rate(text: str) -> int:
    """bit/s from tc's way of writing it."""
    match = re.fullmatch(r"([0-9.]+)([KMGT]?)bit", text)
    if match is None:
        raise TestbedError(f"tc shows a rate as {text!r}", "tc class show", "a number with bit, Kbit, Mbit, Gbit")
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
