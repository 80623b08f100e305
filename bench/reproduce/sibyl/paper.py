"""SIBYL: place decodes by the load projected to the hand-off."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import Paper
from bench.reproduce.results import Results, measured
from bench.reproduce.sibyl import a100
from bench.reproduce.sibyl.assignments import OPTIMAL, TABLE_1, TABLE_1_LOADS
from bench.reproduce.sibyl.cluster import FIGURE_6, MEANS, REAL_CLUSTER
from bench.reproduce.sibyl.policies import BASELINES
from bench.reproduce.sibyl.realistic import KV_LIMIT, REALISTIC
from bench.reproduce.sibyl.survival import CALIBRATION, FIGURE_7
from bench.reproduce.sibyl.tails import FIGURE_9, FIGURE_15, SCALE, TAIL
from bench.reproduce.sibyl.variants import FIGURE_8, VARIANTS_CLAIM
from bench.reproduce.sibyl.why import WHY


def _verdict(results: Mapping[str, Results]) -> str:
    tail = results[FIGURE_9.name]
    changes = {
        against: tail.change("ShareGPT/held/0.9/sibyl", f"ShareGPT/held/0.9/{against}", "tpot_p99_s")
        for against in ("round-robin", "ils")
    }
    if any(change is None for change in changes.values()):
        return ""
    said = " and ".join(f"{measured(change, '% change')} against {BASELINES[name]}" for name, change in changes.items())
    return (
        "**In short.** On the paper's own physics, with its own estimator, SIBYL's P99 TPOT on ShareGPT at load 0.9 is "
        f"{said}; the paper has -24.5 and -47.7 %. The experiment called *why* shows what decides: SIBYL balances KV "
        "tokens, and Eq. 15 charges for sequences. What cannot be ruled out: traces, rates or settings of the authors "
        "that are not published."
    )


PAPER = Paper(
    name="sibyl",
    title="SIBYL: decodes placed by projected load",
    set_up=(
        "Theirs: Qwen3-32B on H20, ShareGPT and Zeta with reasoning, outputs capped at 8,192, a push connector, so "
        "that "
        "decode endpoints are assigned at arrival. 64 to 256 decode endpoints are simulated in the paper, too: prefill "
        "is a delay, an endpoint's throughput is a polynomial of its batch size (Eq. 15) shared equally, KV has no "
        "limit.\n\n"
        "Not given, and decided here: arrival rates (load 1 is where all decode endpoints at the peak of Eq. 15 "
        "generate "
        "just what arrives; 0.9 to 1.2 are run); lengths (generators with the published moments); the delay of a "
        "prefill (the step time of the prompt alone on an H20); what ILS counts (tokens of running requests, or "
        "running "
        "requests: both are run). Eq. 15 turns negative at 106 sequences while 256 are allowed: *printed* admits 105, "
        "*held* keeps the peak throughput beyond 53. Policies see scrapes and their own requests, not the simulator's "
        "state. Errata of the algorithm are in `docs/policies.md`."
    ),
    claims=(TAIL, SCALE, REAL_CLUSTER, MEANS, *a100.CLAIMS, OPTIMAL, VARIANTS_CLAIM, CALIBRATION),
    experiments=(
        FIGURE_9,
        FIGURE_8,
        WHY,
        TABLE_1,
        TABLE_1_LOADS,
        FIGURE_15,
        FIGURE_6,
        a100.EXPERIMENT,
        FIGURE_7,
        REALISTIC,
        KV_LIMIT,
    ),
    verdict=_verdict,
)
