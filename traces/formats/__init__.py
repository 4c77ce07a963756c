"""Import and export of traces in other tools' formats.

`kinds` has a class per format, which reads or writes its files; `convert` has the entry points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradwire.scenarios.lazily import lazy_getattr

if TYPE_CHECKING:
    from gradwire.traces.formats.base import exporters, importers
    from gradwire.traces.formats.convert import export_trace, import_trace

__all__ = ["export_trace", "exporters", "import_trace", "importers"]

__getattr__ = lazy_getattr(__name__, {"base": ("importers", "exporters"), "convert": ("import_trace", "export_trace")})
