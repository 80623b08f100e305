"""SIBYL's appendix G: smaller models on A100 40 GB, 2P4D, random lengths, several request rates (figure 12)."""

from __future__ import annotations

from ballast_core.model import Binding
from bench.reproduce.form import Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import lines
from bench.reproduce.results import Measured, Results, known
from bench.reproduce.sibyl.a100_profiles import DECODE, PREFILL
from bench.reproduce.sibyl.lengths import UniformLengths
from bench.reproduce.sibyl.policies import BASELINES, THREE, own
from bench.reproduce.tasks import simulated
from bench.reproduce.verdicts import judge_change

LONGEST_INPUT_TOKENS, LONGEST_OUTPUT_TOKENS = 1024, 4096
MODELS = {"qwen2.5-7b": "Qwen2.5-7B", "llama3-8b": "Llama3-8B"}
PREFILL_ENDPOINTS, DECODE_ENDPOINTS = 2, 4
DECODE_RPS = {"qwen2.5-7b": 2.72, "llama3-8b": 1.19}
"""Of one endpoint, 90 % of its KV in use (`ballast_sim.capacity`): what load 1 is."""
ARRIVALS_S = {0.8: 260.0, 1.0: 300.0, 1.04: 350.0}
"""By load: some three times as long as a P99 request lives."""
LOADS = tuple(ARRIVALS_S)
FURTHER = ("least-requests-running", "least-requests")
"""The other reading of ILS, and what the paper does not have."""

SMALL = ("llama3-8b", 1.0)
"""The case of further baselines."""
COST_S = {
    ("qwen2.5-7b", 0.8): 6.0,
    ("qwen2.5-7b", 1.0): 8.5,
    ("qwen2.5-7b", 1.04): 22.0,
    ("llama3-8b", 0.8): 2.5,
    ("llama3-8b", 1.0): 4.0,
    ("llama3-8b", 1.04): 7.0,
}
"""Processor seconds of a run."""

FIGURES = {
    "tpot_p99_s": "P99 TPOT",
    "tpot_p999_s": "P99.9 TPOT",
    "throughput_tok_s": "throughput",
    "tpot_mean_s": "mean TPOT",
}
PAPER_CHANGES = {
    ("qwen2.5-7b", "tpot_p99_s"): {"round-robin": -24.2, "ils": -23.0},
    ("qwen2.5-7b", "tpot_p999_s"): {"round-robin": -36.4, "ils": -36.2},
    ("llama3-8b", "tpot_p99_s"): {"round-robin": -26.2, "ils": -26.4},
    ("llama3-8b", "tpot_p999_s"): {"ils": -32.0},
    ("qwen2.5-7b", "throughput_tok_s"): {"round-robin": 4.2, "ils": 5.7},
    ("llama3-8b", "throughput_tok_s"): {"round-robin": 3.1, "ils": 5.1},
    ("qwen2.5-7b", "tpot_mean_s"): {"round-robin": -2.5, "ils": -2.5},
    ("llama3-8b", "tpot_mean_s"): {"round-robin": -2.5, "ils": -2.5},
}
"""Percent, means over request rates (G.2), SIBYL against the baseline. Of mean TPOT it says "approximately 2-3 %"."""
PAPER_PEAK = -58.6
"""The largest change against ILS on Qwen2.5-7B, in P99 or P99.9 TPOT."""
TAILS = ("tpot_p99_s", "tpot_p999_s")

TAIL = Claim(
    name="sibyl/a100-tail",
    short="P99 TPOT of small models on A100",
    number="-24.2, -23.0 %",
    where="G.2, figure 12",
    says="2P4D of A100 40 GB, mean over rates: P99 TPOT 24.2 / 26.2 % below round-robin and 23.0 / 26.4 % below "
    "ILS on Qwen2.5-7B / Llama3-8B, P99.9 TPOT 36.4 % (Qwen) below round-robin and 36.2 / 32.0 % below ILS; up to "
    "58.6 % below ILS on Qwen",
)
MEANS = Claim(
    name="sibyl/a100-means",
    short="throughput and mean TPOT of small models on A100",
    number="+4.2, +5.7 %; -2 to -3 %",
    where="G.2, figure 12",
    says="2P4D of A100 40 GB, mean over request rates: throughput 4.2 / 3.1 % above round-robin and 5.7 / 5.1 % above "
    "ILS on Qwen2.5-7B / Llama3-8B, mean TPOT some 2 to 3 % lower",
)
CLAIMS = (TAIL, MEANS)


def _policies(model: str, load: float) -> tuple[str, ...]:
    return (*THREE, *FURTHER) if (model, load) == SMALL else THREE


def _name(model: str, load: float, policy: str) -> str:
    return f"{MODELS[model]}/{load:g}/{policy}"


def _run(model: str, load: float, policy: str) -> Run:
    rate_rps = load * DECODE_ENDPOINTS * DECODE_RPS[model]
    prefill, decode = PREFILL[model], DECODE[model]
    task = simulated(
        f"{PREFILL_ENDPOINTS}P@{prefill.name},{DECODE_ENDPOINTS}D@{decode.name}",
        own(policy),
        workload=UniformLengths(
            longest_input_tokens=LONGEST_INPUT_TOKENS,
            longest_output_tokens=LONGEST_OUTPUT_TOKENS,
            rate_rps=rate_rps,
            limit=round(ARRIVALS_S[load] * rate_rps),
        ),
        binding=Binding.EARLY,
        profiles=(prefill, decode),
    )
    return Run(_name(model, load, policy), task, cost_s=COST_S[model, load])


def _runs() -> list[Run]:
    return [_run(model, load, policy) for model in MODELS for load in LOADS for policy in _policies(model, load)]


def _averages(results: Results) -> list[Row]:
    """Over all loads, as the paper has them."""
    rows = []
    for (model, figure), changes in PAPER_CHANGES.items():
        for against, paper in changes.items():
            pairs = [(_name(model, load, "sibyl"), _name(model, load, against)) for load in LOADS]
            ours = results.mean_change(pairs, figure)
            rows.append(
                Row(
                    what=f"{FIGURES[figure]}, {MODELS[model]}, mean over loads, against {BASELINES[against]}",
                    ours=ours,
                    unit="% change",
                    paper="some -2 to -3 %" if figure == "tpot_mean_s" else f"{paper:+.1f} %",
                    setting=Setting.THEIRS,
                    claim=(TAIL if figure in TAILS else MEANS).name,
                    verdict=judge_change(ours, paper),
                )
            )
    return rows


def _peak(results: Results) -> Row:
    """The largest reduction that any load has, as the paper's "up to"."""
    model = "qwen2.5-7b"
    changes = [_against(results, model, load, "ils", figure) for load in LOADS for figure in TAILS]
    ours = min((each for each in changes if each is not None), key=lambda each: each.value, default=None)
    return Row(
        what=f"P99 or P99.9 TPOT, {MODELS[model]}, the load with the largest reduction, against {BASELINES['ils']}",
        ours=ours,
        unit="% change",
        paper=f"{PAPER_PEAK:+.1f} %",
        setting=Setting.THEIRS,
        claim=TAIL.name,
        verdict=judge_change(ours, PAPER_PEAK),
    )


def _against(results: Results, model: str, load: float, policy: str, figure: str) -> Measured | None:
    return results.change(_name(model, load, "sibyl"), _name(model, load, policy), figure)


def _by_load(results: Results) -> list[Row]:
    """What the averages are made of, and baselines that the paper has not."""
    rows = []
    for model, title in MODELS.items():
        for load in LOADS:
            ran = _policies(model, load)
            rows += [
                Row(
                    what=f"P99 TPOT, {title}, load {load:g}, against {BASELINES[policy]}",
                    ours=_against(results, model, load, policy, "tpot_p99_s"),
                    unit="% change",
                    setting=Setting.BEYOND if policy in FURTHER else Setting.THEIRS,
                )
                for policy in ran
                if policy != "sibyl"
            ]
            rows += [
                Row(
                    what=f"preemptions in 100 requests, {title}, load {load:g}, {BASELINES[policy]}",
                    ours=results.share(_name(model, load, policy), "preemptions", "requests"),
                    unit="",
                    setting=Setting.BEYOND,
                )
                for policy in ran
            ]
    return rows


def _plot(results: Results) -> Plot:
    charts = []
    for model, title in MODELS.items():
        series = []
        for policy in THREE:
            found = [(load, results.mean(_name(model, load, policy), "tpot_p99_s", 1e3)) for load in LOADS]
            points = [(load, ours.value) for load, ours in found if ours is not None]
            if points:
                series.append((BASELINES[policy], points))
        charts.append(lines(f"{title}: P99 TPOT", "load", "ms", series))
    return Plot(name="loads", caption="P99 TPOT on A100 by load", charts=charts)


def _text(results: Results) -> str:
    said = []
    for model, title in MODELS.items():
        found = known(
            *(results.mean(_name(model, load, "sibyl"), "tpot_p99_s", 1e3) for load in (LOADS[0], LOADS[-1])),
            *(results.mean(_name(model, LOADS[0], policy), "tpot_p99_s", 1e3) for policy in ("round-robin", "ils")),
            *(results.share(_name(model, LOADS[-1], policy), "preemptions", "requests") for policy in THREE),
        )
        if found is None:
            return ""
        low, high, turns, snapshot, *preempted = (each.value for each in found)
        numbers = " / ".join(f"{each:.0f}" for each in preempted)
        said.append(
            f"{title}: P99 TPOT of SIBYL {low:.1f} ms at load {LOADS[0]:g} (round-robin {turns:.1f}, ILS "
            f"{snapshot:.1f}) and {high:.1f} ms at {LOADS[-1]:g}, where round-robin / ILS / SIBYL preempt {numbers} "
            "times in 100 requests."
        )
    return (
        " ".join(said) + " While KV has room, a step's time hangs little on who sits where. What a policy can win in "
        "the tail is preemptions it avoids, and these come with full KV."
    )


def _analyse(results: Results) -> Finding:
    rows = [*_averages(results), _peak(results), *_by_load(results)]
    return Finding(rows=rows, plots=[_plot(results)], text=_text(results))


EXPERIMENT = Experiment(
    name="sibyl/figure-12",
    title="Small models on A100 (appendix G, figure 12)",
    text=(
        "2P4D of A100 40 GB, Qwen2.5-7B and Llama3-8B, inputs uniform from 1 to 1,024 tokens and outputs from 1 to "
        "4,096, early assignment, SIBYL with its own estimator, on vLLM's scheduler with steps scaled from an A100 "
        "80 GB to table 4's bandwidth. Prefill one request at a time and 80 % of memory, as F.3 has it: 277,000 and "
        "115,000 tokens of KV. The paper's rates stand in a plot only: loads 0.8, 1 and 1.04 of what four decode "
        "endpoints carry with 90 % of their KV in use, Poisson, for 260, 300 and 350 s; *mean over loads* is of these "
        "three, and hangs on their choice: KV runs full at the last one, and beyond it queues grow. ILS counts tokens; "
        "on Llama3-8B at load 1 its other reading, running requests, and least-requests run, too. Open arrivals: "
        "throughput differs by how soon the last requests end."
    ),
    runs=_runs(),
    analyse=_analyse,
    reduced_seeds=(),
)
