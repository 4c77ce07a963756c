"""The report: one HTML file that explains runs, comparisons, sweeps, trainings, claims or fidelity to whoever opens it.

Everything is inside - figures, script, style - and nothing is fetched, so it can be sent by mail and opened without a
network; its own policy (Content-Security-Policy) forbids it to reach for anything. Plots are drawn by some hundreds of
lines of script of ours: libraries that do more were measured at 0.9 MB (Vega), 1.3 MB (Bokeh) and 4.8 MB (Plotly) a
page, want a further installation, and none of them draws a timeline.

    given.py       what is reported on, from folders or objects
    runs.py        Results side by side: sentences, tables, plots, timeline, scenario
    others.py      sweeps, trainings, claims, fidelity
    charts.py      plots as plain data, which chart.js draws
    lanes.py       what happened when in some time of a run, as plain data, which lanes.js draws and
                   timeline.js moves
    pieces.py      sections, tables, prose as HTML
    document.py    the page around them
"""
