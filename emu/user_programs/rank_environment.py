"""Builds the command line, the environment variables (torchrun's) and the hosts file of a user program's rank.

The variables are those of torchrun [torch.distributed, "Environment variable initialization"], and those by which gloo,
NCCL and TensorPipe select the network device.
"""

from __future__ import annotations

import re
from pathlib import Path

from gradwire.emu.user_programs.programs import Programs, Rank

PLACEHOLDERS = ("rank", "world", "local_rank", "local_world", "host", "address", "hosts", "addresses", "master", "port")
"""Placeholders of a command, in braces."""
_PLACEHOLDER = re.compile(r"\{(" + "|".join(PLACEHOLDERS) + r")\}")
MARKS, TRACE = "marks", "trace"
"""In the folder of the ranks' files: a rank's marks are in marks/RANK, its captures in trace."""
TIMES = "timetable.json"
"""Beside that folder: the compute times of a trace."""
COMPUTE = "compute"
"""Beside that folder: the file for queries of processor time (`gradwire.emu.virtual_time.cpu_meter`)."""


def placeholders(programs: Programs, rank: Rank) -> dict[str, str]:
    hosts = list(dict.fromkeys((other.host, other.address) for other in programs.ranks))
    return {
        "rank": str(rank.number),
        "world": str(len(programs.ranks)),
        "local_rank": str(rank.local),
        "local_world": str(rank.local_world),
        "host": rank.host,
        "address": rank.address,
        "hosts": ",".join(host for host, _ in hosts),
        "addresses": ",".join(address for _, address in hosts),
        "master": programs.ranks[0].address,
        "port": str(programs.master_port),
    }


def command_words(programs: Programs, rank: Rank) -> list[str]:
    """Return a rank's command with every placeholder filled in; other text in braces stays."""
    values = placeholders(programs, rank)
    return [_PLACEHOLDER.sub(lambda match: values[match[1]], word) for word in programs.command]


def environment(programs: Programs, rank: Rank, device: str, left: Path, clock: str) -> dict[str, str]:
    """Return all variables of a rank: the user's, then gradwire's.

    device : the network device of its host. left : folder of the ranks' files. clock : "wall" or "virtual".
    """
    values = placeholders(programs, rank)
    defaults = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}  # the first is torchrun's default
    if clock == "virtual":
        defaults |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    variables = {
        "RANK": values["rank"],
        "WORLD_SIZE": values["world"],
        "LOCAL_RANK": values["local_rank"],
        "LOCAL_WORLD_SIZE": values["local_world"],
        "GROUP_RANK": str(rank.number // rank.local_world),
        "GROUP_WORLD_SIZE": str(len(programs.ranks) // rank.local_world),
        "MASTER_ADDR": values["master"],
        "MASTER_PORT": values["port"],
        "GLOO_SOCKET_IFNAME": device,
        "NCCL_SOCKET_IFNAME": device,
        "TP_SOCKET_IFNAME": device,
        "GRADWIRE_HOST": rank.host,
        "GRADWIRE_ADDRESS": rank.address,
        "GRADWIRE_HOSTS": values["hosts"],
        "GRADWIRE_ADDRESSES": values["addresses"],
        "GRADWIRE_CLOCK": clock,
        "GRADWIRE_MARKS": str(left / MARKS / values["rank"]),
        "GRADWIRE_TRACE": str(left / TRACE),
    }
    if clock == "virtual":  # do not write to the machine's folders from the virtual machine
        variables |= {"TMPDIR": "/run/tmp"}
        if programs.times:
            variables |= {"GRADWIRE_TIMES": str(left.parent / TIMES)}
        if programs.compute == "measured":
            variables |= {
                "GRADWIRE_COMPUTE": str(left.parent / COMPUTE),
                "GRADWIRE_COMPUTE_SCALE": repr(programs.scale),
            }
    return {**defaults, **programs.environment, **variables}


def hosts_file(programs: Programs) -> str:
    """Return /etc/hosts with all hosts; the resolver has no other source."""
    lines = ["127.0.0.1 localhost"]
    for name, address in programs.names:
        lines += [f"{address} {name}", f"::ffff:{address} {name}"]  # c10d's sockets look up the second form
    return "\n".join(lines) + "\n"
