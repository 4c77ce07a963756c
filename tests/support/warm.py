"""Fork server: processes in which `gradwire` commands run, forked from one that has imported what most of them need.

To start Python and to import takes most of a command's time: half a second of one that only says what is wrong with its
input, a second of one that simulates, two of one that needs torch (`Warm.with_torch`). What is tested of such a command is what it prints, how it exits and what it writes;
all of that happens here as ever, in a process, a working directory, an environment and files of its own, that end with it.
What commands do before they have imported, when they are killed, or at Ctrl-C is for tests with real processes
(`output_cases.gradwire_command`, `emu_commands`).

`Warm` is the server, one for each process that tests run in; run as a program, this file is the server, or the client
that stands for `gradwire` in a shell. `-c CODE` before other arguments is as with `python`. A program that runs inside of a
network of `gradwire exec` does not reach the server.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = (
    "gradwire.cli", "gradwire.studies.connect", "gradwire.sim.simulate", "gradwire.sim.preparation", "gradwire.analysis.comparison.compare",
    "gradwire.analysis.comparison.tables", "gradwire.workload.resolve", "gradwire.traces.trace", "pyarrow.parquet", "networkx",
)  # fmt: skip
"""What commands need, and no more: neither Numba, which a run with a kept engine does not load, nor torch."""
TORCH = ("torch", "gradwire.training.trainer", "gradwire.training.networks.simulated")
"""What those need besides that train. Torch has no threads before it computes."""
START_S = 120.0
LENGTH, STATUS = struct.Struct("<Q"), struct.Struct("<i")


class Warm:
    """A server of one's own, with this process's environment. Its processes go with this one. `more`: what it imports
    beside `IMPORTED`."""

    def __init__(self, *more: str) -> None:
        self._owner = os.getpid()
        self._folder = tempfile.TemporaryDirectory(prefix="gradwire-warm-")
        self.place = Path(self._folder.name) / "socket"
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(self.place), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], START_S)
        assert ready and self._process.stdout.readline() == b"ready\n", "the server has not started"

    def close(self) -> None:
        """End the server; what it has started and is still there ends with its client. Not from a fork of its owner."""
        if os.getpid() != self._owner:
            return
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    @staticmethod
    @functools.cache
    def ours() -> Warm:
        """The server of this process, started when it is first asked for."""
        return Warm._for_good()

    @staticmethod
    @functools.cache
    def with_torch() -> Warm:
        """The same with torch."""
        return Warm._for_good(*TORCH)

    @staticmethod
    def _for_good(*more: str) -> Warm:
        made = Warm(*more)
        atexit.register(made.close)
        return made

    def client(self) -> list[str]:
        """A command that stands for `gradwire` in a shell."""
        return [sys.executable, "-I", "-S", __file__, str(self.place)]

    def run(self, *arguments: str, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """`gradwire` with these arguments in this process's working directory, with nothing to read. Raises
        TimeoutExpired after so many seconds, when the command has been killed."""
        files = [os.open(os.devnull, os.O_RDONLY), *(os.memfd_create(name) for name in ("stdout", "stderr"))]
        try:
            try:
                code = ask(str(self.place), arguments, files, timeout)
            except TimeoutError:
                raise subprocess.TimeoutExpired(["gradwire", *arguments], timeout) from None
            said = [os.pread(file, os.fstat(file).st_size, 0).decode() for file in files[1:]]
        finally:
            for file in files:
                os.close(file)
        return subprocess.CompletedProcess(["gradwire", *arguments], code, *said)


def ask(place: str, arguments: Any, files: list[int], timeout: float | None = None) -> int:
    """Have a command run with three files as its own; its exit status as `subprocess` has it."""
    request = pickle.dumps((list(arguments), os.getcwd(), dict(os.environ)))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(place)
        socket.send_fds(connection, [LENGTH.pack(len(request))], files)
        connection.sendall(request)
        answer = connection.recv(STATUS.size)
    if len(answer) < STATUS.size:
        raise ConnectionError("the server is gone")
    return int(STATUS.unpack(answer)[0])


def serve(place: str, more: list[str]) -> list[str]:
    """Take requests until standard input ends. Returns in a process of its own for each, with what it is to run; and in
    no other."""
    for name in (*IMPORTED, *more):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # or the first collection of each process would copy all that they share
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place)
    listening.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if listening not in ready:
            os._exit(0)
        connection, _ = listening.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listening.close()
            found = _handle(connection)
            connection.close()
            return found
        connection.close()


def _handle(connection: socket.socket) -> list[str]:
    """Fork once more: this process waits for the command, or for the end of whoever has asked. Returns in the other."""
    head, files, _, _ = socket.recv_fds(connection, LENGTH.size, 3)
    request = b""
    while len(request) < LENGTH.unpack(head)[0]:
        request += connection.recv(1 << 20)
    arguments, folder, environment = pickle.loads(request)
    child = os.fork()
    if child:
        for file in (0, 1, 2, *files):
            os.close(file)
        _wait(child, connection)
    os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    return list(arguments)


def _wait(child: int, connection: socket.socket) -> None:
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        for end in (os.killpg, os.kill):  # it may not lead a group yet
            with contextlib.suppress(ProcessLookupError):
                end(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall(STATUS.pack(code))
    os._exit(0)


def become(arguments: list[str]) -> None:
    """Be `gradwire` with these arguments, or `python -c CODE`."""
    if arguments[:1] == ["-c"]:
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        sys.modules["__main__"] = main = types.ModuleType("__main__")
        exec(compile(arguments[1], "<string>", "exec"), vars(main))
        return
    sys.argv = [str(ROOT / "gradwire" / "__main__.py"), *arguments]
    sys.path[0] = os.getcwd()  # as of `python -m`
    from gradwire.cli import main as command

    command()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        become(serve(sys.argv[2], sys.argv[3:]))
    else:
        status = ask(sys.argv[1], sys.argv[2:], [0, 1, 2])
        sys.exit(status if status >= 0 else 128 - status)
