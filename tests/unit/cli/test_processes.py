"""The pool of processes: what a killed worker costs, errors, groups, a limit of time, and that nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gradwire.result_store.provenance import command_line
from gradwire.scenarios.errors import ScenarioError
from gradwire.studies.parallel.process_pool import Task, free_memory, max_parallel_simulations, run_tasks
from tests.support import pool_work


def works(call: object, *arguments: tuple[object, ...], group: str = "") -> list[Task[object]]:
    return [Task(str(number), call, each, group) for number, each in enumerate(arguments)]  # type: ignore[arg-type]


def test_process_pool_runs_every_task_once() -> None:
    found = list(run_tasks(works(pool_work.square, *((n,) for n in range(20))), 2))
    assert sorted(each.value for each in found) == [n * n for n in range(20)]
    assert sorted(each.work.key for each in found) == sorted(map(str, range(20)))


def test_pool_workers_know_the_command_line_of_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/gradwire", "train", "it's mine", "--jobs", "2"])
    (found,) = run_tasks([Task("a", command_line, ())], 1)
    assert found.value == "gradwire train 'it'\"'\"'s mine' --jobs 2"


def test_killed_worker_loses_only_its_task() -> None:
    """The same holds for a worker that exits without an answer."""
    pieces = works(pool_work.square, *((n,) for n in range(6)))
    pieces[2:2] = [Task("kill", pool_work.killed, ()), Task("exit", pool_work.gone, (3,))]
    found = {each.work.key: each for each in run_tasks(pieces, 2)}
    assert found["kill"].lost == "killed by signal 9 (out of memory?)" and found["exit"].lost == "ended with code 3"
    assert sorted(each.value for each in found.values() if not each.lost) == [0, 1, 4, 9, 16, 25]


def test_task_exceptions_are_returned_unchanged() -> None:
    (found,) = run_tasks([Task("a", pool_work.refused, ("here",))], 1)
    assert isinstance(found.error, ScenarioError) and found.error.where == "here"
    (found,) = run_tasks([Task("a", pool_work.odd, ())], 1)
    assert found.error is not None and "Odd" in str(found.error)


def test_first_task_of_a_group_runs_alone(tmp_path: Path) -> None:
    """Other tasks of the group start after it, while other groups run."""
    pieces = [Task(f"a{n}", pool_work.noted, (tmp_path, f"a{n}", 0.3), "a") for n in range(3)]
    pieces += [Task(f"b{n}", pool_work.noted, (tmp_path, f"b{n}", 0.05), "b") for n in range(2)]
    list(run_tasks(pieces, 3))
    begun, ended = (
        {path.stem: int(path.read_text()) for path in tmp_path.glob(f"*.{what}")} for what in ("begun", "ended")
    )
    assert min(begun["a1"], begun["a2"]) >= ended["a0"] and begun["b0"] < ended["a0"]


def test_tasks_of_a_ready_group_run_in_parallel(tmp_path: Path) -> None:
    pieces = [Task(f"a{n}", pool_work.noted, (tmp_path, f"a{n}", 1.0), "a") for n in range(2)]
    list(run_tasks(pieces, 2, ready=lambda group: group == "a"))
    assert int((tmp_path / "a1.begun").read_text()) < int((tmp_path / "a0.ended").read_text())


@pytest.mark.slow
def test_process_pool_stops_unfinished_tasks_at_the_time_limit(tmp_path: Path) -> None:
    """The unfinished task is given up, and its process has ended."""
    pieces = [Task("quick", pool_work.process, ()), Task("slow", pool_work.slow, (tmp_path,))]
    found = list(run_tasks(pieces, 2, until=time.monotonic() + 5))
    assert [each.work.key for each in found] == ["quick"]
    number = int((tmp_path / "process").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


def test_closing_the_result_iterator_ends_the_workers() -> None:
    pieces = works(pool_work.process, *[()] * 50)
    running = run_tasks(pieces, 2)
    numbers = {next(running).value for _ in range(4)}
    running.close()  # type: ignore[attr-defined]
    for number in numbers:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    """The parent is killed with SIGKILL, which it cannot handle."""
    code = (
        "from pathlib import Path\nfrom gradwire.studies.parallel.process_pool import Task, run_tasks\nfrom tests.support import pool_work\n"
        f"list(run_tasks([Task('a', pool_work.slow, (Path({str(tmp_path)!r}),))], 1))"
    )
    root = str(Path(__file__).resolve().parents[3])
    parent = subprocess.Popen([sys.executable, "-c", f"import sys; sys.path[:0] = [{root!r}]\n{code}"], cwd=root)
    file = tmp_path / "process"
    _until(lambda: file.exists() and file.read_text() != "")
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait()
    number = int(file.read_text())
    _until(lambda: not _lives(number))


def _until(holds: object) -> None:
    for _ in range(3000):
        if holds():  # type: ignore[operator]
            return
        time.sleep(0.01)
    raise AssertionError("it did not come about in 30 s")


def _lives(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_parallel_simulations_are_limited_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gigabyte holds 3 small networks of 256 MiB each or one of 1000 hosts; at least one runs."""
    monkeypatch.setattr("gradwire.studies.parallel.process_pool.free_memory", lambda: 1 << 30)
    assert [max_parallel_simulations(hosts, 8) for hosts in (0, 20, 1000, 100_000)] == [4, 3, 1, 1]
    monkeypatch.setattr("gradwire.studies.parallel.process_pool.free_memory", lambda: None)
    assert max_parallel_simulations(100_000, 8) == 8
    monkeypatch.undo()
    assert free_memory() is None or free_memory() > 0  # type: ignore[operator]
