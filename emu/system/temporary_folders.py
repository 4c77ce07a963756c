"""Makes temporary folders that are removed when the process that made them ends for any reason.

Namespaces disappear with their processes; files do not, and a killed process cannot remove any. So each folder has a
cleaner: a small shell that waits at a pipe whose other end only this process holds. When that end closes because the
process has ended, it removes the folder; after a normal removal it gets a line and exits.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.emu.switches.backend_kind import TestbedError

CLEANER = 'read -r done && exit; rm -rf -- "$1"; sleep 1; rm -rf -- "$1"'
"""Command that removes a folder, twice, because writers may end only just then."""
END_S = 5.0
"""Time limit for the end of the cleaner, which normally ends at once."""
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[Path]:
    """Yield a new folder in $TMPDIR that is removed at the end of the block or of this process. Raises TestbedError if
    no folder can be made, or the disk is full in the block."""
    parent = tempfile.gettempdir()
    if Path(parent).resolve().is_relative_to("/run"):  # the inside has a private /run
        raise TestbedError("not visible to the testbed, which has a private /run", f"TMPDIR={parent}", "such as /tmp")
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise TestbedError(
            f"cannot make a temporary folder: {error.strerror}", parent, "free space, or TMPDIR=FOLDER elsewhere"
        ) from None
    cleaner_process = None
    try:
        # in a new session: Ctrl-C at a terminal is not for the cleaner
        cleaner_process = subprocess.Popen(
            ["/bin/sh", "-c", CLEANER, "gradwire-broom", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        yield folder
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise full_disk(folder, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if cleaner_process is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                cleaner_process.communicate(b"done\n", timeout=END_S)


def full_disk(folder: Path, error: OSError) -> TestbedError:
    """Return the error for a full disk of temporary files."""
    return TestbedError(
        f"cannot write temporary files: {error.strerror}", str(folder.parent), "free space, or TMPDIR=FOLDER elsewhere"
    )
