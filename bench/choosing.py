"""Which layout and which policy for which traffic? The data behind docs/choosing.md.

For each built-in workload `ballast recommend`'s search runs on one budget, at rates that load the roomiest layout to
`LOADS` by arithmetic. Then the best colocated fleet runs with chunks of `CHUNK` tokens instead of vLLM's default, and
where a third digit stands between it and the best fleet both run with `SEEDS`. `python -m bench.choosing` runs what is
missing and records it; `--render` writes the tables of the page from the record, `--check` says whether the page is
what the record renders to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.engine.batching import LocalBatching
from ballast_sim.recommend.budget import Hardware, parse_budget
from ballast_sim.recommend.candidates import Candidate
from ballast_sim.recommend.layouts import layouts
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.search import Answer, search
from ballast_sim.recommend.variants import variants
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.policies.choice import PolicyChoice
from ballast_sim.simulation.runs.experiment import RunSpec, Setup, run
from ballast_sim.workloads import GENERATORS

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "bench" / "recorded" / "choosing.json"
PAGE = ROOT / "docs" / "choosing.md"
BEGIN, END = "<!-- tables: python -m bench.choosing --render -->", "<!-- end of tables -->"

BUDGET = "a100=4,h20=6"
SLO = Objective(ttft_s=2.0, tpot_s=0.05)
LOADS = (0.9,)
WORKLOADS = (
    "chat",
    "multi-turn",
    "hotspot-prefix",
    "libra-code",
    "libra-summary",
    "libra-reasoning",
    "sharegpt-reasoning",
    "mix-1",
    "mix-2",
)
LIMITS = {"sharegpt-reasoning": 400, "mix-2": 400}
REQUESTS = 800
CHUNK = 512
CLOSE = 0.005
"""Shares within the SLO that differ by less, but do differ, are told apart with more seeds."""
SEEDS = (0, 1, 2, 3, 4)


def rate_of(workload: str, limit: int, load: float, hardware: Sequence[Hardware]) -> float:
    """Requests a second at which the roomiest layout is loaded so far, by arithmetic."""
    drawn = WorkloadSource(workload=workload, limit=limit).load(0, 1.0)
    lengths = LengthStatistics.of(drawn.requests)
    return load * max(layout.headroom for layout in layouts(hardware, lengths, 1.0, SLO.tpot_s))


def ask(workload: str, load: float, jobs: int) -> Answer:
    """What `ballast recommend` answers."""
    return search(question_of(workload, load), jobs, threading.Event(), lambda what, done, runs: None)


def question_of(workload: str, load: float) -> Question:
    """What it is asked."""
    hardware = parse_budget(BUDGET, "qwen3-32b", SHIPPED_PROFILES)
    limit = LIMITS.get(workload, REQUESTS)
    rate = round(rate_of(workload, limit, load, hardware), 3)
    return Question(
        source=WorkloadSource(workload=workload, rate_rps=rate, limit=limit),
        hardware=hardware,
        objective=SLO,
        attainment=0.99,
        full_length=True,
    )


def row_of(workload: str, load: float, answer: Answer) -> dict[str, Any]:
    """What is recorded of one answer."""
    return {
        "workload": workload,
        "load": load,
        "rate_rps": round(answer.rate_rps, 3),
        "input_tokens": round(answer.lengths.input_tokens),
        "output_tokens": round(answer.lengths.output_tokens),
        "shares_prefixes": answer.shares_prefixes,
        "versions": answer.best.outcomes[0]["versions"],
        "candidates": [_recorded(each) for each in answer.candidates],
    }


def _recorded(candidate: Candidate) -> dict[str, Any]:
    return {
        "endpoints": candidate.shape,
        "policy": candidate.variant.name,
        "attainment": round(candidate.attainment, 4),
        "ttft_p99_s": round(candidate.mean("ttft_s", "p99"), 4),
        "tpot_p99_ms": round(1e3 * candidate.mean("tpot_s", "p99"), 3),
        "e2e_p99_s": round(candidate.mean("e2e_s", "p99"), 3),
        "preemptions": candidate.mean("preemptions"),
        "migrations": candidate.mean("migrations"),
    }


def looked_closer(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row with the asked rate, its best colocated fleet in small chunks, and more seeds where they decide."""
    question = question_of(row["workload"], row["load"])
    best = row["candidates"][0]
    together = next(each for each in row["candidates"] if _colocated(each))
    apart = abs(best["attainment"] - together["attainment"])
    return {
        **row,
        "asked_rps": question.source.rate_rps,
        "chunked": _recorded(_again(question, together, question.seeds, LocalBatching(chunk_tokens=CHUNK))),
        "closer": [_recorded(_again(question, each, SEEDS)) for each in (best, together)] if 0 < apart < CLOSE else [],
    }


def _again(
    question: Question, recorded: Mapping[str, Any], seeds: Sequence[int], batching: LocalBatching | None = None
) -> Candidate:
    """A recorded candidate's runs with these seeds."""
    lengths = LengthStatistics.of(question.source.load(question.seeds[0], 1.0).requests)
    every = layouts(question.hardware, lengths, question.source.rate_rps or 1.0, question.objective.tpot_s)
    shape = recorded["endpoints"]
    layout = next(each for each in every if shape in {each.shape, each.flexible_shape})
    named = variants(layout, shares_prefixes=True)
    variant = next(each for each in named if each.name == recorded["policy"])
    fleet = FleetSettings(known_limits=False)
    setup = Setup(
        machines=parse_shape(shape, None, {each.profile.name: each.profile for each in question.hardware}),
        shape=shape,
        source=question.source,
        objective=question.objective,
        fleet=fleet if batching is None else replace(fleet, local_batching=batching),
    )
    policy = PolicyChoice(variant.name, variant.spec.build())
    return Candidate(
        layout, variant, tuple(run(RunSpec(setup=setup, policy=policy, seed=seed)).figures for seed in seeds)
    )


# --- the page ---------------------------------------------------------------------------------------------------------


def render(record: Sequence[Mapping[str, Any]]) -> str:
    """The two tables: what is best, and what each policy brings on the best layout against the default."""
    lines = [
        BEGIN,
        "",
        f"Budget {BUDGET} (Qwen3-32B), SLO P99 TTFT 2 s and TPOT 50 ms, two seeds; load is the share of what the "
        "roomiest layout carries by arithmetic.",
        "",
        "Requests/s are those asked for (`--rate`); in brackets those that came, fewer where sessions wait.",
        "",
        "| workload | mean tokens in / out | load | requests/s | best layout | policy | within SLO | P99 TTFT s "
        f"| P99 TPOT ms | best colocated: within SLO | the same, chunks of {CHUNK} | its P99 TTFT s, TPOT ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record:
        best = row["candidates"][0]
        together = [each for each in row["candidates"] if _colocated(each)]
        colocated = max((each["attainment"] for each in together), default=None)
        lines.append(
            f"| {row['workload']} | {row['input_tokens']:,} / {row['output_tokens']:,} | {row['load']:g} "
            f"| {_rates(row)} | `{best['endpoints']}` | {best['policy']} | {best['attainment']:.1%} "
            f"| {best['ttft_p99_s']:.2f} | {best['tpot_p99_ms']:.1f} "
            f"| {'-' if colocated is None else f'{colocated:.1%}'} | {_chunked(row)} |"
        )
    lines += ["", *_closer(record), *_effects(record), "", END]
    return "\n".join(lines)


def _rates(row: Mapping[str, Any]) -> str:
    return f"{row['asked_rps']:g} ({row['rate_rps']:g})" if "asked_rps" in row else f"({row['rate_rps']:g})"


def _chunked(row: Mapping[str, Any]) -> str:
    chunked = row.get("chunked")
    if chunked is None:
        return "- | -"
    return f"{chunked['attainment']:.1%} | {chunked['ttft_p99_s']:.2f}, {chunked['tpot_p99_ms']:.1f}"


def _closer(record: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where a third digit stood between apart and together: the same with more seeds."""
    found = [row for row in record if row.get("closer")]
    if not found:
        return []
    lines = [
        f"Where the third digit differs, with {len(SEEDS)} seeds: the best layout, and the best colocated one.",
        "",
        "| workload | within SLO | P99 TTFT s | P99 TPOT ms |",
        "| --- | --- | --- | --- |",
    ]
    for row in found:
        columns = [
            ", ".join(f"{factor * each[name]:{form}}" for each in row["closer"])
            for name, factor, form in (("attainment", 1, ".2%"), ("ttft_p99_s", 1, ".2f"), ("tpot_p99_ms", 1, ".1f"))
        ]
        lines.append(f"| {row['workload']} | {' | '.join(columns)} |")
    return [*lines, ""]


def _effects(record: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each policy against the default on the same layout: medians over workloads, and the extremes."""
    changes: dict[str, list[tuple[float, float, float, str]]] = {}
    for row in record:
        defaults = {each["endpoints"]: each for each in row["candidates"] if each["policy"] == "default"}
        for each in row["candidates"]:
            base = defaults.get(each["endpoints"]) or (
                defaults.get(each["endpoints"].replace("F@", "C@")) if "F@" in each["endpoints"] else None
            )
            if base is None or each is base:
                continue
            name = f"{each['policy']} ({'colocated' if _colocated(each) else 'P/D'})"
            changes.setdefault(name, []).append(
                (
                    100 * (each["attainment"] - base["attainment"]),
                    each["ttft_p99_s"] / base["ttft_p99_s"],
                    each["tpot_p99_ms"] / base["tpot_p99_ms"],
                    f"{row['workload']} {row['load']:g}",
                )
            )
    lines = [
        "Against the default policy on the same layout (ratios below 1 are better; median, then best and worst case):",
        "",
        "| policy | cases | within SLO, points | P99 TTFT ratio | P99 TPOT ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, cases in sorted(changes.items()):
        points, ttft, tpot = [case[0] for case in cases], [case[1] for case in cases], [case[2] for case in cases]
        best, worst = max(cases), min(cases)
        lines.append(
            f"| {name} | {len(cases)} | {statistics.median(points):+.1f} (best {best[0]:+.1f}: {best[3]}; worst "
            f"{worst[0]:+.1f}: {worst[3]}) | {statistics.median(ttft):.2f} ({min(ttft):.2f} to {max(ttft):.2f}) "
            f"| {statistics.median(tpot):.2f} ({min(tpot):.2f} to {max(tpot):.2f}) |"
        )
    return lines


def _colocated(candidate: Mapping[str, Any]) -> bool:
    return "C@" in candidate["endpoints"] or "F@" in candidate["endpoints"]


def page_with(tables: str, page: str) -> str:
    """The page with its tables replaced. Raises ValueError where it has no place for them."""
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE}: has no place for the tables; it needs the lines {BEGIN} and {END}")
    return head + tables + tail


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 1 where --check finds another page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=GENERATORS, default=list(WORKLOADS))
    parser.add_argument("--again", action="store_true", help="run also what the record has")
    parser.add_argument("--render", action="store_true", help="write the page's tables, run nothing")
    parser.add_argument("--check", action="store_true", help="compare the page with the record, run nothing")
    asked = parser.parse_args(arguments)
    record: list[dict[str, Any]] = json.loads(RECORD.read_text()) if RECORD.exists() else []
    if asked.check or asked.render:
        page = PAGE.read_text()
        wanted = page_with(render(record), page)
        if asked.render:
            PAGE.write_text(wanted)
        elif page != wanted:
            print(f"{PAGE.relative_to(ROOT)} differs from its record; python -m bench.choosing --render writes it")
            return 1
        return 0
    for workload in asked.only:
        for load in LOADS:
            known = [row for row in record if (row["workload"], row["load"]) == (workload, load)]
            if known and "chunked" in known[0] and not asked.again:
                continue
            found = known[0] if known and not asked.again else row_of(workload, load, ask(workload, load, asked.jobs))
            row = looked_closer(found)
            record = [each for each in record if each not in known] + [row]
            record.sort(key=lambda each: (WORKLOADS.index(each["workload"]), each["load"]))
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            best = row["candidates"][0]
            print(f"{workload} at {load}: {best['endpoints']} {best['policy']} {best['attainment']:.1%}", flush=True)
            print(f"  colocated, chunks of {CHUNK}: {row['chunked']['attainment']:.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
