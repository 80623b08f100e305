"""The policies of SIBYL's experiments: the paper's three, the baselines beside them, and its variants."""

from __future__ import annotations

from ballast_core.policies.registry import build_placement
from ballast_core.policies.suite import Suite
from ballast_sim.simulation.policies.choice import PolicyChoice

OWN = {"estimator": "ema"}
"""The paper's estimator of lengths (Eq. 4), for its own set-up; the realistic one has ours."""

BASELINES = {
    "round-robin": "round-robin",
    "ils": "ILS, tokens",
    "least-requests-running": "ILS, requests",
    "least-requests": "least-requests",
    "least-tokens": "least-tokens",
    "sibyl": "SIBYL",
}
THREE = ("round-robin", "ils", "sibyl")
"""The paper's."""
FAIR = "least-requests"


def own(policy: str | PolicyChoice) -> str | PolicyChoice:
    """`sibyl` as the paper has it; all else as it is."""
    return sibyl("sibyl") if policy == "sibyl" else policy


def sibyl(name: str, **switches: bool) -> PolicyChoice:
    """SIBYL with its own estimator, and with switches of appendix J."""
    prefill = build_placement("least-uncached-tokens")
    return PolicyChoice(name, Suite(prefill=prefill, decode=build_placement("sibyl", {**OWN, **switches})))
