# %% [markdown]
# # Time to accuracy: what the network loses is lost in the update
#
# A small network learns made-up pictures on four workers over 1 Gbps, under DCTCP, which loses nothing, and under DLCP,
# which may lose a tenth of every gradient and is done earlier. Needs the extra `capture` (torch). Made-up data and one
# seed: it shows the tools, not what a policy is worth.

# %%
import gradwire

SMALL = ["training.samples=600", "training.epochs=2", "training.size=8", "job.workers=4", "topology.hosts=5"]
learned = []
for policy in ("dctcp", "dlcp"):
    scenario = gradwire.load_scenario("train-tiny", policy=policy, set=SMALL)
    learned.append(gradwire.train(scenario, f"results/accuracy/{policy}"))
    print(learned[-1])

# %% [markdown]
# Every step and every look at data that is not learned from is a row.

# %%
for each in learned:
    last = each.scores[-1]
    print(f"{each.name}: {100 * last['accuracy']:.2f} % after {last['clock_ps'] / 1e9:.0f} ms on the wire")
    print(each.table("scores").to_pylist()[-1])

# %% [markdown]
# Accuracy against steps, bytes and simulated time: a matplotlib figure.

# %%
figure = gradwire.plot(*learned)["accuracy"]
figure.savefig("accuracy.pdf")

# %% [markdown]
# Started again with the same folder, a training goes on from its last checkpoint; this one is done, so nothing is left.

# %%
again = gradwire.train(scenario, "results/accuracy/dlcp")
assert again.scores == learned[-1].scores

# %%
gradwire.report(*learned, out="accuracy.html", title="Time to accuracy")
