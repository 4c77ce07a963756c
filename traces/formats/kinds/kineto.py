"""Format `kineto`."""

from gradwire.traces.formats.base import Format


class Kineto(Format):
    """Output of PyTorch's profiler."""

    kind = "kineto"
    title = "PyTorch profiler JSON"
    module = "gradwire.traces.formats.kineto"
    offered = 10
