"""Ends the command if the limit on virtual memory is too low, before libraries that would abort are imported."""

from __future__ import annotations

import json
import resource
import sys

from gradwire.scenarios.errors import GradwireError

MINIMUM_BYTES = 2 * 10**9
"""Least virtual memory of any command: libraries of Arrow, OpenBLAS and LLVM abort if a thread cannot start (our
choice; `gradwire check demo` takes 0.9 GB on two processors, and every thread takes 64 MB more)."""


def check_memory_limit() -> None:
    """End the program with a message if its virtual memory is limited (`ulimit -v`) to less than `MINIMUM_BYTES`."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= MINIMUM_BYTES:
        return
    what = f"the limit on virtual memory (ulimit -v) is {limit / 1e9:.1f} GB"
    expected = f"no limit, or at least {MINIMUM_BYTES / 1e9:.0f} GB (a simulation needs 40 GB of addresses)"
    error = GradwireError(what, expected=expected)
    if "--json" in sys.argv:
        print(json.dumps({"error": error.as_dict()}))
    print(f"gradwire: {error}", file=sys.stderr)
    raise SystemExit(error.exit_code)
