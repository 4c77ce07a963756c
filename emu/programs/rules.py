"""Marks at a host's egress: what `[[exec.mark]]` says, as nftables' rules in the host's namespace.

They stand in the output hook, before the host's own queues, so that its network card already serves by the classes
that they give. Fields of the IP header are written as `gradwire.scenarios.wire` has them: DSCP 56 - 8 * class, ECT(0)
for what is important. The first rule that a packet meets is its own, hence the verdict at the end of each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gradwire.emu.programs.described import Rule
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import inside, run_tool
from gradwire.scenarios.json_data import Json

TABLE = "gradwire_exec"


def lines_of(rule: Rule) -> list[str]:
    """A rule in nftables' words: two, where a port may be on either side."""
    matches = [] if rule.to is None else [f"ip daddr {rule.to}"]
    if rule.below is not None:
        matches.append(f"ip length < {rule.below}")
    if rule.protocol is not None or rule.ports is not None:
        matches.append(f"meta l4proto {rule.protocol or '{ tcp, udp }'}")
    sides = [""]
    if rule.ports is not None:
        first, last = rule.ports
        span = f"{first}" if first == last else f"{first}-{last}"
        sides = [f"th sport {span}", f"th dport {span}"]
    does = ["counter"]
    if rule.priority is not None:
        does.append(f"ip dscp set {56 - 8 * rule.priority}")
    if rule.important is not None:
        does.append(f"ip ecn set {'ect0' if rule.important else 'not-ect'}")
    return [" ".join([*matches, *([side] if side else []), *does, "accept"]) for side in sides]


def of_node(rules: Sequence[Rule], node: int) -> list[int]:
    """Which rules hold at a host."""
    return [number for number, rule in enumerate(rules) if rule.nodes is None or node in rule.nodes]


def text_of(rules: Sequence[Rule], node: int) -> str:
    """nftables' rules of a host; "" where none hold. Each carries the number of its rule as a comment."""
    lines = [
        f'    {line} comment "{number}"' for number in of_node(rules, node) for line in lines_of(rules[number])
    ]
    if not lines:
        return ""
    body = "\n".join(lines)
    return (
        f"table ip {TABLE} {{\n  chain marks {{\n    type filter hook output priority -150; policy accept;\n"
        f"{body}\n  }}\n}}\n"
    )


def put(rules: Sequence[Rule], node: int, namespace: int, name: str) -> None:
    """Set the rules of a host, and compare with what the kernel then has. TestbedError on a difference."""
    text = text_of(rules, node)
    if not text:
        return
    wanted = [str(number) for number in of_node(rules, node) for _ in lines_of(rules[number])]
    with inside(namespace):
        run_tool(["nft", "-f", "-"], text)
        found = [each.get("comment") for each in _listed()]
    if found != wanted:
        raise TestbedError(f"nftables has the rules {found}, read back from the kernel", f"host {name}", f"{wanted}")


def counts(rules: Sequence[Rule], node: int, namespace: int) -> dict[int, tuple[int, int]]:
    """(packets, bytes) that each rule has met at a host."""
    found: dict[int, tuple[int, int]] = {}
    if not of_node(rules, node):
        return found
    with inside(namespace):
        listed = _listed()
    for each in listed:
        counter = next(part["counter"] for part in each["expr"] if "counter" in part)
        number = int(each["comment"])
        packets, size = found.get(number, (0, 0))
        found[number] = packets + counter["packets"], size + counter["bytes"]
    return found


def _listed() -> list[Json]:
    answer = json.loads(run_tool(["nft", "-j", "list", "table", "ip", TABLE]))
    return [each["rule"] for each in answer["nftables"] if "rule" in each]
