"""Compile the engine for one combination of transports, load balancer and queue policy.

The compiled steps in `sim.fabric.core` import the functions they are bound to from a sibling module, `bound`. For each
combination this module writes that sibling - a few lines of dispatch that import the chosen functions under fixed
names - puts it into a package of its own whose other modules are the files of `core`, and imports the package. So the
steps exist once as source, and once in memory per combination, at full speed and without a function pointer.

Numba keeps compiled code on disk and checks only the file of the outermost function. A change in a file that it calls
would go unnoticed, so the cache folder of a combination carries a hash of every source that goes into it: an outdated
kernel can never run, and old folders are harmless. The folder is `$GRADWIRE_CACHE`, by default `gradwire` in the user's
cache folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.machinery
import importlib.util
import os
import signal
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy

import sim.fabric.core
from scenarios.errors import ScenarioError
from sim.balancers.base import Balancer
from sim.transports.base import Deaf

COMPILE_SECONDS = 300  # a child that compiles longer is given up

SENDER_SIDE = ("start", "pull", "on_control", "on_timer")
RECEIVER_SIDE = ("on_data", "on_probe", "on_trimmed")
BALANCER_SIDE = ("choose", "pick", "heard")
ARGUMENTS = {
    "start": "now",
    "pull": "now",
    "on_control": "kind, sequence, argument, echo, now",
    "on_timer": "now",
    "on_data": "sequence, size, ce, now",
    "on_probe": "argument, now",
    "on_trimmed": "sequence, now",
}


@dataclass(frozen=True)
class Features:
    """What the engine of a run can do beyond the usual; what is off costs nothing.

    `shared`: the ports of a switch share its buffer. `turns`: some classes of a port take turns. `trims`: packets are
    cut to their headers. `pauses`: priority flow control. `ranks`: shortest message first within a class. `faults`:
    hosts may stand still and routes may be missing. `delays`: waiting times are counted.
    """

    shared: bool = False
    turns: bool = False
    trims: bool = False
    pauses: bool = False
    ranks: bool = False
    faults: bool = False
    delays: bool = False


@dataclass(frozen=True)
class Kernel:
    """The compiled entry points of one combination."""

    advance: Any
    work: Any
    post: Any
    identity: str


def resolve(kinds: dict[str, str], name: str, where: str, folder: Path | None = None) -> Any:
    """The class behind a registered name or behind "module:Class", a module that may lie in `folder`.

    Raises
    ------
    ScenarioError
        The name is neither registered nor importable.
    """
    path = kinds.get(name, name)
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise ScenarioError(
            f"{name!r} is not known", where, f"one of {', '.join(sorted(kinds))}, or module:Class"
        )
    try:
        module = importlib.import_module(module_name) if name in kinds else _user_module(module_name, folder)
        return getattr(module, attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ScenarioError(
            f"{name!r} cannot be loaded: {error}", where, "an importable module:Class"
        ) from error


def _user_module(name: str, folder: Path | None) -> types.ModuleType:
    """A module of the user's own: the file of that name in `folder` (by default the working directory), else whatever
    Python finds. A file is known by its path and content, so two scenarios may name two files alike."""
    folder = folder or Path.cwd()
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    if not file.is_file():
        return importlib.import_module(name)
    digest = hashlib.sha256(str(file).encode() + b"\0" + file.read_bytes()).hexdigest()[:12]
    unique = f"gradwire_user_{digest}"
    if unique in sys.modules:
        return sys.modules[unique]
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # for what it imports from beside it
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _location(owner: type, name: str) -> tuple[str, str]:
    function = getattr(owner, name).py_func
    return function.__module__, function.__qualname__


def _source(transports: list[type], balancer: type, queue: type, features: Features) -> str:
    lines = ['"""Written by sim.fabric.specialise."""', "from numba import njit"]
    lines.append("from sim.fabric.layout import H_PARAMS, PARAM_WORDS, R_KIND, S_KIND")
    for function in BALANCER_SIDE:
        owner = balancer if hasattr(balancer, function) else Balancer
        module, name = _location(owner, function)
        lines.append(f"from {module} import {name} as {function}")
    lines.append(f"SEES_QUEUES = {bool(getattr(balancer, 'sees_queues', False))}")
    lines.append(f"HOST_PATHS = {hasattr(balancer, 'pick') and balancer.pick is not Balancer.pick}")
    lines.append(f"SOURCE_ROUTES = {bool(getattr(balancer, 'source_routes', False))}")
    stamps = any(hasattr(transport, "stamp_slots") for transport in transports)
    lines.append(f"STAMPS = {stamps}")
    lines.append(f"RIDES = {stamps or any(getattr(transport, 'rides', False) for transport in transports)}")
    lines.append(f"PULLS = {any(getattr(transport, 'pulls', False) for transport in transports)}")
    for feature, on in asdict(features).items():
        lines.append(f"{feature.upper()} = {on}")
    module, name = _location(queue, "admit")
    lines.append(f"from {module} import {name} as admit")
    for function in SENDER_SIDE + RECEIVER_SIDE:
        record, kind = ("f", "S_KIND") if function in SENDER_SIDE else ("r", "R_KIND")
        for i, transport in enumerate(transports):
            module, name = _location(transport if hasattr(transport, function) else Deaf, function)
            lines.append(f"from {module} import {name} as {function}_{i}")
        arguments = ARGUMENTS[function]
        lines += ["@njit", f"def {function}(M, {record}, {arguments}):"]
        if len(transports) > 1:
            lines.append(f"    transport = M[{record} + {kind}]")  # no name of an argument: `kind` is one
        for i in range(len(transports)):
            last = i == len(transports) - 1
            indent = "    " if last else "        "
            if not last:
                lines.append(f"    if transport == {i}:")
            call = f"{function}_{i}(M, M[H_PARAMS] + {i} * PARAM_WORDS, {record}, {arguments})"
            lines.append(f"{indent}return {call}")
    return "\n".join(lines) + "\n"


def _digest(source: str, classes: list[type]) -> str:
    """A hash of everything that is compiled into a combination."""
    digest = hashlib.sha256(source.encode())
    root = Path(sim.fabric.__path__[0])
    files = sorted(root.rglob("*.py")) + sorted((root.parent / "transports").glob("*.py"))
    for function in _reachable([function for owner in classes for function in _functions(owner)]):
        file = sys.modules[function.__module__].__file__
        if file is not None:
            files.append(Path(file))
        digest.update(repr(_constants(function)).encode())
    files = sorted(set(files))
    for path in files:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    digest.update(f"{numba.__version__} {numpy.__version__} {sys.version}".encode())
    return digest.hexdigest()[:20]


def _reachable(functions: list[Any]) -> list[Any]:
    """These functions and all compiled ones that they call, however deep, each once."""
    found: dict[Any, None] = {}
    waiting = functions[::-1]
    while waiting:
        function = waiting.pop()
        if function not in found:
            found[function] = None
            waiting += [value.py_func for _, value in _names(function) if hasattr(value, "py_func")]
    return list(found)


def _names(function: Any) -> list[tuple[str, Any]]:
    """What the names in a function mean outside of it, those behind the name of a module included."""
    names, around = sorted(function.__code__.co_names), function.__globals__
    modules = [around[name] for name in names if isinstance(around.get(name), types.ModuleType)]
    spaces = [around, *(vars(module) for module in modules)]
    return [(name, space[name]) for space in spaces for name in names if name in space]


def _constants(function: Any) -> list[tuple[str, Any]]:
    """The numbers that are compiled into a function, wherever they are from."""
    return [(name, value) for name, value in _names(function) if isinstance(value, (int, float, tuple))]


def _functions(owner: type) -> list[Any]:
    names = (*SENDER_SIDE, *RECEIVER_SIDE, *BALANCER_SIDE, "admit")
    return [getattr(owner, name).py_func for name in names if hasattr(owner, name)]


def cache_folder() -> Path:
    """Where compiled kernels are kept; a private temporary folder if that cannot be written."""
    named = os.environ.get("GRADWIRE_CACHE")
    base = (
        Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "gradwire"
    )
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gradwire-"))


@contextlib.contextmanager
def _cached_under(folder: Path) -> Iterator[None]:
    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        numba.config.CACHE_DIR = before


def specialise(
    transports: list[type], balancer: type, queue: type, features: Features | None = None
) -> Kernel:
    """The engine for a list of transports (in the order of their numbers), a load balancer and a queue policy."""
    return _specialise(tuple(transports), balancer, queue, features or Features())


def _compile_in_a_child(module: str) -> None:
    """Import `module` in a child process, which leaves the compiled code in the cache.

    Compiling takes 150 MB that Numba never gives back, and every object in them slows the garbage collection of the
    process that runs. If the child cannot do it, nothing is lost: the parent compiles when it imports the module.
    """
    if not hasattr(os, "fork"):
        return
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what there is to say, the parent says
            importlib.import_module(module)
        finally:
            os._exit(0)
    patience = time.monotonic() + COMPILE_SECONDS
    running = True
    try:
        while running and time.monotonic() < patience:
            running = os.waitpid(child, os.WNOHANG)[0] == 0
            time.sleep(0.02)
    finally:
        if running:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@cache
def _specialise(transports: tuple[type, ...], balancer: type, queue: type, features: Features) -> Kernel:
    source = _source(list(transports), balancer, queue, features)
    identity = _digest(source, [*transports, balancer, queue])
    package_name = f"sim.fabric.core_{identity}"
    package = types.ModuleType(package_name)
    package.__path__ = list(sim.fabric.core.__path__)
    package.__spec__ = importlib.machinery.ModuleSpec(package_name, None, is_package=True)
    sys.modules[package_name] = package
    bound = types.ModuleType(f"{package_name}.bound")
    exec(compile(source, f"<bound {identity}>", "exec"), bound.__dict__)
    sys.modules[bound.__name__] = bound
    folder = cache_folder() / identity
    with _cached_under(folder):
        if not folder.exists():
            _compile_in_a_child(f"{package_name}.engine")
        engine = importlib.import_module(f"{package_name}.engine")
    return Kernel(engine.advance, engine.work, engine.post, identity)
