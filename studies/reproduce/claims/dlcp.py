"""Claims of DLCP (arXiv 2008.08445) that can be simulated: shape checks S1 to S5 and S8 to S10.

S6 and S7 are about accuracy and need training. The source of a claim says if its limits are ours.
"""

from __future__ import annotations

from gradwire.studies.reproduce.claims.bursts import S1, S2, S5
from gradwire.studies.reproduce.claims.mechanisms import S8, S9, S10
from gradwire.studies.reproduce.claims.training_jobs import S3, S4

CLAIMS = [S1, S2, S3, S4, S5, S8, S9, S10]
