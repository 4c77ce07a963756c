"""Reads a text schedule: lines `label: send 10b to 1 tag 2`, `recv 10b from 0`, `calc 5`, and `l2 requires l1`."""

from __future__ import annotations

import re
from pathlib import Path

from gradwire.scenarios.errors import TraceError
from gradwire.traces.formats.base import ReadOptions
from gradwire.traces.formats.chakra_graphs.graph import ChakraGraph
from gradwire.traces.formats.draft import Draft
from gradwire.traces.formats.goal_schedules.operations import CALC, MAX_RANKS, RECV, SEND, GoalOperation, RankSchedule
from gradwire.traces.formats.source import open_source

_NUMBER = r"(\d{1,18})"
_HEADER, _RANK = re.compile(rf"num_ranks\s+{_NUMBER}"), re.compile(rf"rank\s+{_NUMBER}\s*\{{")
_LABEL = re.compile(r"(\w{1,200})\s*:\s*")
_TRANSFER = re.compile(rf"(send|recv)\s+{_NUMBER}b\s+(to|from)\s+{_NUMBER}((?:\s+(?:tag|cpu|nic)\s+\d{{1,18}})*)")
_CALC = re.compile(rf"calc\s+{_NUMBER}((?:\s+(?:cpu|nic)\s+\d{{1,18}})*)")
_REQUIRES = re.compile(r"(\w{1,200})\s+(i?requires)\s+(\w{1,200})")
_OPTION = re.compile(r"(tag|cpu|nic)\s+(\d+)")
_EXPECTED = "num_ranks, rank N { }, send, recv, calc or requires"


def read_text(path: Path, options: ReadOptions, draft: Draft) -> list[ChakraGraph]:
    """Return the graph of each rank; TraceError with the line for anything else than the language has."""
    schedules: dict[int, RankSchedule] = {}
    ranks = 0
    labels: dict[str, int] = {}
    here: RankSchedule | None = None
    in_comment = False
    where = str(path)
    with open_source(path, options.progress, options.notes) as source:
        for number, line in source.lines():
            where = f"{path}, line {number}"
            text, in_comment = _without_comments(line, in_comment)
            if not text:
                continue
            if header := _HEADER.fullmatch(text):
                ranks = int(header[1])
                if not 0 < ranks <= MAX_RANKS or schedules:
                    raise TraceError(f"num_ranks {ranks}", where, f"1 to {MAX_RANKS}, before the first rank")
            elif match := _RANK.fullmatch(text):
                rank = int(match[1])
                if here is not None or rank in schedules or rank >= ranks:
                    raise TraceError(f"rank {rank}", where, f"0 to {ranks - 1}, each once, after a closing bracket")
                here = schedules[rank] = RankSchedule()
                labels = {}
            elif here is None:
                raise TraceError(f"{text[:60]!r}", where, _EXPECTED)
            elif text == "}":
                here = None
            else:
                _add(text, here, labels, where, draft)
    if here is not None or len(schedules) < ranks or not ranks:
        raise TraceError(f"ends after {len(schedules)} of {ranks} ranks", str(path), "a closed block for each rank")
    return [schedules[rank].graph(f"{path}: rank {rank}", draft.doubtful) for rank in range(ranks)]


def _without_comments(line: str, in_comment: bool) -> tuple[str, bool]:
    """Return the text outside of comments, and whether one continues in the next line."""
    kept = []
    while line:
        begin, end = (line, "") if not in_comment else ("", line)
        if in_comment:
            _, closed, line = end.partition("*/")
            in_comment = not closed
            continue
        plain, opened, line = begin.partition("/*")
        kept.append(plain.split("//")[0])
        in_comment = bool(opened)
    return " ".join(kept).strip(), in_comment


def _add(text: str, schedule: RankSchedule, labels: dict[str, int], where: str, draft: Draft) -> None:
    if requires := _REQUIRES.fullmatch(text):
        ends = [labels.get(requires[group], -1) for group in (1, 3)]
        if -1 in ends or ends[0] == ends[1]:
            raise TraceError(f"{text[:60]!r}", where, "labels of two operations of this rank, named before")
        (schedule.after if requires[2] == "requires" else schedule.with_start)[ends[0]].append(ends[1])
        return
    label = _LABEL.match(text)
    rest = text[label.end() :] if label else text
    name = label[1] if label else f"operation {len(schedule.operations) + 1}"
    if transfer := _TRANSFER.fullmatch(rest):
        kind = SEND if transfer[1] == "send" else RECV
        if (transfer[3] == "to") != (kind == SEND):
            raise TraceError(f"{rest[:60]!r}", where, "send to, or recv from")
        values = {key: int(value) for key, value in _OPTION.findall(transfer[5])}
        operation = GoalOperation(
            kind, name, int(transfer[2]), int(transfer[4]), values.get("tag", 0), values.get("cpu", 0) > 0
        )
    elif calc := _CALC.fullmatch(rest):
        values = {key: int(value) for key, value in _OPTION.findall(calc[2])}
        operation = GoalOperation(CALC, name, int(calc[1]), on_cpu=values.get("cpu", 0) > 0)
    else:
        raise TraceError(f"{text[:60]!r}", where, _EXPECTED)
    draft.skipped["numbers of NICs"] += values.get("nic", 0) > 0
    draft.understood[operation.kind] += 1
    if label and name in labels:
        raise TraceError(f"repeats the label {name}", where, "each label once in a rank")
    number = schedule.add(operation)
    if label:
        labels[name] = number
