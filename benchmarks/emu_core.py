"""What drives the userspace switch alone, without sockets: compiled with its rules, and kept as the switch is."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.components.compiled import njit
from gradwire.emu.native import kept
from gradwire.emu.native.calls import words_at
from gradwire.emu.userspace import layout as at
from gradwire.emu.userspace import rules

if TYPE_CHECKING:
    from gradwire.components.engines import Work

HOSTS = 8
SIZE = 1500


@njit
def arrived_by(W, time):
    """Packets that have reached a host by then; they are released."""
    arrived = 0
    while True:
        packet = rules.next_reached(W, time)
        if packet < 0:
            return arrived
        rules.release(W, packet)
        arrived += 1


@njit("int64(int64, int64, int64)")
def drive(address, waves, gap):
    """Every host sends `waves` packets to the host four further on, one each `gap` picoseconds; how many arrive."""
    W = words_at(address)
    arrived = 0
    for wave in range(waves):
        arrived += arrived_by(W, wave * gap)
        for host in range(HOSTS):
            packet = rules.take(W)
            row = rules.packet_of(W, packet)
            row[at.K_LENGTH] = row[at.K_SIZE] = SIZE
            row[at.K_DST] = (host + 4) % HOSTS
            row[at.K_PRIORITY] = 7
            row[at.K_IMPORTANT] = 1
            row[at.K_ENTROPY] = host
            row[at.K_MARKED] = 0
            rules.arrive(W, host, packet)
    return arrived + arrived_by(W, 1 << 60)


def driver() -> kept.Natives:
    """Its machine code, by name."""
    return kept.load("benchmark of the userspace switch", work)


@cache
def work() -> Work:
    """What has to be compiled for it."""
    from gradwire.components.engines import Work
    from gradwire.components.identity import digest_of, reachable

    files = {Path(__file__), *Path(str(rules.__file__)).parent.glob("*.py"), *kept.files()}
    identity = digest_of("benchmark of the switch", reachable([drive.py_func]), sorted(files))
    about = {"features": ["benchmark of the userspace switch"]}
    return Work(identity, lambda: {"drive": drive}, about, str)
