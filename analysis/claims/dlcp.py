"""DLCP's claims (arXiv 2008.08445), as far as they can be simulated: shape checks S1 to S5 and S8 to S10.

S6 and S7 are of accuracy, and want training. Where limits are ours, the source says so.
"""

from __future__ import annotations

from gradwire.analysis.claims.bursts import S1, S2, S5
from gradwire.analysis.claims.jobs import S3, S4
from gradwire.analysis.claims.mechanisms import S8, S9, S10

CLAIMS = [S1, S2, S3, S4, S5, S8, S9, S10]
