"""ARES's section 6.4: its own simulation on 8 to 256 endpoints, and errors of its predictor there."""

from __future__ import annotations

from collections.abc import Iterable

from ballast_core.model import Binding
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from bench.reproduce.ares.set_up import COMPARED, FIGURES, LABELS, MOVES, PLACED_FIGURES, REDUCED_S, choice
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated, simulated
from bench.reproduce.verdicts import judge_direction

DATA = {"sharegpt-32k": "ShareGPT", "alpaca-reasoning": "Alpaca"}
ENDPOINTS = (8, 16, 32, 64)
LARGE = (128, 256)
RATE_PER_ENDPOINT = 0.3 / 8
DURATION_S = 2000.0
REDUCED_ENDPOINTS = 64
ERRORS = ("noisy:25%", "noisy:50%", "noisy:100%", "noisy:200%")

VARIANCE = Claim(
    name="ares/variance",
    short="variance of step times, 8 to 256 endpoints",
    number="lower",
    where="6.4",
    says="simulated on 8 to 256 endpoints, rescheduling lowers the variance of step times over decode endpoints, and "
    "predictions lower it further",
)


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
        foreseen = results.change(f"{setting}/ares-oracle", f"{setting}/rescheduling", "step_variance_ms2")
        rows.append(
            Row(
                what=f"step-time variance, {setting} endpoints, {LABELS['ares-oracle']} against without prediction",
                ours=foreseen,
                unit="% change",
                paper="lower",
                setting=Setting.THEIRS,
                claim=VARIANCE.name,
                verdict=judge_direction(foreseen, -1.0),
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
    "Goodput counts requests with a TPOT of 12.5 ms or less and says little here: after 2,000 s most requests of an "
    "even fleet take longer and few of an uneven one, so what evens out loses goodput while P99 TPOT falls. What "
    "predictions add is judged with exact lengths, against moving by the present load alone; the horizon and its "
    "weights are ours.",
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
