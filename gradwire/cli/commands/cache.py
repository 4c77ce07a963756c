"""Defines the command `gradwire cache`, which lists or clears compiled engines and shows the size of other cache
entries.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from gradwire.cli.options import Json
from gradwire.cli.terminal import for_people

cache_app = typer.Typer(
    help="Show or clear the compiled engines in $GRADWIRE_CACHE or ~/.cache/gradwire.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    epilog="Example: gradwire cache --json",
)


@cache_app.callback()
@for_people
def cmd_cache(context: typer.Context, as_json: Json = False) -> None:
    """List the cache: every compiled engine, the most recently used first, and the other entries."""
    if context.invoked_subcommand is not None:
        return
    from gradwire.jit.engine_cache import FUNCTIONS, cached_engines, engines_folder, unreadable_entries
    from gradwire.scenarios.cache import cache_folder

    _refuse_unsafe()
    cached, folder = cached_engines(), cache_folder()
    others = {each.name: _size(each) for each in sorted(folder.glob("*")) if each != engines_folder()}
    if os.access(functions := engines_folder() / FUNCTIONS, os.F_OK):
        others[FUNCTIONS] = _size(functions)
    for path in unreadable_entries():
        typer.echo(f"note: {path}: not readable: created by another user", err=True)
    if as_json:
        engines = [{"identity": each.identity, "bytes": each.size, "used": each.used, **each.about} for each in cached]
        typer.echo(json.dumps({"folder": str(folder), "engines": engines, "others": others}))
        return
    total = sum(engine.size for engine in cached)
    typer.echo(f"{folder}: {len(cached)} compiled engines, {_megabytes(total)}")
    for engine in cached:
        typer.echo(f"  {_line(engine.about)}, {_megabytes(engine.size)}, used {_ago(time.time() - engine.used)}")
    for name, size in others.items():
        typer.echo(f"  other: {name}, {_megabytes(size)}")


@cache_app.command("clear", epilog="Example: gradwire cache clear")
@for_people
def cmd_clear(as_json: Json = False) -> None:
    """Remove every compiled engine and the functions that they share; they are recompiled when needed. The kernel for
    virtual time and the testbed's switches stay."""
    from gradwire.jit.engine_cache import clear

    _refuse_unsafe()
    count = clear()
    typer.echo(json.dumps({"removed": count}) if as_json else f"removed {count} compiled engines")


def _refuse_unsafe() -> None:
    """Raise GradwireError if a cache folder is not used because others may write to it."""
    from gradwire.jit.engine_cache import engines_folder
    from gradwire.scenarios.cache import cache_folder, check_private
    from gradwire.scenarios.errors import GradwireError

    for folder in (cache_folder(), engines_folder()):
        try:
            check_private(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            expected = "a folder of your own that no other user may write to"
            raise GradwireError(f"is not used: {error.strerror}", str(folder), expected) from None


def _line(about: dict[str, Any]) -> str:
    """Return one engine as text."""
    features = ", ".join(about.get("features", ()))
    if not about.get("transports"):
        return features
    parts = [" + ".join(about["transports"]), about.get("load_balancing", "?"), about.get("queues", "?"), features]
    how = about.get("compiled", "?")
    return f"{' / '.join(part for part in parts if part)} (compiled {how} in {about.get('seconds', '?')} s)"


def _size(path: Path) -> int:
    """Return the bytes of the readable files in a folder."""
    total = 0
    with suppress(OSError):
        for file in path.rglob("*") if path.is_dir() else [path]:
            with suppress(OSError):
                total += file.stat().st_size if file.is_file() else 0
    return total


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
