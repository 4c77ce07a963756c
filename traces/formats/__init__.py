"""Traces from and to other tools' formats.

`kinds` has a file for each format, which names the module here that reads or writes it; `convert` is what people call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.scenarios.lazily import names_from

if TYPE_CHECKING:
    from gradwire.traces.formats.base import exporters, importers
    from gradwire.traces.formats.convert import export_trace, import_trace

__all__ = ["export_trace", "exporters", "import_trace", "importers"]

__getattr__ = names_from(
    __name__, {"base": ("importers", "exporters"), "convert": ("import_trace", "export_trace")}
)
