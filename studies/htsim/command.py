"""`parse_command` reads a command line of htsim_uec (uet-htsim, commit 40ccb05)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any, Literal

from gradwire.scenarios.errors import GradwireError

Balancing = Literal["mixed", "bitmap", "reps", "oblivious"]


@dataclass(frozen=True)
class HtsimCommand:
    """The settings of a run, with htsim_uec's defaults.

    matrix, topology : files, as the command names them; `topology` is empty for a fat-tree of the matrix's nodes.
    rate : of all cables, Mbit/s. hop_us : latency of a cable. tiers : of a fat-tree without a file.
    queue, ecn : packets; None and empty if htsim derives them from the bandwidth-delay product.
    window : packets of the initial window, 0 = the largest. paths : entropies of a connection.
    control : what limits sending. sack_bytes : bytes after which a receiver acknowledges.
    slow_cables : cables from cores at a quarter of their rate. end_us : the run ends then at the latest.
    """

    matrix: str = ""
    topology: str = ""
    rate: int = 100_000
    hop_us: float = 1.0
    tiers: int = 3
    mtu: int = 4150
    queue: int | None = None
    ecn: tuple[int, int] | None = None
    window: int = 0
    paths: int = 64
    balancing: Balancing = "mixed"
    sender: bool = True
    receiver: bool = False
    trims: bool = True
    sack_bytes: int = 16_384
    slow_cables: int = 0
    target_us: float = 0.0
    end_us: int = 1000

    @property
    def control(self) -> Literal["sender", "receiver", "both"]:
        """Side that limits sending, as `Nscc.control` has it."""
        return "both" if self.sender and self.receiver else "sender" if self.sender else "receiver"


FLAGS: dict[str, dict[str, Any]] = {
    "-sender_cc_only": {"sender": True, "receiver": False},
    "-receiver_cc_only": {"sender": False, "receiver": True},
    "-sender_cc": {"sender": True},
    "-receiver_cc": {"receiver": True},
    "-disable_trim": {"trims": False},
}
VALUES: dict[str, tuple[str, type]] = {
    "-tm": ("matrix", str),
    "-topo": ("topology", str),
    "-linkspeed": ("rate", int),
    "-hop_latency": ("hop_us", float),
    "-tiers": ("tiers", int),
    "-mtu": ("mtu", int),
    "-q": ("queue", int),
    "-cwnd": ("window", int),
    "-paths": ("paths", int),
    "-load_balancing_algo": ("balancing", str),
    "-sack_threshold": ("sack_bytes", int),
    "-failed": ("slow_cables", int),
    "-target_q_delay": ("target_us", float),
    "-end": ("end_us", int),
}
IGNORED = {"-nodes": 1, "-seed": 1, "-log": 1, "-logtime": 1, "-logtime_us": 1, "-o": 1, "-debug": 0}
"""Options without a counterpart that change no figure here, and their values: the matrix gives the nodes."""
BALANCINGS = ("mixed", "bitmap", "reps", "oblivious")


def parse_command(text: str) -> HtsimCommand:
    """Return the settings of a command line, with or without the program's name.

    Raises
    ------
    GradwireError
        If an option is unknown or not translated, or lacks its value.
    """
    words = shlex.split(text)
    if words and not words[0].startswith("-"):
        words = words[1:]
    command, position = HtsimCommand(), 0
    while position < len(words):
        word = words[position]
        if word in FLAGS:
            command = replace(command, **FLAGS[word])
            position += 1
        elif word in IGNORED:
            position += 1 + IGNORED[word]
        elif word == "-ecn":
            low, high = (_value(words, position + step, int) for step in (1, 2))
            command = replace(command, ecn=(low, high))
            position += 3
        elif word in VALUES:
            name, kind = VALUES[word]
            command = replace(command, **{name: _value(words, position + 1, kind)})
            position += 2
        else:
            raise GradwireError(f"{word} is not translated", text, ", ".join(sorted({*FLAGS, *VALUES, "-ecn"})))
    if not command.matrix:
        raise GradwireError("names no traffic matrix", text, "-tm and a file")
    if command.balancing not in BALANCINGS:
        raise GradwireError(f"the load balancing {command.balancing} is not translated", text, ", ".join(BALANCINGS))
    return command


def _value(words: list[str], position: int, kind: type) -> Any:
    """Return a word as a value of a kind."""
    try:
        return kind(words[position])
    except (IndexError, ValueError) as error:
        option = words[min(position, len(words)) - 1]
        raise GradwireError(f"{option} has no value", " ".join(words), f"{option} and a number") from error
