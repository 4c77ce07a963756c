"""The cache folder: code in it runs, so a folder that somebody else may write to is not used, and no file is a pickle."""

from __future__ import annotations

import grp
import json
import os
import pickle
import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradwire import cli
from gradwire.jit import engine_cache, object_cache
from gradwire.scenarios.cache import UnsafeCacheError, cache_folder, check_private, private_folder

SOMEBODY = 65_534  # the number of "nobody"
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to somebody else")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The path of a cache that is not there yet."""
    monkeypatch.setenv("GRADWIRE_CACHE", str(tmp_path / "above" / "cache"))
    monkeypatch.setattr(engine_cache, "_private", [])
    return tmp_path / "above" / "cache"


def test_cache_folder_is_created_with_mode_0700_under_any_umask(cache):
    before = os.umask(0)
    try:
        assert private_folder("engines") == cache / "engines"
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o7777) for path in (cache, cache / "engines")] == ["0o700", "0o700"]


@pytest.mark.parametrize("name, mode", [("cache", 0o777), ("cache", 0o707), ("cache/engines", 0o777), ("", 0o777)])
def test_world_writable_cache_folder_is_refused(cache, name, mode):
    (cache / "engines").mkdir(parents=True)
    (cache.parent / name).chmod(mode)
    with pytest.raises(UnsafeCacheError, match=rf"others may write to {cache.parent / name}.*mode 0{mode:o}"):
        private_folder("engines")
    (cache.parent / name).chmod(0o755)
    assert private_folder("engines")


def test_sticky_world_writable_parent_folder_is_accepted(cache):
    cache.parent.mkdir()
    cache.parent.chmod(0o1777)  # as /tmp
    assert private_folder() == cache


@pytest.mark.parametrize("group, is_refused", [("own", False), ("shared", True), ("other", True)])
def test_group_writable_cache_is_refused_unless_group_is_private(cache, monkeypatch, group, is_refused):
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    number = cache.stat().st_gid
    user = pwd.struct_passwd(("me", "x", os.geteuid(), number + (group == "other"), "", "/", "/bin/sh"))
    members = ["me", "you"] if group == "shared" else []
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(("me", "x", gid, members)))
    if is_refused:
        with pytest.raises(UnsafeCacheError, match="0770"):
            private_folder()
    else:
        assert private_folder() == cache


@is_root
@pytest.mark.parametrize("owned", ["cache", ""])
def test_folder_of_another_user_is_refused_but_root_owned_parent_is_accepted(cache, owned):
    cache.mkdir(parents=True)
    os.chown(cache.parent / owned, SOMEBODY, SOMEBODY)
    with pytest.raises(UnsafeCacheError, match=f"belongs to user {SOMEBODY}"):
        private_folder()
    os.chown(cache, SOMEBODY, SOMEBODY)
    os.chown(cache.parent, 0, 0)
    script = f"from gradwire.scenarios.cache import *; os.setuid({SOMEBODY}); check_private(Path({str(cache)!r}))"
    for above in cache.parents[1:]:  # pytest's, which only root may enter, one more for a worker among several
        if "pytest" in str(above):
            above.chmod(0o755)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_symbolic_link_is_checked_by_its_target(cache, tmp_path, monkeypatch):
    cache.mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to(cache)
    check_private(link)
    cache.parent.chmod(0o777)
    with pytest.raises(UnsafeCacheError, match="above it"):
        check_private(link)


def test_engines_in_unsafe_cache_are_neither_loaded_nor_removed(cache, capsys):
    planted = cache / "engines" / "abc"
    planted.mkdir(parents=True)
    (planted / engine_cache.ABOUT).write_text("{}")
    cache.chmod(0o777)
    assert not engine_cache.is_cached("abc") and engine_cache.load("abc") is None
    assert engine_cache.writable_folder() != engine_cache.engines_folder()
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"others may write to {cache}" in said and "chmod go-w" in said
    assert (planted / engine_cache.ABOUT).exists()


@pytest.mark.parametrize("command", [["cache"], ["cache", "clear"]])
def test_cache_command_reports_an_unsafe_folder(cache, command):
    assert CliRunner().invoke(cli.app, command).exit_code == 0, "none is there yet"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    done = CliRunner().invoke(cli.app, command)
    assert done.exit_code == 2 and f"others may write to {cache}" in done.stderr


class Bomb:
    """An object whose pickle runs a command when it is read."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def test_pickle_with_valid_digest_is_not_loaded(tmp_path):
    """A cache of gradwire 0.1, or an attacker, may have left such a file."""
    import hashlib

    marker = tmp_path / "ran"
    data = pickle.dumps(Bomb(marker))
    (tmp_path / "key").write_bytes(hashlib.sha256(data).digest() + data)
    assert object_cache.read(tmp_path, "key") is None
    assert not marker.exists()
    pickle.loads(data)
    assert marker.exists(), "the bomb is one"


def test_object_cache_returns_written_entry_and_rejects_corrupt_entry(tmp_path):
    piece = object_cache.CacheEntry({"calls": ["a"], "result": {"pointer": "int64"}}, b"\n\0code\n")
    object_cache.write(tmp_path, "key", piece)
    assert object_cache.read(tmp_path, "key") == piece
    data = bytearray((tmp_path / "key").read_bytes())
    data[-1] ^= 1
    (tmp_path / "key").write_bytes(data)
    assert object_cache.read(tmp_path, "key") is None


def test_numba_types_survive_json_round_trip():
    from numba.core import types

    from gradwire.jit.function_cache import _text_of, _type_of

    for kind in (
        types.none, types.boolean, types.int64, types.uint8, types.float64, types.literal(0), types.literal(True),
        types.CPointer(types.int64), types.UniTuple(types.int64, 2), types.Tuple([types.int64, types.boolean]),
    ):  # fmt: skip
        assert _type_of(json.loads(json.dumps(_text_of(kind)))) == kind
    for kind in (types.Array(types.int64, 1, "C"), types.unicode_type, types.Optional(types.int64)):
        with pytest.raises(TypeError):
            _text_of(kind)


def test_default_cache_folder_follows_xdg_cache_home(monkeypatch):
    monkeypatch.delenv("GRADWIRE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/gradwire")
