"""Loads user-defined classes named `module:Class` in a scenario, and validates their tables."""

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

from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.modules import module_file, user_module
from gradwire.scenarios.loading.trust import require_trust
from gradwire.scenarios.loading.user_code_errors import error_location

if TYPE_CHECKING:
    from gradwire.scenarios.schema.base import ScenarioTable

T = TypeVar("T")
A = TypeVar("A", bound="ScenarioTable")


def load_user_class(name: str, folder: Path | None, where: str, kind: str = "Class") -> Any:
    """Return the object behind "module:Class"; `where` is the path of the key that names it. Raises ScenarioError if
    the module or class does not exist or raises an error (with its location and reason), or it lies in a Result that
    the user has not trusted (`gradwire.scenarios.loading.trust`)."""
    module_name, _, attribute = name.partition(":")
    expected = f"an importable module:{kind}"
    if folder is not None and not folder.is_dir():
        raise ScenarioError(f"{folder} is not a folder", "modules", f"the folder of the module of {name!r}")
    try:
        module = _import_module(module_name, folder)
        return getattr(module, attribute)
    except AttributeError as error:
        file = getattr(module, "__file__", None) or module_name
        what = f"cannot load {name!r}: no {attribute} in {file}"
        raise ScenarioError(what, where, expected) from error
    except ImportError as error:
        raise ScenarioError(f"cannot load {name!r}: {error}", where, expected) from error


def _import_module(name: str, folder: Path | None) -> types.ModuleType:
    """Import a user's module: its file in `folder` (default: the working directory), else from Python's path.

    A file is identified by its path and content, so two scenarios may use the same module name for two files.

    Raises ImportError if it cannot be imported; with the line that failed.
    """
    folder = folder or Path.cwd()
    file = module_file(name, folder)
    if not file.is_file():
        require_trust(name, user_module(name.partition(".")[0], folder))  # searching deeper would import the package
        try:
            return _import_or_explain(lambda: importlib.import_module(name), name)
        except ImportError as error:
            missing = error.__cause__
            if isinstance(missing, ModuleNotFoundError) and str(missing.name) in name:
                raise ImportError(f"{error} in {folder} (`modules`) or on Python's path") from missing
            raise
    content = _import_or_explain(file.read_bytes, str(file))
    digest = hashlib.sha256(str(file).encode() + b"\0" + content).hexdigest()[:12]
    package = name.rpartition(".")[0] if file.with_name("__init__.py").is_file() else ""  # for relative imports
    unique = f"{package}.gradwire_user_{digest}".lstrip(".")
    if unique in sys.modules:
        return sys.modules[unique]
    require_trust(name, file)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))  # for its imports of neighbouring modules
    spec = importlib.util.spec_from_file_location(unique, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    loader = spec.loader
    try:
        _import_or_explain(lambda: loader.exec_module(module), str(file))
    except BaseException:
        del sys.modules[unique]
        raise
    return module


def _import_or_explain(load: Callable[[], T], what: str) -> T:
    """Call a loader; whatever it raises (an error, a missing import, `sys.exit`) becomes one ImportError."""
    try:
        return load()
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        raise ImportError(str(error) if str(error.name) in what else f"{error} ({what})") from error
    except BaseException as error:
        raise ImportError(error_location(error, what)) from error


def validate_user_table(owner: type[A], table: A, where: str = "transport") -> A:
    """Return a table of the scenario validated by its component, if that is a user-defined class with fields.

    The class checks the fields and fills in their defaults; any other table is returned as it is.

    Raises ScenarioError with every mistake in it.
    """
    if not table.union_tag or not hasattr(owner, "model_validate"):
        return table
    from pydantic import ValidationError

    from gradwire.scenarios.loading.explain import explain_validation_error, join_path

    fields = table.model_dump(mode="json", exclude_unset=True)
    try:
        return with_free_kind(owner).model_validate(fields)
    except ValidationError as error:
        mistakes = [
            dataclasses.replace(each, path=join_path(where, each.path))
            for each in explain_validation_error(error, fields, owner)
        ]
        raise ScenarioError(f"invalid table of {fields['kind']}:", where, mistakes=mistakes) from None


@cache
def with_free_kind(owner: type[A]) -> type[A]:
    """Return the model of a user-defined class with a free `kind`. Such a class may have no `kind`, its own, or the
    literal inherited from one of gradwire's."""
    from pydantic import create_model

    kind = owner.model_fields.get("kind")
    if kind is not None and typing.get_origin(kind.annotation) is not typing.Literal:
        return owner
    return create_model(owner.__name__, __base__=owner, __module__=owner.__module__, kind=(str, ...))
