"""Builds the virtual-time kernel, User-Mode Linux with time travel, from the source of a long-term kernel.

A User-Mode Linux kernel is an ordinary program. In time-travel mode [Documentation/virt/uml, `time-travel=inf-cpu`] its
clock stands still while anything computes and jumps to the next timer when everything sleeps. Distributions build
theirs without that mode, so it is built here once: `allnoconfig` with the options of `kernel.config`, all built in, and
a few small edits of the source (`gradwire.emu.virtual_time.kernel_patches`). It takes a few minutes; the result of 8 MB
is stored in the cache, outside of any checkout, under a name that depends on all inputs.

    python -m gradwire.emu.virtual_time.kernel_build    # needs: linux-source-6.1 gcc make flex bison bc xz-utils

The edits fit Linux 6.1 and 6.12, and other versions in which all patterns are found.
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
from functools import partial
from pathlib import Path
from typing import BinaryIO

from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.virtual_time.kernel_patches import EDITS, edit
from gradwire.scenarios.advice import build_kernel, is_checkout
from gradwire.scenarios.cache import cache_folder, check_private, private_folder

SOURCES = Path("/usr/src")
OPTION = b"time-travel"
"""Option of the kernel's command line; the text appears in its program file."""
PROGRESS_S = 10.0
"""Interval of progress messages; our choice."""
VERSIONS = ("6.1", "6.12")
"""Kernel versions tested with these edits, in order of preference."""
SOURCE = "the source of Linux 6.1 or 6.12"
PACKAGES = "linux-source-6.1 gcc make flex bison bc xz-utils"
TOOLS = ("gcc", "make", "flex", "bison", "bc", "xz", "tar")
ALWAYS_ON = {"RANDOM_TRUST_CPU": "drivers/char/Kconfig"}
"""Options of the fragment that newer kernels lack because they are always on, and the file that defines them."""
FRAGMENT = Path(__file__).with_name("kernel.config")
MINUTES = 40
"""Time limit of a build step; our choice."""
_say = partial(print, flush=True)


def recipe() -> str:
    """Return a hash of gradwire's inputs to the kernel."""
    content = FRAGMENT.read_bytes() + repr([tuple(edit_rule) for edit_rule in EDITS]).encode()
    return hashlib.sha256(content).hexdigest()[:12]


def find_kernel() -> Path | None:
    """Return the last kernel built by this recipe, or the one named by $GRADWIRE_UML; None if there is none. Raises
    TestbedError: $GRADWIRE_UML is not a program with time travel; or others may write to the folder of kernels."""
    named = os.environ.get("GRADWIRE_UML")
    if named:
        if not os.access(named, os.X_OK) or not Path(named).is_file():
            raise TestbedError("not a program", f"GRADWIRE_UML={named}", "a User-Mode Linux kernel")
        if OPTION not in Path(named).read_bytes():
            raise TestbedError(
                "not a User-Mode Linux kernel with time travel",
                f"GRADWIRE_UML={named}",
                f"one built by `{build_kernel()}`, or no value",
            )
        return Path(named)
    kernels = _built()
    return max(kernels, key=lambda path: path.stat().st_mtime_ns) if kernels else None


def _built(version: str = "*") -> list[Path]:
    """Return the kernels built by this recipe; version 6.1 includes 6.1.192."""
    folder = cache_folder() / "uml"
    if not folder.is_dir():
        return []
    try:
        check_private(folder)
    except OSError as error:
        raise _refused(folder, error) from None
    return sorted({*folder.glob(f"linux-{version}-{recipe()}"), *folder.glob(f"linux-{version}.*-{recipe()}")})


def _refused(folder: Path, error: OSError) -> TestbedError:
    """Return the error for a folder of kernels that cannot be trusted or used."""
    expected = "your own folder that no other user may write to; set GRADWIRE_CACHE to use another one"
    return TestbedError(str(error.strerror), str(folder), expected)


def version_of(source: Path) -> str:
    """Return the kernel version in a tarball's name, such as "6.12"; "" if it has none."""
    match = re.search(r"linux-(?:source-)?(\d+\.\d+(?:\.\d+)?)", source.name)
    return match[1] if match else ""


def find_source(given: Path | None = None) -> Path:
    """Return the tarball of a kernel's source: a given one, or that of a Debian or Ubuntu package. Raises TestbedError:
    it or a tool is missing; the message names the packages."""
    install = f"sudo apt-get install --no-install-recommends {PACKAGES}"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise TestbedError(f"{', '.join(missing)}: not found", "the virtual-time kernel", install)
    if given is not None:
        if not given.is_file():
            raise TestbedError("no such file", str(given), f"a tarball of {SOURCE}, such as linux-6.1.tar.xz")
        return given
    from_source = "make uml SOURCE=" if is_checkout() else f"{build_kernel()} --source "
    from_source += "linux-6.1.tar.xz"
    tarballs = [*SOURCES.glob("linux-source-*.tar.*"), *SOURCES.glob("linux-source-*/linux-source-*.tar.*")]  # Ubuntu's
    if not tarballs:
        raise TestbedError(
            f"no linux-source-6.1.tar.xz in {SOURCES}",
            "the virtual-time kernel",
            f"{install} (Debian 12; linux-source-6.12 in Debian 13), or {from_source} (kernel.org)",
        )

    def preference(path: Path) -> tuple[int, str]:
        version = version_of(path)
        return VERSIONS.index(version) if version in VERSIONS else len(VERSIONS), path.name

    return min(tarballs, key=preference)


def build(say: Callable[[str], None] = _say, jobs: int | None = None, tarball: Path | None = None) -> Path:
    """Build the kernel, unless it exists, and return it; `tarball`: see `find_source`.

    A given tarball is built even if there is a kernel of another version, and is used from then on. Raises
    TestbedError: something is missing, an option was not accepted, or the compiler failed; the message has the log's
    last lines.
    """
    existing = existing_kernel(tarball)
    if existing is not None:
        return existing
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


def existing_kernel(tarball: Path | None) -> Path | None:
    """Return an existing kernel: any, or one of a given tarball's version, which is used from now on."""
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
        while (elapsed := time.monotonic() - begin) < 60 * MINUTES:
            try:
                process.wait(timeout=PROGRESS_S)
                break
            except subprocess.TimeoutExpired:
                last = log.read_text(errors="replace").splitlines()[-1:] or [command[0]]
                say(f"  {elapsed + PROGRESS_S:.0f} s: {' '.join(last[0].split())[:60]}")
        else:
            message = f"{command[0]} took longer than {MINUTES} minutes"
            raise TestbedError(message, "the virtual-time kernel", f"see {log}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode:
        tail = " | ".join(log.read_text(errors="replace").splitlines()[-3:])
        raise TestbedError(f"{' '.join(command[:3])} failed: {tail}", "the virtual-time kernel", f"see {log}")


def _check_options(config: Path, source: Path) -> None:
    """Raise TestbedError if an option was silently dropped; those of `ALWAYS_ON` may be missing in a source."""
    accepted = set(config.read_text().splitlines())
    requested = [line for line in FRAGMENT.read_text().splitlines() if line.startswith("CONFIG_")]
    dropped = [line for line in requested if line not in accepted and not _settled(line, source)]
    if dropped:
        raise TestbedError(f"options not accepted: {', '.join(dropped)}", "the virtual-time kernel", SOURCE)


def _settled(line: str, source: Path) -> bool:
    name = line.partition("=")[0].removeprefix("CONFIG_")
    file = ALWAYS_ON.get(name)
    return file is not None and f"config {name}\n" not in (source / file).read_text()


def main() -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m gradwire.emu.virtual_time.kernel_build", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--check", action="store_true", help="only report the kernel or the source to build it from")
    parser.add_argument("--source", type=Path, help=f"tarball of {SOURCE}; default: that of a package")
    parser.add_argument("--jobs", type=int, help="parallel compiler processes; default: one per core")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            print(existing_kernel(arguments.source) or f"to be built from {find_source(arguments.source)}")
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
