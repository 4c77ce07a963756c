"""Ray: pieces of work as plain tasks of a cluster, one that there is or one that is started here.

Tasks rather than Ray Tune: what a sweep needs is which points are done, and that it knows from its own records, by
content. The cluster gets a copy of the package with it, and a folder that tasks find as their working directory, so
nothing has to be installed there but Ray and what gradwire itself needs (NumPy, Numba, pydantic, pyarrow, ...), and
no disk shared. Whoever has connected to a cluster before (`ray.init`) has said what its tasks find, and gets neither.

What is measured comes back to where the sweep was begun, which writes it. A node that is lost takes the tasks that
it had along, and a task may take its process along: they are handed out again, `TRIES` times in all, and cost their
point then.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradwire.processes import Ended, Work
from gradwire.scenarios.errors import GradwireError, MissingExtraError

TRIES = 3
PER_CORE = 2
"""Tasks that are handed out for every processor of the cluster, so that none waits for us."""
LISTENED_S = 0.5
CONNECTED_S = 10.0


def play_on_ray(
    works: Sequence[Work[Any]],
    address: str | None = None,
    jobs: int | None = None,
    until: float | None = None,
    begun: Callable[[str], object] = lambda key: None,
    folder: Path | None = None,
) -> Iterator[Ended]:
    """Run pieces on a cluster, and yield each when it has ended; like `gradwire.processes.play`.

    Parameters
    ----------
    address : such as "ray://head:10001" or "auto"; a cluster of this machine alone is started if absent.
    jobs : tasks at a time; by default the cluster decides.
    until : of `time.monotonic`: when what is under way is given up; never if absent.
    begun : called with the key of a piece that is handed out.
    folder : taken to every node, where it is the working directory; none if absent.

    Raises
    ------
    MissingExtraError
        Ray is not installed.
    GradwireError
        There is no cluster at `address`, or its nodes lack something that gradwire needs.
    """
    ray = _ray()
    with _cluster(ray, address, jobs, folder):
        yield from _played(ray, list(works), jobs, until, begun)


def _ray() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


@contextmanager
def _cluster(ray: Any, address: str | None, jobs: int | None, sent: Path | None) -> Iterator[None]:
    """Connected to a cluster; one that was connected to before stays so."""
    if ray.is_initialized():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        # without symbolic links, which Ray's archives do not follow
        package = Path(folder) / "gradwire"
        here = Path(__file__).resolve().parent
        shutil.copytree(here, package, ignore=shutil.ignore_patterns("__pycache__"))
        shipped: dict[str, Any] = {"py_modules": [str(package)], "env_vars": _environment()}
        if sent is not None:
            shipped["working_dir"] = str(sent)
        given: dict[str, Any] = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(runtime_env=shipped, log_to_driver=False, logging_level="ERROR", **given)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            what = f"no Ray cluster: {str(error).strip().splitlines()[0]}"
            raise GradwireError(what, address or "ray", "that of one that is up, or none") from None
        try:
            yield
        finally:
            ray.shutdown()


def check_reachable(address: str | None) -> None:
    """Whether Ray is here, and somebody listens at an address; Ray itself would try for minutes.

    Raises
    ------
    MissingExtraError
        Ray is not installed.
    GradwireError
        Nobody listens.
    """
    _ray()
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), CONNECTED_S).close()
    except OSError as error:
        what = f"no Ray cluster: {error.strerror or error}"
        raise GradwireError(what, str(address), "that of one that is up, or none") from None


def _environment() -> dict[str, str]:
    """What of the environment decides where engines are kept."""
    return {key: os.environ[key] for key in ("GRADWIRE_CACHE",) if key in os.environ}


def _played(
    ray: Any, waiting: list[Work[Any]], jobs: int | None, until: float | None, begun: Callable[[str], object]
) -> Iterator[Ended]:
    task = ray.remote(num_cpus=1, max_retries=0)(_call)
    tries: dict[str, int] = {}
    under_way: dict[Any, Work[Any]] = {}
    try:
        while waiting or under_way:
            most = jobs or max(1, int(ray.cluster_resources().get("CPU", 1))) * PER_CORE
            while waiting and len(under_way) < most:
                work = waiting.pop(0)
                begun(work.key)
                tries[work.key] = tries.get(work.key, 0) + 1
                under_way[task.remote(work.call, work.arguments)] = work
            done, _ = ray.wait(list(under_way), timeout=LISTENED_S)
            for each in done:
                work = under_way.pop(each)
                try:
                    yield Ended(work, ray.get(each))
                except ray.exceptions.RuntimeEnvSetupError as error:
                    what = f"its nodes cannot take what they are sent: {str(error).strip().splitlines()[-1]}"
                    raise GradwireError(what, "the Ray cluster", "nodes that can") from None
                except ray.exceptions.RayTaskError as error:
                    yield Ended(work, error=_cause(error))
                except ray.exceptions.RayError as error:  # its process, or its node, is gone
                    if tries[work.key] < TRIES:
                        waiting.insert(0, work)
                    else:
                        yield Ended(work, lost=f"lost {TRIES} times, at last by {type(error).__name__}")
            if until is not None and time.monotonic() >= until:
                return
    finally:
        for each in under_way:
            ray.cancel(each, force=True)


def _cause(error: Any) -> Exception:
    """What a task has raised. Raises GradwireError if it could not even begin for want of a module."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    if isinstance(cause, ModuleNotFoundError):
        what = f"on its nodes there is {str(cause)[:1].lower()}{str(cause)[1:]}"
        expected = "what gradwire needs: pip install numpy numba pydantic ..."
        raise GradwireError(what, "the Ray cluster", expected) from None
    return cause


def _call(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """A task."""
    return call(*arguments)
