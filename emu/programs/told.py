"""What a rank is told: its words of the command, its environment, and the names of the hosts.

The variables are those of torchrun [torch.distributed, "Environment variable initialization"], and what gloo, NCCL and
TensorPipe ask for the network device.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from gradwire.emu.programs.described import Programs, Rank

PLACES = ("rank", "world", "local_rank", "local_world", "host", "address", "hosts", "addresses", "master", "port")
"""What may stand in braces in a command."""
_PLACE = re.compile(r"\{(" + "|".join(PLACES) + r")\}")
MARKS, TRACE = "marks", "trace"
"""In the folder of what ranks leave: the file of marks of a rank is marks/RANK, and captures go to trace."""
TIMES = "timetable.json"
"""Beside that folder: what computing takes as a trace has it."""
COMPUTE = "compute"
"""Beside that folder: where ranks ask what they have taken of the processor (`gradwire.emu.uml.meter`)."""


def places(programs: Programs, rank: Rank) -> dict[str, str]:
    """What the places in the command stand for, for one rank."""
    used = list(dict.fromkeys((each.host, each.address) for each in programs.ranks))
    return {
        "rank": str(rank.number),
        "world": str(len(programs.ranks)),
        "local_rank": str(rank.local),
        "local_world": str(rank.local_world),
        "host": rank.host,
        "address": rank.address,
        "hosts": ",".join(host for host, _ in used),
        "addresses": ",".join(address for _, address in used),
        "master": programs.ranks[0].address,
        "port": str(programs.master_port),
    }


def words(programs: Programs, rank: Rank) -> list[str]:
    """The command of a rank: every {place} filled in, and what else is in braces left as it is."""
    known = places(programs, rank)
    return [_PLACE.sub(lambda found: known[found[1]], word) for word in programs.command]


def environment(programs: Programs, rank: Rank, device: str, left: Path, clock: str) -> dict[str, str]:
    """All variables that a rank sees: the user's own, then ours.

    device : the network device of its host. left : folder of what ranks leave. clock : "wall" or "virtual".
    """
    known = places(programs, rank)
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # the first as torchrun has it
    if clock == "virtual":
        defaults |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    own = {
        "RANK": known["rank"],
        "WORLD_SIZE": known["world"],
        "LOCAL_RANK": known["local_rank"],
        "LOCAL_WORLD_SIZE": known["local_world"],
        "GROUP_RANK": str(rank.number // rank.local_world),
        "GROUP_WORLD_SIZE": str(len(programs.ranks) // rank.local_world),
        "MASTER_ADDR": known["master"],
        "MASTER_PORT": known["port"],
        "GLOO_SOCKET_IFNAME": device,
        "NCCL_SOCKET_IFNAME": device,
        "TP_SOCKET_IFNAME": device,
        "GRADWIRE_HOST": rank.host,
        "GRADWIRE_ADDRESS": rank.address,
        "GRADWIRE_HOSTS": known["hosts"],
        "GRADWIRE_ADDRESSES": known["addresses"],
        "GRADWIRE_CLOCK": clock,
        "GRADWIRE_MARKS": str(left / MARKS / known["rank"]),
        "GRADWIRE_TRACE": str(left / TRACE),
    }
    if clock == "virtual":  # this machine's folders are not the virtual one's to leave things in
        own |= {"TMPDIR": "/run/tmp"}
        if programs.times:
            own |= {"GRADWIRE_TIMES": str(left.parent / TIMES)}
        if programs.compute == "measured":
            own |= {"GRADWIRE_COMPUTE": str(left.parent / COMPUTE), "GRADWIRE_COMPUTE_SCALE": repr(programs.scale)}
    return {**defaults, **programs.environment, **own}


def hosts_file(programs: Programs) -> str:
    """/etc/hosts of all hosts. A resolver that asks nobody else: there is nobody in there."""
    lines = ["127.0.0.1 localhost"]
    for name, address in programs.names:
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]  # the second is what c10d's sockets look up
    return "\n".join(lines) + "\n"


def unknown_places(command: Mapping[int, str] | tuple[str, ...]) -> list[str]:
    """Places in a command that look like ours and are not, such as {Rank}: probably slips."""
    found = re.findall(r"\{([A-Za-z_]+)\}", " ".join(command if isinstance(command, tuple) else command.values()))
    return [name for name in dict.fromkeys(found) if name not in PLACES and name.lower() in PLACES]
