"""Supplies what pyproject.toml cannot hold: README.md for an index, the project's addresses, links in the sdist.

An index shows README.md alone, where links to other files of the repository lead nowhere. `REPOSITORY`, from the
environment variable `GRADWIRE_REPOSITORY` or from the line below, is the one place that names the address of the
repository, such as https://host/owner/gradwire. With it, links become absolute; without it, they become plain text.
"""

import os
import re
from pathlib import Path

REPOSITORY = os.environ.get("GRADWIRE_REPOSITORY", "").rstrip("/")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")
"""[text](target) and ![text](target); a text may hold one image."""
OURS = re.compile(r"(?![a-z]+:|#|/)")
"""Targets in the repository: neither addresses, nor places on the page."""


def shown(text: str, repository: str, version: str) -> str:
    """Return README.md for an index: links into the repository lead to the files of that version, or are none."""

    def one(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        words = LINK.sub(one, words)
        if not OURS.match(target):
            return f"{image}[{words}]({target})"
        if repository:
            return f"{image}[{words}]({repository}/{'raw' if image else 'blob'}/v{version}/{target})"
        return f"*{words}*" if image else words

    return LINK.sub(one, text)


def addresses(repository: str) -> dict[str, str]:
    """Return the project's addresses by their names; none where that of the repository is not known."""
    if not repository:
        return {}
    files = f"{repository}/blob/HEAD"
    return {
        "Repository": repository,
        "Documentation": f"{files}/docs",
        "Changelog": f"{files}/CHANGELOG.md",
        "Issues": f"{repository}/issues",
        "Security": f"{files}/SECURITY.md",
    }


def version_of(root: Path) -> str:
    """Return the version that the package names."""
    found = re.search(
        r'^VERSION = "([^"]+)"', (root / "gradwire" / "scenarios" / "version.py").read_text("utf-8"), re.M
    )
    assert found is not None
    return found[1]


if __name__ == "__main__":
    from setuptools import setup
    from setuptools.command.sdist import sdist

    here = Path(__file__).resolve().parent
    links = {path.relative_to(here): os.readlink(path) for path in (here / "gradwire").iterdir() if path.is_symlink()}

    class TreeWithLinks(sdist):
        """Pack the tree as it is in the repository: each package once, and the link of `gradwire/` to it."""

        def make_release_tree(self, base_dir: str, files: list[str]) -> None:
            files = [name for name in files if not any(link in Path(name).parents for link in links)]
            super().make_release_tree(base_dir, files)
            for link, target in links.items():
                (Path(base_dir) / link).symlink_to(target)

    setup(
        cmdclass={"sdist": TreeWithLinks},
        long_description=shown((here / "README.md").read_text("utf-8"), REPOSITORY, version_of(here)),
        long_description_content_type="text/markdown",
        project_urls=addresses(REPOSITORY),
    )
