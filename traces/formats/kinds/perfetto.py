"""Format `perfetto`."""

from gradwire.traces.formats.base import Format


class Perfetto(Format):
    """The timeline of a trace, to look at, and read back."""

    kind = "perfetto"
    title = "Chrome/Perfetto timeline of gradwire"
    module = "gradwire.traces.formats.perfetto"
    writes = True
