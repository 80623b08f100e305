"""ARES: running decodes move, by predicted load.

First placement is `ils`: fewest KV tokens of running requests, the paper's "real-time KV cache load balancing" (6.1).
The paper gives no thresholds for its goodput: here a request counts whose TPOT is 30 ms or less on the paper's card,
12.5 ms or less on its physics, of which an even fleet at its rate keeps all, and 26 ms or less on other endpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ballast_core.model import Binding
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.policies.choice import PolicyChoice, parse_policies, with_parts
from bench.reproduce.ares.card import CARD
from bench.reproduce.ares.runs import goodput_name, swept
from bench.reproduce.ares.transfer import SHARE, TRANSFER
from bench.reproduce.form import (
    MANY_SEEDS,
    STANDARD_FIGURES,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
)
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results, measured
from bench.reproduce.tasks import Called, Simulated, simulated
from bench.reproduce.verdicts import judge_change as judged
from bench.reproduce.verdicts import judge_direction

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
DATA = {"sharegpt-32k": "ShareGPT", "alpaca-reasoning": "Alpaca"}
ENDPOINTS = (8, 16, 32, 64)
LARGE = (128, 256)
RATE_PER_ENDPOINT = 0.3 / 8
DURATION_S = 2000.0
REDUCED_S = 600.0
REDUCED_ENDPOINTS = 64

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
ERRORS = ("noisy:25%", "noisy:50%", "noisy:100%", "noisy:200%")

PLACED_FIGURES = (
    ("tpot_p99_s", "P99 TPOT", "ares/tail", -74.77),
    ("goodput_rps", "goodput", "ares/goodput", 93.0),
    ("step_variance_ms2", "step-time variance", None, None),
)
COMPARED = ("rescheduling", "ares-oracle", "ares-predictor", "ares-survival")

TAIL = Claim(
    name="ares/tail",
    short="P99 TPOT by moving, then by prediction",
    number="-70.6, -74.8 %",
    where="6.2, figure 10",
    says="P99 TPOT on ShareGPT at 0.17 req/s falls from 96.3 to 28.3 ms by rescheduling and to 24.3 ms (-74.77 %) "
    "with predictions: three decode endpoints short of memory",
)
VARIANCE = Claim(
    name="ares/variance",
    short="variance of step times, 8 to 256 endpoints",
    number="lower",
    where="6.4",
    says="simulated on 8 to 256 endpoints, rescheduling lowers the variance of step times over decode endpoints, and "
    "predictions lower it further",
)
GOODPUT = Claim(
    name="ares/goodput",
    short="goodput by moving",
    number="1.93x",
    where="6.2",
    says="goodput is 1.93 times (abstract: up to 2.24 times) that without rescheduling, 1.16 times that without "
    "prediction",
)


THROUGHPUT = Claim(
    name="ares/throughput",
    short="throughput by moving",
    number="1.75x",
    where="6.2, figure 10",
    says="throughput on ShareGPT at 0.17 req/s is 1.75 times that without rescheduling, and at low load the same",
)


ALPACA_TAIL = Claim(
    name="ares/alpaca-tail",
    short="P99 TPOT on Alpaca by moving, by prediction",
    number="-19.7, -45.4 %",
    where="6.2, figure 10",
    says="P99 TPOT on Alpaca at 1.7 req/s falls from 100.6 to 80.8 ms by rescheduling (-19.7 %), and by another 45.4 % "
    "with predictions",
)


def choice(decode: str, rescheduling: str) -> PolicyChoice:
    """A placement of decodes with a rescheduler."""
    return with_parts(parse_policies(decode), {"rescheduling": rescheduling})[0]


def paper_run(workload: str, endpoints: int, variant: str, *, lengths: str = "", duration_s: float) -> Simulated:
    """Section 6.4: step times linear in tokens, 0.3 requests a second for 8 endpoints."""
    rescheduling, hints = MOVES[variant]
    return simulated(
        f"1P@a100-qwen3-32b,{endpoints}D@a100-qwen3-32b",
        choice("ils", rescheduling),
        workload=workload,
        rate_rps=RATE_PER_ENDPOINT * endpoints,
        duration_s=duration_s,
        binding=Binding.EARLY,
        slo="tpot=0.0125",
        fleet=FleetSettings(
            known_limits=False, physics="ares-linear", length_hints=LengthHints.parse(lengths or hints)
        ),
    )


def real_run(decode: str, variant: str, *, gbps: float | None = None, copy: str = "pull") -> Simulated:
    """vLLM's scheduler and memory on four H20 that KV nearly fills, prefill on an A100; links as fast as asked."""
    rescheduling, hints = MOVES[variant]
    made = simulated(
        "1P@a100-qwen3-32b,4D@h20-qwen3-32b",
        choice(decode, rescheduling),
        workload="sharegpt-32k",
        rate_rps=0.4,
        duration_s=REDUCED_S,
        slo="tpot=0.026",
        fleet=FleetSettings(known_limits=False, length_hints=LengthHints.parse(hints)),
    )
    if gbps is None:
        return made
    setup = made.spec.setup
    linked = tuple(replace(machine, profile=replace(machine.profile, link_gbps=gbps)) for machine in setup.machines)
    return Simulated(replace(made.spec, setup=replace(setup, machines=linked)))


# --- their card -------------------------------------------------------------------------------------------------------

CARD_RATES = (0.17, 0.2, 0.23, 0.26)
CARD_PLACEMENTS = ("least-requests", "ballast")
CARD_S = 3000.0
"""Of arrivals: an output of 32K lives 600 to 900 s."""
SWEPT_MS = (20, 22, 24, 26, 28, 30, 35, 40, 50)
CARD_FIGURES = (*FIGURES, "tbt_p99_s", *map(goodput_name, SWEPT_MS))
SHOWN = ("vllm", "rescheduling", "ares-oracle", "ares-survival")
CARD_CLAIMS = {
    ("rescheduling", "tpot_p99_s"): (TAIL, -70.6),
    ("ares-oracle", "tpot_p99_s"): (TAIL, -74.77),
    ("ares-oracle", "throughput_tok_s"): (THROUGHPUT, 75.0),
}
"""What the paper has at its highest rate, against no rescheduling."""


def card_run(
    decode: str, variant: str, rate_rps: float, workload: str = "sharegpt-32k", *, duration_s: float = CARD_S
) -> Called:
    """Section 6.2: one prefill and three decode cards, whose KV the lengths of ShareGPT fill; late binding as NIXL."""
    rescheduling, hints = MOVES[variant]
    made = simulated(
        f"1P3D@{CARD.name}",
        choice(decode, rescheduling),
        workload=workload,
        rate_rps=rate_rps,
        duration_s=duration_s,
        slo="tpot=0.03",
        fleet=FleetSettings(known_limits=False, length_hints=LengthHints.parse(hints)),
        profiles=(CARD,),
    )
    return Called(swept, {"run": made, "tpot_ms": SWEPT_MS})


def _card_runs() -> list[Run]:
    runs = [
        Run(f"{rate:g}/ils/{variant}", card_run("ils", variant, rate), rate == CARD_RATES[-1], None, 12)
        for rate in CARD_RATES
        for variant in SHOWN
    ]
    runs += [
        Run(f"{CARD_RATES[-1]:g}/{decode}/{variant}", card_run(decode, variant, CARD_RATES[-1]), False, None, 15)
        for decode in CARD_PLACEMENTS
        for variant in ("vllm", "ares-oracle")
    ]
    runs += [
        Run(f"Alpaca/ils/{variant}", card_run("ils", variant, ALPACA_RPS, "alpaca-reasoning"), False, None, 15)
        for variant in SHOWN
    ]
    return runs


ALPACA_RPS = 0.26
"""The paper has 1.7, many times what three such cards decode: see `ares/alpaca`."""


def _card(results: Results) -> Finding:
    rows, whiskers = [], []
    for rate in CARD_RATES:
        still = f"{rate:g}/ils/vllm"
        for variant in SHOWN[1:]:
            at = f"{rate:g}/ils/{variant}"
            for figure, title in CARD_TITLES.items():
                changed = results.change(at, still, figure)
                claim, paper = CARD_CLAIMS.get((variant, figure), (None, None))
                rows.append(
                    Row(
                        what=f"{title}, {rate:g} req/s, {LABELS[variant]}",
                        ours=changed,
                        unit="% change",
                        paper="" if paper is None else f"{paper:+.4g} %",
                        setting=Setting.THEIRS,
                        claim=None if claim is None else claim.name,
                        verdict=None if paper is None else judged(changed, paper),
                    )
                )
        best = results.best_change(f"{rate:g}/ils/ares-oracle", still, tuple(map(goodput_name, SWEPT_MS)))
        rows.append(
            Row(
                what=f"goodput at the objective where moving gains most, {rate:g} req/s, {LABELS['ares-oracle']}",
                ours=best,
                unit="% change",
                paper="+93 %",
                setting=Setting.THEIRS,
                claim=GOODPUT.name,
                verdict=judged(best, 93.0),
            )
        )
        rows += [
            Row(what=f"{LABELS[variant]}, {rate:g} req/s: {title}", ours=ours, unit=unit, setting=Setting.THEIRS)
            for variant in SHOWN
            for title, ours, unit in (
                ("P99 TPOT", results.mean(f"{rate:g}/ils/{variant}", "tpot_p99_s", 1e3), "ms"),
                ("P99 gap between tokens", results.mean(f"{rate:g}/ils/{variant}", "tbt_p99_s", 1e3), "ms"),
                ("preemptions", results.mean(f"{rate:g}/ils/{variant}", "preemptions"), ""),
            )
        ]
    rate = CARD_RATES[-1]
    rows += [
        Row(
            what=f"P99 TPOT, {each:g} req/s, ARES with oracle against rescheduling without prediction",
            ours=results.change(f"{each:g}/ils/ares-oracle", f"{each:g}/ils/rescheduling", "tpot_p99_s"),
            unit="% change",
            paper="-14.1 %",
            setting=Setting.THEIRS,
        )
        for each in CARD_RATES
    ]
    rows += [
        Row(
            what=f"{title}, Alpaca, {ALPACA_RPS:g} req/s, {LABELS[variant]}",
            ours=results.change(f"Alpaca/ils/{variant}", "Alpaca/ils/vllm", figure),
            unit="% change",
            setting=Setting.THEIRS,
        )
        for variant in SHOWN[1:]
        for figure, title in CARD_TITLES.items()
    ]
    rows += [
        Row(
            what=f"P99 TPOT, {rate:g} req/s, {decode}, {LABELS[variant]}, against ils without moving",
            ours=results.change(f"{rate:g}/{decode}/{variant}", f"{rate:g}/ils/vllm", "tpot_p99_s"),
            unit="% change",
            setting=Setting.BEYOND,
        )
        for decode in CARD_PLACEMENTS
        for variant in ("vllm", "ares-oracle")
    ]
    for number, variant in enumerate(SHOWN):
        for each in CARD_RATES:
            ours = results.mean(f"{each:g}/ils/{variant}", "tpot_p99_s", 1e3)
            whiskers.append(Whisker(f"{each:g} req/s: {LABELS[variant]}", ours, style=colour(number)))
    chart = Whiskers("P99 TPOT on three cards short of memory", "ms", whiskers)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="their card and lengths", charts=[chart])])


CARD_TITLES = {
    "tpot_p99_s": "P99 TPOT",
    "tbt_p99_s": "P99 gap between tokens",
    "throughput_tok_s": "throughput",
}

SMALL = Experiment(
    name="ares/section-6.2",
    title="One prefill and three decode cards, short of memory (6.2)",
    text="vLLM's scheduler on a profile of the paper's card with 8-bit weights (`bench/reproduce/ares/card.py`): "
    "234,924 tokens of KV; a step with KV half full takes the paper's 18.23 ms. ShareGPT lengths up to 32K, 3,000 s of "
    "arrivals, moves over PCIe. The paper's rate is 0.17 req/s; how much memory its engines had it does not say, so "
    "rates up to 0.26 are run, where KV fills as it describes. Requests that do not fit are preempted and computed "
    "anew: what the paper calls OOM. It gives no objective for goodput: TPOT of 20 to 50 ms are swept, and the claim "
    "is judged at the one that suits it best. P99 stands over requests (TPOT) and over tokens (gaps).",
    runs=_card_runs(),
    analyse=_card,
    figures=CARD_FIGURES,
    seeds=MANY_SEEDS,
)

# --- their card, Alpaca -----------------------------------------------------------------------------------------------

PRINTED_RPS = 1.7
ALPACA_S = {0.17: CARD_S, 0.21: CARD_S, PRINTED_RPS: 200.0}
"""Seconds of arrivals by rate."""
ALPACA_COST_S: Mapping[float, Mapping[str, float]] = {
    0.17: {"vllm": 4.7, "rescheduling": 12.5, "ares-predictor": 17.3},
    0.21: {"vllm": 5.9, "rescheduling": 12.5, "ares-predictor": 24.4, "ares-oracle": 13.8},
    PRINTED_RPS: {"vllm": 3.6, "rescheduling": 5.7, "ares-predictor": 12.3, "ares-oracle": 7.7},
}
"""Processor seconds of the variants that are run at a rate."""
BY_MOVING, BY_PREDICTION = -19.7, -45.4
BOTH = 100 * ((1 + BY_MOVING / 100) * (1 + BY_PREDICTION / 100) - 1)
"""P99 TPOT on Alpaca, in percent: against no moving, against moving, and with both against no moving."""
ALPACA_TAILS = (
    ("rescheduling", "vllm", BY_MOVING),
    ("ares-predictor", "rescheduling", BY_PREDICTION),
    ("ares-predictor", "vllm", BOTH),
)
ALPACA_LEVELS = {"vllm": "100.6 ms", "rescheduling": "80.8 ms", "ares-predictor": "44.1 ms"}
"""P99 TPOT at its rate."""


def _alpaca_tails(results: Results, at: str) -> list[Row]:
    rows = []
    for variant, against, paper in ALPACA_TAILS:
        changed = results.change(f"{at}/{variant}", f"{at}/{against}", "tpot_p99_s")
        rows.append(
            Row(
                what=f"P99 TPOT, {at} req/s, {LABELS[variant]}, against {LABELS[against]}",
                ours=changed,
                unit="% change",
                paper=f"{paper:+.3g} %",
                setting=Setting.THEIRS,
                claim=ALPACA_TAIL.name,
                verdict=judged(changed, paper),
            )
        )
    return rows


def _alpaca(results: Results) -> Finding:
    rows, whiskers = [], []
    goodputs = tuple(map(goodput_name, SWEPT_MS))
    for rate, variants in ALPACA_COST_S.items():
        at = f"{rate:g}"
        rows += _alpaca_tails(results, at)
        rows += [
            Row(what=f"{title}, {at} req/s, {LABELS[variant]}", ours=ours, unit="% change", setting=Setting.THEIRS)
            for variant in list(variants)[1:]
            for title, ours in (
                ("throughput", results.change(f"{at}/{variant}", f"{at}/vllm", "throughput_tok_s")),
                (
                    "goodput at the objective where moving gains most",
                    results.best_change(f"{at}/{variant}", f"{at}/vllm", goodputs),
                ),
            )
        ]
        if "ares-oracle" in variants:
            rows.append(
                Row(
                    what=f"P99 TPOT, {at} req/s, {LABELS['ares-oracle']}, against {LABELS['rescheduling']}",
                    ours=results.change(f"{at}/ares-oracle", f"{at}/rescheduling", "tpot_p99_s"),
                    unit="% change",
                    setting=Setting.THEIRS,
                )
            )
        for number, variant in enumerate(variants):
            run = f"{at}/{variant}"
            tail = results.mean(run, "tpot_p99_s", 1e3)
            rows += [
                Row(
                    what=f"{LABELS[variant]}, {at} req/s: {title}",
                    ours=ours,
                    unit=unit,
                    paper=paper if rate == PRINTED_RPS else "",
                    setting=Setting.THEIRS,
                )
                for title, ours, unit, paper in (
                    ("P99 TPOT", tail, "ms", ALPACA_LEVELS.get(variant, "")),
                    ("throughput", results.mean(run, "throughput_tok_s"), "tok/s", ""),
                    ("preemptions", results.mean(run, "preemptions"), "", ""),
                )
            ]
            whiskers.append(Whisker(f"{at} req/s: {LABELS[variant]}", tail, style=colour(number)))
    chart = Whiskers("P99 TPOT on Alpaca, three cards short of memory", "ms", whiskers)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="their card, Alpaca's lengths", charts=[chart])])


ALPACA = Experiment(
    name="ares/alpaca",
    reduced_seeds=(),
    title="Alpaca on one prefill and three decode cards (6.2)",
    text="As `ares/section-6.2`, with Alpaca's lengths of table 2. The paper's rate is 1.7 req/s, ten times that of "
    "ShareGPT, while a request decodes more tokens, 8,596: 14,600 tokens/s, many times what three cards decode. So 1.7 "
    "req/s is run as printed for 200 s, whose requests then drain for half an hour: an overload, too short to "
    "contradict. 0.17, should the point be misplaced, and 0.21, about what the cards sustain, are run for 3,000 s. The "
    "paper has numbers for P99 TPOT alone; goodput and throughput stand in its figure only, and so inform here. ARES "
    "predicts with the paper's errors; exact lengths stand beside it from 0.21 req/s on.",
    runs=[
        Run(
            f"{rate:g}/{variant}",
            card_run("ils", variant, rate, "alpaca-reasoning", duration_s=ALPACA_S[rate]),
            cost_s=cost_s,
        )
        for rate, costs in ALPACA_COST_S.items()
        for variant, cost_s in costs.items()
    ],
    analyse=_alpaca,
    figures=CARD_FIGURES,
)

# --- their simulation -------------------------------------------------------------------------------------------------


def _sizes_runs() -> list[Run]:
    runs = [
        Run(
            f"{data}/{count}/{variant}",
            paper_run(workload, count, variant, duration_s=DURATION_S),
            reduced=False,
            cost_s=count / 2,
        )
        for workload, data in DATA.items()
        for count in ENDPOINTS
        for variant in MOVES
    ]
    return runs + _short_runs(REDUCED_ENDPOINTS)


def _short_runs(*counts: int) -> list[Run]:
    return [
        Run(
            f"{data}/{count}/short/{variant}",
            paper_run(workload, count, variant, duration_s=REDUCED_S),
            reduced=count == REDUCED_ENDPOINTS,
            cost_s=count / 7,
        )
        for workload, data in DATA.items()
        for count in counts
        for variant in MOVES
    ]


def _changes(results: Results, settings: Iterable[str]) -> list[Row]:
    rows = []
    for setting in settings:
        for variant in COMPARED:
            changed = results.change(f"{setting}/{variant}", f"{setting}/vllm", "step_variance_ms2")
            rows.append(
                Row(
                    what=f"step-time variance, {setting} endpoints, {LABELS[variant]}",
                    ours=changed,
                    unit="% change",
                    paper="lower",
                    setting=Setting.THEIRS,
                    claim=VARIANCE.name,
                    verdict=judge_direction(changed, -1.0),
                )
            )
            for figure, title, _, _ in PLACED_FIGURES[:2]:
                rows.append(
                    Row(
                        what=f"{title}, {setting} endpoints, {LABELS[variant]}",
                        ours=results.change(f"{setting}/{variant}", f"{setting}/vllm", figure),
                        unit="% change",
                        setting=Setting.THEIRS,
                    )
                )
    return rows


def _sizes(results: Results) -> Finding:
    whiskers = [
        Whisker(
            f"{data}: {LABELS[variant]}",
            results.mean(f"{data}/{REDUCED_ENDPOINTS}/short/{variant}", "step_variance_ms2"),
            style=colour(number),
        )
        for data in DATA.values()
        for number, variant in enumerate(MOVES)
    ]
    chart = Whiskers(f"Variance of step time over {REDUCED_ENDPOINTS} decode endpoints", "ms^2", whiskers)
    settings = [
        setting
        for data in DATA.values()
        for setting in (f"{data}/{REDUCED_ENDPOINTS}/short", *(f"{data}/{count}" for count in ENDPOINTS))
    ]
    return Finding(
        rows=_changes(results, settings),
        plots=[Plot(name="variance", caption="step times on ARES's line", charts=[chart])],
    )


SIZES = Experiment(
    name="ares/section-6.4",
    title="8 to 64 endpoints, step times linear in tokens (6.4)",
    text="Lengths of table 2, 0.3 requests a second for 8 endpoints, 2,000 s (`short`: 600 s). No memory limit here, "
    "and the line is derived from one published point: where the paper's gain comes from memory, this cannot show it. "
    "Goodput counts requests with a TPOT of 12.5 ms or less, of which an even fleet keeps all.",
    runs=_sizes_runs(),
    analyse=_sizes,
    figures=FIGURES,
)


def _large(results: Results) -> Finding:
    settings = [f"{data}/{count}/short" for data in DATA.values() for count in LARGE]
    whiskers = [
        Whisker(
            f"{setting.removesuffix('/short')}: {LABELS[variant]}",
            results.mean(f"{setting}/{variant}", "step_variance_ms2"),
            style=colour(number),
        )
        for setting in settings
        for number, variant in enumerate(MOVES)
    ]
    chart = Whiskers("Variance of step time over 128 and 256 decode endpoints", "ms^2", whiskers)
    return Finding(
        rows=_changes(results, settings), plots=[Plot(name="variance", caption="large fleets", charts=[chart])]
    )


LARGE_SIZES = Experiment(
    name="ares/section-6.4-large",
    title="128 and 256 endpoints (6.4)",
    text="The same for 600 s.",
    runs=_short_runs(*LARGE),
    analyse=_large,
    figures=FIGURES,
)


def _errors(results: Results) -> Finding:
    rows = [
        Row(
            what=f"{title}, mean error {hints.removeprefix('noisy:')} of the output to come",
            ours=results.change(hints, "oracle", figure),
            unit="% change",
            setting=Setting.THEIRS,
        )
        for hints in ERRORS
        for figure, title in (("step_variance_ms2", "step-time variance"), ("tpot_p99_s", "P99 TPOT"))
    ]
    return Finding(rows=rows)


PREDICTOR_ERROR = Experiment(
    name="ares/predictor-error",
    title="Errors of the predictor",
    text="ShareGPT on 8 endpoints, 600 s; relative errors that never shrink, against exact lengths.",
    runs=[
        Run("oracle", paper_run("sharegpt-32k", 8, "ares-oracle", duration_s=REDUCED_S), cost_s=3.0),
        *(
            Run(hints, paper_run("sharegpt-32k", 8, "ares-oracle", lengths=hints, duration_s=REDUCED_S), cost_s=3.0)
            for hints in ERRORS
        ),
    ],
    analyse=_errors,
    figures=FIGURES,
)

# --- realistic endpoints ----------------------------------------------------------------------------------------------

PLACEMENTS = ("round-robin", "ils", "least-requests", "ballast")
LINKS = (25.0, 100.0, 200.0, 400.0)


def _placed(results: Results) -> Finding:
    rows, whiskers = [], []
    for number, decode in enumerate(PLACEMENTS):
        for variant in COMPARED:
            for figure, title, claim, paper in PLACED_FIGURES:
                changed = results.change(f"{decode}/{variant}", f"{decode}/vllm", figure)
                claimed = decode == "ils" and variant == "ares-oracle" and paper is not None
                rows.append(
                    Row(
                        what=f"{title}, {decode}, {LABELS[variant]}",
                        ours=changed,
                        unit="% change",
                        paper=f"{paper:+.4g} %" if claimed else "",
                        setting=Setting.REALISTIC if decode == "ils" else Setting.BEYOND,
                        claim=claim if claimed else None,
                        verdict=judged(changed, paper) if claimed and paper is not None else None,
                    )
                )
        for variant in ("vllm", "rescheduling", "ares-oracle"):
            ours = results.mean(f"{decode}/{variant}", "tpot_p99_s", 1e3)
            whiskers.append(Whisker(f"{decode}: {LABELS[variant]}", ours, style=colour(number)))
    chart = Whiskers("P99 TPOT on vLLM engines, four H20", "ms", whiskers)
    return Finding(rows=rows, plots=[Plot(name="tail", caption="does moving help a good placement?", charts=[chart])])


PLACED = Experiment(
    name="ares/first-placement",
    title="Does moving still help where the first placement is good?",
    text="vLLM's scheduler with KV limits and preemption, 4 H20, ShareGPT lengths up to 32K, KV nearly full, late "
    "binding; moves over the profile's links, copied while the source decodes. Goodput counts requests with a TPOT of "
    "26 ms or less.",
    runs=[
        Run(
            f"{decode}/{variant}",
            real_run(decode, variant),
            variant in ("vllm", "rescheduling", "ares-oracle"),
            cost_s=3.5,
        )
        for decode in PLACEMENTS
        for variant in MOVES
    ],
    seeds=MANY_SEEDS,
    analyse=_placed,
    figures=FIGURES,
)


def _links(results: Results) -> Finding:
    rows = [
        Row(
            what=f"{title}, ils, ARES with oracle, {gbps:g} Gbit/s",
            ours=results.mean(f"{gbps:g}", figure, 1e3)
            if figure == "migration_pause_p99_s"
            else results.change(f"{gbps:g}", f"{gbps:g}/still", figure),
            unit="ms" if figure == "migration_pause_p99_s" else "% change",
            setting=Setting.REALISTIC,
        )
        for gbps in LINKS
        for figure, title in (
            ("tpot_p99_s", "P99 TPOT"),
            ("step_variance_ms2", "step-time variance"),
            ("migration_pause_p99_s", "P99 pause of a moving request"),
        )
    ]
    return Finding(rows=rows)


LINK_SPEEDS = Experiment(
    name="ares/links",
    reduced_seeds=(),
    title="Slow and fast links",
    text="The same endpoints with links of 25 to 400 Gbit/s, with and without moving; the paper simulates 25 Gbit/s.",
    runs=[
        Run(f"{gbps:g}{suffix}", real_run("ils", variant, gbps=gbps))
        for gbps in LINKS
        for suffix, variant in (("", "ares-oracle"), ("/still", "vllm"))
    ],
    analyse=_links,
    figures=FIGURES,
)


def _values(results: Results, settings: Iterable[str], figure: str) -> list[float]:
    """Changes in percent by any way of moving, as far as they are known."""
    pairs = ((f"{setting}/{variant}", f"{setting}/vllm") for setting in settings for variant in COMPARED)
    changes = [results.change(*pair, figure) for pair in pairs]
    return [change.value for change in changes if change is not None]


def _verdict(results: Mapping[str, Results]) -> str:
    card, placed = results[SMALL.name], results[PLACED.name]
    base = f"{CARD_RATES[-1]:g}/ils"
    levels = [card.mean(f"{base}/{name}", "tpot_p99_s", 1e3) for name in ("vllm", "rescheduling", "ares-oracle")]
    moved, foreseen = (
        card.change(f"{base}/{name}", f"{base}/vllm", "tpot_p99_s") for name in ("rescheduling", "ares-oracle")
    )
    if moved is None or foreseen is None or any(each is None for each in levels):
        return ""
    after = {name: placed.change(f"{name}/ares-oracle", f"{name}/vllm", "tpot_p99_s") for name in PLACEMENTS}
    changes = ", ".join(f"{measured(change, '% change')} after `{name}`" for name, change in after.items() if change)
    shown = ", ".join(f"{each.value:.1f}" for each in levels if each is not None)
    return (
        f"**In short.** On the paper's card at {CARD_RATES[-1]:g} req/s P99 TPOT is {shown} ms without moving, with it "
        f"and with exact lengths (paper: 96.3, 28.3, 24.3 ms at 0.17): {measured(moved, '% change')} by moving, "
        f"{measured(foreseen, '% change')} with exact lengths. On four H20 under vLLM's scheduler, KV nearly full, "
        f"moving with exact lengths changes P99 TPOT by {changes}."
    )


PAPER = Paper(
    name="ares",
    title="ARES: running decodes move to where load will be low",
    set_up="vLLM 0.9.2 with NIXL, one prefill and three decode RTX 4090D, DeepSeek-R1-Distill-Qwen-7B with 32K, and a "
    "simulator with exact lengths. Not given: theta, weights and length of the horizon, the cost of a move, the "
    "memory limit, the thresholds of goodput. Ours: defaults of `ares` (`ballast policies`), and a profile of the card "
    "with 8-bit weights.",
    claims=(VARIANCE, TAIL, GOODPUT, THROUGHPUT, ALPACA_TAIL, SHARE),
    experiments=(SMALL, ALPACA, TRANSFER, SIZES, LARGE_SIZES, PREDICTOR_ERROR, PLACED, LINK_SPEEDS),
    verdict=_verdict,
)
