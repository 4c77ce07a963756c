"""Where results go: found out before the work begins, complete or not there, and never lost for want of room.

    place = claim("results/mine")        before the work: makes the folder, or says why it cannot
    ...
    keep(place, comparison.write, ...)   after it: fills it, or puts everything where there is room

A folder is claimed by locking it while it is empty, which only one of two programs can do; it is made first where it
is not there. The lock goes with the program, whatever processes it has forked: what one leaves behind that was killed
is an empty folder, which the next may have. What is written is built under another name beside it and then takes its
place, which the file system does at once, and only where the folder is still empty.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

from gradwire.scenarios.errors import GradwireError, ResultError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.interrupt import caught, deferred

_ours: set[Path] = set()
"""Folders that this process has claimed, and may therefore put something in the place of."""
_owed: dict[Callable[[], None], int] = {}
"""What contexts under way do when they are left, and the process that entered them."""
_locks: set[int] = set()
"""Open folders that this process has locked."""
FREE = "a directory that does not exist yet, or an empty one"
NEW_FILE = "a file that does not exist yet"


class Claim:
    """A folder that waits for its content: leave the context without any, and what was made for it is gone again.

    The folder is made when the context is entered, and not before, so that no signal can come between the two. Entering
    raises `ResultError` if it cannot be made there, has something in it, or is another program's.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._made: list[Path] = []
        self._lock: int | None = None

    def _claim(self) -> None:
        while True:
            self._made = _make(self.path)
            with contextlib.suppress(FileNotFoundError):  # it has just been somebody else's, and is gone: once more
                self._lock = _locked(self.path, made=self.path in self._made)
                break
        _ours.add(self.path.absolute())
        owe(self._release)

    def __enter__(self) -> Path:
        try:
            with deferred():
                self._claim()
            return self.path
        except BaseException:
            self._release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        with deferred():
            if self._lock is not None:
                _ours.discard(self.path.absolute())
                _remove(self._made)
                unlock_folder(self._lock)  # after it: nobody else may have the folder while it is about to go
                self._lock = None
            paid(self._release)


def owe(leave: Callable[[], None]) -> None:
    """Have something done at the end of the process, unless it is `paid` before."""
    _owed[leave] = os.getpid()


def paid(leave: Callable[[], None]) -> None:
    """Say that what was owed has been done."""
    _owed.pop(leave, None)


@atexit.register
def leave_all() -> None:
    """Clean up for contexts that a signal has cut short.

    Python may answer a signal between the body of a `with` statement and the first instruction of its `__exit__`.
    """
    caught()
    for leave, owner in reversed(list(_owed.items())):
        if owner == os.getpid():
            with contextlib.suppress(OSError):
                leave()
    _owed.clear()


class NumberedClaim(Claim):
    """Claim the first of base-001, base-002, ... that nobody has."""

    def __init__(self, base: str | Path) -> None:
        super().__init__(base)
        self._base = base

    def __enter__(self) -> Path:
        for number in itertools.count(1):
            self.path = Path(f"{self._base}-{number:03d}")
            if not os.path.lexists(self.path):
                try:
                    return super().__enter__()
                except ResultError:
                    if not os.path.lexists(self.path):
                        raise  # it was not that somebody has been faster
        raise AssertionError("numbers have no end")


def is_taken(path: str | Path) -> bool:
    """Whether a new folder at `path` would be refused: there is something, and no empty folder that nobody else has."""
    try:
        refuse_existing(path)
    except ResultError:
        return True
    return False


def refuse_existing(path: str | Path) -> None:
    """Raise `ResultError` if there is something at `path` already, other than an empty folder that nobody else has."""
    if os.path.lexists(path) and Path(path).absolute() not in _ours:
        with contextlib.suppress(FileNotFoundError):
            unlock_folder(_locked(Path(path)))


def refuse_unwritable(path: str | Path, file: bool = False) -> None:
    """Raise `ResultError` unless a new folder, or a new `file`, can be made at `path`: it is tried. Ask before the
    work."""
    if file and os.path.lexists(path):
        raise ResultError("exists already", str(path), NEW_FILE)
    with Claim(path):
        pass


@contextmanager
def new_folder(target: str | Path) -> Iterator[Path]:
    """A folder to be filled, which then appears at `target`: complete, or not at all.

    Raises
    ------
    ResultError
        There is something already, or it cannot be written.
    """
    where = path_of(target, "directory", FREE, ResultError)
    refuse_existing(where)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with deferred():
            made = Path(tempfile.mkdtemp(prefix=".gradwire-", suffix=".partial", dir=where.parent))
            try:
                yield made
                made.chmod(0o777 & ~_umask())  # mkdtemp makes folders that nobody else can read
                refuse_existing(where)  # somebody may have been faster
                os.rename(made, where)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise
    except OSError as error:
        raise cannot_write(error, where) from None


@contextmanager
def new_file(target: str | Path) -> Iterator[Path]:
    """The same for one file: a name to write to, of the same ending, which becomes `target`."""
    where = path_of(target, "file", NEW_FILE, ResultError)
    if os.path.lexists(where):
        raise ResultError("exists already", str(target), NEW_FILE)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with deferred():
            number, name = tempfile.mkstemp(prefix=".gradwire-", suffix=where.suffix, dir=where.parent)
            made = Path(name)
            leave = partial(made.unlink, missing_ok=True)
            owe(leave)
            os.close(number)
        try:
            yield made
            made.chmod(0o666 & ~_umask())
            os.rename(made, where)
        finally:
            with deferred():
                leave()
                paid(leave)
    except OSError as error:
        raise cannot_write(error, where) from None


class replaced:  # reads as what it does
    """A file that is written under another name and then takes its place: `with replaced(path) as partial`."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_name(f".{path.name}.partial")

    def __enter__(self) -> Path:
        return self.partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            os.replace(self.partial, self.path)
        else:
            self.partial.unlink(missing_ok=True)


class Kept(NamedTuple):
    """Where results are (None if nowhere), and what to raise in the end if that is not where they should be."""

    place: Path | None
    trouble: ResultError | None = None


Write = Callable[[Path], object]


def keep(place: Path, write: Write, parts: Sequence[tuple[str, Write]] = ()) -> Kept:
    """Write computed results to `place`; where that fails, to a temporary folder, as much of them as there is room for.

    Parameters
    ----------
    write : writes everything to a new folder.
    parts : what is worth most of it, by name, to be written one by one if there is no room for everything.
    """
    try:
        write(place)
        return Kept(place)
    except (ResultError, OSError) as error:
        first = error if isinstance(error, ResultError) else cannot_write(error, place)
    except (
        BaseException
    ):  # a mistake in a plot, or Ctrl-C: what was computed is worth more than the order of things
        _write_parts(place, parts)
        raise
    where = f"--out {place}"
    spare = _spare()
    if spare is not None and _written(write, spare / place.name):
        kept = spare / place.name
        return Kept(kept, ResultError(f"{first.what}; the results are in {kept} instead", where))
    for folder in [spare, place] if spare is not None else [place]:
        names = _write_parts(folder, parts)
        if names:
            what = f"{first.what}; of the results there is {', '.join(names)}, in {folder}"
            return Kept(folder, ResultError(what, where))
    if spare is not None:
        shutil.rmtree(spare, ignore_errors=True)
    what = f"{first.what}, nor in {tempfile.gettempdir()}; the results are what was printed"
    return Kept(None, ResultError(what, where))


def _write_parts(folder: Path, parts: Sequence[tuple[str, Write]]) -> list[str]:
    """The names of those for which there was room."""
    return [name for name, part in parts if _written(part, folder / name)]


Refusal = TypeVar("Refusal", bound=GradwireError)


def cannot_write(error: OSError, path: str | Path, kind: type[Refusal] = ResultError) -> Refusal:  # type: ignore[assignment]
    """What to raise instead of an error of the file system at `path`."""
    what = {
        errno.ENOSPC: ("there is no room left", "a place with room"),
        errno.EDQUOT: ("there is no room left for this user", "a place with room"),
        errno.EFBIG: ("a file would be larger than this shell or file system allows", "a place with room"),
        errno.ENAMETOOLONG: ("the name is too long", "at most 255 bytes"),
        errno.EEXIST: (
            "lies inside of something that is no folder",
            "a place in a folder",
        ),  # of a folder above it
        errno.ENOTDIR: ("lies inside of something that is no folder", "a place in a folder"),
        errno.EACCES: ("may not be written there", "a folder that can be written to"),
        errno.EPERM: ("may not be written there", "a folder that can be written to"),
        errno.EROFS: ("lies on a file system that can only be read", "a folder that can be written to"),
    }.get(
        error.errno or 0,
        (f"cannot be written ({error.strerror or error})", "a folder that can be written to"),
    )
    return kind(what[0], str(path), what[1])


def _written(part: Callable[[Path], object], path: Path) -> bool:
    try:
        part(path)
    except (ResultError, OSError):
        return False
    return True


def _spare() -> Path | None:
    try:
        return Path(tempfile.mkdtemp(prefix="gradwire-"))
    except OSError:
        return None


def _make(path: Path) -> list[Path]:
    """Make a new folder and those above it that are missing; returns what was made, the innermost first."""
    made: list[Path] = []
    try:
        missing = [parent for parent in path.absolute().parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            made.insert(0, parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            made.insert(0, path)
    except OSError as error:
        _remove(made)
        raise cannot_write(error, path) from None
    except ValueError:  # a zero byte
        raise ResultError("is no name for a file", str(path), FREE) from None
    return made


def _remove(folders: Sequence[Path]) -> None:
    """Remove empty folders, the innermost first; what holds something stays, and what is above it."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _locked(path: Path, made: bool = False) -> int:
    """A lock on an empty folder, held until it is closed. `made`: it has just been made.

    Raises `ResultError`, and FileNotFoundError if the folder is not there, or another one by now.
    """
    try:
        lock = lock_folder(path, made, os.O_NOFOLLOW)
    except OSError as error:
        raise _taken(path, error) from None
    try:
        if not os.path.samestat(os.fstat(lock), os.stat(path)):
            raise FileNotFoundError
        # What lies there now, not what was opened: somebody may have been faster. Nothing can take the place of a mount
        # point, and nobody wants to stand in a folder that is gone.
        if os.listdir(path) or os.path.ismount(path) or os.path.samefile(path, os.getcwd()):
            raise FileExistsError
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "")
    except OSError as error:
        unlock_folder(lock)
        raise _taken(path, error) from None
    return lock  # of what was made and then taken by a faster one nothing is removed: it is theirs


def lock_folder(path: Path, made: bool, flags: int = 0) -> int:
    """Open a folder and lock it until `unlock_folder`, or raise `OSError`. `made`: where there are no locks, go on
    without one."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise
    except OSError:  # a file system without locks: there only who makes a folder may be sure of it
        if not made:
            os.close(folder)
            raise FileExistsError from None
    _locks.add(folder)
    return folder


def unlock_folder(folder: int) -> None:
    """Give a folder back; in a child that was forked meanwhile it has been."""
    if folder in _locks:
        _locks.remove(folder)
        os.close(folder)


def _forked() -> None:
    """A child, such as one that compiles, may outlive the program that has locked a folder: the lock is not its own."""
    for folder in list(_locks):
        unlock_folder(folder)


os.register_at_fork(after_in_child=_forked)


def _taken(path: Path, error: OSError) -> Exception:
    """What to raise where a folder cannot be had."""
    if isinstance(error, FileNotFoundError) and not path.is_symlink():
        return error
    if isinstance(error, BlockingIOError):
        return ResultError("another program is about to write there", str(path), FREE)
    there = isinstance(error, FileExistsError | NotADirectoryError) or error.errno == errno.ELOOP
    return ResultError("exists already", str(path), FREE) if there else cannot_write(error, path)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
