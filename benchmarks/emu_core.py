"""Drives the userspace switch in memory, without sockets, for the rows of `benchmarks.emu_rows`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.emu.native import code_cache
from gradwire.emu.native.calls import words_at
from gradwire.emu.switches.userspace_switch import rules
from gradwire.emu.switches.userspace_switch.layout import SwitchedNetwork
from gradwire.jit.compiled import njit

if TYPE_CHECKING:
    from gradwire.jit.engine_cache import CompileTask

HOSTS = 8
SIZE = 1500


@njit
def release_arrived(network: SwitchedNetwork, time: int) -> int:
    """Release the packets that have reached a host by `time`, and return their number."""
    arrived = 0
    while True:
        packet = rules.next_reached(network, time)
        if packet < 0:
            return arrived
        rules.release(network, packet)
        arrived += 1


@njit("int64(int64, int64, int64)")
def drive(address: int, waves: int, gap: int) -> int:
    """Let every host send `waves` packets to the host four further on, one each `gap` picoseconds; return arrivals."""
    network = SwitchedNetwork(words_at(address), 0)
    arrived = 0
    for wave in range(waves):
        arrived += release_arrived(network, wave * gap)
        for host in range(HOSTS):
            packet = rules.take(network)
            row = rules.packet_of(network, packet)
            row.length = SIZE
            row.size = SIZE
            row.dst = (host + 4) % HOSTS
            row.priority = 7
            row.is_important = 1
            row.entropy = host
            row.is_marked = 0
            rules.arrive(network, host, packet)
    return arrived + release_arrived(network, 1 << 60)


def driver() -> code_cache.Natives:
    return code_cache.load("benchmark of the userspace switch", compile_work)


@cache
def compile_work() -> CompileTask:
    from gradwire.jit.engine_cache import CompileTask
    from gradwire.jit.fingerprint import digest_of, reachable_functions

    files = {Path(__file__), *Path(str(rules.__file__)).parent.glob("*.py"), *code_cache.files()}
    identity = digest_of("benchmark of the switch", reachable_functions([drive.py_func]), sorted(files))
    about = {"features": ["benchmark of the userspace switch"]}
    return CompileTask(identity, lambda: {"drive": drive}, about, str)
