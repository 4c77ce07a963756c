"""The door's command for what is kept on disk: compiled engines, and how much the rest takes."""

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
    help="Compiled engines, kept in $GRADWIRE_CACHE or ~/.cache/gradwire: show them, clear them.",
    invoke_without_command=True,
    rich_markup_mode="markdown",
    epilog="Example: gradwire cache --json",
)


def register(app: typer.Typer) -> None:
    """Add the command to the door's."""
    app.add_typer(cache_app, name="cache")


@cache_app.callback()
@for_people
def cmd_cache(context: typer.Context, as_json: Json = False) -> None:
    """Show what is kept: every compiled engine, the one that was used last first, and what else lies there."""
    if context.invoked_subcommand is not None:
        return
    from gradwire.components.engines import FUNCTIONS, engines_folder, kept_engines, unreadable
    from gradwire.scenarios.cache import cache_folder

    _refuse_unsafe()
    kept, folder = kept_engines(), cache_folder()
    others = {each.name: _size(each) for each in sorted(folder.glob("*")) if each != engines_folder()}
    if os.access(functions := engines_folder() / FUNCTIONS, os.F_OK):
        others[FUNCTIONS] = _size(functions)
    for place in unreadable():
        typer.echo(f"note: {place}: may not be read: another user has made it", err=True)
    if as_json:
        engines = [{"identity": each.identity, "bytes": each.size, "used": each.used, **each.about} for each in kept]
        typer.echo(json.dumps({"folder": str(folder), "engines": engines, "others": others}))
        return
    total = sum(each.size for each in kept)
    typer.echo(f"{folder}: {len(kept)} compiled engines, {_megabytes(total)}")
    for each in kept:
        typer.echo(f"  {_line(each.about)}, {_megabytes(each.size)}, used {_ago(time.time() - each.used)}")
    for name, size in others.items():
        typer.echo(f"  besides: {name}, {_megabytes(size)}")


@cache_app.command("clear", epilog="Example: gradwire cache clear")
@for_people
def cmd_clear(as_json: Json = False) -> None:
    """Remove every compiled engine, and the functions that they share; the next run that needs one compiles it again.
    The kernel for virtual time and the testbed's switches stay."""
    from gradwire.components.engines import clear

    _refuse_unsafe()
    count = clear()
    typer.echo(json.dumps({"removed": count}) if as_json else f"removed {count} compiled engines")


def _refuse_unsafe() -> None:
    """Raise GradwireError if there is a cache folder that gradwire does not use, because others may write to it."""
    from gradwire.components.engines import engines_folder
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
    """One engine in words."""
    features = ", ".join(about.get("features", ()))
    if not about.get("transports"):
        return features
    parts = [" + ".join(about["transports"]), about.get("load_balancing", "?"), about.get("queues", "?"), features]
    how = about.get("compiled", "?")
    return f"{' / '.join(part for part in parts if part)} (compiled {how} in {about.get('seconds', '?')} s)"


def _size(path: Path) -> int:
    """Bytes of the files in a folder that may be read."""
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
