"""What ARES's experiments share: ways of moving, what is compared of them, first placement.

First placement is `ils`: fewest KV tokens of running requests, the paper's "real-time KV cache load balancing" (6.1).
The paper gives no thresholds for its goodput: here a request counts whose TPOT is 30 ms or less on the paper's card,
12.5 ms or less on its physics, which an even fleet keeps for 16 to 37 % of its requests over 2,000 s, and 26 ms
or less on other endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast_sim.simulation.policies.choice import PolicyChoice, parse_policies, with_parts
from bench.reproduce.form import STANDARD_FIGURES

FIGURES = (
    *STANDARD_FIGURES,
    "attainment",
    "migrations",
    "migration_pause_p50_s",
    "migration_pause_p99_s",
    "migrated_bytes",
    "step_variance_ms2",
    "kv_imbalance",
)
REDUCED_S = 600.0

MOVES: Mapping[str, tuple[str, str]] = {
    "vllm": ("none", "none"),
    "rescheduling": ("ares:prediction=false", "none"),
    "ares-oracle": ("ares", "oracle"),
    "ares-predictor": ("ares", "ares"),
    "ares-survival": ("ares:predictor=survival", "none"),
}
"""`--rescheduling` and `--lengths` of each variant, by the paper's names; `ares-predictor` errs as the paper's."""
LABELS = {
    "vllm": "no rescheduling",
    "rescheduling": "rescheduling without prediction",
    "ares-oracle": "ARES, oracle",
    "ares-predictor": "ARES, the paper's errors",
    "ares-survival": "ARES, survival curves",
}

PLACED_FIGURES = (
    ("tpot_p99_s", "P99 TPOT", "ares/tail", -74.77),
    ("goodput_rps", "goodput", "ares/goodput", 93.0),
    ("step_variance_ms2", "step-time variance", None, None),
)
COMPARED = ("rescheduling", "ares-oracle", "ares-predictor", "ares-survival")


def choice(decode: str, rescheduling: str) -> PolicyChoice:
    """A placement of decodes with a rescheduler."""
    return with_parts(parse_policies(decode), {"rescheduling": rescheduling})[0]
