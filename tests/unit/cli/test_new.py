"""`gradwire new`: skeletons that work as they are, and one message for everything that is in the way."""

from __future__ import annotations

import ast
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from output_cases import run

from gradwire.protocols import templates
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import load_scenario
from gradwire.scenarios.loading.registry import COMPONENT_PACKAGES, _modules, components
from gradwire.sim.preparation import prepare_inputs
from gradwire.testing.skeleton import CLASSES, write_skeleton

KINDS = tuple(CLASSES)
RUFF = shutil.which("ruff", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@pytest.fixture(autouse=True)
def path_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's path without the folders of scenarios that other tests have loaded, whose modules are not installed. The
    checkout and its environment stay, which may lie in the temporary folder themselves."""
    own = (str(Path(__file__).resolve().parents[3]), sys.prefix)
    path = [entry for entry in sys.path if entry.startswith(own) or not entry.startswith(tempfile.gettempdir())]
    monkeypatch.setattr(sys, "path", path)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_new_writes_three_files_and_prints_two_commands(own_directory: Path, kind: str) -> None:
    done = run("new", kind, "my_own.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "component: my_own.py", "test: test_my_own.py", "scenario: my_own.toml", "next:",
        "    gradwire run my_own.toml", "    pytest test_my_own.py",
    ]  # fmt: skip
    assert names_in(own_directory) == ["my_own.py", "my_own.toml", "test_my_own.py"]
    text = "".join(path.read_text() for path in own_directory.iterdir())
    template = CLASSES[kind]
    assert "MyOwn" in text and "my-own" in text and "my_own:MyOwn" in text
    assert not any(
        name in text for name in (template, template.lower(), "fixed_window", "two_random", "mark_then_drop")
    )
    scenario = load_scenario("my_own.toml")
    assert scenario.name == "my-own"
    prepare_inputs(scenario)


def passes(folder: Path, kind: str) -> None:
    """Write a skeleton and run its test as a user does."""
    skeleton = write_skeleton(kind, folder / f"my_{kind}.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", skeleton.test.name]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{skeleton.test.read_text().count('def test_')} passed" in done.stdout


def test_generated_transport_test_passes(tmp_path: Path) -> None:
    passes(tmp_path, "transport")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_generated_test_of_other_kinds_passes(tmp_path: Path, kind: str) -> None:
    passes(tmp_path, kind)


@pytest.mark.skipif(RUFF is None, reason="ruff is not installed (extra: dev)")
@pytest.mark.parametrize("kind", KINDS)
def test_generated_files_pass_ruff(tmp_path: Path, kind: str) -> None:
    """Ruff checks its default rules, and the format at the project's line length."""
    write_skeleton(kind, tmp_path / "mine.py")
    for words in (["check", "--isolated"], ["format", "--isolated", "--check", "--line-length", "120"]):
        done = subprocess.run([str(RUFF), *words, "."], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


def test_new_json_lists_the_paths(own_directory: Path) -> None:
    (own_directory / "a b").mkdir()
    done = run("new", "queue_policy", "a b/mine.py", "--json")
    assert json.loads(done.stdout) == {
        "component": "a b/mine.py", "test": "a b/test_mine.py", "scenario": "a b/mine.toml"
    }  # fmt: skip
    assert "gradwire run 'a b/mine.toml'" in run("new", "queue_policy", "a b/mine.py", "--force").stdout


@pytest.mark.parametrize(
    ("kind", "file", "says"),
    [
        (
            "transprot",
            "mine.py",
            "KIND: 'transprot' is not known; expected one of transport, load_balancer, queue_policy; did you mean 'transport'?",
        ),
        ("reducer", "mine.py", "KIND: 'reducer' is not known; expected one of transport, load_balancer, queue_policy"),
        ("transport", "mine", "mine: does not end in .py; expected the name of a Python module, such as my_transport"),
        (
            "transport",
            "my-own.py",
            "'my-own' is not a Python identifier that can be imported; expected letters, digits",
        ),
        ("transport", "2fast.py", "'2fast' is not a Python identifier"),
        ("transport", "class.py", "'class' is not a Python identifier"),
        ("transport", "größe.py", "'größe' is not a Python identifier"),
        ("transport", "_.py", "'_' is not a Python identifier"),
        ("transport", ".py", ".py: does not end in .py"),
        ("transport", "test_mine.py", "pytest takes test_mine.py for tests; expected another name"),
        ("transport", "conftest.py", "pytest takes conftest.py for tests"),
        ("transport", "queue.py", "'queue' is the name of a module of the standard library; expected another name"),
        ("transport", "numba.py", "'numba' is the name of an installed module, /"),
        ("transport", "gradwire.py", "'gradwire' is the name of an installed module, /"),
        ("transport", "around.py", "'around' is the name of a package, around/__init__.py"),
        ("transport", "absent/mine.py", "absent: there is no such folder; expected a folder that exists"),
        ("transport", "file/mine.py", "file: is not a folder; expected a folder that exists"),
        ("transport", "folder.py", "folder.py: is a folder; expected another name"),
        (
            "transport",
            "/proc/mine.py",
            "/proc/mine.py: cannot be written (No such file or directory); expected a writable",
        ),
        ("transport", f"{'a' * 250}.py", "the name is too long; expected at most 255 bytes"),  # that of the test
        ("transport", f"{'a' * 300}.py", "the name is too long; expected at most 255 bytes"),
    ],
)
def test_new_refuses_invalid_kinds_and_file_names(own_directory: Path, kind: str, file: str, says: str) -> None:
    (own_directory / "around").mkdir()
    (own_directory / "around" / "__init__.py").touch()
    (own_directory / "folder.py").mkdir()
    (own_directory / "file").touch()
    before = names_in(own_directory)
    done = run("new", kind, file)
    assert done.returncode == 2 and done.stdout == ""
    assert says in done.stderr and done.stderr.startswith("gradwire: ") and done.stderr.count("\n") == 1
    assert names_in(own_directory) == before
    answer = run("new", kind, file, "--json")
    assert answer.returncode == 2 and json.loads(answer.stdout)["error"]["expected"]


def test_new_overwrites_files_only_with_force(own_directory: Path) -> None:
    Path("mine.toml").write_text("precious")
    done = run("new", "transport", "mine.py")
    assert done.returncode == 2 and names_in(own_directory) == ["mine.toml"]
    assert (
        done.stderr == "gradwire: mine.toml: exists already; expected another name, or --force to replace the files\n"
    )
    Path("test_mine.py").symlink_to("nowhere")
    done = run("new", "transport", "mine.py")
    assert "test_mine.py, mine.toml: exist already" in done.stderr and Path("mine.toml").read_text() == "precious"
    for _ in range(2):  # neither a link nor another file is replaced
        refused = run("new", "transport", "mine.py", "--force")
        assert refused.returncode == 2 and "cannot be replaced (--force)" in refused.stderr
        assert Path("mine.toml").read_text() == "precious" and not Path("mine.py").exists()
        Path("test_mine.py").unlink(missing_ok=True)
    Path("mine.toml").unlink()
    Path("other.txt").write_text("precious")
    assert run("new", "transport", "mine.py").returncode == 0
    written = {path.name: path.read_text() for path in own_directory.iterdir()}
    Path("mine.py").write_text(written["mine.py"] + "# edited")
    assert run("new", "transport", "mine.py", "--force").returncode == 0
    assert {path.name: path.read_text() for path in own_directory.iterdir()} == written
    assert sorted(written) == ["mine.py", "mine.toml", "other.txt", "test_mine.py"]


def test_module_in_the_working_directory_does_not_count_as_installed(
    own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(own_directory))
    write_skeleton("transport", "mine.py")
    (own_directory / "below").mkdir()
    write_skeleton("transport", "below/mine.py")
    write_skeleton("transport", "mine.py", force=True)


def test_new_leaves_no_files_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def full(path: Path, text: str, **how: str) -> int:
        if path.suffix == ".toml":
            raise OSError(errno.ENOSPC, "")
        return write(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ScenarioError, match=r"mine.py: no space left on device; expected a folder with free space"):
        write_skeleton("transport", tmp_path / "mine.py")
    assert names_in(tmp_path) == []


def test_new_refuses_a_folder_without_write_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the error is simulated."""

    def denied(*arguments: object, **how: object) -> str:
        raise PermissionError(errno.EACCES, "")

    monkeypatch.setattr(tempfile, "mkdtemp", denied)
    with pytest.raises(ScenarioError, match=r"mine.py: permission denied; expected a writable folder"):
        write_skeleton("transport", tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("kind", "file", "name"),
    [
        ("transport", "my_transport.py", "MyTransport"),
        ("transport", "DCTCP_plus.py", "DCTCPPlus"),
        ("transport", "_a__b2.py", "AB2"),
        ("transport", "transport.py", "MyTransport"),  # the base class
        ("transport", "flow.py", "MyFlow"),
        ("transport", "true.py", "MyTrue"),
        ("transport", "_2.py", "My2"),
        ("load_balancer", "balancer.py", "MyBalancer"),
        ("load_balancer", "path.py", "MyPath"),  # of the test
        ("queue_policy", "MARK.py", "MyMARK"),
        ("transport", "fixed_window.py", "FixedWindow"),
    ],
)
def test_generated_class_name_follows_the_file_name(tmp_path: Path, kind: str, file: str, name: str) -> None:
    skeleton = write_skeleton(kind, tmp_path / file)
    classes = [node.name for node in ast.parse(skeleton.component.read_text()).body if isinstance(node, ast.ClassDef)]
    assert classes[-1] == name and classes.count(name) == 1
    assert f'"{skeleton.component.stem}:{name}"' in skeleton.scenario.read_text()
    assert f"from {skeleton.component.stem} import" in skeleton.test.read_text()
    prepare_inputs(load_scenario(skeleton.scenario))


def test_templates_are_not_registered_as_components() -> None:
    package = templates.__name__
    for table in COMPONENT_PACKAGES:
        assert [name for name in _modules(table) if name.startswith(package)] == []
    assert not {"fixed_window", "transport"} & set(components("transport"))


def test_every_template_has_module_test_and_scenario() -> None:
    (folder,) = map(Path, templates.__path__)
    found = {path.name for path in folder.iterdir() if path.is_file()} - {"__init__.py"}
    assert found == {f"{kind}{end}" for kind in KINDS for end in (".py", "_test.txt", ".toml")}
