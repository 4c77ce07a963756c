"""`run_on_ray` runs tasks on a Ray cluster, an existing one or one started here, and retries lost ones.

Tasks rather than Ray Tune: a sweep needs to know which points are done, and its own records say that, by content. The
cluster gets a copy of the package, and a folder that is the tasks' working directory, so nothing has to be installed
there but Ray and gradwire's dependencies (NumPy, Numba, pydantic, pyarrow, ...), and no disk is shared. A cluster that
was connected before (`ray.init`) has its own runtime environment, and gets neither.

Measurements come back to the machine that started the sweep, which writes them. A lost node loses its tasks, and a task
may kill its process: they are retried, `MAX_ATTEMPTS` attempts in all, and then the point fails.
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

import gradwire
from gradwire.scenarios.errors import GradwireError, import_extra
from gradwire.studies.parallel.process_pool import Task, TaskOutcome

MAX_ATTEMPTS = 3
TASKS_PER_CORE = 2
"""Tasks submitted for every processor of the cluster, so that none waits."""
POLL_S = 0.5
CONNECT_TIMEOUT_S = 10.0


def run_on_ray(
    works: Sequence[Task[Any]],
    address: str | None = None,
    jobs: int | None = None,
    until: float | None = None,
    begun: Callable[[str], object] = lambda key: None,
    folder: Path | None = None,
) -> Iterator[TaskOutcome]:
    """Run pieces on a cluster, and yield each when it has ended; like
    `gradwire.studies.parallel.process_pool.run_tasks`.

    address : such as "ray://head:10001" or "auto"; if absent, a cluster of this machine alone is started.
    jobs : tasks at a time; by default the cluster decides.
    until : of `time.monotonic`: pieces still running then are aborted; never if absent.
    begun : called with the key of a submitted piece.
    folder : sent to every node as its working directory; none if absent.

    Raises MissingExtraError if Ray is not installed. Raises GradwireError if there is no cluster at `address`, or its
    nodes lack something that gradwire needs.
    """
    ray = import_extra("ray", "ray")
    with _cluster(ray, address, jobs, folder):
        yield from _run_tasks(ray, list(works), jobs, until, begun)


@contextmanager
def _cluster(ray: Any, address: str | None, jobs: int | None, working_dir: Path | None) -> Iterator[None]:
    """Connect to a cluster; an existing connection is kept."""
    if ray.is_initialized():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="gradwire-") as folder:
        # a copy without symbolic links, which Ray's archives do not follow
        package = Path(folder) / "gradwire"
        root = Path(gradwire.__file__).resolve().parent
        shutil.copytree(root, package, ignore=shutil.ignore_patterns("__pycache__"))
        runtime_env: dict[str, Any] = {"py_modules": [str(package)], "env_vars": _environment()}
        if working_dir is not None:
            runtime_env["working_dir"] = str(working_dir)
        options: dict[str, Any] = {"address": address} if address else {"num_cpus": jobs, "include_dashboard": False}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            ray.init(runtime_env=runtime_env, log_to_driver=False, logging_level="ERROR", **options)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            what = f"no Ray cluster: {str(error).strip().splitlines()[0]}"
            raise GradwireError(what, address or "ray", "the address of a running cluster, or none") from None
        try:
            yield
        finally:
            ray.shutdown()


def check_reachable(address: str | None) -> None:
    """Check that Ray is installed and a server listens at an address; Ray itself would retry for minutes. Raises
    MissingExtraError if Ray is not installed. Raises GradwireError if no server listens."""
    import_extra("ray", "ray")
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        what = f"no Ray cluster: {error.strerror or error}"
        raise GradwireError(what, str(address), "the address of a running cluster, or none") from None


def _environment() -> dict[str, str]:
    """Return the environment variables that determine the engine cache."""
    return {key: os.environ[key] for key in ("GRADWIRE_CACHE",) if key in os.environ}


def _run_tasks(
    ray: Any, waiting: list[Task[Any]], jobs: int | None, until: float | None, begun: Callable[[str], object]
) -> Iterator[TaskOutcome]:
    task = ray.remote(num_cpus=1, max_retries=0)(_call)
    tries: dict[str, int] = {}
    under_way: dict[Any, Task[Any]] = {}
    try:
        while waiting or under_way:
            limit = jobs or max(1, int(ray.cluster_resources().get("CPU", 1))) * TASKS_PER_CORE
            while waiting and len(under_way) < limit:
                work = waiting.pop(0)
                begun(work.key)
                tries[work.key] = tries.get(work.key, 0) + 1
                under_way[task.remote(work.call, work.arguments)] = work
            done, _ = ray.wait(list(under_way), timeout=POLL_S)
            for reference in done:
                work = under_way.pop(reference)
                try:
                    yield TaskOutcome(work, ray.get(reference))
                except ray.exceptions.RuntimeEnvSetupError as error:
                    what = f"its nodes cannot set up the runtime environment: {str(error).strip().splitlines()[-1]}"
                    raise GradwireError(what, "the Ray cluster", "nodes that accept it") from None
                except ray.exceptions.RayTaskError as error:
                    yield TaskOutcome(work, error=_cause(error))
                except ray.exceptions.RayError as error:  # its process or node died
                    if tries[work.key] < MAX_ATTEMPTS:
                        waiting.insert(0, work)
                    else:
                        yield TaskOutcome(work, lost=f"lost {MAX_ATTEMPTS} times, last by {type(error).__name__}")
            if until is not None and time.monotonic() >= until:
                return
    finally:
        for reference in under_way:
            ray.cancel(reference, force=True)


def _cause(error: Any) -> Exception:
    """Return the exception of a task. Raises GradwireError if a missing module kept it from starting."""
    cause = error.cause if isinstance(error.cause, Exception) else error
    if isinstance(cause, ModuleNotFoundError):
        what = f"on its nodes there is {str(cause)[:1].lower()}{str(cause)[1:]}"
        expected = "what gradwire needs: pip install numpy numba pydantic ..."
        raise GradwireError(what, "the Ray cluster", expected) from None
    return cause


def _call(call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a piece; the body of a task."""
    return call(*arguments)
