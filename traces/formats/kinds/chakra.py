"""Format `chakra`."""

from gradwire.traces.formats.base import Format


class Chakra(Format):
    """Execution traces, as run by ASTRA-sim."""

    kind = "chakra"
    title = "Chakra execution trace"
    module = "gradwire.traces.formats.chakra"
    writes = True
    ranks = True
    offered = 50
