"""`gradwire exec`: programs that know nothing of the testbed, at its hosts, and how their runs end. The real command, and
nothing is left behind. What needs a time that can be trusted runs under virtual time.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from pathlib import Path

import pytest
from emu_cases import needs
from emu_commands import ROOT, USERSPACE, VIRTUAL, Place

import gradwire
from gradwire.emu.planning.plan import host_address
from gradwire.result_store.result import Result

PYTHON = sys.executable
TELLS = """
import json, os, socket, sys, time
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "GRADWIRE_HOST")
found = {name: os.environ[name] for name in names}
found["device"] = os.path.exists("/sys/class/net/" + os.environ["GLOO_SOCKET_IFNAME"])
found["hostname"], found["own"] = socket.gethostname(), socket.gethostbyname(socket.gethostname())
found["back"] = socket.getnameinfo(("::ffff:" + sys.argv[2], 1, 0, 0), socket.NI_NAMEREQD)[0]
def connected():
    if os.environ["RANK"] == "0":
        return socket.create_server(("", 9100)).accept()[0]
    for _ in range(1000):
        try:
            return socket.create_connection((os.environ["MASTER_ADDR"], 9100))
        except ConnectionRefusedError:
            time.sleep(0.02)
with connected() as s:
    found["congestion"] = s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\\0")[0].decode()
found["words"] = sys.argv[1:]
print(json.dumps(found))
print("to stderr", file=sys.stderr)
"""
MARKED = """
import os, socket
target = os.environ["GRADWIRE_ADDRESSES"].split(",")[0], 9000
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "0":
    s.bind(target)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    found = {}
    while len(found) < 2:
        data, (way, *_), _, sender = s.recvmsg(10, 100)
        found[data.decode()] = way[2][0]
        s.sendto(b"thanks", sender)
    print("tos", found["1"], found["2"])
else:
    s.settimeout(0.05)
    for sent in range(1, 2000):  # until there is somebody
        s.sendto(os.environ["RANK"].encode(), target)
        try:
            s.recv(10)
            break
        except (TimeoutError, ConnectionRefusedError):
            pass
    print(sent)
"""
EVERY_10_MS = """
import os, socket, time
target = os.environ["MASTER_ADDR"], 9000
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
if os.environ["RANK"] == "0":
    s.bind(target)
    s.settimeout(1)
    got = set()
    try:
        while True:
            got.add(int(s.recv(10)))
    except TimeoutError:
        print("missing", sorted(set(range(100)) - got))
else:
    begin = time.monotonic()
    for number in range(100):
        time.sleep(max(0, begin + 0.005 + number / 100 - time.monotonic()))
        s.sendto(b"%d" % number, target)
"""
HELD = """
import os, select, socket, sys, time
server = socket.create_server(("127.0.0.1", 0))
sender = socket.create_connection(server.getsockname())
receiver, _ = server.accept()
poll = select.epoll()
poll.register(receiver, select.EPOLLIN)
held = f"held{os.environ['RANK']}"
for _ in range(20):
    if os.fork() == 0:
        time.sleep(0.05)
        os.mkdir(held)
        sender.sendall(b"x")
        os.rmdir(held)
        os._exit(0)
    looks = 0
    while not poll.poll(0.01) or os.path.exists(held):  # as gloo's thread looks for a lock: nothing is taken meanwhile
        looks += 1
        if looks > 20000:
            sys.exit("who holds it does not get the processor")
    receiver.recv(1)
    os.wait()
print("done")
"""
SCENARIO = """
name = "programs"
topology = { kind = "star", hosts = 3 }
link = { rate = "10Mbps", latency = "100us" }
host = { software_latency = "500us" }
switch = { queues = 8, buffer = "32KiB" }
[exec]
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path)
    (tmp_path / "s.toml").write_text(SCENARIO)
    for name, text in (("tells", TELLS), ("marked", MARKED), ("every", EVERY_10_MS)):
        (tmp_path / f"{name}.py").write_text(text)
    return found


def lines_of(said: str) -> dict[str, list[str]]:
    """What ranks said, by their prefix."""
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        if line.startswith("["):
            who, _, text = line.partition("] ")
            found.setdefault(who[1:], []).append(text)
    return found


@pytest.mark.beside
@needs("namespaces")
def test_ranks_receive_rank_host_and_address(place: Place) -> None:
    (place.folder / "s.toml").write_text(SCENARIO + 'hosts = ["h2", "h0"]\ncongestion = "reno"\n')
    command = ("--out", "o", "--", PYTHON, "tells.py", "{rank}@{host}", "{address}")
    status, said, error = place.run("exec", "s.toml", *USERSPACE, *command)
    assert status == 0, error
    for rank, (host, address) in enumerate([("h2", host_address(2)), ("h0", host_address(0))]):
        (line,) = lines_of(said)[f"{rank} {host}"]
        assert json.loads(line) == {
            "RANK": f"{rank}", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": host_address(2),
            "GRADWIRE_HOST": host, "device": True, "hostname": host, "own": address, "back": host,
            "congestion": "reno", "words": [f"{rank}@{host}", address],
        }  # fmt: skip
        assert (place.folder / "o" / "ranks" / f"rank{rank}.out").read_text() == line + "\n"
        assert (place.folder / "o" / "ranks" / f"rank{rank}.err").read_text() == "to stderr\n"
    programs = Result.read(place.folder / "o").summary["programs"]
    assert [(each["host"], each["status"]) for each in programs["ranks"]] == [("h2", 0), ("h0", 0)]


@pytest.mark.beside
@needs("namespaces")
def test_first_failing_rank_ends_all_ranks_and_is_reported(place: Place) -> None:
    (place.folder / "s.toml").write_text(SCENARIO + 'grace = "100ms"\n')
    code = "import os, sys, time; time.sleep(0.5 if os.environ['RANK'] == '1' else 600); sys.exit(7)"
    began = time.monotonic()
    status, _, error = place.run("exec", "s.toml", *USERSPACE, "--out", "o", "--", PYTHON, "-c", code)
    assert (status, error) == (1, "gradwire: rank 1 at h1 ended with status 7")
    assert time.monotonic() - began < 60
    ranks = Result.read(place.folder / "o").summary["programs"]["ranks"]
    assert [(each["status"], each["made_to_end"]) for each in ranks] == [(-15, True), (7, False), (-15, True)]


@pytest.mark.beside
@needs("namespaces")
@pytest.mark.parametrize("how", ["interrupt", "kill", pytest.param("max_wall", marks=pytest.mark.slow)])
def test_ended_exec_run_leaves_no_process_behind(place: Place, how: str) -> None:
    """Ranks that ignore SIGTERM, and processes in sessions that they have started, are ended as well."""
    code = (
        "import os, signal, subprocess, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen(['sleep', '600'], start_new_session=True); print('begun', flush=True); time.sleep(600)"
    )
    limit = ("--max-wall", "12s") if how == "max_wall" else ()
    process = place.start("exec", "s.toml", *USERSPACE, *limit, "--out", "o", "--", PYTHON, "-c", code)
    assert process.stdout is not None
    if how != "max_wall":
        assert all("begun" in process.stdout.readline() for _ in range(3))
        process.send_signal(signal.SIGINT if how == "interrupt" else signal.SIGKILL)
    if how == "kill":
        process.communicate()
        place.nothing_is_left()
        return
    status, _, error = place.end(process)
    assert status == (130 if how == "interrupt" else 1), error
    result = Result.read(place.folder / "o")
    assert result.summary["totals"]["ended_by"] == how
    assert {each["status"] for each in result.summary["programs"]["ranks"]} == {-9}
    assert (place.folder / "o" / "ranks" / "rank2.out").read_text() == "begun\n"


@pytest.mark.virtual
@needs("uml")
@pytest.mark.slow
def test_interrupt_waits_for_computing_rank_and_keeps_result(place: Place) -> None:
    """The rank computes for longer than the ten seconds that a virtual machine has for ending. It cannot handle
    Ctrl-C meanwhile."""
    code = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('enough'): pass\ntime.sleep(600)"
    process = place.start("exec", "s.toml", *VIRTUAL, "--hosts", "h0", "--out", "o", "--", PYTHON, "-c", code)
    assert process.stdout is not None
    assert process.stdout.readline() == "[0 h0] begun\n"
    process.send_signal(signal.SIGINT)
    time.sleep(12)
    assert process.poll() is None
    (place.folder / "enough").touch()
    status, said, error = place.end(process)
    assert (status, error) == (130, "gradwire: interrupted") and "ended by interrupt" in said
    (rank,) = Result.read(place.folder / "o").summary["programs"]["ranks"]
    assert (rank["status"], rank["made_to_end"]) == (-15, True)
    assert (place.folder / "o" / "ranks" / "rank0.out").read_text() == "begun\n"


@pytest.mark.beside
@needs("namespaces")
def test_mark_rules_set_priority_and_importance_of_program_packets(place: Place) -> None:
    mark = '[[exec.mark]]\nrank = 1\nport = "8999-9000"\npriority = 2\nimportant = true\n[[exec.mark]]\npriority = 5\n'
    (place.folder / "s.toml").write_text(SCENARIO + mark)
    status, said, error = place.run("exec", "s.toml", *USERSPACE, "--json", "--out", "o", "--", PYTHON, "marked.py")
    assert status == 0, error
    ect0, first, second = 2, (7 - 2) << 5, (7 - 5) << 5
    assert (place.folder / "o" / "ranks" / "rank0.out").read_text() == f"tos {first | ect0} {second}\n"
    met = json.loads(said)["programs"]["marks"]
    sent = [int((place.folder / "o" / "ranks" / f"rank{rank}.out").read_text()) for rank in (1, 2)]
    assert met[0]["packets"] == sent[0] and met[1]["packets"] >= sent[1] + 2  # and what h0 answers


@pytest.mark.virtual
@needs("uml")
@pytest.mark.parametrize("switch", ["bpf", pytest.param("userspace", marks=pytest.mark.slow)])
def test_link_fault_drops_program_packets_during_its_interval(place: Place, switch: str) -> None:
    """Packets leave 5 ms after each 10 ms since the sender began, a few ms into the run."""
    fault = '[[fault]]\nkind = "link_down"\nbetween = ["h1", "s0"]\nat = "310ms"\nuntil = "610ms"\n'
    (place.folder / "s.toml").write_text(SCENARIO + 'hosts = ["h0", "h1"]\n' + fault)
    status, said, error = place.run(
        "exec", "s.toml", *VIRTUAL, "--switch", switch, "--out", "o", "--", PYTHON, "every.py"
    )
    assert status == 0, error
    (line,) = lines_of(said)["0 h0"]
    missing = json.loads(line.removeprefix("missing "))
    assert len(missing) == 30 and missing == list(range(missing[0], missing[0] + 30)) and 28 <= missing[0] <= 31
    lost = {row["port"]: row["drops_loss"] for row in Result.read(place.folder / "o").ports.to_pylist()}
    assert {port: count for port, count in lost.items() if count} == {"h1->s0": 30}


@pytest.mark.virtual
@needs("uml")
def test_polling_process_does_not_block_other_processes_of_its_host(place: Place) -> None:
    """Two ranks of gloo at one host once hung: one polled for a lock whose holder never ran."""
    (place.folder / "held.py").write_text(HELD)
    status, said, error = place.run("exec", "s.toml", *VIRTUAL, "--hosts", "h0", "--", PYTHON, "held.py")
    assert status == 0, error
    assert lines_of(said)["0 h0"] == ["done"]


@pytest.mark.virtual
@needs("uml")
def test_virtual_exec_runs_are_identical_at_link_rate(place: Place) -> None:
    pair = str(ROOT / "examples" / "exec" / "pair.py")
    for out in ("a", "b"):
        status, _, error = place.run(
            "exec", "s.toml", *VIRTUAL, "--hosts", "h0,h1", "--out", out, "--", PYTHON, pair, "1MB"
        )
        assert status == 0, error
    assert (place.folder / "a" / "marks.csv").read_text() == (place.folder / "b" / "marks.csv").read_text()
    table = Result.read(place.folder / "a").iterations.to_pylist()
    assert [row["iteration"] for row in table] == [0, 1, 2, 3]
    # 1448 bytes of payload in 1514 on the link; the last three quarters are sent without a pause
    seconds = (table[3]["end_ps"] - table[0]["end_ps"]) / 1e12
    assert 750_000 * 8 / seconds == pytest.approx(10e6 * 1448 / 1514, rel=0.005)


@pytest.mark.beside
@needs("namespaces")
def test_programs_run_with_background_traffic_and_paused_host(place: Place) -> None:
    more = (
        '[[traffic]]\nkind = "incast"\nname = "in"\nfan_in = 2\nreceiver = "h0"\nsize = "5kB"\nrounds = 4\n'
        'transport = "cubic"\nperiod = "100ms"\n[[fault]]\nkind = "host_paused"\nhost = "h1"\nat = "100ms"\nuntil = "1100ms"\n'
    )
    (place.folder / "s.toml").write_text(SCENARIO + more)
    code = "import time, gradwire; gradwire.mark(); time.sleep(0.3); gradwire.mark(0); time.sleep(1); gradwire.mark(1)"
    status, _, error = place.run("exec", "s.toml", *USERSPACE, "--out", "o", "--", PYTHON, "-c", code)
    assert status == 0, error
    result = Result.read(place.folder / "o")
    rows = result.messages.to_pylist()
    assert len(rows) == 8 and all(row["received_bytes"] == 5000 for row in rows)
    first_end = {row["worker"]: row["end_ps"] for row in result.iterations.to_pylist() if row["iteration"] == 0}
    assert first_end[1] >= 1.1e12 and len(first_end) == 3


@pytest.mark.virtual
@needs("uml")
@pytest.mark.slow
@pytest.mark.parametrize("reducer", [(), ("--reducer", "topk")], ids=["plain", "topk"])
def test_ddp_trains_over_a_lossy_network(place: Place, reducer: tuple[str, ...]) -> None:
    """gloo's gradients arrive complete despite losses, without more bytes than a ring of two needs. A reducer sends a
    hundredth. The first rank also sends the parameters, once."""
    pytest.importorskip("torch")
    script = str(ROOT / "examples" / "exec" / "ddp.py")
    status, _, error = place.run(
        "exec", "four-hosts", *VIRTUAL, "--set", "link.loss=0.01", "--hosts", "h0,h1", "--out", "o", "--",
        PYTHON, script, "--steps", "2", "--batch", "2", *reducer,
    )  # fmt: skip
    assert status == 0, error
    result = Result.read(place.folder / "o")
    assert result.iterations.num_rows == 4
    ports = {row["port"]: row for row in result.ports.to_pylist()}
    assert sum(row["drops_loss"] for row in ports.values()) > 0
    gradients = 4 * 269_722
    for host, parameters in ((0, gradients), (1, 0)):
        least = parameters + (0 if reducer else 2 * gradients)
        assert least < ports[f"h{host}->s0"]["bytes"] < 1.15 * least + gradients / 5


@needs("uml")
def test_measured_compute_time_is_slept_at_marks(place: Place) -> None:
    """A larger computation takes longer in proportion; the time itself depends on this machine. The slept time is the
    reported one."""
    code = (
        "import gradwire\n"
        "gradwire.mark()\n"
        "for step in range(2):\n"
        "    sum(i * i for i in range(1_000_000 << 2 * step))\n"
        "    gradwire.mark(step)\n"
    )
    (place.folder / "burn.py").write_text(code)
    command = ("--compute", "measured", "--hosts", "h0,h2", "--out", "o", "--", PYTHON, "burn.py")
    status, _, error = place.run("exec", "s.toml", *VIRTUAL, *command)
    assert status == 0, error
    rows = Result.read(place.folder / "o").iterations.to_pylist()
    assert len(rows) == 4
    for row in rows:  # microseconds for the kernel's tick and what runs between mark and mark
        assert row["compute_ps"] <= row["end_ps"] - row["start_ps"] < row["compute_ps"] + 2e9
    for rank in (0, 1):
        first, second = (row["compute_ps"] for row in rows if row["worker"] == rank)
        assert 2 * first < second < 8 * first


@pytest.mark.virtual
@needs("uml")
def test_compute_time_follows_trace_and_replays_equally_long(place: Place) -> None:
    """Compute times are those of the trace, whatever this machine takes. Communication between the two ranks adds to
    it, as far as it does not overlap. The recorded program, replayed as a job on the testbed and simulated, takes as
    long as the program took."""
    pytest.importorskip("torch")
    script = str(ROOT / "examples" / "exec" / "ddp.py")
    running = place.start(
        "exec", "four-hosts", *VIRTUAL, "--trace", "resnet20", "--hosts", "h0,h1", "--out", "o", "--",
        PYTHON, script, "--steps", "5", "--batch", "2", "--capture",
    )  # fmt: skip
    status, _, error = place.end(running, limit_s=400)
    assert status == 0, error
    result, given = Result.read(place.folder / "o"), gradwire.load_trace("resnet20")
    assert result.summary["trace_hash"] == given.digest()
    ran = gradwire.load_scenario(place.folder / "o" / "scenario.toml").exec
    assert ran is not None and (ran.trace, ran.hosts) == ("resnet20", ("h0", "h1"))
    rows = result.iterations.to_pylist()
    recorded = [given.iterations[step % len(given.iterations)] for step in range(5)] * 2
    for row, times in zip(rows, recorded, strict=True):
        assert row["compute_ps"] == pytest.approx(times.backward_end_ps + times.optimizer_ps, abs=1000)
        assert row["exposed_ps"] == row["end_ps"] - row["start_ps"] - row["compute_ps"]
        assert row["exposed_ps"] > 0
        assert row["forward_end_ps"] - row["start_ps"] >= times.forward_end_ps.max()
        assert row["start_ps"] < row["forward_end_ps"] < row["backward_end_ps"] < row["end_ps"]
    status, said, error = place.run("fidelity", "--from", "o", "--json")
    assert status == 0, error
    own, *replays = (json.loads(said)["program"][name] for name in ("program", "replayed", "simulated"))
    for each in replays:
        assert each["mean"] == pytest.approx(own["mean"], rel=0.05)
        assert 0.85 * own["sent"] < each["sent"] < own["sent"], "a program also sends what no gradient is"
