"""Builds the kernel that virtual time needs: User-Mode Linux with time travel, from a long-term kernel's source.

A User-Mode Linux kernel is an ordinary program. In time-travel mode [Documentation/virt/uml, `time-travel=inf-cpu`] its
clock stands still while anything computes and jumps to the next timer when everything sleeps. Distributions build
theirs without that mode, so this one is built here, once: `allnoconfig` with the options of `kernel.config`, all
built in, and a few small edits of the source (`gradwire.emu.uml.edits`). It takes a few minutes, the result is 8 MB,
and it is kept in the cache, outside of any checkout, under a name that depends on everything that went into it.

    python -m gradwire.emu.uml.build            # needs: linux-source-6.1 gcc make flex bison bc xz-utils

The edits fit Linux 6.1 and 6.12, and whatever else they are found in.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gradwire.emu.switches.base import TestbedError
from gradwire.emu.uml.edits import EDITS, edit
from gradwire.scenarios.advice import build_kernel, is_checkout
from gradwire.scenarios.cache import cache_folder, check_private, private_folder

SOURCES = Path("/usr/src")
OPTION = b"time-travel"
"""Of the command line of such a kernel, which has it as text."""
TELL_S = 10.0
"""How often a build says how far it is; our choice."""
VERSIONS = ("6.1", "6.12")
"""Kernels that these edits have been tried with, in the order in which their sources are looked for."""
SOURCE = "the source of Linux 6.1 or 6.12"
PACKAGES = "linux-source-6.1 gcc make flex bison bc xz-utils"
TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "tar")
SETTLED = {"RANDOM_TRUST_CPU": "drivers/char/Kconfig"}
"""Options of the fragment that newer kernels have no longer, because it is always so, and where others have them."""
FRAGMENT = Path(__file__).with_name("kernel.config")
MINUTES = 40
"""Longest time for the build; our choice."""

def recipe() -> str:
    """A hash of everything of ours that goes into the kernel."""
    content = FRAGMENT.read_bytes() + repr([tuple(each) for each in EDITS]).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def find_kernel() -> Path | None:
    """The kernel that was built last by this recipe, or the one that $GRADWIRE_UML names; None if there is none.

    Raises
    ------
    TestbedError
        $GRADWIRE_UML names no program, or none whose time can stand still; or others may write where kernels are built.
    """
    named = os.environ.get("GRADWIRE_UML")
    if named:
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise TestbedError("is no program", f"GRADWIRE_UML={named}", "a User-Mode Linux kernel")
        if OPTION not in Path(named).read_bytes():
            raise TestbedError(
                "is no User-Mode Linux kernel with time travel", f"GRADWIRE_UML={named}",
                f"one that `{build_kernel()}` has built, or nothing there",
            )  # fmt: skip
        return Path(named)
    found = _built()
    return max(found, key=lambda path: path.stat().st_mtime_ns) if found else None


def _built(version: str = "*") -> list[Path]:
    """Kernels that have been built by this recipe: of 6.1.192 those of 6.1, too."""
    folder = cache_folder() / "uml"
    if not folder.is_dir():
        return []
    try:
        check_private(folder)
    except OSError as error:
        raise _refused(folder, error) from None
    return sorted({*folder.glob(f"linux-{version}-{recipe()}"), *folder.glob(f"linux-{version}.*-{recipe()}")})


def _refused(folder: Path, error: OSError) -> TestbedError:
    """Return what to raise where the folder of built kernels cannot be trusted, or not be used."""
    expected = "a folder of your own that no other user may write to; GRADWIRE_CACHE names another one"
    return TestbedError(str(error.strerror), str(folder), expected)


def version_of(source: Path) -> str:
    """The kernel's version as a tarball's name has it, such as "6.12"; "" where it has none."""
    found = re.search(r"linux-(?:source-)?(\d+\.\d+(?:\.\d+)?)", source.name)
    return found[1] if found else ""


def find_source(given: Path | None = None) -> Path:
    """The tarball of a kernel's source: a given one, or that of a package of Debian or Ubuntu.

    Raises
    ------
    TestbedError
        It or a tool is missing; names the packages.
    """
    install = f"sudo apt-get install --no-install-recommends {PACKAGES}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise TestbedError(f"{', '.join(missing)}: not found", "the virtual-time kernel", install)
    if given is not None:
        if not given.is_file():
            raise TestbedError("is no file", str(given), f"a tarball of {SOURCE}, such as linux-6.1.tar.xz")
        return given
    from_source = "make uml SOURCE=" if is_checkout() else f"{build_kernel()} --source "
    from_source += "linux-6.1.tar.xz"
    found = [*SOURCES.glob("linux-source-*.tar.*"), *SOURCES.glob("linux-source-*/linux-source-*.tar.*")]  # Ubuntu's
    if not found:
        raise TestbedError(
            f"no linux-source-6.1.tar.xz in {SOURCES}", "the virtual-time kernel",
            f"{install} (Debian 12; linux-source-6.12 in Debian 13), or {from_source} (kernel.org)",
        )  # fmt: skip

    def place(path: Path) -> tuple[int, str]:
        version = version_of(path)
        return VERSIONS.index(version) if version in VERSIONS else len(VERSIONS), path.name

    return min(found, key=place)


def _print(text: str) -> None:
    print(text, flush=True)


def build(
    say: Callable[[str], None] = _print, jobs: int | None = None, tarball: Path | None = None
) -> Path:
    """Build the kernel, unless it is there already, and return it; `tarball`: see `find_source`. A given one is built
    although there is a kernel of another version, and is the one that is used from then on.

    Raises
    ------
    TestbedError
        Something is missing, an option was not taken, or the compiler failed; the log's last lines are in the message.
    """
    there = ready(tarball)
    if there is not None:
        return there
    source = find_source(tarball)
    try:
        folder = private_folder("uml")
    except OSError as error:
        raise _refused(cache_folder() / "uml", error) from None
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
    log = folder / "build.log"
    try:
        with log.open("wb") as out:
            say(f"unpacking {source.name} (1.4 GB, removed afterwards)")
            _call(["tar", "-xf", str(source.resolve()), "-C", str(work), "--strip-components=1"], work, out, log, say)
            edit(work)
            say("configuring")
            configure = ["make", "ARCH=um", "allnoconfig", f"KCONFIG_ALLCONFIG={FRAGMENT}"]
            _call(configure, work, out, log, say)
            _check_options(work / ".config", work)
            say("compiling (a few minutes)")
            _call(["make", "ARCH=um", f"-j{jobs or os.cpu_count() or 1}", "linux"], work, out, log, say)
        version = subprocess.run(
            ["make", "-s", "ARCH=um", "kernelrelease"], cwd=work, capture_output=True, text=True, timeout=60
        ).stdout.strip()
        target = folder / f"linux-{version}-{recipe()}"
        os.replace(work / "linux", target)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def ready(tarball: Path | None) -> Path | None:
    """The kernel that need not be built: any, or one of the version of a given tarball, which is used from now on."""
    if tarball is None:
        return find_kernel()
    version = version_of(find_source(tarball))
    built = _built(version) if version else []
    if not built:
        return None
    built[-1].touch()
    return built[-1]


def _call(command: list[str], cwd: Path, out: BinaryIO, log: Path, say: Callable[[str], None]) -> None:
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=cwd, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        while (took := time.monotonic() - begin) < 60 * MINUTES:
            try:
                process.wait(timeout=TELL_S)
                break
            except subprocess.TimeoutExpired:
                last = log.read_text(errors="replace").splitlines()[-1:] or [command[0]]
                say(f"  {took + TELL_S:.0f} s: {' '.join(last[0].split())[:60]}")
        else:
            late = f"{command[0]} was not done in {MINUTES} minutes"
            raise TestbedError(late, "the virtual-time kernel", f"see {log}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        tail = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise TestbedError(f"{' '.join(command[:3])} failed: {tail}", "the virtual-time kernel", f"see {log}")


def _check_options(config: Path, source: Path) -> None:
    """Options that depend on others are dropped without a word: look. Those of `SETTLED` may be gone from a source."""
    taken = set(config.read_text().splitlines())
    wanted = [line for line in FRAGMENT.read_text().splitlines() if line.startswith("CONFIG_")]
    lost = [line for line in wanted if line not in taken and not _settled(line, source)]
    if lost:
        raise TestbedError(f"options not taken: {', '.join(lost)}", "the virtual-time kernel", SOURCE)


def _settled(line: str, source: Path) -> bool:
    name = line.partition("=")[0].removeprefix("CONFIG_")
    place = SETTLED.get(name)
    return place is not None and f"config {name}\n" not in (source / place).read_text()


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m gradwire.emu.uml.build", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is built or could be")
    parser.add_argument("--source", type=Path, help=f"tarball of {SOURCE}; else that of a package")
    parser.add_argument("--jobs", type=int, help="compilers at once; one per core unless given")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            print(ready(arguments.source) or f"to be built from {find_source(arguments.source)}")
            return 0
        print(build(jobs=arguments.jobs, tarball=arguments.source))
    except TestbedError as error:
        print(f"{error.where}: {error.what} ({error.expected})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
