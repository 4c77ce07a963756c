"""Format `csv`."""

from gradwire.traces.formats.base import Format


class Csv(Format):
    """A table of tensors, for whoever has numbers and no tool of the others."""

    kind = "csv"
    title = "CSV of tensors"
    module = "gradwire.traces.formats.tensor_csv"
    writes = True
    offered = 40
