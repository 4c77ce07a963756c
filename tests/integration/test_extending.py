"""The example of a transport of one's own, as the documentation runs it."""

from pathlib import Path

from scenarios.load import load_scenario
from sim.simulate import simulate

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "constant_rate.toml"
HEADERS, PAYLOAD, SHARE = 58, 4096, 60
PS_PER_BYTE = 80  # 100 Gbps


def test_a_module_beside_the_scenario_sends_at_its_own_rate():
    result = simulate(load_scenario(str(EXAMPLE)))
    rows = result.messages.to_pylist()
    assert len(rows) == 2 * 3 * 4 * len({row["part"] // 4 for row in rows})
    gap = -(-(PAYLOAD + HEADERS) * PS_PER_BYTE * 100 // SHARE)  # start to start of two full packets
    for row in rows:
        assert row["lost_bytes"] == 0
        full, rest = divmod(row["bytes"], PAYLOAD)
        last = max((rest or PAYLOAD) + HEADERS, 60) * PS_PER_BYTE
        sending = (full if rest else full - 1) * gap
        # two links: the last packet is stored and forwarded once; 2 us of software, 1 us on each link
        least = 2_000_000 + sending + 2 * (last + 1_000_000)
        took = row["end_ps"] - row["start_ps"]
        assert took >= least - full  # rounding of the gap: less than a picosecond a packet
        assert row["sent_packets"] == row["packets"]
