"""Makes private namespaces that end with their process, and runs commands such as `ip` and `tc` inside.

Everything runs below one command,

    unshare --net --mount --pid --fork --kill-child --mount-proc COMMAND

which the kernel kills when its parent ends for any reason (PR_SET_PDEATHSIG). Its child is process 1 of a process
namespace: when it is killed, all processes inside are, and with the last one the network namespaces, their devices and
the mounts disappear. Names cannot clash with those of the machine or of another testbed, and there is nothing to clean
up.

Inside, `Namespaces` makes the network namespaces of the nodes, named below a file system in memory at /run, so that
`ip -n NAME` finds them. The same works in a virtual machine, where nothing has to be private.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.system.processes import LIBC, tied_to_parent

CLONE_NEWNET = 0x40000000
TOOL_SECONDS = 60.0
"""Time limit of one call of ip, tc or nft."""
DIRECTORIES = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/local/bin", "/usr/bin", "/bin")
"""Directories searched for tools besides PATH, which often lacks the sbin directories."""


def find_tool(name: str) -> str | None:
    """Return the path of a command, also outside of PATH; None if there is none."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(DIRECTORIES))


def private_command(command: Sequence[str]) -> list[str]:
    """Return the command line of `command` as process 1 of private namespaces; raise TestbedError without unshare."""
    unshare = find_tool("unshare")
    if unshare is None:
        raise TestbedError("command not found: unshare", "PATH", "the package util-linux")
    options = ["--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc"]
    if os.geteuid() != 0:
        options = ["--user", "--map-root-user", *options]
    return [unshare, *options, *command]


def start_private(command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
    """Start `command` in private namespaces; it and its children end with this process. `options` are those of
    `subprocess.Popen`. The calling thread must live as long as the command, because Linux takes the thread for the
    parent."""
    return subprocess.Popen(private_command(command), preexec_fn=tied_to_parent(), **options)


def set_up_private(*, private: bool = True) -> None:
    """Set up the first process inside: a private /run in memory, and a loopback device.

    `private=False` in gradwire's virtual machine, where /run is private and a loopback device exists.
    """
    if private:
        # unshare did this too; repeated because a shared /run would be visible to the whole machine
        _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("gradwire", "/run", "tmpfs", 0)
    _mount("gradwire", "/sys", "sysfs", 0, optional=True)
    os.makedirs("/run/netns", exist_ok=True)
    if private:
        run_tool(["ip", "link", "set", "lo", "up"])


MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 1 << 18


def _mount(source: str, target: str, kind: str | None, flags: int, *, optional: bool = False) -> None:
    kind_bytes = None if kind is None else kind.encode()
    if LIBC.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), None) != 0 and not optional:
        error = ctypes.get_errno()
        raise TestbedError(f"cannot mount {kind or source} at {target}: {os.strerror(error)}", "mount", "root")


def mount(kind: str, target: str) -> None:
    """Mount a file system without a device, such as "bpf", at a new directory."""
    os.makedirs(target, exist_ok=True)
    _mount("gradwire", target, kind, 0)


def bind(source: str, target: str) -> None:
    """Replace a file by another one within this mount namespace."""
    _mount(source, target, None, MS_BIND)


def unmount(target: str) -> None:
    LIBC.umount2(target.encode(), 0)


def setns(fd: int) -> None:
    """Move this thread into the network namespace of a file descriptor."""
    if LIBC.setns(fd, CLONE_NEWNET) != 0:
        error = ctypes.get_errno()
        raise TestbedError(f"cannot enter a network namespace: {os.strerror(error)}", "setns", "root")


def _current() -> int:
    """Return a descriptor of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def _restored() -> Iterator[None]:
    """Restore this thread's network namespace at the end of the block."""
    original = _current()
    try:
        yield
    finally:
        setns(original)
        os.close(original)


@contextmanager
def inside(fd: int) -> Iterator[None]:
    """Keep this thread, and processes that it starts, in the network namespace of `fd` for the block."""
    with _restored():
        setns(fd)
        yield


def new_namespace() -> int:
    """Return the descriptor of a new network namespace without a name, which exists while it is held open."""
    with _restored():
        if LIBC.unshare(CLONE_NEWNET):
            raise TestbedError(f"cannot make a network namespace: {os.strerror(ctypes.get_errno())}", "unshare", "root")
        return _current()


def run_tool(command: Sequence[str], text: str | None = None, seconds: float = TOOL_SECONDS) -> str:
    """Run ip, tc, nft or similar and return its output; raise TestbedError with its message if it fails."""
    path = find_tool(command[0])
    if path is None:
        raise TestbedError(f"command not found: {command[0]}", "PATH", "see gradwire probe")
    try:
        completed = subprocess.run(
            [path, *command[1:]],
            input=text if text is not None else "",
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise TestbedError(
            f"{' '.join(command)} took longer than {seconds:g} s", "", "an answer", usage=False
        ) from None
    if completed.returncode != 0:
        raise TestbedError(
            _complaint(command, text, completed.stderr.strip() or completed.stdout.strip()), " ".join(command[:6]), ""
        )
    return completed.stdout


def _complaint(command: Sequence[str], text: str | None, words: str) -> str:
    """Return the message of a tool, with the line of its batch."""
    lines = [line for line in words.splitlines() if line.strip()]
    message = "; ".join(lines[:3]) or "no reason given"
    batch_line = ""
    for line in lines:
        if line.startswith("Command failed -:") and text is not None:
            number = int(line.removeprefix("Command failed -:").split(":")[0])
            batch_line = f' at "{text.splitlines()[number - 1]}"'
    return f"{command[0]} failed{batch_line}: {message}"


def batch(tool: str, namespace: str | None, lines: Iterable[str]) -> None:
    """Pass lines to `ip -batch` or `tc -batch` in a namespace; no call without lines."""
    text = "\n".join(lines)
    if text:
        run_tool([tool, *in_namespace(namespace), "-batch", "-"], text + "\n")


def in_namespace(namespace: str | None) -> list[str]:
    """Return the options of `ip` or `tc` for a named namespace; none for the current one."""
    return [] if namespace is None else ["-n", namespace]


def query_json(tool: str, namespace: str | None, commands: Sequence[str], *, counters: bool = False) -> list[Any]:
    """Return the decoded answers of `ip -j` or `tc -j` to several commands, by one process."""
    options = ["-j", "-d", *(["-s"] if counters else []), "-batch", "-"]
    text = run_tool([tool, *in_namespace(namespace), *options], "\n".join(commands) + "\n")
    decoder, documents, position = json.JSONDecoder(), [], 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        document, position = decoder.raw_decode(text, position)
        documents.append(document)
    if len(documents) != len(commands):
        raise TestbedError(
            f"{tool} answered {len(documents)} of {len(commands)} queries", namespace or "", "iproute2 6.1 or later"
        )
    return documents


class Namespaces:
    """Named network namespaces of one testbed; they end with the process or at `close`."""

    def __init__(self) -> None:
        self._fds: dict[str, int] = {}

    def make(self, names: Sequence[str]) -> None:
        """Make namespaces; raise TestbedError if one exists."""
        batch("ip", None, [f"netns add {name}" for name in names])
        for name in names:
            self._fds[name] = os.open(Path("/run/netns") / name, os.O_RDONLY | os.O_CLOEXEC)

    def __getitem__(self, name: str) -> int:
        """Return the descriptor of a namespace, for setns(2)."""
        return self._fds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fds)

    def set_sysctls(self, name: str, values: Mapping[str, str], optional: Iterable[str] = ()) -> None:
        """Write files below /proc/sys in a namespace and read them back; those in `optional` may be missing."""
        optional_keys = set(optional)
        with inside(self[name]):
            for key, value in values.items():
                path = Path("/proc/sys") / key
                try:
                    path.write_text(value)
                    actual = path.read_text().strip()
                except OSError as error:
                    if key in optional_keys:
                        continue
                    raise TestbedError(f"cannot set {key}: {error.strerror}", f"namespace {name}", value) from None
                if actual.split() != value.split():
                    raise TestbedError(f"{key} is {actual} after it was set", f"namespace {name}", value)

    def close(self) -> None:
        """Delete the namespaces made by `make` in the private /run."""
        names = list(self._fds)
        while self._fds:
            os.close(self._fds.popitem()[1])
        batch("ip", None, [f"netns del {name}" for name in names])


def python_path(root: Path) -> str:
    """Return $PYTHONPATH for a child interpreter: `root`, then this interpreter's entries as absolute paths."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([str(root), *(os.path.abspath(entry) for entry in entries if entry)])


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a gradwire module in the current interpreter."""
    return [sys.executable, "-m", module, *arguments]
