"""Private namespaces: a place for a testbed that disappears with the process that made it.

Everything happens below one command,

    unshare --net --mount --pid --fork --kill-child --mount-proc COMMAND

which is started so that the kernel kills it when its parent ends, for whatever reason (PR_SET_PDEATHSIG). Its child is
process 1 of a process namespace: when that is killed, everything in there is, and with the last process go the network
namespaces, their devices and the mounts. Names cannot clash with those of the machine or of another testbed, and there
is nothing to clean up, so nothing that could be forgotten or belong to somebody else.

Inside, `Namespaces` makes the network namespaces of the nodes: with names, below a file system of memory at /run, so
that `ip -n NAME` finds them. The same works in a virtual machine whose process 1 we are; there nothing has to be
private.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.emu.switches.base import TestbedError

CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
TOOL_SECONDS = 60.0
"""Longest time that one call of ip, tc or nft may take."""
DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
"""Where tools are looked for besides PATH, which often lacks the sbin directories."""

_libc = ctypes.CDLL(None, use_errno=True)


def find_tool(name: str) -> str | None:
    """The path of a command, also where PATH does not lead; None if there is none."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(DIRECTORIES))


def die_with_parent() -> None:
    """Be killed when the parent process ends."""
    if _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")


def tied() -> Callable[[], None]:
    """What a child does first (`preexec_fn`) so that it is killed when this process ends, even if that is now."""
    parent = os.getpid()

    def prepare() -> None:
        die_with_parent()
        if os.getppid() != parent:  # it ended before prctl was there
            os._exit(1)

    return prepare


def private_command(command: Sequence[str]) -> list[str]:
    """A command line that runs `command` in private namespaces, as process 1 of its own. TestbedError: no unshare."""
    unshare = find_tool("unshare")
    if unshare is None:
        raise TestbedError("there is no command unshare", "PATH", "the package util-linux")
    options = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    if os.geteuid() != 0:
        options = ["--user", "--map-root-user", *options]
    return [unshare, *options, *command]


def start_private(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start `command` in private namespaces; it and all that it starts end when this process does.

    `options` are those of `subprocess.Popen`. The thread that calls has to live as long as the command: Linux takes a
    thread's end for the parent's.
    """
    return subprocess.Popen(private_command(command), preexec_fn=tied(), **options)


def settle(*, private: bool = True) -> None:
    """What the first process inside does first: a /run of memory that nobody else sees, and a loopback device.

    `private=False` in a virtual machine of our own, where /run is ours anyway, and there is a loopback device.
    """
    if private:
        # what unshare made private already; said again, because a shared /run would be seen by the whole machine
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("gradwire", "/run", "tmpfs", 0)
    _mount("gradwire", "/sys", "sysfs", 0, optional=True)
    os.makedirs("/run/netns", exist_ok=True)
    if private:
        run_tool(["ip", "link", "set", "lo", "up"])


MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18


def _mount(source: str, target: str, kind: str | None, flags: int, *, optional: bool = False) -> None:
    kind_bytes = None if kind is None else kind.encode()
    if (
        _libc.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), None) != 0
        and not optional
    ):
        error = ctypes.get_errno()
        raise TestbedError(
            f"cannot mount {kind or source} at {target}: {os.strerror(error)}", "mount", "root"
        )


def mount(kind: str, target: str) -> None:
    """Mount a file system without a device, such as "bpf", at a directory that is made for it."""
    os.makedirs(target, exist_ok=True)
    _mount("gradwire", target, kind, 0)


def bind(source: str, target: str) -> None:
    """Have a file of ours in the place of another one, for whoever is in this mount namespace."""
    _mount(source, target, None, MS_BIND)


def unmount(target: str) -> None:
    """Undo `mount`."""
    _libc.umount2(target.encode(), 0)


def setns(fd: int) -> None:
    """Move this thread into the network namespace behind a file descriptor."""
    if _libc.setns(fd, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise TestbedError(f"cannot enter a network namespace: {os.strerror(error)}", "setns", "root")


@contextmanager
def inside(fd: int) -> Iterator[None]:
    """This thread is in the network namespace of `fd`, until the end of the block."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        setns(fd)
        yield
    finally:
        setns(before)
        os.close(before)


def run_tool(command: Sequence[str], text: str | None = None, seconds: float = TOOL_SECONDS) -> str:
    """Run ip, tc, nft or the like and return what it prints; TestbedError with its own words if it fails."""
    path = find_tool(command[0])
    if path is None:
        raise TestbedError(f"there is no command {command[0]}", "PATH", "see gradwire probe")
    try:
        done = subprocess.run(
            [path, *command[1:]],
            input=text if text is not None else "",
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"{' '.join(command)} did not end within {seconds:g} s", "", "an answer", usage=False
        ) from None
    if done.returncode != 0:
        raise TestbedError(
            _complaint(command, text, done.stderr.strip() or done.stdout.strip()), " ".join(command[:6]), ""
        )
    return done.stdout


def _complaint(command: Sequence[str], text: str | None, words: str) -> str:
    """What a tool said, with the line of its batch that it was about."""
    lines = [line for line in words.splitlines() if line.strip()]
    said = "; ".join(lines[:3]) or "no reason given"
    culprit = ""
    for line in lines:
        if line.startswith("Command failed -:") and text is not None:
            number = int(line.removeprefix("Command failed -:").split(":")[0])
            culprit = f' at "{text.splitlines()[number - 1]}"'
    return f"{command[0]} failed{culprit}: {said}"


def batch(tool: str, namespace: str | None, lines: Iterable[str]) -> None:
    """Give lines to `ip -batch` or `tc -batch` in a namespace; none, no call."""
    text = "\n".join(lines)
    if text:
        run_tool([tool, *in_namespace(namespace), "-batch", "-"], text + "\n")


def in_namespace(namespace: str | None) -> list[str]:
    """The words that make `ip` or `tc` work in a namespace with a name; None: in the one that they are started in."""
    return [] if namespace is None else ["-n", namespace]


def shown(tool: str, namespace: str | None, commands: Sequence[str], *, counters: bool = False) -> list[Any]:
    """What `ip -j` or `tc -j` answers to several commands, one decoded document each, by one process."""
    options = ["-j", "-d", *(["-s"] if counters else []), "-batch", "-"]
    text = run_tool([tool, *in_namespace(namespace), *options], "\n".join(commands) + "\n")
    decoder, found, at = json.JSONDecoder(), [], 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    if len(found) != len(commands):
        raise TestbedError(
            f"{tool} answered {len(found)} of {len(commands)} questions", namespace or "", "iproute2 6.1 or later"
        )
    return found


class Namespaces:
    """Network namespaces with names, of one testbed. They end with the process, or when they are closed before."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}

    def make(self, names: Sequence[str]) -> None:
        """Make namespaces; TestbedError if one exists."""
        batch("ip", None, [f"netns add {name}" for name in names])
        for name in names:
            self._fds[name] = os.open(Path("/run/netns") / name, os.O_RDONLY | os.O_CLOEXEC)

    def __getitem__(self, name: str) -> int:
        """The descriptor of a namespace, for setns(2)."""
        return self._fds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fds)

    def set_sysctls(self, name: str, values: Mapping[str, str], optional: Iterable[str] = ()) -> None:
        """Write files below /proc/sys in a namespace and read them back; those in `optional` may be missing."""
        may_miss = set(optional)
        with inside(self[name]):
            for key, value in values.items():
                path = Path("/proc/sys") / key
                try:
                    path.write_text(value)
                    got = path.read_text().strip()
                except OSError as error:
                    if key in may_miss:
                        continue
                    raise TestbedError(
                        f"cannot set {key}: {error.strerror}", f"namespace {name}", value
                    ) from None
                if got.split() != value.split():
                    raise TestbedError(f"{key} is {got} after it was set", f"namespace {name}", value)

    def close(self) -> None:
        """Give up the namespaces of this testbed, whose names were made by `make` in a /run of our own."""
        names = list(self._fds)
        while self._fds:
            os.close(self._fds.popitem()[1])
        batch("ip", None, [f"netns del {name}" for name in names])


def python_path(root: Path) -> str:
    """$PYTHONPATH for an interpreter of ours: `root` first, then what this one was given, by which it may have found
    what it needs."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(root), *(os.path.abspath(each) for each in given if each)])


def python_command(module: str, *arguments: str) -> list[str]:
    """The command line of a module of ours in the interpreter that runs this."""
    return [sys.executable, "-m", module, *arguments]
