"""Format `pipedream`."""

from gradwire.traces.formats.base import Format


class PipeDream(Format):
    """What PipeDream's profiler writes."""

    kind = "pipedream"
    title = "PipeDream graph.txt"
    module = "gradwire.traces.formats.pipedream"
    offered = 20
