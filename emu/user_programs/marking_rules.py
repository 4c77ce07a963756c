"""Marks packets at a host's egress by nftables rules made from `[[exec.mark]]`, and counts their matches.

The rules are in the output hook, before the host's queues, so that its NIC already serves by the classes they set. IP
header fields follow `gradwire.scenarios.wire`: DSCP 56 - 8 * class, ECT(0) if important. The first matching rule wins,
hence the verdict at the end of each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import inside, run_tool
from gradwire.emu.user_programs.programs import Rule
from gradwire.scenarios.json_data import Json

TABLE = "gradwire_exec"


def lines_of(rule: Rule) -> list[str]:
    """Return a rule in nftables syntax: two lines if a port may be on either side."""
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
    actions = ["counter"]
    if rule.priority is not None:
        actions.append(f"ip dscp set {56 - 8 * rule.priority}")
    if rule.important is not None:
        actions.append(f"ip ecn set {'ect0' if rule.important else 'not-ect'}")
    return [" ".join([*matches, *([side] if side else []), *actions, "accept"]) for side in sides]


def rules_of_node(rules: Sequence[Rule], node: int) -> list[int]:
    """Return the numbers of the rules that apply to a host."""
    return [number for number, rule in enumerate(rules) if rule.nodes is None or node in rule.nodes]


def rules_text(rules: Sequence[Rule], node: int) -> str:
    """Return the nftables rules of a host, "" if none apply; comments carry the rule numbers."""
    lines = [
        f'    {line} comment "{number}"' for number in rules_of_node(rules, node) for line in lines_of(rules[number])
    ]
    if not lines:
        return ""
    body = "\n".join(lines)
    return (
        f"table ip {TABLE} {{\n  chain marks {{\n    type filter hook output priority -150; policy accept;\n"
        f"{body}\n  }}\n}}\n"
    )


def set_rules(rules: Sequence[Rule], node: int, namespace: int, name: str) -> None:
    """Set the rules of a host and read them back; raise TestbedError if they differ."""
    text = rules_text(rules, node)
    if not text:
        return
    expected = [str(number) for number in rules_of_node(rules, node) for _ in lines_of(rules[number])]
    with inside(namespace):
        run_tool(["nft", "-f", "-"], text)
        comments = [listed_rule.get("comment") for listed_rule in _listed()]
    if comments != expected:
        raise TestbedError(f"nftables rules differ: the kernel has {comments}", f"host {name}", f"{expected}")


def rule_counts(rules: Sequence[Rule], node: int, namespace: int) -> dict[int, tuple[int, int]]:
    """Return (packets, bytes) that each rule has matched at a host."""
    totals: dict[int, tuple[int, int]] = {}
    if not rules_of_node(rules, node):
        return totals
    with inside(namespace):
        listed_rules = _listed()
    for listed_rule in listed_rules:
        counter = next(part["counter"] for part in listed_rule["expr"] if "counter" in part)
        number = int(listed_rule["comment"])
        packets, size = totals.get(number, (0, 0))
        totals[number] = packets + counter["packets"], size + counter["bytes"]
    return totals


def _listed() -> list[Json]:
    answer = json.loads(run_tool(["nft", "-j", "list", "table", "ip", TABLE]))
    return [entry["rule"] for entry in answer["nftables"] if "rule" in entry]
