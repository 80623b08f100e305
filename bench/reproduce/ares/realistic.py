"""ARES under vLLM's scheduler on four H20: after good and bad first placements, over slow and fast links."""

from __future__ import annotations

from dataclasses import replace

from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from bench.reproduce.ares.set_up import COMPARED, FIGURES, LABELS, MOVES, PLACED_FIGURES, REDUCED_S, choice
from bench.reproduce.form import MANY_SEEDS, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.tasks import Simulated, simulated
from bench.reproduce.verdicts import judge_change as judged

PLACEMENTS = ("round-robin", "ils", "least-requests", "ballast")
LINKS = (25.0, 100.0, 200.0, 400.0)


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
