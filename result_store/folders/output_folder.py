"""Claims output folders before the work, and writes them completely or not at all, with a fallback for full disks.

    with Claim("results/mine") as folder:              before the work: creates the folder, or reports why it cannot
        ...
        write_output(folder, comparison.write, ...)    after it: fills it, or writes to another folder with free space

A folder is claimed by locking it while it is empty, which only one of two programs can do; it is created first if
missing. The lock ends with the program, also for processes it has forked: a killed program leaves an empty folder,
which the next may claim. Content is built under another name beside it and then renamed, which the file system does
atomically, and only if the folder is still empty.
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
from gradwire.scenarios.interrupt import defer_interrupt, mark_caught
from gradwire.scenarios.validation.argument_checks import require_path

_ours: set[Path] = set()
"""Folders that this process has claimed and may therefore replace."""
_owed: dict[Callable[[], None], int] = {}
"""Clean-ups of active contexts, with the process that entered them."""
_locks: set[int] = set()
"""Descriptors of folders that this process has locked."""
NEW_FOLDER = "a directory that does not exist yet, or an empty one"
NEW_FILE = "a file that does not exist yet"


class Claim:
    """Context that claims a folder for its output, and removes it on exit if it is still empty. The folder is created
    on entry, so that no signal can come between the two. Entering raises `ResultError` if it cannot be created, is not
    empty, or is another program's."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._created: list[Path] = []
        self._lock: int | None = None

    def _claim(self) -> None:
        while True:
            self._created = _make(self.path)
            with contextlib.suppress(FileNotFoundError):  # another program has just removed it: retry
                self._lock = _locked(self.path, is_new=self.path in self._created)
                break
        _ours.add(self.path.absolute())
        register_cleanup(self._release)

    def __enter__(self) -> Path:
        try:
            with defer_interrupt():
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
        with defer_interrupt():
            if self._lock is not None:
                _ours.discard(self.path.absolute())
                _remove(self._created)
                unlock_folder(self._lock)  # afterwards, so that no program claims a folder that is being removed
                self._lock = None
            unregister_cleanup(self._release)


def register_cleanup(leave: Callable[[], None]) -> None:
    """Register a clean-up for the end of the process, unless it is `unregister_cleanup` before."""
    _owed[leave] = os.getpid()


def unregister_cleanup(leave: Callable[[], None]) -> None:
    """Unregister a clean-up that has been done."""
    _owed.pop(leave, None)


@atexit.register
def run_cleanups() -> None:
    """Clean up for contexts that a signal has interrupted. Python may handle a signal between the body of a `with`
    statement and the first instruction of its `__exit__`."""
    mark_caught()
    for leave, owner in reversed(list(_owed.items())):
        if owner == os.getpid():
            with contextlib.suppress(OSError):
                leave()
    _owed.clear()


class NumberedClaim(Claim):
    """Claim of the first free folder of base-001, base-002, ..."""

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
                        raise  # not because another program was faster
        raise AssertionError("unreachable")


def is_taken(path: str | Path) -> bool:
    """Return True if a new folder at `path` would be rejected: something other than an unclaimed empty folder exists
    there."""
    try:
        refuse_existing(path)
    except ResultError:
        return True
    return False


def refuse_existing(path: str | Path) -> None:
    """Raise `ResultError` if something other than an unclaimed empty folder exists at `path`."""
    if os.path.lexists(path) and Path(path).absolute() not in _ours:
        with contextlib.suppress(FileNotFoundError):
            unlock_folder(_locked(Path(path)))


def refuse_unwritable(path: str | Path, file: bool = False) -> None:
    """Raise `ResultError` unless a new folder, or a new `file`, can be created at `path`; try it before the work."""
    if file and os.path.lexists(path):
        raise ResultError("exists already", str(path), NEW_FILE)
    with Claim(path):
        pass


@contextmanager
def new_folder(target: str | Path, kind: type[GradwireError] = ResultError) -> Iterator[Path]:
    """Yield a folder to fill, which then appears at `target`: complete, or not at all. Raises ResultError if something
    exists there already. Raises `kind` if it cannot be written."""
    where = require_path(target, "directory", NEW_FOLDER, kind)
    refuse_existing(where)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with defer_interrupt():
            folder = Path(tempfile.mkdtemp(prefix=".gradwire-", suffix=".partial", dir=where.parent))
            try:
                yield folder
                folder.chmod(0o777 & ~_umask())  # mkdtemp creates folders that only the user can read
                refuse_existing(where)  # another program may have been faster
                os.rename(folder, where)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    except OSError as error:
        raise write_error(error, where, kind) from None


@contextmanager
def new_file(target: str | Path) -> Iterator[Path]:
    """Yield a file name to write to, with the same suffix, which then becomes `target`; see `new_folder`."""
    where = require_path(target, "file", NEW_FILE, ResultError)
    if os.path.lexists(where):
        raise ResultError("exists already", str(target), NEW_FILE)
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with defer_interrupt():
            number, name = tempfile.mkstemp(prefix=".gradwire-", suffix=where.suffix, dir=where.parent)
            file = Path(name)
            leave = partial(file.unlink, missing_ok=True)
            register_cleanup(leave)
            os.close(number)
        try:
            yield file
            file.chmod(0o666 & ~_umask())
            os.rename(file, where)
        finally:
            with defer_interrupt():
                leave()
                unregister_cleanup(leave)
    except OSError as error:
        raise write_error(error, where) from None


class atomic_replace:  # lower case, like other context managers
    """Write a file under another name, then move it to its place: `with atomic_replace(path) as partial`."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, path.with_name(f".{path.name}.partial")

    def __enter__(self) -> Path:
        return self.partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            os.replace(self.partial, self.path)
        else:
            self.partial.unlink(missing_ok=True)


class SavedOutput(NamedTuple):
    """Location of results (None if nowhere), and the error to raise at the end if it is not the requested one."""

    place: Path | None
    trouble: ResultError | None = None


Write = Callable[[Path], object]


def write_output(path: Path | None, write: Write, parts: Sequence[tuple[str, Write]] = ()) -> SavedOutput:
    """Write computed results to `path`, if any; on failure to a temporary folder, as much of them as fits.

    write : writes everything to a new folder.
    parts : the most valuable parts, by name, to be written one by one if not everything fits.
    """
    if path is None:
        return SavedOutput(None)
    try:
        write(path)
        return SavedOutput(path)
    except (ResultError, OSError) as error:
        first = error if isinstance(error, ResultError) else write_error(error, path)
    except BaseException:  # an error in a plot, or Ctrl-C: save the computed results first
        _write_parts(path, parts)
        raise
    where = f"--out {path}"
    spare = _spare()
    if spare is not None and _written(write, spare / path.name):
        target = spare / path.name
        return SavedOutput(target, ResultError(f"{first.what}; the results are in {target} instead", where))
    for folder in [spare, path] if spare is not None else [path]:
        names = _write_parts(folder, parts)
        if names:
            what = f"{first.what}; partial results are in {folder}: {', '.join(names)}"
            return SavedOutput(folder, ResultError(what, where))
    if spare is not None:
        shutil.rmtree(spare, ignore_errors=True)
    what = f"{first.what}, nor in {tempfile.gettempdir()}; only the printed results remain"
    return SavedOutput(None, ResultError(what, where))


def _write_parts(folder: Path, parts: Sequence[tuple[str, Write]]) -> list[str]:
    """Write the parts that fit; return their names."""
    return [name for name, part in parts if _written(part, folder / name)]


Refusal = TypeVar("Refusal", bound=GradwireError)


def write_error(error: OSError, path: str | Path, kind: type[Refusal] = ResultError) -> Refusal:  # type: ignore[assignment]
    """Return the error to raise instead of a file system error at `path`."""
    what = {
        errno.ENOSPC: ("no space left on device", "a folder with free space"),
        errno.EDQUOT: ("disk quota exceeded", "a folder with free space"),
        errno.EFBIG: ("exceeds the file size limit of the shell or file system", "a folder with free space"),
        errno.ENAMETOOLONG: ("the name is too long", "at most 255 bytes"),
        errno.EEXIST: ("has a parent that is not a folder", "a path in a folder"),
        errno.ENOTDIR: ("has a parent that is not a folder", "a path in a folder"),
        errno.EACCES: ("permission denied", "a writable folder"),
        errno.EPERM: ("permission denied", "a writable folder"),
        errno.EROFS: ("is on a read-only file system", "a writable folder"),
    }.get(error.errno or 0, (f"cannot be written ({error.strerror or error})", "a writable folder"))
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
    """Create a new folder and its missing parents; return the created ones, innermost first."""
    created: list[Path] = []
    try:
        missing = [parent for parent in path.absolute().parents if not parent.exists()]
        for parent in reversed(missing):
            parent.mkdir(exist_ok=True)
            created.insert(0, parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            created.insert(0, path)
    except OSError as error:
        _remove(created)
        raise write_error(error, path) from None
    except ValueError:  # a zero byte
        raise ResultError("is not a valid file name", str(path), NEW_FOLDER) from None
    return created


def _remove(folders: Sequence[Path]) -> None:
    """Remove empty folders, innermost first; stop at one that is not empty."""
    with contextlib.suppress(OSError):
        for folder in folders:
            folder.rmdir()


def _locked(path: Path, is_new: bool = False) -> int:
    """Return a lock on an empty folder, held until it is closed. `is_new`: the folder has just been created. Raises
    `ResultError`, and FileNotFoundError if the folder does not exist or has been replaced."""
    try:
        lock = lock_folder(path, is_new, os.O_NOFOLLOW)
    except OSError as error:
        raise _taken(path, error) from None
    try:
        if not os.path.samestat(os.fstat(lock), os.stat(path)):
            raise FileNotFoundError
        # Checks the path, not the open folder: another program may have been faster. A mount point cannot be replaced,
        # and replacing the working directory would leave the user in a deleted folder.
        if os.listdir(path) or os.path.ismount(path) or os.path.samefile(path, os.getcwd()):
            raise FileExistsError
        if not os.access(path, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "")
    except OSError as error:
        unlock_folder(lock)
        raise _taken(path, error) from None
    return lock  # a folder that a faster program has claimed is not removed: it is theirs


def lock_folder(path: Path, is_new: bool, flags: int = 0) -> int:
    """Open a folder and lock it until `unlock_folder`, or raise `OSError`. `is_new`: on a file system without locks,
    continue without one."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise
    except OSError:  # a file system without locks: only the folder's creator can be sure of it
        if not is_new:
            os.close(folder)
            raise FileExistsError from None
    _locks.add(folder)
    return folder


def unlock_folder(folder: int) -> None:
    """Release a folder, unless this is a forked child, which has released it already."""
    if folder in _locks:
        _locks.remove(folder)
        os.close(folder)


def _forked() -> None:
    """Release all locks in a forked child, such as a compiler, which may outlive the program that locked the folder."""
    for folder in list(_locks):
        unlock_folder(folder)


os.register_at_fork(after_in_child=_forked)


def _taken(path: Path, error: OSError) -> Exception:
    """Return the error for a folder that cannot be claimed."""
    if isinstance(error, FileNotFoundError) and not path.is_symlink():
        return error
    if isinstance(error, BlockingIOError):
        return ResultError("is claimed by another program", str(path), NEW_FOLDER)
    exists = isinstance(error, FileExistsError | NotADirectoryError) or error.errno == errno.ELOOP
    return ResultError("exists already", str(path), NEW_FOLDER) if exists else write_error(error, path)


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
