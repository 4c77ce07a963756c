"""Format `chakra`."""

from gradwire.traces.formats.base import Format


class Chakra(Format):
    """Execution traces, which ASTRA-sim runs."""

    kind = "chakra"
    title = "Chakra execution trace"
    module = "gradwire.traces.formats.chakra"
    writes = True
    ranks = True
    offered = 50
