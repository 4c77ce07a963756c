"""Files of traffic: what they mean, and what is said of damaged ones."""

from __future__ import annotations

import re

import numpy as np
import pytest
from typer.testing import CliRunner

from gradwire import cli
from gradwire.scenarios.errors import ScenarioError
from gradwire.scenarios.loading.load import build_scenario, load_scenario
from gradwire.topology import build_network, network_of
from gradwire.workload.traffic import flows as flow_list
from gradwire.workload.traffic import matrix, poisson
from gradwire.workload.traffic.tables import check_files, check_hosts, flows_of

LIST = "3\n0 1 3 100 20000 2.000000001\n2 0 3 100 1 2.0\n1 2 3 100 70000 2.5\n"
MATRIX = """Nodes 4
Connections 4
Triggers 2
0->1 id 11 start 0 size 2000 recv_done_trigger 1
2->1 id 12 start 1000 size 3000 recv_done_trigger 1
1->3 id 13 trigger 1 size 4000 recv_done_trigger 7
3->0 id 14 trigger 7 size 5000
trigger id 1 barrier 2
trigger id 7 oneshot
"""


def flows(tmp_path, kind, text, **fields):
    path = tmp_path / "file"
    path.write_text(text)
    table = {"name": "t", "kind": kind, "file": str(path), **fields}
    scenario = build_scenario({"name": "c", "topology": {"kind": "star", "hosts": 8}, "traffic": [table]})
    network = build_network(scenario.topology, scenario.link, scenario.link_override)
    return list(flows_of(scenario, 0, network))


def test_flow_list_is_sorted_and_mapped_to_hosts(tmp_path):
    (one,) = flows(tmp_path, "flows", LIST, start="1us", hosts=["h5", "h6", "h7"])
    assert one.src.tolist() == [7, 5, 6] and one.dst.tolist() == [5, 6, 7]
    assert one.nbytes.tolist() == [1, 20000, 70000]
    assert one.start_ps.tolist() == [2_000_001_000_000, 2_000_001_001_000, 2_500_001_000_000]
    assert one.flow.tolist() == [1, 0, 2]


def test_flow_list_without_ports_is_accepted(tmp_path):
    text = "".join(line.replace(" 3 100 ", " 3 ") + "\n" for line in LIST.splitlines())
    (one,) = flows(tmp_path, "flows", text)
    assert one.nbytes.tolist() == [1, 20000, 70000]


def test_flow_list_ignores_a_byte_order_mark(tmp_path):
    text = "1\n0 1 3 100 20000 0.000001\n"
    (one,) = flows(tmp_path, "flows", "\ufeff" + text)
    (other,) = flows(tmp_path, "flows", text)
    assert (one.nbytes.tolist(), one.start_ps.tolist()) == (other.nbytes.tolist(), other.start_ps.tolist())


def test_flow_list_ignores_text_after_the_last_flow(tmp_path):
    """HPCC's simulator also reads only the announced lines; its default flow list ends with such text."""
    text = LIST + "\nFirst line: flow #\nsrc dst pg dport packet# start_time\n"
    (one,) = flows(tmp_path, "flows", text, start="1us")
    assert one.nbytes.tolist() == [1, 20000, 70000]


def test_flow_list_reads_the_number_of_flows_in_its_first_line(tmp_path):
    """HPCC's simulation/mix/flow.txt announces 2 flows and has 256 rows."""
    path = tmp_path / "flow.txt"
    rows = "".join(f"{source} 1 3 100 5000000 2\n" for source in range(2, 8))
    path.write_text(f"2\n{rows}\nFirst line: # of flows\nsrc0 dst0 3 dst_port0 size0 start_time0\n...\n")
    assert flow_list.read_flow_list(path, "traffic[0].file", 8)[:, 0].tolist() == [2, 3]


# As HPCC's own simulation/mix/topology.txt: node 0 is the switch, so hosts are nodes 1, 2, 3.
SWITCH_FIRST = "4 1 3\n0\n0 1 100Gbps 0.001ms 0\n0 2 100Gbps 0.001ms 0\n0 3 100Gbps 0.001ms 0\n"


def flows_between_nodes(tmp_path, text, **fields):
    (tmp_path / "topology.txt").write_text(SWITCH_FIRST)
    (tmp_path / "flow.txt").write_text(text)
    table = {"name": "t", "kind": "flows", "file": str(tmp_path / "flow.txt"), **fields}
    topology = {"kind": "hpcc", "file": str(tmp_path / "topology.txt")}
    scenario = build_scenario({"name": "c", "topology": topology, "traffic": [table]})
    network = network_of(scenario)
    check_hosts(scenario, network)
    (one,) = flows_of(scenario, 0, network)
    names = network.cards.hosts
    return [(names[src], names[dst]) for src, dst in zip(one.src, one.dst, strict=True)]


@pytest.mark.parametrize("hosts", ["all", ["h3", "h1", "h2"]])
def test_flow_list_uses_node_ids_of_the_topology_file(tmp_path, hosts):
    text = "3\n2 1 3 100 5000 2\n3 1 3 100 5000 2\n1 3 3 100 5000 2\n"
    assert flows_between_nodes(tmp_path, text, hosts=hosts) == [("h2", "h1"), ("h3", "h1"), ("h1", "h3")]


@pytest.mark.parametrize(
    ("ends", "hosts", "what", "value"),
    [
        ("2 0", "all", "names a switch of the topology", 0),
        ("0 2", "all", "names a switch of the topology", 0),
        ("4 2", "all", "names a node that the topology does not have", 4),
        ("3 1", ["h1", "h2"], "names a host that does not take part", 3),
    ],
)
def test_flow_list_rejects_ids_that_are_not_participating_hosts(tmp_path, ends, hosts, what, value):
    with pytest.raises(ScenarioError, match=what) as caught:
        flows_between_nodes(tmp_path, f"2\n2 1 3 100 5000 2\n{ends} 3 100 5000 2\n", hosts=hosts)
    assert "flow.txt, line 3" in str(caught.value) and f"got {value}" in str(caught.value)


def test_check_rejects_a_switch_in_a_flow_list(tmp_path):
    (tmp_path / "topology.txt").write_text(SWITCH_FIRST)
    (tmp_path / "flow.txt").write_text("1\n2 0 3 100 5000 2\n")
    scenario = (
        '[topology]\nkind = "hpcc"\nfile = "topology.txt"\n[[traffic]]\nname = "t"\nkind = "flows"\nfile = "flow.txt"\n'
    )
    (tmp_path / "s.toml").write_text(f'name = "s"\n{scenario}')
    result = CliRunner().invoke(cli.app, ["check", str(tmp_path / "s.toml")])
    assert result.exit_code == 2 and "names a switch of the topology" in result.output


def test_flow_list_rejects_an_oversized_host_number(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("1\n0 99999999999999999 3 100 5 0\n")
    with pytest.raises(ScenarioError, match="names a host that does not take part"):
        flow_list.read_flow_list(path, "traffic[0].file", None)


def test_flow_list_align_and_stop_shift_and_truncate_flows(tmp_path):
    (one,) = flows(tmp_path, "flows", LIST, start="1us", align=True, stop="400ms")
    assert one.start_ps.tolist() == [1_000_000, 1_001_000]


def test_long_flow_list_is_batched(tmp_path, monkeypatch):
    monkeypatch.setattr(flow_list, "BATCH_FLOWS", 7)
    lines = [f"{n % 3} 3 3 1 {n + 1} {n * 1e-6:.9f}" for n in range(50)]
    parts = flows(tmp_path, "flows", "50\n" + "\n".join(reversed(lines)))
    assert [len(part) for part in parts] == [7] * 7 + [1]
    assert np.concatenate([part.nbytes for part in parts]).tolist() == list(range(1, 51))


def test_traffic_matrix_sets_flows_and_trigger_edges(tmp_path):
    (one,) = flows(tmp_path, "matrix", MATRIX, start="2ns", hosts=["h4..h7"], start_unit="ps")
    assert one.flow.tolist() == [11, 12, 13, 14]
    assert one.src.tolist() == [4, 6, 5, 7] and one.dst.tolist() == [5, 5, 7, 4]
    assert one.start_ps.tolist()[:2] == [2000, 3000] and one.nbytes.tolist() == [2000, 3000, 4000, 5000]
    assert sorted(one.edges.tolist()) == [[0, 2], [1, 2], [2, 3]]


def test_traffic_matrix_in_any_order_is_sorted_and_truncated(tmp_path):
    """Flows follow the flows they wait for; a stop time removes late flows and their dependents."""
    head, body = MATRIX.split("\n")[:3], MATRIX.split("\n")[3:-1]
    (one,) = flows(tmp_path, "matrix", "\n".join([*head, *reversed(body)]) + "\n", start_unit="ps")
    assert one.flow.tolist()[-2:] == [13, 14] and sorted(one.flow.tolist()[:2]) == [11, 12]
    assert (np.diff(one.start_ps[:2]) >= 0).all()
    assert sorted([int(one.flow[a]), int(one.flow[b])] for a, b in one.edges) == [[11, 13], [12, 13], [13, 14]]
    (cut,) = flows(tmp_path, "matrix", MATRIX, stop="1ns", start_unit="ps")
    assert cut.flow.tolist() == [11] and len(cut.edges) == 0


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("", None, "is not a number of flows"),
        ("two\n", 1, "is not a number of flows"),
        ("2\n0 1 3 100 5 0\n", 1, "announces 2 flows, but 1 follow"),
        ("9" * 5000 + "\n0 1 3 100 5 0\n", 1, "is not a number of flows"),
        ("1\n0 1 3 100 " + "9" * 5000 + " 0\n", 2, "has a word that is not a whole number"),
        ("0\n", 1, "announces no flows"),
        ("2\n0 1 3 100 5\n0 1\n", 3, "has 2 words"),
        ("1\n0 1 3 100 5.5 0\n", 2, "has a word that is not a whole number"),
        ("1\n0 -1 3 100 5 0\n", 2, "has a word that is not a whole number"),
        ("1\n# a comment\n0 1 3 100 5 soon\n", 3, "has no start"),
        ("1\n0 1 3 100 5 nan\n", 2, "has no start"),
        ("1\n0 1 3 100 5 -1\n", 2, "out of range"),
        ("1\n0 1 3 100 5 1e999999999999999999\n", 2, "has no start"),
        ("1\n0 1 3 100 5 1e999980\n", 2, "out of range"),
        ("1\n0 1 3 100 0 1\n", 2, "out of range"),
        ("1\n1 1 3 100 5 0\n", 2, "goes from a host to itself"),
        ("1\n0 8 3 100 5 0\n", 2, "names a host that does not take part"),
        ("2\n0 1 3 100 200000 0\n1 2 3 100 0.5\n", 3, "has 5 words"),
        ("2\n0 1 3 200000 0\n1 2 3 100 500 0.5\n", 3, "has 6 words"),
        ("1\n0 \u0663 3 100 5 0\n", 2, "has a word that is not a whole number"),
        ("1\n0 1 3 100 5 \u0663\n", 2, "has no start"),
        ("1\n0 1 3 100 5 1_0\n", 2, "has no start"),
    ],
)
def test_invalid_flow_list_is_rejected_with_its_line(tmp_path, text, line, what):
    path = tmp_path / "list.txt"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(what)) as caught:
        flow_list.read_flow_list(path, "traffic[0].file", 8)
    assert (f"line {line}:" in str(caught.value)) == (line is not None)
    assert str(caught.value).startswith("traffic[0].file: ")


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (("Nodes 4", "Nodes \u0664"), 1, "has no number"),
        (("size 3000", "size \u0663000"), 5, "has no number for size"),
        (("start 1000", "start 1_000"), 5, "has no number for start"),
        (("Nodes 4\n", ""), None, "has no header Nodes"),
        (("Nodes 4", "Nodes four"), 1, "has no number"),
        (("Connections 4", "Nodes 4"), 2, "repeats the header Nodes"),
        (("Connections 4", "Connections 5"), 2, "announces 5 Connections, but there are 4"),
        (("Triggers 2", "Triggers 1"), 3, "announces 1 Triggers, but there are 2"),
        (("Triggers 2", "Failures 2"), 3, "has failures"),
        (("Nodes 4", "Nodes 9"), 1, "needs 9 hosts, but 8 take part"),
        (("Nodes 4", "Nodes 3"), 6, "names a node beyond Nodes"),
        (("2->1 id", "2-1 id"), 5, "is not a line of a traffic matrix"),
        (("2->1 id", "2->x id"), 5, "is not a connection"),
        (("2->1 id", "1->1 id"), 5, "goes from a host to itself"),
        (("start 1000 ", ""), 5, "does not have exactly one of start and trigger"),
        (("trigger 1 size", "trigger 1 start 5 size"), 6, "does not have exactly one of start and trigger"),
        (("size 3000 ", ""), 5, "has no size"),
        (("size 3000", "size -3"), 5, "has no number for size"),
        (("size 3000", "colour 3"), 5, "has an unexpected word, colour"),
        (("12 start 1000 size 3000 recv_done", "12 start 1000 size 3000 send_done"), 6, "fires at another host than 1"),
        (("size 5000", "size 5000 prio 1"), 7, "prio is a priority"),
        (("trigger id 7 oneshot", "trigger id 7 never"), 9, "is not a trigger"),
        (("trigger id 7 oneshot", "trigger id 1 oneshot"), 9, "repeats a trigger"),
        (("barrier 2", "barrier 3"), 8, "is fired by 2 flows"),
        (("barrier 2", "oneshot"), 8, "is fired by 2 flows"),
        (("trigger id 7 oneshot", "trigger id 8 oneshot"), 6, "names an undefined trigger"),
        (("3->0 id", "2->0 id"), 7, "fires at another host than 2"),
    ],
)
def test_invalid_traffic_matrix_is_rejected_with_its_line(tmp_path, change, line, what):
    assert change[0] in MATRIX
    path = tmp_path / "bad.cm"
    path.write_text(MATRIX.replace(*change, 1))
    with pytest.raises(ScenarioError, match=re.escape(what)) as caught:
        matrix.read_matrix(path, "traffic[0].file", 8, "ps")
    assert (f"line {line}:" in str(caught.value)) == (line is not None)


@pytest.mark.parametrize(
    ("unit", "text", "ps"),
    [("us", "3", 3_000_000), ("ps", "3", 3), ("us", "0.5", 500_000), ("us", "1e3", 10**9), ("ps", "2.5e6", 2_500_000),
     (None, "0", 0), (None, "0.0", 0), ("us", "0", 0)],
)  # fmt: skip
def test_traffic_matrix_starts_use_the_start_unit(tmp_path, unit, text, ps):
    """Worked out by hand. A start of 0 is the same in any unit."""
    fields = {} if unit is None else {"start_unit": unit}
    (one,) = flows(tmp_path, "matrix", f"Nodes 2\nConnections 1\n0->1 start {text} size 5\n", start="7ps", **fields)
    assert one.start_ps.tolist() == [7 + ps]


@pytest.mark.parametrize("start", ["1000", "0.5"])
def test_traffic_matrix_start_without_a_unit_is_rejected(tmp_path, start):
    with pytest.raises(
        ScenarioError, match=r'line 3: has a start without a unit.*expected start_unit = "us" .* or "ps"'
    ):
        flows(tmp_path, "matrix", f"Nodes 2\nConnections 1\n0->1 start {start} size 5\n")


@pytest.mark.parametrize("start", ["-1", "soon", "nan", "inf", "1e999999999", "1e30"])
def test_traffic_matrix_rejects_an_invalid_start_time(tmp_path, start):
    with pytest.raises(ScenarioError, match=r"line 3: (has no number for start|has a start out of range)"):
        flows(tmp_path, "matrix", f"Nodes 2\nConnections 1\n0->1 start {start} size 5\n", start_unit="us")


MESSAGES = """Nodes 3
Connections 4
Triggers 1
0->1 id 5 msg 1 start 0 size 1000
0->1 id 5 msg 2 start 2 size 2000 recv_done_trigger 1
1->2 id 6 msg trigger 1 size 3000
2->1 id 7 start 0 size 10
trigger id 1 oneshot
"""


def test_traffic_matrix_reads_messages_of_a_connection(tmp_path):
    """uet-htsim writes `msg` with and without a number."""
    (one,) = flows(tmp_path, "matrix", MESSAGES, start_unit="us")
    rows = sorted(zip(one.flow.tolist(), one.nbytes.tolist(), one.start_ps.tolist(), strict=True))
    assert rows == [(5, 1000, 0), (5, 2000, 2_000_000), (6, 3000, 0), (7, 10, 0)]
    assert [(int(one.nbytes[a]), int(one.nbytes[b])) for a, b in one.edges] == [(2000, 3000)]


def test_unnumbered_messages_of_a_connection_follow_file_order(tmp_path):
    """uet-htsim numbers such messages by their order, as in test_cr_1f10m1p.cm."""
    rows = "".join(f"0->1 id 1 msg start 0 size {size}\n" for size in (4086, 4087, 4088))
    (one,) = flows(tmp_path, "matrix", f"Nodes 2\nConnections 3\nTriggers 0\n{rows}")
    assert (one.flow.tolist(), one.nbytes.tolist()) == ([1, 1, 1], [4086, 4087, 4088])
    assert (one.src.tolist(), one.dst.tolist(), one.start_ps.tolist()) == ([0] * 3, [1] * 3, [0] * 3)


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        (("msg 2 ", "msg 0 "), 5, "has a message number of 0"),
        (("msg 2 ", "msg 1 "), 5, "repeats message 1 of id 5"),
        (("msg 2 ", ""), 5, "has the id 5 of line 4"),
        (("0->1 id 5 msg 2", "0->2 id 5 msg 2"), 5, "is a message of id 5, which goes from 0 to 1 in line 4"),
        (("id 7 ", "id 7 addon "), 7, "addon adds to a flow"),
    ],
)
def test_invalid_messages_of_a_connection_are_rejected(tmp_path, change, line, what):
    with pytest.raises(ScenarioError, match=f"line {line}: {what}"):
        flows(tmp_path, "matrix", MESSAGES.replace(*change, 1), start_unit="us")


def test_cyclic_triggers_are_rejected(tmp_path):
    path = tmp_path / "circle.cm"
    path.write_text(
        "Nodes 2\nConnections 2\nTriggers 2\n0->1 id 1 trigger 1 size 9 recv_done_trigger 2\n"
        "1->0 id 2 trigger 2 size 9 recv_done_trigger 1\ntrigger id 1 oneshot\ntrigger id 2 oneshot\n"
    )
    with pytest.raises(ScenarioError, match="line 4: waits for itself"):
        matrix.read_matrix(path, "file", 8)


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("0 0\n10 x\n20 1\n", 2, "is not a point"),
        ("0 0\n10\n20 1\n", 2, "is not a point"),
        ("0 0\n1_0 0.5\n20 1\n", 2, "is not a point"),
        ("0 0\n\u0663 0.5\n20 1\n", 2, "is not a point"),
        ("0 0\n10 0.5\n5 1\n", 3, "is below the previous point"),
        ("0 0\n10 0.5\n15 0.4\n20 1\n", 3, "is below the previous point"),
        ("0 0\n10 -0.5\n", 2, "is out of range"),
        ("0 0\n10 nan\n", 2, "is not a point"),
        ("0 0\n10 0.9\n", None, "does not end with a share of 1"),
        ("", None, "does not end with a share of 1"),
        ("0 1\n", None, "has no flow of a byte"),
    ],
)
def test_invalid_size_distribution_is_rejected_with_its_line(tmp_path, text, line, what):
    path = tmp_path / "sizes.txt"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=re.escape(what)) as caught:
        poisson.read_distribution(path, "traffic[0].sizes")
    assert (f"line {line}:" in str(caught.value)) == (line is not None)


def test_long_flow_list_error_list_is_truncated(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("30\n" + "0 0 3 1 1 0\n" * 30)
    with pytest.raises(ScenarioError) as caught:
        flow_list.read_flow_list(path, "file", None)
    assert len(caught.value.mistakes) == 9 and "22 more mistakes" in str(caught.value)


def test_check_reports_every_damaged_traffic_file(tmp_path):
    """Paths are relative to the scenario; `gradwire check` names every damaged file."""
    scenario = tmp_path / "case.toml"
    scenario.write_text(
        'name = "case"\ntopology = { kind = "star", hosts = 4 }\n'
        '[[traffic]]\nname = "a"\nkind = "flows"\nfile = "list.txt"\n'
        '[[traffic]]\nname = "b"\nkind = "matrix"\nfile = "gone.cm"\n'
        '[[traffic]]\nname = "c"\nkind = "poisson"\nload = 0.5\nflows = 5\nsizes = "sizes.txt"\n'
    )
    (tmp_path / "list.txt").write_text("1\n0 4 3 100 5 0\n")
    (tmp_path / "sizes.txt").write_text("0 0\n1 2\n")
    run = CliRunner().invoke(cli.app, ["check", str(scenario)])
    assert run.exit_code == 2 and "Traceback" not in run.output
    for words in ("list.txt, line 2", "gone.cm", "traffic[1].file", "sizes.txt: does not end with a share of 1"):
        assert words in run.output + (run.stderr if run.stderr_bytes else "")
    (tmp_path / "list.txt").write_text("1\n0 3 3 100 5 0\n")
    (tmp_path / "gone.cm").write_text("Nodes 2\nConnections 1\n0->1 start 0 size 5\n")
    (tmp_path / "sizes.txt").write_text("0 0\n9 1\n")
    check_files(load_scenario(scenario))


def test_scenario_digest_depends_on_file_content_not_on_its_path(tmp_path):
    digests = []
    for folder, size in (("a", 8), ("b", 8), ("c", 9)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "s.txt").write_text(f"0 0\n{size} 1\n")
        path = tmp_path / folder / "case.toml"
        path.write_text(
            'name = "case"\ntopology = { kind = "star", hosts = 4 }\n'
            '[[traffic]]\nname = "c"\nkind = "poisson"\nload = 0.5\nflows = 5\nsizes = "s.txt"\n'
        )
        digests.append(load_scenario(path).digest())
    assert digests[0] == digests[1] != digests[2]
