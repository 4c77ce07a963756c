"""Classes of the user's own, named as "module:Class" in a scenario: loaded, and what tables they make of its keys."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import sys
import types
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gradwire.scenarios.asked import stopped_at
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.modules import module_file, user_module
from gradwire.scenarios.trust import require_trust

if TYPE_CHECKING:
    from gradwire.scenarios.schema.base import Table

T = TypeVar("T")
A = TypeVar("A", bound="Table")


def user_class(name: str, folder: Path | None, where: str, kind: str = "Class") -> Any:
    """What is behind "module:Class", or of another kind; `where` is the path of what names it.

    Raises
    ------
    ScenarioError
        There is no such module or class, or it is stopped by an error; says where and why. Or it lies in a Result that
        the user has not trusted (`gradwire.scenarios.trust`).
    """
    module_name, _, attribute = name.partition(":")
    expected = f"an importable module:{kind}"
    if folder is not None and not folder.is_dir():
        raise ScenarioError(f"{folder} is no folder", "modules", f"the folder that has the module of {name!r}")
    try:
        module = _loaded(module_name, folder)
        return getattr(module, attribute)
    except AttributeError as error:
        file = getattr(module, "__file__", None) or module_name
        what = f"{name!r} cannot be loaded: there is no {attribute} in {file}"
        raise ScenarioError(what, where, expected) from error
    except ImportError as error:
        raise ScenarioError(f"{name!r} cannot be loaded: {error}", where, expected) from error


def _loaded(name: str, folder: Path | None) -> types.ModuleType:
    """A module of the user's own: the file of that name in `folder` (by default the working directory), else whatever
    Python finds. A file is known by its path and content, so two scenarios may name two files alike.

    Raises
    ------
    ImportError
        It cannot be imported, with the line that stopped it.
    """
    folder = folder or Path.cwd()
    file = module_file(name, folder)
    if not file.is_file():
        require_trust(name, user_module(name.partition(".")[0], folder))  # to look for more would import that package
        try:
            return _stopped_by(lambda: importlib.import_module(name), name)
        except ImportError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and str(missing.name) in name:
                raise ImportError(f"{error} in {folder} (`modules`), nor where Python looks") from missing
            raise
    content = _stopped_by(file.read_bytes, str(file))
    digest = hashlib.sha256(str(file).encode() + b"\0" + content).hexdigest()[:12]
    package = name.rpartition(".")[0] if file.with_name("__init__.py").is_file() else ""  # for imports from beside it
    unique = f"{package}.gradwire_user_{digest}".lstrip(".")
    if unique in sys.modules:
        return sys.modules[unique]
    require_trust(name, file)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # for what it imports from beside it
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    loader = spec.loader
    try:
        _stopped_by(lambda: loader.exec_module(module), str(file))
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _stopped_by(load: Callable[[], T], what: str) -> T:
    """Load a module; whatever stops it - a mistake, a missing import, `sys.exit` - becomes one ImportError."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        raise ImportError(str(error) if str(error.name) in what else f"{error} ({what})") from error
    except BaseException as error:
        raise ImportError(stopped_at(error, what)) from error


def table_for(owner: type[A], table: A, where: str = "transport") -> A:
    """A table of the scenario as its component has it: where the class of a user's own has fields, these check it and
    fill in their defaults; else the table as it is.

    Raises
    ------
    ScenarioError
        With every mistake in it.
    """
    if not table.union_tag or not hasattr(owner, "model_validate"):
        return table
    from pydantic import ValidationError

    from gradwire.scenarios.explain import explain, place

    given = table.model_dump(mode="json", exclude_unset=True)
    try:
        return with_any_name(owner).model_validate(given)
    except ValidationError as error:
        mistakes = [dataclasses.replace(each, path=place(where, each.path)) for each in explain(error, given, owner)]
        raise ScenarioError(f"is no valid table of {given['kind']}:", where, mistakes=mistakes) from None


@cache
def with_any_name(owner: type[A]) -> type[A]:
    """The model of a class of the user's own, which goes by where it is: it may have no `kind`, one of its own, or as a
    descendant of one of gradwire's that of it as the only one."""
    from pydantic import create_model

    kind = owner.model_fields.get("kind")
    if kind is not None and typing.get_origin(kind.annotation) is not typing.Literal:
        return owner
    return create_model(owner.__name__, __base__=owner, __module__=owner.__module__, kind=(str, ...))
