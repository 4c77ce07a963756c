"""Compiled engines that are kept: one folder per combination, which appears complete or not at all.

    <cache>/engines/<identity>/about.json       what it was compiled for, how, by what, in how many seconds
    <cache>/engines/<identity>/run.o, post.o    its machine code
    <cache>/engines/functions/<key>             what engines that are compiled later can have in common with it
                                                (`gradwire.components.pieces`)

Those of the simulator have the functions `run`, `post` and `keep`; agents of the testbed have theirs
(`gradwire.emu.agent.machine`).

An engine is compiled by a child process into a folder of its own, which is given its name when all is there; so an
interrupted compilation leaves nothing that could be taken for whole, and what others have finished stays. Of several
processes that want the same engine at once, one compiles it and the others wait for it. Compiling
takes 150 MB that Numba never gives back, and every object in them slows the garbage collection of the process that
runs: the child takes them with it.

Nothing in it is a pickle, and a folder that others may write to is not used (`gradwire.scenarios.cache`).

Engines that were not used for `KEEP_DAYS`, and the oldest beyond `KEEP_MOST`, go by themselves when a new one is made;
functions (`gradwire.components.lowered`) as well, beyond `KEEP_FUNCTIONS`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from gradwire.components import objects
from gradwire.scenarios.cache import cache_folder, private_folder
from gradwire.scenarios.interrupt import CtrlC
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from gradwire.components.compiled import Compiled

COMPILE_SECONDS = 300  # a child that compiles longer is given up
KEEP_DAYS = 90
KEEP_MOST = 200
KEEP_FUNCTIONS = 10_000  # of 2 to 20 kB each
ABOUT = "about.json"
AT_ONCE = "as one program"
PART = ".part"
LOCK = "lock"
ENGINES = "engines"
FUNCTIONS = "functions"  # what `gradwire.components.lowered` keeps
ENDS = (signal.SIGINT, signal.SIGTERM)
DISK = b"\0"  # before what a child says of a disk
STALE_PART_S = 2 * COMPILE_SECONDS


class CompileError(Exception):
    """What a child has to say about the user's own part of an engine."""


@dataclass(frozen=True)
class Kept:
    """One engine on disk. `used`: seconds since the epoch, when it was made or last used; `size` in bytes."""

    identity: str
    about: Json
    size: int
    used: float


def engines_folder() -> Path:
    """Where engines are kept."""
    return cache_folder() / ENGINES


def writable_folder() -> Path:
    """Return the same if only this user can write to it, else a temporary folder of this process, with a line on
    stderr."""
    if _private:
        return Path(_private[0].name)
    try:
        folder = private_folder(ENGINES)
        os.listdir(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        return _go_private(f"{engines_folder()}: {error.strerror}")


def _go_private(why: str) -> Path:
    print(f"gradwire: compiled engines are not kept: {why} (GRADWIRE_CACHE names another place)", file=sys.stderr)
    _private.append(tempfile.TemporaryDirectory(prefix="gradwire-"))
    return Path(_private[0].name)


_private: list[tempfile.TemporaryDirectory[str]] = []  # goes with the process


def is_kept(identity: str) -> bool:
    """Return True if the engine is on disk and can be read; what is left of one goes.

    One that another user has made private counts as absent, and a temporary folder is used from then on.
    """
    folder = writable_folder() / identity
    try:
        if (folder / ABOUT).is_file():
            (folder / ABOUT).read_bytes()
            return True
    except OSError as error:
        _go_private(f"{folder}: {error.strerror}")
        return False
    shutil.rmtree(folder, ignore_errors=True)
    return False


def load(identity: str, kept_in: Path | None = None) -> dict[str, objects.Native] | None:
    """The functions of an engine that is kept (in `kept_in`, if it is not where engines are), by name; it counts as
    used now. None if it is not there, or not what was written, and then it goes."""
    folder = (kept_in or writable_folder()) / identity
    try:
        if not folder.exists():
            return None
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        code = {name: (folder / f"{name}.o").read_bytes() for name in about["symbols"]}
        if any(_digest(code[name]) != about["code"][name] for name in code):
            raise ValueError("a file has changed")
        with contextlib.suppress(OSError):
            os.utime(folder / ABOUT)
        return {name: objects.load(code[name], about["symbols"][name], int(about["takes"][name])) for name in code}
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()[:20]


@dataclass
class Work:
    """An engine that has to be compiled: its functions, what to write about it, and what to look at before."""

    identity: str
    functions: Callable[[], Mapping[str, Compiled]]
    """by name (`gradwire.components.compiled.Compiled`), each with a signature of integers; called in the child that
    compiles them"""
    about: Json
    check: Callable[[], str]
    """what is wrong with the user's own part, in one line; empty if nothing"""
    common: frozenset[str] = frozenset()
    """names of functions that are the same in many engines"""


def compile_all(works: Sequence[Work], jobs: int | None = None) -> dict[str, float]:
    """Compile engines in child processes, as many side by side as there are processors. Returns for how many seconds
    each was compiled, by identity; those that were kept are not among them.

    Where the disk is full a temporary folder is used. If a child cannot do it at all, nothing is lost: whoever needs
    the engine compiles it himself.

    Raises
    ------
    CompileError
        What is wrong with the user's own part of one of them.
    """
    waiting = [work for work in works if not is_kept(work.identity)]
    if not hasattr(os, "fork") or not waiting:
        return {}
    jobs = jobs or os.cpu_count() or 1
    running: dict[int, tuple[int, float]] = {}  # by process: where it tells, and when it is given up
    begun: dict[int, tuple[str, float]] = {}
    spent: dict[str, float] = {}
    told = b""
    with CtrlC() as ctrl_c:  # a child that has been started is known before the request is granted
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    work = waiting.pop(0)
                    child, pipe = _begin(work)
                    begun[child] = work.identity, time.monotonic()
                    running[child] = pipe, time.monotonic() + COMPILE_SECONDS
                ctrl_c.check()
                time.sleep(0.01)
                for child in [child for child in running if os.waitpid(child, os.WNOHANG)[0]]:
                    pipe, _ = running.pop(child)
                    identity, since = begun.pop(child)
                    spent[identity] = time.monotonic() - since
                    told = told or os.read(pipe, 1 << 16)
                    os.close(pipe)
                for child in [child for child, (_, end) in running.items() if time.monotonic() > end]:
                    _end(child, running.pop(child)[0])
        finally:
            for child, (pipe, _) in running.items():
                _end(child, pipe)
    _forget_old(writable_folder())
    if told.startswith(DISK) and not _private:
        _go_private(told[len(DISK) :].decode(errors="replace"))
        for identity, seconds in compile_all(works, jobs).items():
            spent[identity] = spent.get(identity, 0.0) + seconds
    elif told and not told.startswith(DISK):
        raise CompileError(told.decode(errors="replace"))
    return spent


def _begin(work: Work) -> tuple[int, int]:
    """Start a child that compiles; (its process, what it says of the user's own part)."""
    ours, theirs = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # or a child could do what only its parent may
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(theirs)
        return child, ours
    try:
        signal.set_wakeup_fd(-1)
        for number in ENDS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)  # what there is to say, the parent says
        _compile(work, lambda text: os.write(theirs, text.encode()))
    except OSError as error:
        os.write(theirs, DISK + f"{engines_folder()}: {error.strerror}".encode())
    finally:
        os._exit(0)


def _end(child: int, pipe: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(pipe)


def _compile(work: Work, tell: Callable[[str], object]) -> None:
    """In the child: compile one engine and give its folder its name."""
    begin = time.perf_counter()
    from gradwire.components import whole

    at_once = whole.is_known()
    if at_once:
        whole.whole_program(writable_folder() / FUNCTIONS)
    wrong = work.check()
    if wrong:
        tell(wrong)
        return
    final = writable_folder() / work.identity
    _take_turns(final)
    if is_kept(work.identity):
        return
    part = Path(tempfile.mkdtemp(prefix=f"{work.identity}.", suffix=PART, dir=final.parent))
    try:
        _fill(part, work, at_once, begin)
        part.rename(final)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else somebody was faster
            raise


def _take_turns(final: Path) -> None:
    """Wait while another process compiles the same engine: what it will have made need not be made twice.

    The lock is one byte of a file that all share, chosen by the identity, and goes with the process; whoever waits too
    long is ended by `COMPILE_SECONDS`. Where a file system has no locks, both compile."""
    import fcntl

    lock = os.open(final.with_name(LOCK), os.O_RDWR | os.O_CREAT, 0o666)  # open as long as this process lives
    with contextlib.suppress(OSError):
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(hashlib.sha256(final.name.encode()).hexdigest()[:7], 16))


def _fill(part: Path, work: Work, at_once: bool, begin: float) -> None:
    from gradwire.components import pieces, whole

    symbols, takes, digests = {}, {}, {}
    for name, function in work.functions().items():
        takes[name] = function.py_func.__code__.co_argcount
        if at_once and name in work.common:
            symbols[name], code = pieces.machine_code(function, writable_folder() / FUNCTIONS)
        else:
            symbols[name], code = objects.emitted(function)
        digests[name] = _digest(code)
        (part / f"{name}.o").write_bytes(code)
    about = {
        **work.about, "compiled": AT_ONCE if at_once else "function by function", "symbols": symbols,
        "takes": takes, "code": digests, "functions": whole.Part.linked if at_once else 0, "numba": version("numba"),
        "seconds": round(time.perf_counter() - begin, 1),
    }  # fmt: skip
    (part / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


# --- what is kept ------------------------------------------------------------------------------------------------


def kept_engines(folder: Path | None = None) -> list[Kept]:
    """The engines on disk, the one that was used last first."""
    found = []
    for about in [each / ABOUT for each in _entries(folder or engines_folder()) if os.path.exists(each / ABOUT)]:
        with contextlib.suppress(OSError, ValueError):
            size = sum(file.stat().st_size for file in about.parent.rglob("*") if file.is_file())
            said = json.loads(about.read_text(encoding="utf-8"))
            found.append(Kept(about.parent.name, said, size, about.stat().st_mtime))
    return sorted(found, key=lambda kept: (-kept.used, kept.identity))


def unreadable(folder: Path | None = None) -> list[Path]:
    """Return the engines on disk, or their folder, that this user may not read: another one has made them."""
    folder = folder or engines_folder()
    if not os.access(folder.parent, os.X_OK) and os.path.exists(folder.parent):
        return [folder.parent]
    if not os.access(folder, os.R_OK | os.X_OK) and os.path.exists(folder):
        return [folder]
    engines = [each for each in _entries(folder) if os.path.isdir(each)]
    return [each for each in engines if not os.access(each, os.R_OK | os.X_OK) or _is_closed(each / ABOUT)]


def _entries(folder: Path) -> list[Path]:
    """Return what a folder holds; nothing where it may not be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _is_closed(file: Path) -> bool:
    return os.access(file, os.F_OK) and not os.access(file, os.R_OK)


def clear(folder: Path | None = None) -> int:
    """Remove all engines, unfinished ones as well. Returns how many were whole.

    A run that has loaded its engine does not need it any more."""
    folder = folder or engines_folder()
    entries = _entries(folder)
    whole = sum(os.path.exists(each / ABOUT) for each in entries)
    for each in entries:
        shutil.rmtree(each, ignore_errors=True)
    return whole


def _forget_old(folder: Path) -> None:
    """Remove what was not used for long, what is beyond the number to keep, and what was never finished."""
    now = time.time()
    for number, kept in enumerate(kept_engines(folder)):
        if number >= KEEP_MOST or now - kept.used > 86_400 * KEEP_DAYS:
            shutil.rmtree(folder / kept.identity, ignore_errors=True)
    for part in [each for each in _entries(folder) if each.name.endswith(PART)]:
        with contextlib.suppress(OSError):
            if now - part.stat().st_mtime > STALE_PART_S:
                shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # somebody else does the same
        used = sorted(((each.stat().st_mtime, each) for each in (folder / FUNCTIONS).iterdir()), reverse=True)
        for number, (when, each) in enumerate(used):
            if number >= KEEP_FUNCTIONS or now - when > 86_400 * KEEP_DAYS:
                each.unlink(missing_ok=True)
