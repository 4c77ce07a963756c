"""Virtual time: a program run inside a kernel whose clock stands still while anything computes.

The kernel is User-Mode Linux in time-travel mode (`emu.uml.build`). It is an ordinary process of this machine and needs
no rights: inside, everything runs as root, on the files of this machine (hostfs), with a /run of its own. Time goes by
only when everything sleeps, in jumps to the next timer, so a run takes as long as its computing does and its results do
not depend on how fast that is. Random numbers come from a seed, the date is always the same, and there is one
processor: two runs are the same run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from emu.switches.base import TestbedError
from emu.uml.build import find_kernel

HERE = "virtual time"
START_NS = 1_700_000_000 * 10**9
"""The date at which every run begins, so that none tells of the day it was made; our choice."""
MEMORY_MB = 1024
PREFIX = "gradwire: "
"""What the program says on lines that begin so is passed on; the rest is the kernel's own."""

INIT = """#!/bin/sh
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t tmpfs run /run || {{ echo 1 > {status}; exec {halt}; }}
mkdir -p /run/tmp
ip link set lo up
sysctl -q -w net.core.rmem_max=67108864 net.core.wmem_max=67108864 2>/dev/null
ulimit -n 65536 2>/dev/null
cd {cwd}
{command}
echo $? > {status}
exec {halt}
"""
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HALT = "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)"
"""RB_POWER_OFF [reboot(2)]; init may simply not end."""


def kernel_or_error() -> Path:
    """The kernel for virtual time. TestbedError with one line if there is none."""
    found = find_kernel()
    if found is None:
        raise TestbedError("there is no virtual-time kernel yet", HERE, "make uml, once (a few minutes)")
    return found


def run_inside(
    command: Sequence[str],
    *,
    seed: int,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    heard: Callable[[str], None] | None = None,
    memory_mb: int = MEMORY_MB,
) -> int:
    """Run a command inside the kernel, as the only program of a machine that exists for it; returns its exit status.

    Parameters
    ----------
    seed : of all random numbers of that kernel.
    limit_s : seconds on the wall clock after which everything is ended.
    environment : variables that it sees, besides a search path; nothing else of this process's environment.
    heard : called with every line that it prints after `PREFIX`, from another thread.

    Raises
    ------
    TestbedError
        There is no kernel, it did not start, or the time was up.
    """
    kernel = kernel_or_error()
    folder = Path(tempfile.mkdtemp(prefix="gradwire-uml-"))
    status = folder / "status"
    variables = {"PATH": SEARCH, "HOME": "/run/tmp", "TMPDIR": "/run/tmp"}
    variables |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
    variables |= environment or {}
    script = folder / "init"
    text = INIT.format(
        status=shlex.quote(str(status)),
        cwd=shlex.quote(os.getcwd()),
        command="env -i " + " ".join(shlex.quote(f"{k}={v}") for k, v in variables.items())
        + " " + " ".join(shlex.quote(part) for part in command) + " </dev/null",
        halt=f"{shlex.quote(_python())} -c {shlex.quote(HALT)}",
    )  # fmt: skip
    script.write_text(text.replace("#!/bin/sh\n", f"#!/bin/sh\nexport PATH={variables['PATH']}\n", 1))
    script.chmod(0o755)
    log: list[str] = []
    try:
        process = subprocess.Popen(
            _machine(kernel, script, memory_mb),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # UML keeps its memory in TMPDIR and a socket of its own below HOME, without which it does not start
            env={"PATH": SEARCH, "GRADWIRE_SEED": str(seed), "TMPDIR": str(folder), "HOME": str(folder)},
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        reader = threading.Thread(target=_listen, args=(process, heard, log), daemon=True)
        reader.start()
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise TestbedError(
                f"not over after {limit_s:.0f} s on the wall clock", HERE, "a smaller job", usage=False
            ) from None
        finally:
            _end(process)
            reader.join(timeout=5)
        if not status.exists():
            last = " | ".join(log[-3:]) or "it said nothing"
            raise TestbedError(f"the kernel ended early: {last}", HERE, usage=False)
        return int(status.read_text().strip() or 1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _python() -> str:
    import sys

    return sys.executable


def _machine(kernel: Path, script: Path, memory_mb: int) -> list[str]:
    """The command line; pinned to one processor, between which its processes would only wander."""
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if shutil.which("taskset") else []
    # In a process namespace of its own where that is allowed: whatever ends the launcher ends all of it.
    caged = ["unshare", "--pid", "--fork", "--kill-child"] if os.geteuid() == 0 and shutil.which("unshare") else []
    return [
        *caged, *pinned, str(kernel), f"mem={memory_mb}M", "rootfstype=hostfs", "rw", f"init={script}",
        "con=null", "con0=fd:0,fd:1", "ssl=null", "quiet", "time-travel=inf-cpu", f"time-travel-start={START_NS}",
    ]  # fmt: skip


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG [prctl(2)]


def _listen(process: subprocess.Popen[bytes], heard: Callable[[str], None] | None, log: list[str]) -> None:
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode(errors="replace").rstrip("\r\n")
        if line.startswith(PREFIX):
            if heard is not None:
                heard(line[len(PREFIX) :])
        elif line:
            log.append(line)
            del log[:-50]
            if "Kernel panic" in line:
                _end(process)  # it would stand still for ever


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the kernel and its processes, which are all in its session."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
