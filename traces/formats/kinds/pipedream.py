"""Format `pipedream`."""

from gradwire.traces.formats.base import Format


class PipeDream(Format):
    """Output of PipeDream's profiler."""

    kind = "pipedream"
    title = "PipeDream graph.txt"
    module = "gradwire.traces.formats.pipedream"
    offered = 20
