"""LMetric at hotspots, with and without its detector (section 5.2)."""

from __future__ import annotations

from bench.reproduce.form import Claim, Experiment, Finding, Row, Run, Setting
from bench.reproduce.lmetric.policies import FIGURES, LMETRIC, POLICIES, STRONG, colocated, placed
from bench.reproduce.lmetric.runs import HotDocuments, HotPrefix
from bench.reproduce.results import Results
from bench.reproduce.verdicts import judge_direction

HOTSPOT = Claim(
    name="lmetric/hotspot",
    short="a detector helps at hotspots",
    number="lower",
    where="5.2, figure 20",
    says="where multiplication fails, at a prefix hotspot, a two-phase detector notices and filters; none of their "
    "traces has one",
)

TENANTS_RPS = 60.0
DOCUMENTS_RPS = 40.0
DOCUMENTS = HotDocuments(document_tokens=16_384, rate_rps=DOCUMENTS_RPS, limit=5200)
PREFIXES = {
    "prefix": HotPrefix(prefix_tokens=16_384, rate_rps=DOCUMENTS_RPS, limit=6000),
    "short prefix": HotPrefix(prefix_tokens=8192, rate_rps=DOCUMENTS_RPS, limit=6000),
}
"""The case that section 5.2 describes."""
BENIGN = ("tenants", "documents")
"""Hotspots that the multiplication spreads by itself."""
DETECTORS = {
    "lmetric": LMETRIC,
    "lmetric without detector": placed("lmetric without detector", "lmetric", hotspot_filter=False),
}
HOTSPOT_POLICIES = {
    **DETECTORS,
    **{name: POLICIES[name] for name in ("vllm-jsq", "linear-kv 0.7", "predicted-ttft", "least-requests", "ballast")},
}


def _hotspot(results: Results) -> Finding:
    rows = []
    for setting in (*PREFIXES, *BENIGN):
        for figure, title in (
            ("tpot_p99_s", "P99 TPOT"),
            ("e2e_p99_s", "P99 E2E"),
            ("ttft_p99_s", "P99 TTFT"),
            ("ttft_mean_s", "mean TTFT"),
        ):
            ours = results.change(f"{setting}/lmetric", f"{setting}/lmetric without detector", figure)
            stuck = setting in PREFIXES
            rows.append(
                Row(
                    what=f"{title}, {setting}, detector on instead of off",
                    ours=ours,
                    unit="% change",
                    paper="lower" if stuck else "",
                    setting=Setting.THEIRS if stuck else Setting.BEYOND,
                    claim=HOTSPOT.name if stuck else None,
                    verdict=judge_direction(ours, -1.0) if stuck else None,
                )
            )
    rows += [
        Row(
            what=f"{title}, prefix, lmetric against {against}",
            ours=results.change("prefix/lmetric", f"prefix/{against}", figure),
            unit="% change",
            setting=Setting.BEYOND,
        )
        for against in STRONG
        for figure, title in (("tpot_p99_s", "P99 TPOT"), ("e2e_p99_s", "P99 E2E"), ("ttft_mean_s", "mean TTFT"))
    ]
    for name in HOTSPOT_POLICIES:
        rows += [
            Row(
                what=f"documents, {name}: {title}",
                ours=results.mean(f"documents/{name}", figure, 1e3),
                unit="ms",
                setting=Setting.BEYOND,
            )
            for figure, title in (("ttft_mean_s", "mean TTFT"), ("ttft_p99_s", "P99 TTFT"), ("tpot_p99_s", "P99 TPOT"))
        ]
    return Finding(rows=rows, text=_hotspot_text(results))


def _acted(results: Results, setting: str) -> tuple[int, int]:
    """In how many runs the detector changed a figure, and how many there are."""
    with_it, without = (
        [results.values(f"{setting}/{name}", figure) for figure in ("ttft_p99_s", "tpot_p99_s", "ttft_mean_s")]
        for name in ("lmetric", "lmetric without detector")
    )
    seeds = sorted(with_it[0].keys() & without[0].keys())
    acted = [any(ours[seed] != theirs[seed] for ours, theirs in zip(with_it, without, strict=True)) for seed in seeds]
    return sum(acted), len(acted)


def _hotspot_text(results: Results) -> str:
    counts = {setting: _acted(results, setting) for setting in (*PREFIXES, *BENIGN)}
    if not all(runs for _, runs in counts.values()):
        return ""
    said = ", ".join(f"{setting} {acted} of {runs}" for setting, (acted, runs) in counts.items())
    return (
        f"Runs in which the detector acted: {said}. Where a question is next to nothing beside its prefix, no batch "
        "size makes the holder dearer than the prefill of the prefix elsewhere: all goes to one endpoint until "
        "the detector filters it. It takes few requests until enough endpoints hold the prefix, and the filter "
        "ends. Tenants and documents are hotspots to the eye only: their questions leave enough to prefill, so the "
        "product sends requests elsewhere by itself, more endpoints hold the prefix, and Eq. 2 is satisfied before its "
        "share of the last minute is large."
    )


HOTSPOTS = Experiment(
    name="lmetric/hotspot",
    title="Hotspots, with and without the detector",
    text=(
        "The paper describes hotspots and has no run of one: figure 20 shows that its traces are benign. Made ones, on "
        "16 colocated endpoints. *Prefix*, as section 5.2 describes it: from second 30 on, a fifth of "
        f"{DOCUMENTS_RPS:g} requests/s have one prefix of 16,384 (*short*: 8,192) tokens, which one endpoint holds, "
        "and a question of 32 tokens; answers have 300 tokens on average. *Tenants*: 16 with prompts of 2,048 tokens "
        f"of their own, one of which sends 60 % of {TENANTS_RPS:g} requests/s in every other minute. *Documents*: "
        f"60 % of {DOCUMENTS_RPS:g} requests/s ask about one document of 16,384 tokens, another one every minute, "
        "which one endpoint holds from half a minute before. All others share nothing."
    ),
    runs=[
        *(
            Run(f"prefix/{name}", colocated(policy, DOCUMENTS_RPS, PREFIXES["prefix"]), name in DETECTORS, cost_s=9.0)
            for name, policy in {**DETECTORS, **STRONG}.items()
        ),
        *(
            Run(f"short prefix/{name}", colocated(policy, DOCUMENTS_RPS, PREFIXES["short prefix"]), False, cost_s=6.0)
            for name, policy in DETECTORS.items()
        ),
        *(
            Run(f"tenants/{name}", colocated(policy, TENANTS_RPS, "hotspot-prefix", int(130 * TENANTS_RPS)), cost_s=7.0)
            for name, policy in DETECTORS.items()
        ),
        *(
            Run(f"documents/{name}", colocated(policy, DOCUMENTS_RPS, DOCUMENTS), cost_s=7.0)
            for name, policy in HOTSPOT_POLICIES.items()
        ),
    ],
    analyse=_hotspot,
    figures=FIGURES,
)
