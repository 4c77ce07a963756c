"""Temporary folders that go away with the process that made them, whatever ends it.

What is made inside namespaces goes with them; files do not, and a process that is killed cannot remove any. So each
folder has a broom: a small shell that waits at a pipe whose other end only we hold. When that end closes because we are
gone, it removes the folder; when we are done with it ourselves, we tell the broom, and it goes.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gradwire.emu.switches.base import TestbedError

BROOM = 'read -r done && exit; rm -rf -- "$1"; sleep 1; rm -rf -- "$1"'
"""Twice, for what was still writing may have been ended just then."""
END_S = 5.0
"""The broom ends at once; nothing that happens to it is worth more than that."""
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A new folder in $TMPDIR; it is removed at the end of the block, or when this process ends.

    TestbedError where no folder can be made, or a file could not be written in the block for want of room.
    """
    place = tempfile.gettempdir()
    if Path(place).resolve().is_relative_to("/run"):  # where the inside has a file system of its own
        raise TestbedError(
            "cannot be seen by the testbed, which has a /run of its own", f"TMPDIR={place}", "such as /tmp"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
    except OSError as error:
        raise TestbedError(
            f"no temporary folder can be made: {error.strerror}",
            place,
            "room there, or TMPDIR=FOLDER elsewhere",
        ) from None
    broom = None
    try:
        # of a session of its own: Ctrl-C at a terminal is for us
        broom = subprocess.Popen(
            ["/bin/sh", "-c", BROOM, "gradwire-broom", str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, cwd="/",
        )  # fmt: skip
        yield folder
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise full_disk(folder, error) from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if broom is not None:
            with suppress(OSError, subprocess.TimeoutExpired):
                broom.communicate(b"done\n", timeout=END_S)


def full_disk(folder: Path, error: OSError) -> TestbedError:
    """What is said when there is no room for temporary files."""
    return TestbedError(
        f"cannot write temporary files: {error.strerror}",
        str(folder.parent),
        "room there, or TMPDIR=FOLDER elsewhere",
    )
