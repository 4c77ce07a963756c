"""Who is none of this run: connections, datagrams and programs of others, and what a run makes of them."""

from __future__ import annotations

import os
import pickle
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from emu_agents_cases import MBPS, inside, needs_namespaces

from gradwire.emu.agent.frame_stream import AGENT_RECORDS, MAGIC, Decoder, encode
from gradwire.emu.control.agents import Agents
from gradwire.emu.control.launchers import CommandLauncher
from gradwire.emu.switches.backend_kind import TestbedError
from gradwire.emu.wire.header import ForeignDataError

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from soak.agents import cases


def test_fuzzed_input_is_decoded_correctly_or_rejected():
    outcomes = {call() for _, call in islice(cases(1), 500)}
    assert outcomes == {"ok", "refused"}


def test_fuzz_cases_are_reproducible_from_the_seed():
    first, again = ([label for label, _ in islice(cases(5), 30)] for _ in range(2))
    assert first == again and len(set(first)) == 30


class Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/gradwire-ran",)


def test_decoder_never_executes_pickled_code():
    for data in (pickle.dumps(("opened", Evil())), MAGIC + pickle.dumps(Evil())):
        with pytest.raises(ForeignDataError):
            list(Decoder().feed(data + bytes(100)))
    with pytest.raises(TypeError, match="cannot encode Evil"):
        encode(("opened", Evil()))
    assert not Path("/tmp/gradwire-ran").exists()


def test_decoder_rejects_records_that_agents_never_send():
    from gradwire.emu.planning.plan import Queues

    data = encode(("opened", Queues(8, 1, None, False)))
    assert len(list(Decoder().feed(data))) == 1
    with pytest.raises(ForeignDataError, match="unexpected record 'Queues'"):
        list(Decoder(records=AGENT_RECORDS).feed(data))


@pytest.mark.parametrize("dtype", ["?", "<i8", "<u4", "<f4", "<f8", "<i2"])
def test_arrays_survive_encoding_unchanged(dtype):
    value = np.arange(6, dtype=np.int64).reshape(2, 3).astype(dtype)
    ((_, found),) = Decoder().feed(encode(("x", value)))
    assert found.dtype == value.dtype and found.flags.writeable and (found == value).all()


@pytest.mark.parametrize(
    ("says", "words"),
    [
        (
            "echo 'Welcome to node0, have a nice day'; sleep 20",
            "invalid frame: got 'Welcome to node0, have a nice day'",
        ),
        (f"printf '{MAGIC.decode()}\\000\\007'; head -c 30 /dev/zero; sleep 20", "version 7"),
    ],
)
def test_command_that_is_not_an_agent_is_rejected_immediately(says, words):
    """The error comes without a timeout, since a login banner precedes all other output."""
    from emu_agents_cases import plan_of

    plan = plan_of([{"src": 0, "dst": 1, "nbytes": 1}])
    agents = Agents(plan, CommandLauncher(lambda node: ["sh", "-c", says]), [0])
    try:
        with pytest.raises(TestbedError, match=words) as caught:
            agents.wait_for_all("opened", 5, "open their sockets")
    finally:
        agents.close()
    assert caught.value.where == "agent of h0"


@pytest.mark.parametrize("transport", ["dlcp", "tcp_newreno"])
def test_foreign_connections_and_datagrams_do_not_end_a_run(transport):
    """A foreign process connects to both ports and sends an HTTP request, partial data and nothing. Its datagrams are
    too short, of an unknown message, or of an active message from another host."""
    needs_namespaces()
    sends = [{"src": 0, "dst": 1, "nbytes": 400_000}]
    found = inside("knocked", sends=sends, transport=transport, rate=20 * MBPS)
    assert (found["error"], found["wrong"], found["ended_by"], found["lost"]) == (None, [], "done", [0])
    (problem,) = found["problems"]
    least = 6 if transport == "dlcp" else 2
    assert problem.startswith("host 1: ") and int(problem.split()[2]) >= least, problem
