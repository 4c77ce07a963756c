"""Format `perfetto`."""

from gradwire.traces.formats.base import Format


class Perfetto(Format):
    """Timeline of a trace, for viewers; can be read back."""

    kind = "perfetto"
    title = "Chrome/Perfetto timeline of gradwire"
    module = "gradwire.traces.formats.perfetto"
    writes = True
