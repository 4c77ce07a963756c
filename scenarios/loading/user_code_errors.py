"""Converts any exception of user code to one error message with its file and line.

A component may be user-defined (a class named "module:Class", or a file added beside gradwire's own), so its error is
an input error and not a bug of gradwire that needs a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.scenarios.errors import GradwireError, ScenarioError


@contextmanager
def asked(component: object, function: str, where: str = "", at: str = "") -> Iterator[None]:
    """Context of a call to `function` of a component (an object or its class).

    `where` is the path of the key that names it; `at` describes the call, as in "in step 2 at fc.bias".

    Raises ScenarioError if the component raised an error; with its file, line and reason. gradwire's own errors pass
    unchanged.
    """
    owner = component if isinstance(component, type) else type(component)
    with user_code(f"{function} of {owner.__name__} stopped" + (f" {at}" if at else ""), class_file(owner), where):
        yield


@contextmanager
def user_code(what: str, file: str, where: str = "") -> Iterator[None]:
    """Context of user code: `what` begins the message of an error, `file` is the one to report a line of. Raises
    ScenarioError as `asked`."""
    try:
        yield
    except (GradwireError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit is one
        raise ScenarioError(f"{what}: {error_location(error, file)}", where) from error


def class_file(owner: type) -> str:
    """Return the file of a class, or its module name if it has no file."""
    module = sys.modules.get(owner.__module__)
    return getattr(module, "__file__", None) or owner.__module__


def error_location(error: BaseException, file: str) -> str:
    """Return the error as "file:line: reason"; the line is the last one of `file` in the traceback."""
    if isinstance(error, SyntaxError):
        location = f"{error.filename}:{error.lineno}" if error.filename else file  # none for zero bytes
        return f"{location}: {error.msg}"
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    lines = str(error).strip().splitlines()  # the first only: pydantic's others link to documentation
    reason = f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
    return f"{file}:{line}: {reason}" if line else f"{file}: {reason}"
