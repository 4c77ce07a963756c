"""Code of others: whatever stops a component that is asked for something becomes one message with its file and line.

A component may be anybody's - a class named "module:Class", or a file put beside gradwire's own - so a mistake in it is
input like any other, and no bug of gradwire's that would need a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from gradwire.scenarios.errors import GradwireError, ScenarioError


@contextmanager
def asked(component: object, function: str, where: str = "", at: str = "") -> Iterator[None]:
    """Ask a component (an object or its class) for what `function` gives; `where` is the path of what names it, `at`
    says of what and when it is asked, as in "in step 2 at fc.bias".

    Raises
    ------
    ScenarioError
        It was stopped by an error of its own, with its file, line and reason. What gradwire raises passes as it is.
    """
    owner = component if isinstance(component, type) else type(component)
    with stopped(f"{function} of {owner.__name__} stopped" + (f" {at}" if at else ""), file_of(owner), where):
        yield


@contextmanager
def stopped(what: str, file: str, where: str = "") -> Iterator[None]:
    """In here code of others runs: `what` begins the message if it is stopped, `file` is the one to find its line in.

    Raises
    ------
    ScenarioError
        As `asked`.
    """
    try:
        yield
    except (GradwireError, MemoryError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # sys.exit is one
        raise ScenarioError(f"{what}: {stopped_at(error, file)}", where) from error


def file_of(owner: type) -> str:
    """The file that a class is in, or its module where there is none."""
    module = sys.modules.get(owner.__module__)
    return getattr(module, "__file__", None) or owner.__module__


def stopped_at(error: BaseException, file: str) -> str:
    """What stopped a file, "file:line: why"; the line is the last one in it that led to the error."""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}" if error.filename else file  # none for zero bytes
        return f"{place}: {error.msg}"
    line, frame = None, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == file:
            line = frame.tb_lineno
        frame = frame.tb_next
    told = str(error).strip().splitlines()  # some, as pydantic's, go on about where to read more
    said = f"{type(error).__name__}: {told[0].rstrip('.')}" if told else type(error).__name__
    return f"{file}:{line}: {said}" if line else f"{file}: {said}"
