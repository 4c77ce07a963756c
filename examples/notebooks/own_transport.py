# %% [markdown]
# # A transport of your own
#
# A transport is one class in one Python file (docs/extending.md). This one sends at a fixed share of the line rate and
# never listens; here it is written, held against a closed form, and compared with DCTCP.

# %%
from pathlib import Path

import gradwire

SOURCE = Path(__file__ if "__file__" in globals() else "examples/notebooks/own_transport.py").resolve().parents[1]
Path("constant_rate.py").write_text((SOURCE / "constant_rate.py").read_text())  # the class ConstantRate

# %% [markdown]
# A scenario names it as "module:Class"; the module is looked for beside the scenario. Two hosts send to a third. At
# 40 % of the line rate each, both fit into its link; at 60 % they do not, and what does not fit is dropped. A message
# may lose a quarter then: its receiver says stop when the rest is there.

# %%
SCENARIO = """
name = "own-{percent}"
transport = {{ kind = "constant_rate:ConstantRate", percent = {percent} }}

[topology]
kind = "star"
hosts = 3

[switch]
buffer = "256KiB"

[[traffic]]
name = "pair"
kind = "incast"
fan_in = 2
size = "4MB"
rounds = 1
bound = {bound}
"""


def simulated(percent, bound):
    place = Path(f"own-{percent}.toml")
    place.write_text(SCENARIO.format(percent=percent, bound=bound))
    return gradwire.simulate(gradwire.load_scenario(place))


fits, too_fast = simulated(40, 0.0), simulated(60, 0.25)
for result in (fits, too_fast):
    rows = result.messages.to_pylist()
    dropped = result.drops.num_rows / sum(row["sent_packets"] for row in rows)
    print(f"{result}: {max(row['end_ps'] for row in rows) / 1e6:.0f} us, {100 * dropped:.1f} % of the packets dropped")

# %% [markdown]
# At 40 % a flow takes as long as its packets at 40 Gbps; a closed form holds it to that.

# %%
PAYLOAD, HEADERS, PS_PER_BYTE = 4096, 58, 80  # 100 Gbps
gap = (PAYLOAD + HEADERS) * PS_PER_BYTE / 0.4
for row in fits.messages.to_pylist():
    took = row["end_ps"] - row["start_ps"]
    assert row["lost_bytes"] == 0
    assert 0 < took - (row["packets"] - 1) * gap < 10e6, "a few microseconds of links and software"

# %% [markdown]
# At 60 % each, a sixth of what is offered does not fit, less what the buffer takes at first.

# %%
sent = sum(row["sent_packets"] for row in too_fast.messages.to_pylist())
buffered = 256 * 1024 / (PAYLOAD + HEADERS)
assert 1 / 6 - buffered / sent - 0.02 < too_fast.drops.num_rows / sent < 1 / 6 + 0.01

# %% [markdown]
# Beside DCTCP, which listens and loses nothing:

# %%
changes = ['transport="dctcp"', "traffic.bound=0.0", "switch.ecn_threshold=64KiB"]
dctcp = gradwire.load_scenario("own-60.toml", set=changes)
both = gradwire.compare(too_fast, dctcp)
print(both)
both  # in a notebook: the table
gradwire.report(both, out="own-transport.html", title="A transport of one's own beside DCTCP")
