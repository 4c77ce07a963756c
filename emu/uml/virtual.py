"""Virtual time: a program run inside a kernel whose clock stands still while anything computes.

The kernel is User-Mode Linux in time-travel mode (`gradwire.emu.uml.build`). It is an ordinary process of this machine
and needs no rights: inside, everything runs as root, on the files of this machine (hostfs), with a /run of its own.
Time goes by only when everything sleeps, in jumps to the next timer, so a run takes as long as its computing does and
its results do not depend on how fast that is. Random numbers come from a seed, the date is always the same, and there
is one processor: two runs are the same run. Nothing from outside interrupts it: what it prints goes into a file in
memory that is read here, since a pipe would send a signal whenever somebody has emptied it.
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
from typing import Protocol

from gradwire.components.objects import TELLS, processor
from gradwire.emu.switches.base import TestbedError
from gradwire.emu.system.namespaces import find_tool, tied
from gradwire.emu.system.scratch import scratch
from gradwire.emu.uml.build import find_kernel
from gradwire.emu.uml.mappings import make_room
from gradwire.emu.uml.watch import ASLEEP_S, STILL_S, Ending, Pause, Watch
from gradwire.scenarios import trust
from gradwire.scenarios.advice import build_kernel

HERE = "virtual time"
CAGE_S = 10.0
START_NS = 1_700_000_000 * 10**9
"""The date at which every run begins, so that none tells of the day it was made; our choice."""
MEMORY_MB = 1024
GRACE_S = 10.0
"""Between asking the program inside to end and ending it, if it does not compute; our choice."""
OVER_S = 20.0
"""Between a program having left what it leaves last and its process being gone, which takes a second; our choice."""
LOOK_S = 0.5
"""How often somebody looks for a Ctrl-C while a program runs; our choice."""
HEAR_S = 0.05
"""How often somebody looks for what it has printed; our choice."""
SAID_MOST = 64 << 20
"""Bytes that it may print, which stay in memory; our choice."""
PREFIX = "gradwire: "
"""What the program says on lines that begin so is passed on; the rest is the kernel's own."""

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
"""Process 1: file systems, the loopback device (SIOCSIFFLAGS, IFF_UP [netdevice(7)]), room for datagrams and files; the
command; RB_POWER_OFF [reboot(2)], for init may not simply end. One small program, Python without what is installed, for
every one that is started takes a fiftieth of a second here. Not mount(8): that is set-uid, and to a user who is root in
a namespace of his own alone its owner is nobody."""
SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HALTED = "reboot:"
"""The kernel's own last words begin so."""


class Asked(Protocol):
    """Whoever may have been asked to end something: a Ctrl-C, for one (`gradwire.scenarios.interrupt.CtrlC`)."""

    def check(self) -> None:
        """Raise KeyboardInterrupt if so."""


def kernel_or_error() -> Path:
    """The kernel for virtual time. TestbedError with one line if there is none."""
    found = find_kernel()
    if found is None:
        raise TestbedError("there is no virtual-time kernel yet", HERE, f"{build_kernel()}, once (a few minutes)")
    return found


def run_inside(
    command: Sequence[str],
    *,
    seed: int,
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    heard: Callable[[str], None] | None = None,
    memory_mb: int = MEMORY_MB,
    ask: Callable[[str], bool] | None = None,
    ctrl_c: Asked | None = None,
    words: list[str] | None = None,
    pause: Pause | None = None,
    still_s: float = STILL_S,
    asleep_s: float = ASLEEP_S,
) -> int:
    """Run a command inside the kernel, as the only program of a machine that exists for it; returns its exit status.

    Parameters
    ----------
    seed : of all random numbers of that kernel.
    limit_s : seconds on the wall clock after which everything is ended.
    environment : variables that it sees, besides a search path; nothing else of this process's environment.
    heard : called with every line that it prints after `PREFIX`, from another thread.
    ask : asks the command to end, because of "interrupt" (Ctrl-C) or "max_wall" (the limit), and tells whether that is
        worth waiting for. It then has `GRACE_S`, or longer as long as it computes (`Ending`), and its exit status is
        returned as ever. Else, and at a second Ctrl-C, it is ended at once.
    ctrl_c : who has noted a Ctrl-C that was to raise nothing.
    words : gets the last lines that were printed besides.
    pause : stops the machine while there is nothing for it to do; it is not watched then.
    still_s, asleep_s : see `gradwire.emu.uml.watch`.

    Raises
    ------
    TestbedError
        There is no kernel, it did not start, or the time was up.
    StoodStill
        Its clock did not go on any more.
    KeyboardInterrupt
        Ctrl-C, and the command has not ended in order.
    """
    kernel = kernel_or_error()
    make_room()
    with scratch("gradwire-uml-") as folder, _processor() as processor:
        memory = _memory_folder(folder, memory_mb)
        status = folder / "status"
        script = _write_init(folder, status, command, environment or {})
        log: list[str] = []
        said = os.memfd_create("gradwire-said")  # no disk: one that is full is to be told of, too
        try:
            process = _start(
                _machine(kernel, script, memory_mb, processor),
                said,
                # UML keeps its memory in TMPDIR and a socket of its own below HOME, without which it does not start
                {"PATH": SEARCH, "GRADWIRE_SEED": str(seed), "TMPDIR": str(memory), "HOME": str(folder)},
            )
        except OSError as error:
            os.close(said)
            raise TestbedError(
                f"the kernel cannot be started: {error.strerror}", str(kernel), build_kernel()
            ) from None
        ended = threading.Event()
        reader = threading.Thread(target=_listen, args=(said, process, ended, heard, log), daemon=True)
        reader.start()
        try:
            watch, left = Watch(kernel, process.pid, still_s, asleep_s), Last(status)
            if pause is not None:
                pause.use(watch)

            def over() -> bool:
                if not status.exists() and not (pause is not None and pause.lasts):
                    watch.look()
                return left.is_old()

            wait(process, limit_s, GRACE_S, ask, HERE, ctrl_c, over, Ending(watch).may_go_on)
        finally:
            _end(process)
            ended.set()
            reader.join(timeout=5)
            if not reader.is_alive():
                os.close(said)
        if words is not None:
            words += [line for line in log if not line.startswith(HALTED)]
        if not status.exists():
            last = " | ".join(log[-3:]) or "it said nothing"
            raise TestbedError(f"the kernel ended early: {last}", HERE, usage=False)
        return int(status.read_text().strip() or 1)


class Last:
    """The file that a program leaves last, before it ends."""

    def __init__(self, path: Path, old_s: float = OVER_S) -> None:
        self._path, self._old_s = path, old_s
        self._since: float | None = None

    def is_old(self) -> bool:
        """Whether it has been seen for so long that the program's process must be one that cannot end."""
        if self._since is None and self._path.exists():
            self._since = time.monotonic()
        return self._since is not None and time.monotonic() - self._since >= self._old_s


def wait(
    process: subprocess.Popen[bytes],
    limit_s: float,
    grace_s: float,
    ask: Callable[[str], bool] | None,
    where: str,
    ctrl_c: Asked | None = None,
    over: Callable[[], bool] | None = None,
    patient: Callable[[], bool] | None = None,
) -> None:
    """Until a process has ended; at Ctrl-C and at the limit it is asked to, where there is a way to.

    TestbedError at the limit and KeyboardInterrupt at Ctrl-C, if it does not end in time, or cannot be asked. It may
    still be there then. `over` is asked now and then, whether it is over although the process is there; it may raise
    something, too. `patient` : whether to wait for longer than `grace_s`, asked again and again then.
    """
    late = TestbedError(
        f"not over after {limit_s:g} s on the wall clock", where, "a smaller job, or a later end", usage=False
    )
    failed: BaseException = late
    why, end = "max_wall", time.monotonic() + limit_s
    try:
        while (left := end - time.monotonic()) > 0:
            if ctrl_c is not None:
                ctrl_c.check()
            if over is not None and over():
                return
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=min(left, LOOK_S))
                return
    except KeyboardInterrupt as stop:
        why, failed = "interrupt", stop
    if ask is None or not ask(why):
        raise failed
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
        return
    while patient is not None and patient():
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=LOOK_S)
            return
    raise failed from None


def _write_init(folder: Path, status: Path, command: Sequence[str], environment: Mapping[str, str]) -> Path:
    """What the machine starts first, below a folder of its own."""
    variables = {
        "PATH": SEARCH, "HOME": "/run/tmp", "TMPDIR": "/run/tmp", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", TELLS: processor(), **trust.environment(), **environment,
    }  # fmt: skip
    program, script = folder / "init.py", folder / "init"
    program.write_text(PROGRAM.format(told=([*command], variables, os.getcwd(), str(status))), encoding="utf-8")
    script.write_text(INIT.format(python=shlex.quote(sys.executable), program=shlex.quote(str(program))))
    script.chmod(0o755)
    return script


def _memory_folder(folder: Path, memory_mb: int) -> Path:
    """Where the machine keeps its memory, as a file that nobody else sees: in memory, if that has the room.

    A file system that is full would end the machine by a signal in the middle of the run; containers often have a small
    /dev/shm. TestbedError if there is no room.
    """
    for place in (Path("/dev/shm"), folder):
        with suppress(OSError):
            found = os.statvfs(place)
            if os.access(place, os.W_OK) and found.f_bavail * found.f_frsize >= memory_mb << 20:
                return place
    raise TestbedError(
        f"no room for the memory of a virtual machine, {memory_mb} MB", f"/dev/shm and {folder.parent}",
        "as much there, or TMPDIR=FOLDER elsewhere",
    )  # fmt: skip


def _machine(kernel: Path, script: Path, memory_mb: int, processor: int) -> list[str]:
    """The command line; pinned to one processor, between which its processes would only wander."""
    pinned = [taskset, "-c", str(processor)] if (taskset := find_tool("taskset")) else []
    return [
        *_cage(), *pinned, str(kernel), f"mem={memory_mb}M", "rootfstype=hostfs", "rw", f"init={script}",
        "con=null", "con0=fd:0,fd:1", "ssl=null", "quiet", "time-travel=inf-cpu", f"time-travel-start={START_NS}",
    ]  # fmt: skip


def _cage() -> list[str]:
    """A process namespace, where this user may make one: whatever ends the launcher then ends all of it."""
    unshare = find_tool("unshare")
    if unshare is None:
        return []
    words = [unshare, "--pid", "--fork", "--kill-child=KILL"]
    if os.geteuid() != 0:
        words[1:1] = ["--user", "--map-root-user"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True, stdin=subprocess.DEVNULL, timeout=CAGE_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return words if done.returncode == 0 else []


def _start(command: Sequence[str], said: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment,
        start_new_session=True, preexec_fn=tied(),
    )  # fmt: skip


def _listen(
    said: int,
    process: subprocess.Popen[bytes],
    ended: threading.Event,
    heard: Callable[[str], None] | None,
    log: list[str],
) -> None:
    """Read what it prints into the file `said` as it comes, until it has ended and all is read."""
    rest, at = b"", 0
    while True:
        last = ended.is_set()
        while data := os.pread(said, 1 << 16, at):
            at += len(data)
            rest += data
        *lines, rest = rest.split(b"\n")
        if last and rest:
            lines.append(rest)
        for raw in lines:
            _heard(raw.decode(errors="replace").rstrip("\r"), process, heard, log)
        if last:
            return
        if at > SAID_MOST:
            log.append(f"it was ended when it had printed {at >> 20} MB")
            _end(process)
            return
        ended.wait(HEAR_S)


def _heard(
    line: str, process: subprocess.Popen[bytes], heard: Callable[[str], None] | None, log: list[str]
) -> None:
    if line.startswith(PREFIX):
        if heard is not None:
            with suppress(OSError):  # whoever is told may be gone; the machine must not stand still for that
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
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=OVER_S)


@contextmanager
def _processor() -> Iterator[int]:
    """One of those that this process may use and that no other machine has; where all are taken, not the same for
    everybody. Two that share one take twice as long, beside another that has nothing to do.

    Whoever has it holds a name in the kernel (an abstract socket's), which goes with the process."""
    allowed = sorted(os.sched_getaffinity(0))
    first = os.getpid() % len(allowed)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as name:
        yield next((each for each in (*allowed[first:], *allowed[:first]) if _is_bound(name, each)), allowed[first])


def _is_bound(name: socket.socket, processor: int) -> bool:
    with suppress(OSError):  # another has it
        name.bind(f"\0gradwire processor {processor}")
        return True
    return False
