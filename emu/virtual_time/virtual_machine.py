"""Runs a program in a virtual machine (User-Mode Linux) whose clock stands still while anything computes.

The kernel is User-Mode Linux in time-travel mode (`gradwire.emu.virtual_time.kernel_build`). It is an ordinary process
of this machine without privileges: inside, everything runs as root, on the files of this machine (hostfs), with a
private /run. Time passes only when everything sleeps, in jumps to the next timer, so results do not depend on the speed
of computing. Random numbers come from a seed, the date is fixed, and there is one processor: two runs are identical.
Nothing from outside interrupts it: its output goes to a file in memory, because a pipe would send a signal whenever it
is emptied.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.namespaces import find_tool
from gradwire.emu.system.processes import tied_to_parent
from gradwire.emu.system.temporary_folders import temporary_folder
from gradwire.emu.virtual_time.kernel_build import find_kernel
from gradwire.emu.virtual_time.machine_clock import ASLEEP_S, STILL_S, EndingMachine, MachinePause, MachineWatch
from gradwire.emu.virtual_time.memory_mappings import raise_limit
from gradwire.jit.machine_code import PROCESSOR_VARIABLE, processor
from gradwire.scenarios.advice import build_kernel
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.scenarios.loading import trust

WHERE = "virtual time"
CAGE_S = 10.0
START_NS = 1_700_000_000 * 10**9
"""Date at the beginning of every run, so that runs do not depend on the day; our choice."""
MEMORY_MB = 1024
GRACE_S = 10.0
"""Time between asking the program inside to end and killing it, if it does not compute; our choice."""
EXIT_S = 20.0
"""Time limit between a program's last file and the end of its process, which takes a second; our choice."""
POLL_S = 0.5
"""Polling interval for Ctrl-C while a program runs; our choice."""
OUTPUT_POLL_S = 0.05
"""Polling interval for its output; our choice."""
MAX_OUTPUT = 64 << 20
"""Limit on bytes of output, which stay in memory; our choice."""
PREFIX = "gradwire: "
"""Prefix of the program's lines that are passed on; other lines are the kernel's."""

INIT = """#!/bin/sh
exec {python} -IS {program}
"""
PROGRAM = """import _signal, _socket, ctypes, fcntl, os, resource, struct, sys
command, environment, folder, status = {told!r}
libc = ctypes.CDLL(None, use_errno=True)

def begin():
    for kind, place in ((b"proc", b"/proc"), (b"sysfs", b"/sys"), (b"tmpfs", b"/run")):
        if libc.mount(kind, place, kind, 0, None) < 0:
            raise OSError("cannot mount %s: %s" % (place.decode(), os.strerror(ctypes.get_errno())))
    os.mkdir("/run/tmp")
    fcntl.ioctl(_socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))
    for name in ("rmem_max", "wmem_max"):
        tried(lambda: open("/proc/sys/net/core/" + name, "w").write("67108864"))
    tried(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (65536, 65536)))
    tried(lambda: os.chdir(folder))

def tried(what):
    try:
        what()
    except (OSError, ValueError):
        pass

def run():
    child = os.fork()
    if not child:
        try:
            for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):  # by Python
                _signal.signal(ignored, _signal.SIG_DFL)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.execvpe(command[0], command, environment)
        except OSError as error:
            print(command[0] + ":", error, flush=True)
        finally:
            os._exit(127)
    while True:
        ended, how = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(how)
            return code if code >= 0 else 128 - code

code = 1
try:
    begin()
    code = run()
except OSError as error:
    print(error, flush=True)
finally:
    with open(status, "w") as file:
        file.write(str(code))
    libc.reboot(0x4321FEDC)
"""
"""Process 1: file systems, the loopback device (SIOCSIFFLAGS, IFF_UP [netdevice(7)]), limits of datagrams and files;
the command; RB_POWER_OFF [reboot(2)], since init must not exit. It is one small program in Python without site
packages, because every started program takes a fiftieth of a second here. mount(8) does not work: it is set-uid, and
for a user who is root only in a private namespace its owner is nobody."""
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HALT_PREFIX = "reboot:"
"""Prefix of the kernel's last line."""


def kernel_or_error() -> Path:
    """Return the virtual-time kernel; raise TestbedError if there is none."""
    kernel = find_kernel()
    if kernel is None:
        raise TestbedError("no virtual-time kernel", WHERE, f"{build_kernel()}, once (a few minutes)")
    return kernel


def run_inside(
    command: Sequence[str],
    *,
    seed: int,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    memory_mb: int = MEMORY_MB,
    ask: Callable[[str], bool] | None = None,
    ctrl_c: DeferredInterrupt | None = None,
    words: list[str] | None = None,
    pause: MachinePause | None = None,
    still_s: float = STILL_S,
    asleep_s: float = ASLEEP_S,
) -> int:
    """Run a command in a new virtual machine as its only program; return its exit status.

    seed : of all random numbers of that kernel.
    limit_s : seconds on the wall clock after which everything is ended.
    environment : its variables besides a search path; nothing else of this process's environment is passed.
    on_line : called from another thread with every line that it prints after `PREFIX`.
    ask : asks the command to end, because of "interrupt" (Ctrl-C) or "max_wall" (the limit); returns True if it is
        worth waiting. Then the command has `GRACE_S`, or longer while it computes (`EndingMachine`), and its exit
        status is returned. Otherwise, and at a second Ctrl-C, it is killed at once.
    ctrl_c : source of deferred Ctrl-C requests.
    words : receives the last other lines of output.
    pause : stops the machine while it has nothing to do; it is not supervised then.
    still_s, asleep_s : see `gradwire.emu.virtual_time.machine_clock`.

    Raises TestbedError: there is no kernel, it did not start, or the time limit was exceeded; ClockStoppedError: its
    clock made no progress; KeyboardInterrupt: Ctrl-C, and the command has not ended in order.
    """
    kernel = kernel_or_error()
    raise_limit()
    with temporary_folder("gradwire-uml-") as folder, _processor() as processor:
        memory = _memory_folder(folder, memory_mb)
        status = folder / "status"
        script = _write_init(folder, status, command, environment or {})
        log: list[str] = []
        output = os.memfd_create("gradwire-said")  # in memory: a full disk must be reported too
        try:
            process = subprocess.Popen(
                _machine(kernel, script, memory_mb, processor),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # UML needs TMPDIR for its memory and HOME for a socket
                env={"PATH": SEARCH, "GRADWIRE_SEED": str(seed), "TMPDIR": str(memory), "HOME": str(folder)},
                start_new_session=True,
                preexec_fn=tied_to_parent(),
            )
        except OSError as error:
            os.close(output)
            raise TestbedError(f"cannot start the kernel: {error.strerror}", str(kernel), build_kernel()) from None
        ended = threading.Event()
        reader = threading.Thread(target=_listen, args=(output, process, ended, on_line, log), daemon=True)
        reader.start()
        try:
            watch, left = MachineWatch(kernel, process.pid, still_s, asleep_s), FinalFile(status)
            if pause is not None:
                pause.use(watch)

            def over() -> bool:
                if not status.exists() and not (pause is not None and pause.lasts):
                    watch.check()
                return left.is_settled()

            wait(process, limit_s, GRACE_S, ask, WHERE, ctrl_c, over, EndingMachine(watch).is_alive)
        finally:
            _kill(process)
            ended.set()
            reader.join(timeout=5)
            if not reader.is_alive():
                os.close(output)
        if words is not None:
            words += [line for line in log if not line.startswith(HALT_PREFIX)]
        if not status.exists():
            last = " | ".join(log[-3:]) or "no output"
            raise TestbedError(f"the kernel ended early: {last}", WHERE, usage=False)
        return int(status.read_text().strip() or 1)


class FinalFile:
    """The last file that a program writes before it ends."""

    def __init__(self, path: Path, old_s: float = EXIT_S) -> None:
        self._path, self._old_s = path, old_s
        self._since: float | None = None

    def is_settled(self) -> bool:
        """Return True if the file has existed for so long that the program's process cannot end."""
        if self._since is None and self._path.exists():
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= self._old_s


def wait(
    process: subprocess.Popen[bytes],
    limit_s: float,
    grace_s: float,
    ask: Callable[[str], bool] | None,
    where: str,
    ctrl_c: DeferredInterrupt | None = None,
    over: Callable[[], bool] | None = None,
    patient: Callable[[], bool] | None = None,
) -> None:
    """Wait for the end of a process; at Ctrl-C and at the limit ask it to end, if possible.

    Raises TestbedError at the limit and KeyboardInterrupt at Ctrl-C, if it does not end in time or cannot be asked;
    then it may still be running.

    over : called repeatedly; returns True if the run is over although the process exists, or raises.
    patient : called repeatedly after `grace_s`; returns True if it is worth waiting longer.
    """
    limit_error = TestbedError(
        f"wall-clock limit of {limit_s:g} s exceeded", where, "a smaller job, or a higher limit", usage=False
    )
    error: BaseException = limit_error
    reason, end = "max_wall", time.monotonic() + limit_s
    try:
        while (remaining := end - time.monotonic()) > 0:
            if ctrl_c is not None:
                ctrl_c.check()
            if over is not None and over():
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=min(remaining, POLL_S))
                return
    except KeyboardInterrupt as stop:
        reason, error = "interrupt", stop
    if ask is None or not ask(reason):
        raise error
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
        return
    while patient is not None and patient():
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=POLL_S)
            return
    raise error from None


def _write_init(folder: Path, status: Path, command: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Write the machine's first program to a folder; return its path."""
    variables = {
        "PATH": SEARCH,
        "HOME": "/run/tmp",
        "TMPDIR": "/run/tmp",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        PROCESSOR_VARIABLE: processor(),
        **trust.trust_environment(),
        **environment,
    }
    program, script = folder / "init.py", folder / "init"
    program.write_text(PROGRAM.format(told=([*command], variables, os.getcwd(), str(status))), encoding="utf-8")
    script.write_text(INIT.format(python=shlex.quote(sys.executable), program=shlex.quote(str(program))))
    script.chmod(0o755)
    return script


def _memory_folder(folder: Path, memory_mb: int) -> Path:
    """Return a folder with space for the machine's memory, in RAM if possible. A full file system would end the machine
    by a signal in the middle of a run, and containers often have a small /dev/shm. Raises TestbedError if there is no
    space."""
    for path in (Path("/dev/shm"), folder):
        with suppress(OSError):
            stats = os.statvfs(path)
            if os.access(path, os.W_OK) and stats.f_bavail * stats.f_frsize >= memory_mb << 20:
                return path
    raise TestbedError(
        f"no space for the memory of a virtual machine, {memory_mb} MB",
        f"/dev/shm and {folder.parent}",
        "that much free space, or TMPDIR=FOLDER elsewhere",
    )


def _machine(kernel: Path, script: Path, memory_mb: int, processor: int) -> list[str]:
    """Return the command line, pinned to one processor, since migration has no use."""
    pinned = [taskset, "-c", str(processor)] if (taskset := find_tool("taskset")) else []
    return [
        *_namespace_command(), *pinned, str(kernel), f"mem={memory_mb}M", "rootfstype=hostfs", "rw", f"init={script}",
        "con=null", "con0=fd:0,fd:1", "ssl=null", "quiet", "time-travel=inf-cpu", f"time-travel-start={START_NS}",
    ]  # fmt: skip


def _namespace_command() -> list[str]:
    """Return the command prefix for a process namespace, if allowed: the end of the launcher then ends all of it."""
    unshare = find_tool("unshare")
    if unshare is None:
        return []
    words = [unshare, "--pid", "--fork", "--kill-child=KILL"]
    if os.geteuid() != 0:
        words[1:1] = ["--user", "--map-root-user"]
    try:
        completed = subprocess.run([*words, "true"], capture_output=True, stdin=subprocess.DEVNULL, timeout=CAGE_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return words if completed.returncode == 0 else []


def _listen(
    output: int,
    process: subprocess.Popen[bytes],
    ended: threading.Event,
    on_line: Callable[[str], None] | None,
    log: list[str],
) -> None:
    """Read the output file continuously until the process has ended and all is read."""
    rest, offset = b"", 0
    while True:
        is_last = ended.is_set()
        while data := os.pread(output, 1 << 16, offset):
            offset += len(data)
            rest += data
        *lines, rest = rest.split(b"\n")
        if is_last and rest:
            lines.append(rest)
        for raw in lines:
            _handle_line(raw.decode(errors="replace").rstrip("\r"), process, on_line, log)
        if is_last:
            return
        if offset > MAX_OUTPUT:
            log.append(f"killed after {offset >> 20} MB of output")
            _kill(process)
            return
        ended.wait(OUTPUT_POLL_S)


def _handle_line(
    line: str, process: subprocess.Popen[bytes], on_line: Callable[[str], None] | None, log: list[str]
) -> None:
    if line.startswith(PREFIX):
        if on_line is not None:
            with suppress(OSError):  # the receiver may have ended; the machine must not stop for that
                on_line(line[len(PREFIX) :])
    elif line:
        log.append(line)
        del log[:-50]
        if "Kernel panic" in line:
            _kill(process)  # it would hang for ever


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the kernel and its processes, which are all in its session."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=EXIT_S)


@contextmanager
def _processor() -> Iterator[int]:
    """Yield a processor that this process may use and no other machine has, if there is one. Two machines on one
    processor take twice as long. The reservation is a name in the kernel (an abstract socket's), which ends with the
    process. If all are reserved, the choice depends on the process number."""
    allowed = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(allowed)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        yield next(
            (number for number in (*allowed[first:], *allowed[:first]) if _is_bound(name, number)), allowed[first]
        )


def _is_bound(name: socket.socket, processor: int) -> bool:
    with suppress(OSError):  # another has it
        name.bind(f"\0gradwire processor {processor}")
        return True
    return False
