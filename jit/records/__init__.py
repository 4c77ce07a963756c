"""Records of the engine's state: typed views of its words.

The whole state of a run is one flat array of 64-bit integers. Compiled code, Python code and the oracle
(`gradwire.testing`) use the same words, so nothing is converted, and a snapshot of a run is a copy of one array. With
forty arrays instead of one, a compiled function would spend its time on reference counts, for which two threads would
contend. All words are signed 64-bit integers because Numba and plain Python agree on them.

Times are picoseconds, sizes bytes. The speed of a link is stored as picoseconds per byte << 16, rounded up, so that a
transmission takes `ceil(bytes * ps_per_byte)` without a division.

`table` declares records, `numba_types` compiles their attributes. The records are those of the header and the threads
(`header`), of flows (`flows`), nodes and ports (`network`), programs (`programs`) and aggregation groups
(`aggregation`); `packets` has the fields of a packet's two words and `replies` those of a receiver's answer (packed
words, declared by `bit_fields`); `constants` has the values of fields.
"""

from gradwire.jit.records.table import (
    Array,
    Bitmap,
    Entry,
    Pointer,
    Record,
    RecordClass,
    Reference,
    Space,
    Word,
    Words,
    WordsClass,
    view,
)

__all__ = [
    "Array",
    "Bitmap",
    "Entry",
    "Pointer",
    "Record",
    "RecordClass",
    "Reference",
    "Space",
    "Word",
    "Words",
    "WordsClass",
    "view",
]
