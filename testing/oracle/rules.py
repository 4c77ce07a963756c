"""`rule` returns a component's function as plain Python, called as the engine calls the compiled one."""

from __future__ import annotations

from typing import Any

from gradwire.jit.compiled import Rule
from gradwire.jit.records import Words
from gradwire.jit.uncompiled import uncompiled
from gradwire.protocols.registry import ARGUMENTS, declared_records


def rule(owner: type, name: str) -> Rule:
    """Return a function of a component that is called as in the engine, uncompiled: with words, and the bases of its
    records in them. The bases are those of the arguments that `gradwire.protocols.registry.RECORDS` names."""
    compiled = getattr(owner, name)
    function, records = uncompiled(compiled), declared_records(compiled.py_func, name)
    kinds = [
        records.get(argument) or (Words if argument == "next_hops" else None)
        for argument in ARGUMENTS[name].split(", ")
    ]

    def call(words: Any, *arguments: Any) -> Any:
        pairs = zip(kinds, arguments, strict=True)
        return function(*(argument if kind is None else kind(words, argument) for kind, argument in pairs))

    return call
