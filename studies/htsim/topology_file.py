"""`read_topology` reads the shape of a fat-tree or leaf-spine from a topology file of htsim (.topo)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradwire.scenarios.errors import GradwireError


@dataclass(frozen=True)
class TreeShape:
    """A tree of two or three tiers. `down`, `up` : ports of a switch, by tier from the hosts. `rates` : Gbit/s and
    `latencies` : ns of the cables below each tier."""

    hosts: int
    down: tuple[int, ...]
    up: tuple[int, ...]
    rates: tuple[float, ...]
    latencies: tuple[float, ...]

    @property
    def tiers(self) -> int:
        """Tiers of switches."""
        return len(self.down)


def read_topology(path: Path) -> TreeShape:
    """Return the shape of the tree in a file. Raises GradwireError if it is damaged, or has what is not translated."""
    words: dict[str, float] = {}
    tiers: list[dict[str, float]] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise GradwireError(f"cannot be read: {error.strerror}", str(path), "a topology file of htsim") from error
    for number, line in enumerate(lines, 1):
        parts = line.split("#")[0].split()
        if not parts:
            continue
        try:
            name, value = parts[0], float(parts[1])
        except (IndexError, ValueError) as error:
            raise GradwireError(
                f"line {number} has no number: {line.strip()}", str(path), "a word and a number"
            ) from error
        if name == "Tier":
            tiers.append({})
        else:
            (tiers[-1] if tiers else words)[name] = value
    try:
        shape = TreeShape(
            int(words["Nodes"]),
            tuple(int(tier["Radix_Down"]) for tier in tiers),
            tuple(int(tier["Radix_Up"]) for tier in tiers[:-1]),
            tuple(tier["Downlink_speed_Gbps"] for tier in tiers),
            tuple(tier["Downlink_Latency_ns"] for tier in tiers),
        )
    except KeyError as error:
        raise GradwireError(
            f"has no {error.args[0]}", str(path), "Nodes, and for each Tier its radix and links"
        ) from error
    if len(tiers) != words.get("Tiers") or len(tiers) not in (2, 3):
        raise GradwireError(f"has {len(tiers)} tiers", str(path), "two or three, as Tiers says")
    if any(tier.get("Bundle", 1) != 1 or tier.get("Switch_Latency_ns", 0) for tier in tiers):
        raise GradwireError(
            "has bundles or switch latencies, which are not translated", str(path), "Bundle 1, latency 0"
        )
    return shape
