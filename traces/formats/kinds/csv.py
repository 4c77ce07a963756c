"""Format `csv`."""

from gradwire.traces.formats.base import Format


class Csv(Format):
    """Table of tensors, for users without another tool's file."""

    kind = "csv"
    title = "CSV of tensors"
    module = "gradwire.traces.formats.tensor_csv"
    writes = True
    offered = 40
