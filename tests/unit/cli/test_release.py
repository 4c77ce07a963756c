"""Files of a release: citation, versions, README on an index, forms for reports, and the container image."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

import gradwire
from gradwire.cli import app
from tests.release_check import ROOT, pythons_at_hand, version_problems

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text("utf-8")
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
BASE = "https://example.invalid/gradwire"


def test_changelog_and_citation_have_the_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert version_problems(gradwire.__version__, changelog, CITATION, released=False) == []


DAY = "2026-01-02"
CITED = f"version: 1.2.0\ndate-released: {DAY}\n"


@pytest.mark.parametrize("changelog, citation, released, problems", [
    (f"## [Unreleased]\n\n## [1.2.0] - {DAY}\n\n## [1.1.0] - 2025-01-01\n", CITED, True, []),
    (f"## Unreleased\n\n## 1.2.0 - {DAY}\n", CITED.replace(DAY, f"'{DAY}'"), True, []),
    ("## 1.2.0 - unreleased\n", "version: 1.2.0\n", False, []),
    ("## 1.2.0 - unreleased\n", "version: 1.2.0\n", True, ["is dated unreleased"]),
    ("## 1.2.0 - unreleased\n", CITED, False, ["date-released is 2026-01-02; CHANGELOG.md has unreleased"]),
    (f"## 1.2.0 - {DAY}\n", "version: 1.2.0\n", True, ["date-released is None"]),
    (f"## 1.3.0 - {DAY}\n", CITED, True, ["CHANGELOG.md: the newest version is 1.3.0; expected 1.2.0"]),
    (f"## 1.2.0 - {DAY}\n", CITED.replace("1.2.0", "1.2.1"), True, ["CITATION.cff: version is 1.2.1; expected 1.2.0"]),
    ("## Unreleased\n", CITED, False, ["newest version is no section", "CHANGELOG.md has no date"]),
])  # fmt: skip
def test_disagreeing_versions_are_reported(changelog: str, citation: str, released: bool, problems: list[str]) -> None:
    found = version_problems("1.2.0", changelog, citation, released=released)
    assert len(found) == len(problems) and all(part in text for part, text in zip(problems, found, strict=True)), found


def test_citation_is_valid_and_agrees_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    cffconvert = pytest.importorskip("cffconvert", reason="validates CITATION.cff (extra: dev)")
    citation = cffconvert.Citation(CITATION)
    citation.validate()
    assert "author = {the gradwire authors}" in citation.as_bibtex()
    fields = yaml.safe_load(CITATION)
    assert fields["authors"] == PROJECT["authors"] and fields["license"] == PROJECT["license"]
    assert fields["keywords"] == PROJECT["keywords"]
    monkeypatch.delenv("GRADWIRE_REPOSITORY", raising=False)
    assert fields.get("repository-code", "") == runpy.run_path(str(ROOT / "setup.py"))["REPOSITORY"]


@pytest.mark.parametrize("base", ["", BASE])
def test_readme_rendered_by_an_index_has_no_relative_link(base: str) -> None:
    renderer = pytest.importorskip("readme_renderer.markdown", reason="renders as an index does (extra: dev)")
    text = runpy.run_path(str(ROOT / "setup.py"))["shown"]((ROOT / "README.md").read_text("utf-8"), base, "1.2")
    page = renderer.render(text)
    assert page is not None, "needs comrak (extra: dev)"
    targets = re.findall(r'\b(?:href|src)="([^"]*)"', page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert (page.count("<img") == 1 and len(targets) > 20) if base else "<img" not in page
    assert page.count("<h2") == text.count("\n## ") and "](" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)


def test_oldest_classified_python_is_the_required_one() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert PROJECT["requires-python"] == f">={named[0]}" and named == sorted(named)


def texts(node: Any) -> list[str]:
    """Return all strings inside a YAML document."""
    if isinstance(node, dict):
        return [text for value in node.values() for text in texts(value)]
    return [text for value in node for text in texts(value)] if isinstance(node, list) else [str(node)]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_are_well_formed(path: Path) -> None:
    form = yaml.safe_load(path.read_text("utf-8"))
    assert set(form) == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(set(field) <= {"type", "id", "attributes", "validations"} for field in fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_reports_ask_for_what_reproduces_a_run() -> None:
    asked = {path.stem: {field.get("id") for field in yaml.safe_load(path.read_text())["body"]} for path in FORMS}
    assert set(asked) == {"bug", "feature", "wrong-figure"}
    assert {"command", "scenario", "check", "version"} <= asked["bug"]
    assert {"figure", "expected", "scenario", "check", "version", "seed", "result"} <= asked["wrong-figure"]


def test_forms_name_commands_and_files_that_exist() -> None:
    paths = [*FORMS, ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md", ROOT / "CODE_OF_CONDUCT.md"]
    text = "\n".join(path.read_text("utf-8") for path in paths)
    commands = set(re.findall(r"`gradwire (\w+)", text))
    assert {"check", "probe", "run"} <= commands <= set(get_command(app).commands)  # type: ignore[attr-defined]
    files = set(re.findall(r"[\w/]+\.md\b", text))
    assert {"SECURITY.md", "CONTRIBUTING.md"} <= files and [name for name in files if not (ROOT / name).exists()] == []
    assert "## How to report" in (ROOT / "SECURITY.md").read_text("utf-8"), "CODE_OF_CONDUCT.md links to it"


def container_steps() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile, each with its arguments."""
    text = (ROOT / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines]


def test_containerfile_uses_a_supported_python_and_no_root() -> None:
    steps = container_steps()
    bases = {words.split()[0] for name, words in steps if name == "FROM"}
    (minor,) = {re.fullmatch(r"docker\.io/library/python:(3\.\d+)-slim", base)[1] for base in bases}  # type: ignore[index]
    assert f"Programming Language :: Python :: {minor}" in PROJECT["classifiers"]
    last = dict(steps)
    assert last["USER"] == "gradwire" and "useradd" in last["RUN"] and last["USER"] in last["RUN"]
    assert last["ENTRYPOINT"] == '["gradwire"]' and "gradwire" in PROJECT["scripts"]
    assert [name for name, _ in steps].index("USER") > max(i for i, (name, _) in enumerate(steps) if name == "RUN")
    labels = dict(re.findall(r'org\.opencontainers\.image\.(\w+)="([^"]*)"', last["LABEL"]))
    assert labels["licenses"] == PROJECT["license"] and labels["authors"] == PROJECT["authors"][0]["name"]
    assert labels["version"] == "$VERSION" and labels["source"] == "$REPOSITORY"
    assert {words for name, words in steps if name == "ARG"} == {"VERSION", "REPOSITORY"}


def test_containerfile_copies_files_that_exist() -> None:
    copied = [words.split()[:-1] for name, words in container_steps() if name == "COPY"]
    assert copied and [source for sources in copied for source in sources if not (ROOT / source).exists()] == []
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


INSPECT = {"podman": ("image", "inspect"), "docker": ("image", "inspect"), "buildah": ("inspect", "--type", "image")}
"""Arguments with which a builder succeeds if it already has an image."""


def working_builder() -> str:
    """Return a builder that has the base image or can get it; skip the test where there is none."""
    reasons = []
    base = next(words for name, words in container_steps() if name == "FROM").split()[0]
    for builder, inspect in INSPECT.items():
        if not shutil.which(builder):
            reasons.append(f"no {builder}")
            continue
        for words in ([builder, *inspect, base], [builder, "pull", base]):
            done = subprocess.run(words, capture_output=True, text=True, timeout=300)
            if done.returncode == 0:
                return builder
        reasons.append(f"{builder}: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    pytest.skip("; ".join(reasons))


@pytest.mark.slow
def test_container_image_runs_the_demo_without_root() -> None:
    builder = working_builder()

    def output(*words: str) -> str:
        done = subprocess.run(words, capture_output=True, text=True, timeout=1200)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    output("make", "-C", str(ROOT), "image", f"BUILDER={builder}")
    image = f"gradwire:{gradwire.__version__}"
    container, begin, end = "", (builder, "run", "--rm", "--entrypoint"), (image,)
    if builder == "buildah":  # it names containers
        container = output(builder, "from", image)
        begin, end = (builder, "run", container, "--"), ()
    try:
        assert output(*begin, "gradwire", *end, "--version") == f"gradwire {gradwire.__version__}"
        assert output(*begin, "id", *end, "-u") == "1000"
        assert output(*begin, "pwd", *end) == "/work"
        assert "report and results: demo" in output(*begin, "gradwire", *end, "demo", "--out", "demo")
    finally:
        if container:
            output(builder, "rm", container)


def test_pythons_at_hand_start_and_are_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shim of a version manager is on PATH, but ends with 127 if its Python is not chosen."""
    for name, script in (("3.10", "echo 3.10"), ("3.12", "echo 3.12"), ("3.13", "exit 127"), ("3.14", "echo 3.14")):
        (tmp_path / f"python{name}").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / f"python{name}").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    this = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert pythons_at_hand() == {"3.12": "python3.12", "3.14": "python3.14", this: sys.executable}


def test_release_check_refuses_a_missing_python() -> None:
    words = [sys.executable, "-m", "tests.release_check", "--python", "/nowhere/python3"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "/nowhere/python3" in done.stderr and "Traceback" not in done.stderr
