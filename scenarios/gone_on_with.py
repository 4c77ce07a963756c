"""Folders that a command goes on with, such as a reproduction: known by a file, and one program's at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.given import path_of
from gradwire.scenarios.output import lock_folder, unlock_folder


@contextmanager
def gone_on_with(folder: str | Path, mark: str, what: str) -> Iterator[Path]:
    """The folder, made if it is not there, while the work goes on.

    Parameters
    ----------
    mark : name of the file in it by which it is known.
    what : what it holds, as in "a reproduction"; the file says so, where it does not say something already.

    Raises
    ------
    ResultError
        It holds something else, cannot be written, or another program is at it.
    """
    place = path_of(folder, "out", "a folder", ResultError)
    refuse_other(place, mark, what)
    with folder_for(place, mark):
        try:
            lock = lock_folder(place, made=True)  # a file system without locks keeps nobody out
        except BlockingIOError:
            raise ResultError("is another program's at the moment", str(place), "a folder of its own") from None
        except OSError as error:
            raise _unwritable(place, error) from None
        try:
            try:
                known = place / mark
                known.write_bytes(known.read_bytes() if known.is_file() else sentence_of(what).encode())
            except OSError as error:
                raise _unwritable(place, error) from None
            yield place
        finally:
            unlock_folder(lock)


def sentence_of(what: str) -> str:
    """What the file says by which a folder is known that holds `what`."""
    return f"This folder holds {what} by gradwire, which goes on with what is here.\n"


@contextmanager
def folder_for(place: Path, mark: str | None = None) -> Iterator[None]:
    """A folder, made with those above it if it is not there. What an error leaves with nothing in it, or nothing but
    `mark`, is gone again.

    Raises
    ------
    ResultError
        It cannot be made.
    """
    fresh = [each for each in (place, *place.parents) if not each.exists()]
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(place, error) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # somebody has put something there
            if fresh and mark is not None and [each.name for each in place.iterdir()] == [mark]:
                (place / mark).unlink()
            for each in fresh:
                each.rmdir()
        raise


def refuse_other(place: Path, mark: str, what: str) -> None:
    """Raise `ResultError` if a folder is there and holds something else."""
    if place.exists() and (not place.is_dir() or (any(place.iterdir()) and not (place / mark).is_file())):
        wrong = f"is there already, and does not hold {what}"
        raise ResultError(wrong, str(place), "a new folder, or one of an earlier run")


def _unwritable(place: Path, error: OSError) -> ResultError:
    return ResultError(f"cannot be written ({error.strerror})", str(place), "a folder that can")
