"""LMetric: prefill tokens times batch size, lowest wins."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import (
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
)
from bench.reproduce.lmetric.agent_coder import AGENT_CODER, OTHERS, RANGE
from bench.reproduce.lmetric.policies import (
    BASELINES,
    FIGURES,
    FLEET,
    FRESH,
    HARDWARE,
    LMETRIC,
    POLICIES,
    STRONG,
    WEIGHTS,
    change_row,
    colocated,
    multiplied,
    placed,
)
from bench.reproduce.lmetric.runs import HotDocuments, HotPrefix
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.tasks import TRACES, simulated
from bench.reproduce.verdicts import judge_direction

MAXIMUM_RPS = 139.0
"""Multi-turn on `FLEET`: `ballast simulate --workload multi-turn --limit 3000 --endpoints 16C@h20-llama3-8b --load "
"1`."""
RATES = {"half": 0.5 * MAXIMUM_RPS, "nine tenths": 0.9 * MAXIMUM_RPS}
REDUCED = {"lmetric", "vllm-jsq", "linear-kv 0.4", "linear-kv 0.7", "range-filter-kv 8", "dynamo-cost 0.5"} | {
    "predicted-ttft",
    "least-requests",
    "ballast",
}

CHATBOT = Claim(
    name="lmetric/chatbot",
    short="ChatBot: mean TTFT and TPOT against vLLM",
    number="-92, -24 %",
    where="6, figure 21",
    says="ChatBot: mean TTFT 92 % and mean TPOT 24 % below vLLM; P99 TPOT 13 % below llm-d, with a similar TTFT",
)
UNTUNED = Claim(
    name="lmetric/no-tuning",
    short="mean TTFT and TPOT against linear scheduler",
    number="-52, -20 %",
    where="abstract, 4.4, 6",
    says="without a parameter it beats the production scheduler (a linear combination): mean TTFT 52 % and mean TPOT "
    "20 % below",
)
TOOLAGENT = Claim(
    name="lmetric/toolagent",
    short="ToolAgent: mean TTFT and TPOT against llm-d",
    number="+10, -30 %",
    where="6, figure 25",
    says="ToolAgent: mean TTFT 10 % above llm-d (worse), mean TPOT 30 % below",
)
P_TOKEN = Claim(
    name="lmetric/p-token",
    short="P50 and P95 TTFT, P-token for 1 - hit",
    number="-14.4, -42.8 %",
    where="5.1, figure 18",
    says="prefill tokens as the cache indicator: P50 TTFT 14.4 %, P95 TTFT 42.8 % below 1 - hit ratio",
)
BATCH = Claim(
    name="lmetric/batch-size",
    short="batch size beats tokens as load",
    number="lower",
    where="5.1, figure 19",
    says="batch size as the load indicator is better than the total of tokens (a plot, no number)",
)
HOTSPOT = Claim(
    name="lmetric/hotspot",
    short="a detector helps at hotspots",
    number="lower",
    where="5.2, figure 20",
    says="where multiplication fails, at a prefix hotspot, a two-phase detector notices and filters; none of their "
    "traces has one",
)


# --- end to end -------------------------------------------------------------------------------------------------------


def _end_to_end(results: Results) -> Finding:
    rows, whiskers_ttft, whiskers_tpot = [], [], []
    for rate in RATES:
        at = "" if rate == "half" else f", {rate} of the maximum"
        mine = f"{rate}/lmetric"
        for against, figure, title, paper in (
            ("vllm-jsq", "ttft_mean_s", "mean TTFT", -92.0),
            ("vllm-jsq", "tpot_mean_s", "mean TPOT", -24.0),
            ("predicted-ttft", "tpot_p99_s", "P99 TPOT", -13.0),
        ):
            what = f"{title} against {against}{at}"
            rows.append(
                change_row(
                    results, mine, f"{rate}/{against}", figure, what, paper=paper, claim=CHATBOT, setting=Setting.THEIRS
                )
            )
        rows.append(
            change_row(
                results,
                mine,
                f"{rate}/predicted-ttft",
                "ttft_mean_s",
                f"mean TTFT against predicted-ttft{at}",
                paper=None,
                claim=None,
                setting=Setting.THEIRS,
            )
        )
        for name in BASELINES:
            if name.startswith(("linear-kv", "range-filter", "dynamo")):
                for figure, title, paper in (("ttft_mean_s", "mean TTFT", -52.0), ("tpot_mean_s", "mean TPOT", -20.0)):
                    linear = name.startswith("linear-kv")
                    rows.append(
                        change_row(
                            results,
                            mine,
                            f"{rate}/{name}",
                            figure,
                            f"{title} against {name}{at}",
                            paper=paper if linear else None,
                            claim=UNTUNED if linear else None,
                            setting=Setting.THEIRS,
                        )
                    )
        for name in STRONG:
            for figure, title, paper in (("ttft_mean_s", "mean TTFT", -92.0), ("tpot_mean_s", "mean TPOT", -24.0)):
                rows.append(
                    change_row(
                        results,
                        mine,
                        f"{rate}/{name}",
                        figure,
                        f"{title} against {name}{at}",
                        paper=paper,
                        claim=CHATBOT,
                        setting=Setting.REALISTIC,
                    )
                )
    for figure, title in (("ttft_mean_s", "mean TTFT"), ("tpot_mean_s", "mean TPOT")):
        for run, against in ((f"half/{FRESH}", "half/vllm-jsq"), ("half/lmetric", f"half/{FRESH}")):
            what = f"{title}, {run.removeprefix('half/')} against {against.removeprefix('half/')}"
            rows.append(change_row(results, run, against, figure, what, paper=None, claim=None, setting=Setting.BEYOND))
    for index, name in enumerate(POLICIES):
        ttft, tpot = (results.mean(f"half/{name}", figure, 1e3) for figure in ("ttft_mean_s", "tpot_mean_s"))
        whiskers_ttft.append(Whisker(name, ttft, style=colour(index)))
        whiskers_tpot.append(Whisker(name, tpot, style=colour(index)))
    charts = [
        Whiskers("Mean TTFT, half of the maximum rate", "ms", whiskers_ttft, log=True),
        Whiskers("Mean TPOT, half of the maximum rate", "ms", whiskers_tpot, from_zero=False),
    ]
    return Finding(rows=rows, plots=[Plot(name="latency", caption="TTFT and TPOT", charts=charts)])


FIGURE_21 = Experiment(
    name="lmetric/figure-21",
    title="Conversations on 16 colocated endpoints (figures 11, 12, 21, 25)",
    text=(
        "Multi-turn conversations with shared history in place of the ChatBot trace; half of the highest rate that "
        "least-requests sustains, and nine tenths of it. Every parameter that the paper tunes is swept."
    ),
    runs=[
        Run(f"half/{FRESH}", colocated(POLICIES["vllm-jsq"], RATES["half"], scrape_interval_s=0.01), cost_s=7.0),
        *(
            Run(f"{rate}/{name}", colocated(policy, rps), rate == "half" and name in REDUCED, cost_s=7.0)
            for rate, rps in RATES.items()
            for name, policy in POLICIES.items()
        ),
    ],
    analyse=_end_to_end,
    figures=FIGURES,
)

# --- figures 18 and 19 ------------------------------------------------------------------------------------------------

P_TOKENS = {"type": "least-uncached-tokens"}
MISSES = {"type": "linear-kv", "parameters": {"kv_weight": 1.0}}
REQUESTS = {"type": "least-requests"}
TOKENS = {"type": "least-tokens"}
INDICATORS = {
    "P-token x BS": multiplied("P-token x BS", P_TOKENS, REQUESTS),
    "(1 - hit) x BS": multiplied("(1 - hit) x BS", MISSES, REQUESTS),
    "P-token x tokens": multiplied("P-token x tokens", P_TOKENS, TOKENS),
    "(1 - hit) x tokens": multiplied("(1 - hit) x tokens", MISSES, TOKENS),
}


def _indicators(results: Results) -> Finding:
    rows = []
    for rate in RATES:
        at = f"{rate} of the maximum"
        for figure, title, paper in (
            ("ttft_p50_s", "P50 TTFT", -14.4),
            ("ttft_p95_s", "P95 TTFT", -42.8),
        ):
            rows.append(
                change_row(
                    results,
                    f"{rate}/P-token x BS",
                    f"{rate}/(1 - hit) x BS",
                    figure,
                    f"{title}, P-token instead of 1 - hit, {at}",
                    paper=paper,
                    claim=P_TOKEN,
                    setting=Setting.THEIRS,
                )
            )
        for figure, title in (("ttft_mean_s", "mean TTFT"), ("tpot_mean_s", "mean TPOT"), ("tpot_p99_s", "P99 TPOT")):
            ours = results.change(f"{rate}/P-token x BS", f"{rate}/P-token x tokens", figure)
            rows.append(
                Row(
                    what=f"{title}, batch size instead of tokens, {at}",
                    ours=ours,
                    unit="% change",
                    paper="lower",
                    setting=Setting.THEIRS,
                    claim=BATCH.name,
                    verdict=judge_direction(ours, -1.0),
                )
            )
    return Finding(rows=rows)


FIGURE_18 = Experiment(
    name="lmetric/figure-18",
    title="Which indicators are multiplied (figures 18 and 19)",
    text="The same conversations; the four products of two cache and two load indicators, as compositions.",
    runs=[
        Run(f"{rate}/{name}", colocated(policy, rps), rate == "half", cost_s=7.0)
        for rate, rps in RATES.items()
        for name, policy in INDICATORS.items()
    ],
    analyse=_indicators,
    figures=FIGURES,
)

# --- a hotspot --------------------------------------------------------------------------------------------------------

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

# --- traces -----------------------------------------------------------------------------------------------------------

TRACE_RUNS = {
    "Mooncake": ("mooncake_conversation_w1.jsonl.gz", FLEET, 1300, 1.2),
    "agent": ("agent_miniswe.jsonl.gz", "4C@h20-llama3-8b", 402, 3.0),
}
"""File, fleet, requests, rate scale."""
TRACE_POLICIES = (
    "lmetric",
    "vllm-jsq",
    "linear-kv 0.55",
    "linear-kv 0.7",
    "dynamo-cost 0.5",
    "predicted-ttft",
    *STRONG,
)


def _traces(results: Results) -> Finding:
    rows = []
    for trace in TRACE_RUNS:
        for figure, title, paper in (("ttft_mean_s", "mean TTFT", 10.0), ("tpot_mean_s", "mean TPOT", -30.0)):
            rows.append(
                change_row(
                    results,
                    f"{trace}/lmetric",
                    f"{trace}/predicted-ttft",
                    figure,
                    f"{title}, {trace}, against predicted-ttft",
                    paper=paper,
                    claim=TOOLAGENT,
                    setting=Setting.THEIRS,
                )
            )
        for against in TRACE_POLICIES[1:]:
            rows += [
                change_row(
                    results,
                    f"{trace}/lmetric",
                    f"{trace}/{against}",
                    figure,
                    f"{title}, {trace}, against {against}",
                    paper=None,
                    claim=None,
                    setting=Setting.BEYOND,
                )
                for figure, title in (("ttft_p99_s", "P99 TTFT"), ("tpot_p99_s", "P99 TPOT"))
            ]
    return Finding(rows=rows)


TRACED = Experiment(
    name="lmetric/traces",
    title="Public traces with prefix blocks",
    text=(
        "Mooncake's conversation trace on 16 colocated endpoints, and an agent trace on four. ToolAgent itself is "
        "not at "
        "hand; Mooncake's conversations come from the same operator. Every seed reads another part, or moves sessions."
    ),
    runs=[
        Run(
            f"{trace}/{name}",
            simulated(
                fleet,
                POLICIES[name],
                workload=TRACES / file,
                limit=limit,
                rate_scale=scale,
                hardware=HARDWARE,
            ),
            reduced=False,
            needs=TRACES / file,
            cost_s=6.0,
        )
        for trace, (file, fleet, limit, scale) in TRACE_RUNS.items()
        for name in TRACE_POLICIES
    ],
    analyse=_traces,
    figures=FIGURES,
)

# --- prefill and decode apart -----------------------------------------------------------------------------------------

APART = "12P4D@h20-llama3-8b"
APART_RPS = {"half": 45.0, "nine tenths": 80.0}
APART_POLICIES = (
    "lmetric/least-requests",
    "lmetric/lmetric",
    "least-uncached-tokens/least-requests",
    "predicted-ttft/least-requests",
    "least-requests/least-requests",
    "least-uncached-tokens/ballast",
)


def _apart(results: Results) -> Finding:
    rows = []
    for rate in APART_RPS:
        for against in APART_POLICIES[2:]:
            strong = against != "least-requests/least-requests"
            for figure, title, paper in (("ttft_mean_s", "mean TTFT", -92.0), ("ttft_p99_s", "P99 TTFT", None)):
                rows.append(
                    change_row(
                        results,
                        f"{rate}/lmetric/least-requests",
                        f"{rate}/{against}",
                        figure,
                        f"{title}, {rate}: lmetric/least-requests against {against}",
                        paper=paper if strong else None,
                        claim=CHATBOT if strong and paper is not None else None,
                        setting=Setting.REALISTIC if strong and paper is not None else Setting.BEYOND,
                    )
                )
        rows.append(
            change_row(
                results,
                f"{rate}/lmetric/lmetric",
                f"{rate}/lmetric/least-requests",
                "tpot_p99_s",
                f"P99 TPOT, {rate}: lmetric/lmetric against lmetric/least-requests",
                paper=None,
                claim=None,
                setting=Setting.BEYOND,
            )
        )
    return Finding(rows=rows)


DISAGGREGATED = Experiment(
    name="lmetric/disaggregated",
    reduced_seeds=(),
    title="Prefill and decode apart",
    text=(
        "The paper leaves disaggregated serving out. Here the prefill stage multiplies with the prefill queue: the "
        "same "
        "conversations on 12P4D, at two rates."
    ),
    runs=[
        Run(
            f"{rate}/{policy}",
            simulated(APART, policy, workload="multi-turn", rate_rps=rps, limit=5000, hardware=HARDWARE),
            rate == "half" and policy != "lmetric/lmetric",
            cost_s=8.0,
        )
        for rate, rps in APART_RPS.items()
        for policy in APART_POLICIES
    ],
    analyse=_apart,
    figures=FIGURES,
)


def _verdict(results: Mapping[str, Results]) -> str:
    ended, apart = results[FIGURE_21.name], results[DISAGGREGATED.name]
    blind = ended.change("half/lmetric", "half/vllm-jsq", "ttft_mean_s")
    fresh = ended.change(f"half/{FRESH}", "half/vllm-jsq", "ttft_mean_s")
    counted = ended.change("half/lmetric", "half/least-requests", "ttft_mean_s")
    tuned = [ended.change("half/lmetric", f"half/linear-kv {weight:g}", "ttft_mean_s") for weight in WEIGHTS]
    known = [each.value for each in tuned if each is not None]
    split = apart.change("half/lmetric/least-requests", "half/least-uncached-tokens/least-requests", "ttft_mean_s")
    if blind is None or fresh is None or counted is None or not known or split is None:
        return ""
    return (
        f"**In short.** Mean TTFT at half of the maximum rate is {blind.value:+.0f} % against vLLM's own balancer, "
        f"where "
        f"the paper has -92 %. Part of that is how old its counts are when they are read: scraped every 10 ms "
        f"instead of "
        f"200 ms, vLLM's balancer alone comes to {fresh.value:+.0f} %. Against counting requests at the gateway, "
        f"pending "
        f"ones included, LMetric's mean TTFT is {counted.value:+.0f} %; against linear combinations, by weight, "
        f"{min(known):+.0f} to {max(known):+.0f} %. Where prefill and decode are apart it is {split.value:+.1f} % "
        "against the uncached tokens alone, without the multiplication."
    )


PAPER = Paper(
    name="lmetric",
    title="LMetric: prefill tokens times batch size",
    set_up=(
        "Theirs: 16 colocated H20 of 96 GB, Qwen3-30B MoE and Qwen2-7B, vLLM; ChatBot, Agent, Coder and ToolAgent "
        "traces; "
        "half of the highest rate that the testbed sustains. Ours: 16 colocated endpoints of Llama-3-8B on an H20 "
        "with the "
        "KV that 96 GB leave (between their two models in cost a token), vLLM's scheduler with prefix caches; "
        "conversations, Agent, Coder and hotspots from generators, public traces in the full set.\n\n"
        "Not given, and decided here: under which policy the highest rate was measured (least-requests, queue not "
        "growing); how an idle endpoint scores (batch size counts the request itself); when a hotspot's filter ends "
        "(when "
        "its share is one that its holders can take). Their production scheduler is taken for the linear combination "
        "that "
        "figure 6b says it is like, llm-d for the least predicted TTFT, with an exact predictor of a vLLM step."
    ),
    claims=(CHATBOT, UNTUNED, OTHERS, TOOLAGENT, RANGE, P_TOKEN, BATCH, HOTSPOT),
    experiments=(FIGURE_21, FIGURE_18, AGENT_CODER, HOTSPOTS, TRACED, DISAGGREGATED),
    verdict=_verdict,
)
