# %% [markdown]
# # What if the cluster were another one?
#
# A training job on a leaf-spine network: what do more workers, half the spines, or another transport do to its
# iterations? Every cell runs in seconds. Open this file in Jupyter (with jupytext) or VS Code, or run it as a script.

# %%
import gradwire

SMALL = ["job.iterations=3", "job.servers=2"]
base = gradwire.load_scenario("demo", policy="dlcp", set=[*SMALL, "job.workers=4"])
base  # in a notebook: what it is, and its file

# %% [markdown]
# One run is a Result: tables of iterations, messages, drops, ports.

# %%
result = gradwire.simulate(base)
print(result)
(entry,) = gradwire.metrics(result)
waiting = 100 * entry.exposed_share
print(f"{entry.iteration.mean_ps / 1e9:.1f} ms per iteration, {waiting:.0f} % of it waiting for the network")

# %% [markdown]
# The same job with another network or more workers; each is one changed key.

# %%
changes = {
    "as it is": [],
    "eight workers": ["job.workers=8"],
    "two spines instead of four": ["topology.spines=2"],
    "25 Gbps": ["link.rate=25Gbps"],
}
found = {
    name: gradwire.metrics(
        gradwire.simulate(gradwire.load_scenario("demo", policy="dlcp", set=[*SMALL, "job.workers=4", *each]))
    )[0]
    for name, each in changes.items()
}
for name, entry in found.items():
    print(f"{name:28} {entry.iteration.mean_ps / 1e9:6.1f} ms, {100 * entry.exposed_share:3.0f} % waiting")

# %% [markdown]
# Two policies side by side, and what their iterations are spent on.

# %%
runs = gradwire.compare("demo", set=[*SMALL, "job.workers=4"])
runs  # in a notebook: the table

# %%
for run in runs.results:
    means = gradwire.breakdown(run).means("resnet50")
    print(run.summary["label"], {part: f"{ps / 1e9:.1f} ms" for part, ps in means.items() if ps})

# %% [markdown]
# Many points along axes, with seeds, are a sweep; what is done is not run again.

# %%
swept = gradwire.sweep({
    "name": "what-if",
    "scenario": "demo",
    "set": {"job": {"iterations": 3, "servers": 2}},
    "axis": [{"key": "job.workers", "values": [2, 6]}, {"policies": ["dctcp-priority", "dlcp"]}],
    "measures": ["iteration_mean_ps", "again"],
    "plot": [{"name": "workers", "kind": "lines", "x": "workers", "y": "iteration_mean_ps", "by": "policy"}],
}, out="results/what-if")  # fmt: skip
print(swept)
swept.table.to_pylist()

# %% [markdown]
# All of it in one file for a colleague, who needs neither gradwire nor a network to open it.

# %%
written = gradwire.report(runs, swept, out="what-if.html", title="What if the cluster were another one?")
print(f"{written.path}: {', '.join(written.sections)}, {written.size / 1e6:.2f} MB")
