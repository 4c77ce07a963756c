"""Format `kineto`."""

from gradwire.traces.formats.base import Format


class Kineto(Format):
    """What PyTorch's profiler writes."""

    kind = "kineto"
    title = "PyTorch profiler JSON"
    module = "gradwire.traces.formats.kineto"
    offered = 10
