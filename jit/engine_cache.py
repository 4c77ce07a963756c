"""The engine cache compiles engines in child processes and stores their machine code, one folder per combination of
components.

    <cache>/engines/<identity>/about.json       compilation options, versions and seconds
    <cache>/engines/<identity>/run.o, post.o    its machine code
    <cache>/engines/functions/<key>             functions that later engines can share (`gradwire.jit.object_cache`)

Engines of the simulator have the functions `run`, `post` and `keep`; for those of testbed agents see
`gradwire.emu.agent.compiled_agent`.

A child process compiles an engine into a temporary folder and renames it when complete, so an interrupted compilation
leaves nothing that looks complete, and finished engines stay. If several processes want the same engine, one compiles
it and the others wait. Compiling takes 150 MB that Numba never frees, and the objects in it slow the garbage collector;
both end with the child.

No file in the cache is a pickle, and a folder that other users can write to is not used (`gradwire.scenarios.cache`).

When a new engine is compiled, engines unused for `KEEP_DAYS` and the oldest beyond `MAX_ENGINES` are removed, as are
functions (`gradwire.jit.function_cache`) beyond `MAX_FUNCTIONS`.
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

from gradwire.jit import machine_code
from gradwire.scenarios.cache import cache_folder, private_folder
from gradwire.scenarios.interrupt import DeferredInterrupt
from gradwire.scenarios.json_data import Json

if TYPE_CHECKING:
    from gradwire.jit.compiled import Compiled

COMPILE_SECONDS = 300  # a child that takes longer is killed
KEEP_DAYS = 90
MAX_ENGINES = 200
MAX_FUNCTIONS = 10_000  # of 2 to 20 kB each
ABOUT = "about.json"
WHOLE_PROGRAM = "as one program"
PART_SUFFIX = ".part"
LOCK = "lock"
ENGINES = "engines"
FUNCTIONS = "functions"  # the folder of `gradwire.jit.function_cache`
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)
DISK_ERROR_PREFIX = b"\0"  # prefix of a child's message about a disk error
STALE_PART_S = 2 * COMPILE_SECONDS


class CompileError(Exception):
    """The user-defined part of an engine cannot be compiled."""


@dataclass(frozen=True)
class CachedEngine:
    """One engine on disk. `used`: seconds since the epoch, when it was made or last used; `size` in bytes."""

    identity: str
    about: Json
    size: int
    used: float


def engines_folder() -> Path:
    return cache_folder() / ENGINES


def writable_folder() -> Path:
    """Return the engines folder if only this user can write to it, else a temporary folder of this process. The
    fallback is reported on stderr."""
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
    print(f"gradwire: compiled engines are not cached: {why} (set GRADWIRE_CACHE to another folder)", file=sys.stderr)
    _private.append(tempfile.TemporaryDirectory(prefix="gradwire-"))
    return Path(_private[0].name)


_private: list[tempfile.TemporaryDirectory[str]] = []  # removed at the end of the process


def is_cached(identity: str) -> bool:
    """Return True if the engine is cached and readable; remove the rest of an incomplete one. An engine that another
    user has made private counts as absent, and a temporary folder is used from then on."""
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


def load(identity: str, kept_in: Path | None = None) -> dict[str, machine_code.NativeFunction] | None:
    """Return the functions of a cached engine by name, and mark it as used now; None if it is absent or damaged. A
    damaged engine is removed. `kept_in`: the folder of the engines, if not the usual one."""
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
        return {name: machine_code.load(code[name], about["symbols"][name], int(about["takes"][name])) for name in code}
    except (OSError, ValueError, KeyError, TypeError):
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _digest(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()[:20]


@dataclass
class CompileTask:
    """An engine to compile: its functions, its metadata and the check to run first."""

    identity: str
    functions: Callable[[], Mapping[str, Compiled]]
    """the functions by name, each with a signature of integers (`gradwire.jit.compiled.Compiled`); called in the
    child"""
    about: Json
    check: Callable[[], str]
    """returns the error in the user-defined part in one line, or an empty string"""
    common: frozenset[str] = frozenset()
    """names of functions that many engines share"""


def compile_all(works: Sequence[CompileTask], jobs: int | None = None) -> dict[str, float]:
    """Compile engines in child processes, `jobs` at a time, by default one per processor.

    Returns the seconds that each compilation took, by identity; engines already in the cache are left out. If the disk
    is full, a temporary folder is used. If a child cannot compile at all, the process that needs the engine compiles it
    itself.

    Raises
    ------
    CompileError
        If the user-defined part of an engine has an error.
    """
    waiting = [work for work in works if not is_cached(work.identity)]
    if not hasattr(os, "fork") or not waiting:
        return {}
    jobs = jobs or os.cpu_count() or 1
    running: dict[int, tuple[int, float]] = {}  # by process: its pipe, and its deadline
    begun: dict[int, tuple[str, float]] = {}
    spent: dict[str, float] = {}
    message = b""
    with DeferredInterrupt() as ctrl_c:  # every started child is registered before the interrupt takes effect
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
                    message = message or os.read(pipe, 1 << 16)
                    os.close(pipe)
                for child in [child for child, (_, end) in running.items() if time.monotonic() > end]:
                    _end(child, running.pop(child)[0])
        finally:
            for child, (pipe, _) in running.items():
                _end(child, pipe)
    _forget_old(writable_folder())
    if message.startswith(DISK_ERROR_PREFIX) and not _private:
        _go_private(message[len(DISK_ERROR_PREFIX) :].decode(errors="replace"))
        for identity, seconds in compile_all(works, jobs).items():
            spent[identity] = spent.get(identity, 0.0) + seconds
    elif message and not message.startswith(DISK_ERROR_PREFIX):
        raise CompileError(message.decode(errors="replace"))
    return spent


def _begin(work: CompileTask) -> tuple[int, int]:
    """Fork a child that compiles an engine; return its process id and the pipe for its error message."""
    ours, theirs = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, END_SIGNALS)  # else the parent's handlers could run in the child
    child = os.fork()
    if child:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(theirs)
        return child, ours
    try:
        signal.set_wakeup_fd(-1)
        for number in END_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)  # only the parent writes to the terminal
        _compile(work, lambda text: os.write(theirs, text.encode()))
    except OSError as error:
        os.write(theirs, DISK_ERROR_PREFIX + f"{engines_folder()}: {error.strerror}".encode())
    finally:
        os._exit(0)


def _end(child: int, pipe: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(pipe)


def _compile(work: CompileTask, report: Callable[[str], object]) -> None:
    """Compile one engine in the child and rename its folder to the final name."""
    begin = time.perf_counter()
    from gradwire.jit import whole_program as whole

    at_once = whole.is_supported()
    if at_once:
        whole.enable_whole_program(writable_folder() / FUNCTIONS)
    error_text = work.check()
    if error_text:
        report(error_text)
        return
    final = writable_folder() / work.identity
    _wait_for_others(final)
    if is_cached(work.identity):
        return
    part = Path(tempfile.mkdtemp(prefix=f"{work.identity}.", suffix=PART_SUFFIX, dir=final.parent))
    try:
        _fill(part, work, at_once, begin)
        part.rename(final)
    except OSError as error:
        shutil.rmtree(part, ignore_errors=True)
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # else another process was faster
            raise


def _wait_for_others(final: Path) -> None:
    """Wait while another process compiles the same engine, so that it is compiled only once. The lock is one byte of a
    shared file, chosen by the identity, and ends with the process; `COMPILE_SECONDS` bounds the wait. On a file system
    without locks, both processes compile."""
    import fcntl

    lock = os.open(final.with_name(LOCK), os.O_RDWR | os.O_CREAT, 0o666)  # stays open until this process ends
    with contextlib.suppress(OSError):
        fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(hashlib.sha256(final.name.encode()).hexdigest()[:7], 16))


def _fill(part: Path, work: CompileTask, at_once: bool, begin: float) -> None:
    from gradwire.jit import object_cache
    from gradwire.jit import whole_program as whole

    symbols, takes, digests = {}, {}, {}
    for name, function in work.functions().items():
        takes[name] = function.py_func.__code__.co_argcount
        if at_once and name in work.common:
            symbols[name], code = object_cache.machine_code(function, writable_folder() / FUNCTIONS)
        else:
            symbols[name], code = machine_code.emit(function)
        digests[name] = _digest(code)
        (part / f"{name}.o").write_bytes(code)
    about = {
        **work.about,
        "compiled": WHOLE_PROGRAM if at_once else "function by function",
        "symbols": symbols,
        "takes": takes,
        "code": digests,
        "functions": whole.CompilationUnit.linked if at_once else 0,
        "numba": version("numba"),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    (part / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


# --- cache entries -----------------------------------------------------------------------------------------------


def cached_engines(folder: Path | None = None) -> list[CachedEngine]:
    """Return the cached engines, the most recently used first."""
    engines = []
    for about in [entry / ABOUT for entry in _entries(folder or engines_folder()) if os.path.exists(entry / ABOUT)]:
        with contextlib.suppress(OSError, ValueError):
            size = sum(file.stat().st_size for file in about.parent.rglob("*") if file.is_file())
            metadata = json.loads(about.read_text(encoding="utf-8"))
            engines.append(CachedEngine(about.parent.name, metadata, size, about.stat().st_mtime))
    return sorted(engines, key=lambda engine: (-engine.used, engine.identity))


def unreadable_entries(folder: Path | None = None) -> list[Path]:
    """Return the cached engines, or their folder, that this user may not read because another user owns them."""
    folder = folder or engines_folder()
    if not os.access(folder.parent, os.X_OK) and os.path.exists(folder.parent):
        return [folder.parent]
    if not os.access(folder, os.R_OK | os.X_OK) and os.path.exists(folder):
        return [folder]
    engines = [engine for engine in _entries(folder) if os.path.isdir(engine)]
    return [
        engine
        for engine in engines
        if not os.access(engine, os.R_OK | os.X_OK)
        or (os.access(engine / ABOUT, os.F_OK) and not os.access(engine / ABOUT, os.R_OK))
    ]


def _entries(folder: Path) -> list[Path]:
    """Return the entries of a folder; none if it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def clear(folder: Path | None = None) -> int:
    """Remove all engines, incomplete ones as well; return the number of complete ones. A run that has loaded its engine
    no longer needs it."""
    folder = folder or engines_folder()
    entries = _entries(folder)
    whole = sum(os.path.exists(entry / ABOUT) for entry in entries)
    for entry in entries:
        shutil.rmtree(entry, ignore_errors=True)
    return whole


def _forget_old(folder: Path) -> None:
    """Remove engines and functions that are old, beyond the limits, or were never completed."""
    now = time.time()
    for number, engine in enumerate(cached_engines(folder)):
        if number >= MAX_ENGINES or now - engine.used > 86_400 * KEEP_DAYS:
            shutil.rmtree(folder / engine.identity, ignore_errors=True)
    for part in [entry for entry in _entries(folder) if entry.name.endswith(PART_SUFFIX)]:
        with contextlib.suppress(OSError):
            if now - part.stat().st_mtime > STALE_PART_S:
                shutil.rmtree(part, ignore_errors=True)
    with contextlib.suppress(OSError):  # another process may do the same
        used = sorted(((file.stat().st_mtime, file) for file in (folder / FUNCTIONS).iterdir()), reverse=True)
        for number, (when, file) in enumerate(used):
            if number >= MAX_FUNCTIONS or now - when > 86_400 * KEEP_DAYS:
                file.unlink(missing_ok=True)
