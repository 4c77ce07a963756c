"""Locates the cache folder of compiled code and kernels, and refuses folders that other users may write to.

gradwire runs this code, so a folder is used only if no other user could have written to it. As ssh requires of
`~/.ssh`, it must belong to the user, and no other user may write to it or replace a folder above it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

PRIVATE = 0o700
"""Mode of folders created in the cache."""


def cache_folder() -> Path:
    """Return $GRADWIRE_CACHE if it is set, else `gradwire` in the user's cache folder ($XDG_CACHE_HOME or ~/.cache). It
    need not exist, be writable, or be safe to read (`private_folder`)."""
    named = os.environ.get("GRADWIRE_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gradwire"


class UnsafeCacheError(OSError):
    """A cache folder that other users could have written to; `strerror` gives the folder and the reason."""


def private_folder(*below: str) -> Path:
    """Return a subfolder of the cache; create it and its parents with mode 0700 if missing. Raises UnsafeCacheError if
    it, or a folder above it, belongs to or is writable by another user. Raises OSError if it cannot be created, or its
    mode cannot be read."""
    folder = cache_folder()
    for above in reversed((folder, *folder.parents)):
        if not above.exists():
            above.mkdir(mode=PRIVATE, exist_ok=True)
    check_private(folder)
    for name in below:
        folder = folder / name
        folder.mkdir(mode=PRIVATE, exist_ok=True)
        _check_owned(folder)
    return folder


def check_private(folder: Path) -> None:
    """Raise UnsafeCacheError if another user may write to or replace a folder; OSError if it is missing."""
    resolved = folder.resolve(strict=True)
    _check_owned(resolved)
    for above in resolved.parents:
        status = above.stat()
        is_sticky = bool(status.st_mode & stat.S_ISVTX)  # as /tmp: only owners replace its entries
        if status.st_uid not in (os.geteuid(), *_roots()):
            raise UnsafeCacheError(0, f"{above} above it belongs to user {status.st_uid}")
        if _others_write(status) and not is_sticky:
            raise UnsafeCacheError(0, f"others may write to {above} above it (mode {_mode(status)})")


def _check_owned(folder: Path) -> None:
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise UnsafeCacheError(0, f"{folder} belongs to user {status.st_uid}, not to you ({os.geteuid()})")
    if _others_write(status):
        expected = f"chmod go-w {folder}, once you know what is in it"
        raise UnsafeCacheError(0, f"others may write to {folder} (mode {_mode(status)}); expected {expected}")


def _others_write(status: os.stat_result) -> bool:
    """Return True if other users may write; a group counts unless the user is its only member (umask 002)."""
    if status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _is_users_own_group(status.st_gid)


def _is_users_own_group(number: int) -> bool:
    import grp
    import pwd

    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(number)
    except KeyError:
        return False
    is_private = user.pw_gid == number and group.gr_name == user.pw_name
    return is_private and set(group.gr_mem) <= {user.pw_name}


def _roots() -> tuple[int, ...]:
    """Return root's uid and, in a user namespace without root, the uid of all users outside it."""
    try:
        first = Path("/proc/self/uid_map").read_text(encoding="utf-8").split()
        if first[:1] == ["0"] and first[2] == str(2**32 - 1):
            return (0,)
        return 0, int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="utf-8"))
    except (OSError, ValueError, IndexError):
        return (0,)


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"
