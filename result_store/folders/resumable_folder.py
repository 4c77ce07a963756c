"""Locks and validates resumable output folders, such as a reproduction, which a marker file identifies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.result_store.folders.output_folder import lock_folder, unlock_folder
from gradwire.scenarios.errors import ResultError
from gradwire.scenarios.validation.argument_checks import require_path


@contextmanager
def resumable_folder(folder: str | Path, mark: str, what: str) -> Iterator[Path]:
    """Yield the locked folder, created if missing, for the duration of the work.

    mark : name of its marker file.
    what : its content, as in "a reproduction"; written to the marker file unless that exists.

    Raises ResultError if it holds something else, cannot be written, or is in use by another program.
    """
    place = require_path(folder, "out", "a folder", ResultError)
    refuse_other_content(place, mark, what)
    with created_folder(place, mark):
        try:
            lock = lock_folder(place, is_new=True)  # no exclusion on a file system without locks
        except BlockingIOError:
            raise ResultError("is in use by another program", str(place), "another folder") from None
        except OSError as error:
            raise _unwritable(place, error) from None
        try:
            try:
                marker, text = place / mark, f"This folder holds {what} by gradwire, which resumes it.\n"
                marker.write_bytes(marker.read_bytes() if marker.is_file() else text.encode())
            except OSError as error:
                raise _unwritable(place, error) from None
            yield place
        finally:
            unlock_folder(lock)


@contextmanager
def created_folder(path: Path, mark: str | None = None) -> Iterator[None]:
    """Create a folder and its parents; remove them again after an error if they are empty, or hold only `mark`. Raises
    ResultError if it cannot be created."""
    created = [each for each in (path, *path.parents) if not each.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty
            if created and mark is not None and [each.name for each in path.iterdir()] == [mark]:
                (path / mark).unlink()
            for each in created:
                each.rmdir()
        raise


def refuse_other_content(path: Path, mark: str, what: str) -> None:
    """Raise `ResultError` if a folder exists and holds something else."""
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / mark).is_file())):
        raise ResultError(f"exists and does not hold {what}", str(path), "a new folder, or one of an earlier run")


def _unwritable(path: Path, error: OSError) -> ResultError:
    return ResultError(f"cannot be written ({error.strerror})", str(path), "a writable folder")
