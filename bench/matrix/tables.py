"""The long tables of the matrix as data files beside docs/matrix.md: one line a cell, plain figures, units in names."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.matrix.analyse import HEADLINES, METRICS, OURS, Metric, Standing, against_best
from bench.matrix.cells import CELLS, COMPARISON_SEEDS, DECODE, PREFILL, SELECTION_SEEDS, Cell
from bench.matrix.plan import need
from bench.matrix.record import CHECKOUT, Record, RecordedCell

FOLDER = CHECKOUT / "docs" / "matrix"

Known = Sequence[tuple[Cell, RecordedCell]]
Standings = Mapping[tuple[str, str], Standing]
"""Ours against the best baseline, by the names of cell and metric's field."""


def known_cells(record: Record) -> Known:
    """The cells of which anything is recorded, in the matrix's order."""
    return [(cell, record.cells[cell.name]) for cell in CELLS if cell.name in record.cells]


def is_complete(record: Record, known: RecordedCell) -> bool:
    """Whether no run of the cell is missing."""
    return need(known.figures, list(record.policies)) is None


def standings_of(record: Record) -> Standings:
    """All that can be compared."""
    return {
        (cell.name, metric.field): found
        for cell, known in known_cells(record)
        for metric in METRICS
        if (found := against_best(cell.name, known.figures, metric)) is not None
    }


def data_files(record: Record) -> dict[Path, str]:
    """Their texts."""
    tables = {"cells": _cells(record), "capacities": _capacities(record)}
    tables |= {metric.title.lower().replace(" ", "-"): _placements(record, metric) for metric in HEADLINES}
    return {FOLDER / f"{name}.csv": _text(rows) for name, rows in tables.items()}


def endpoints(shape: str) -> str:
    """A fleet without the names of the usual hardware."""
    for role, hardware in (("P", PREFILL), ("D", DECODE), ("C", DECODE)):
        shape = shape.replace(f"{role}@{hardware}", role)
    return shape.replace(f"D@{PREFILL}", "D (A100)")


def scaled(metric: Metric, value: float) -> str:
    """TPOT in milliseconds, TTFT in seconds."""
    return f"{value * 1e3:.1f}" if metric.field.startswith("tpot") else f"{value:.2f}"


def _cells(record: Record) -> Iterable[Sequence[object]]:
    head = ["cell", "endpoints", "complete"]
    for metric in HEADLINES:
        name, unit = metric.field.removesuffix("_s"), "ms" if metric.field.startswith("tpot") else "s"
        head += [f"{name}_ballast_{unit}", f"{name}_best_{unit}", f"{name}_best_baseline"]
        head += [f"{name}_ratio", f"{name}_ratio_low", f"{name}_ratio_high"]
    counted = ("preemptions", "completed", "rejected")
    head += ["goodput_ratio", *(f"{field}_{whose}" for field in counted for whose in ("ballast", "best"))]
    yield head
    found = standings_of(record)

    def worst(entry: tuple[Cell, RecordedCell]) -> float:
        known = (found.get((entry[0].name, metric.field)) for metric in HEADLINES)
        return max((standing.interval.ratio for standing in known if standing is not None), default=0.0)

    for cell, known in sorted(known_cells(record), key=worst, reverse=True):
        tpot, ttft, goodput = (found.get((cell.name, each)) for each in ("tpot_p99_s", "ttft_p99_s", "goodput_rps"))
        sums = [_sum(known, whose, field) for field in counted for whose in (OURS, tpot.other if tpot else None)]
        ratio = f"{goodput.interval.ratio:.3f}" if goodput else ""
        yes_no = "yes" if is_complete(record, known) else "no"
        yield [cell.name, endpoints(cell.fleet.shape), yes_no, *_columns(tpot), *_columns(ttft), ratio, *sums]


def _columns(found: Standing | None) -> Sequence[str]:
    if found is None:
        return [""] * 6
    values = (scaled(found.metric, found.ours_value), scaled(found.metric, found.other_value))
    between = found.interval
    return [*values, found.other, f"{between.ratio:.3f}", f"{between.low:.2f}", f"{between.high:.2f}"]


def _sum(known: RecordedCell, policy: str | None, field: str) -> str:
    values = [
        getattr(known.runs[policy, seed].figures, field)
        for seed in COMPARISON_SEEDS
        if policy is not None and (policy, seed) in known.runs
    ]
    return str(sum(values)) if values else ""


def _placements(record: Record, metric: Metric) -> Iterable[Sequence[object]]:
    seed = SELECTION_SEEDS[0]
    yield ["cell", *record.policies]
    for cell, known in known_cells(record):
        runs = known.runs
        yield [
            cell.name,
            *(
                scaled(metric, metric.of(runs[policy, seed].figures)) if (policy, seed) in runs else ""
                for policy in record.policies
            ),
        ]


def _capacities(record: Record) -> Iterable[Sequence[object]]:
    yield ["workload", "fleet", "endpoints", "requests_per_s", "over_arithmetic", "bounded", "requests_in_a_run"]
    for name, cell in {f"{cell.workload.name}/{cell.fleet.kind}": cell for cell, _ in known_cells(record)}.items():
        known = record.capacities[name].capacity
        figures = [f"{known.rate_rps:.3g}", f"{known.full_ratio:.2f}", "yes" if known.bounded else "no"]
        yield [cell.workload.name, cell.fleet.kind, endpoints(cell.fleet.shape), *figures, cell.workload.limit]


def _text(rows: Iterable[Sequence[object]]) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(rows)
    return written.getvalue()
