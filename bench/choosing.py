"""Which layout and which policy for which traffic? The data behind docs/choosing.md.

For each built-in workload `ballast recommend`'s search runs on one budget, at rates that load the roomiest layout to
`LOADS` by arithmetic. `python -m bench.choosing` runs what is missing and records it; `--render` writes the tables of
the page from the record, `--check` says whether the page is what the record renders to.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.recommend.budget import Hardware, parse_budget
from ballast_sim.recommend.layouts import layouts
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.search import Answer, search
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.source import WorkloadSource
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


def rate_of(workload: str, limit: int, load: float, hardware: Sequence[Hardware]) -> float:
    """Requests a second at which the roomiest layout is loaded so far, by arithmetic."""
    drawn = WorkloadSource(workload=workload, limit=limit).load(0, 1.0)
    lengths = LengthStatistics.of(drawn.requests)
    return load * max(layout.headroom for layout in layouts(hardware, lengths, 1.0, SLO.tpot_s))


def ask(workload: str, load: float, jobs: int) -> Answer:
    """What `ballast recommend` answers."""
    hardware = parse_budget(BUDGET, "qwen3-32b", SHIPPED_PROFILES)
    limit = LIMITS.get(workload, REQUESTS)
    rate = round(rate_of(workload, limit, load, hardware), 3)
    question = Question(
        source=WorkloadSource(workload=workload, rate_rps=rate, limit=limit),
        hardware=hardware,
        objective=SLO,
        attainment=0.99,
        full_length=True,
    )
    return search(question, jobs, threading.Event(), lambda what, done, runs: None)


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
        "candidates": [
            {
                "endpoints": each.shape,
                "policy": each.variant.name,
                "attainment": round(each.attainment, 4),
                "ttft_p99_s": round(each.mean("ttft_s", "p99"), 4),
                "tpot_p99_ms": round(1e3 * each.mean("tpot_s", "p99"), 3),
                "e2e_p99_s": round(each.mean("e2e_s", "p99"), 3),
                "preemptions": each.mean("preemptions"),
                "migrations": each.mean("migrations"),
            }
            for each in answer.candidates
        ],
    }


# --- the page ---------------------------------------------------------------------------------------------------------


def render(record: Sequence[Mapping[str, Any]]) -> str:
    """The two tables: what is best, and what each policy brings on the best layout against the default."""
    lines = [
        BEGIN,
        "",
        f"Budget {BUDGET} (Qwen3-32B), SLO P99 TTFT 2 s and TPOT 50 ms, two seeds; load is the share of what the "
        "roomiest layout carries by arithmetic.",
        "",
        "| workload | mean tokens in / out | load | requests/s | best layout | policy | within SLO | P99 TTFT s "
        "| P99 TPOT ms | best colocated: within SLO |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in record:
        best = row["candidates"][0]
        together = [each for each in row["candidates"] if _colocated(each)]
        colocated = max((each["attainment"] for each in together), default=None)
        lines.append(
            f"| {row['workload']} | {row['input_tokens']:,} / {row['output_tokens']:,} | {row['load']:g} "
            f"| {row['rate_rps']:g} | `{best['endpoints']}` | {best['policy']} | {best['attainment']:.1%} "
            f"| {best['ttft_p99_s']:.2f} | {best['tpot_p99_ms']:.1f} "
            f"| {'-' if colocated is None else f'{colocated:.1%}'} |"
        )
    lines += ["", *_effects(record), "", END]
    return "\n".join(lines)


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
            if known and not asked.again:
                continue
            row = row_of(workload, load, ask(workload, load, asked.jobs))
            record = [each for each in record if each not in known] + [row]
            record.sort(key=lambda each: (WORKLOADS.index(each["workload"]), each["load"]))
            RECORD.write_text(json.dumps(record, indent=1) + "\n")
            best = row["candidates"][0]
            print(f"{workload} at {load}: {best['endpoints']} {best['policy']} {best['attainment']:.1%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
