"""What `ballast calibrate` shows to people."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

PIPE_WIDTH = 220
"""Columns of a table that does not go to a terminal: these tables are wide."""
SURFACE_CELLS = 8
_DEFAULT_ESTIMATOR = "censoring-aware"

Figures = Mapping[str, Any]


class CalibrationView:
    """Tables go to standard output unless that belongs to the JSON."""

    def __init__(self, plain_stdout: bool) -> None:
        """`plain_stdout`: whether standard output may carry the tables."""
        self._errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        tables = Console(stderr=not plain_stdout, highlight=False, markup=False)
        self._tables = (
            tables
            if tables.is_terminal
            else Console(stderr=not plain_stdout, width=PIPE_WIDTH, highlight=False, markup=False)
        )

    def error(self, message: str) -> None:
        """Print why nothing was done."""
        self._errors.print(f"error: {message}")

    def show(self, figures: Figures) -> None:
        """Everything, in tables."""
        lengths, fleet = figures["lengths"], figures["fleet"]
        self._curves(figures)
        shown = [row for row in lengths if not row["limits"] and not row["by_class"]]
        self._bins(next(row for row in shown if row["estimator"] == _DEFAULT_ESTIMATOR))
        for row in shown:
            self._surface(row)
        paper = figures["paper"]
        if paper is not None:
            best = "; ".join(
                f"{row['estimator']} at most {_percent(row['surface']['max'])}, "
                f"{_percent(row['surface']['below_5_percent'])} of it below 5 %"
                for row in shown
            )
            self._tables.print(f"SIBYL's figure 7, on its own data: {paper}. Here: {best}.\n")
        if fleet:
            self._fleet(fleet)
            self._projections(fleet[0])

    def _print(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self._tables.print(title)
        table = Table(box=None, pad_edge=False)
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", no_wrap=True)
        for row in rows:
            table.add_row(*row)
        self._tables.print(table)
        self._tables.print()

    def _curves(self, figures: Figures) -> None:
        rows = [
            (
                row["estimator"],
                "half" if row["limits"] else "none",
                "by client" if row["by_class"] else "one",
                f"{row['learned_ends']} ({row['cut']} cut)",
                f"{row['brier']:.4f}",
                f"{row['brier_best']:.4f}",
                _percent(row["calibration_error"]),
                _percent(row["surface"]["mean"]),
                _percent(row["surface"]["max"]),
                _percent(row["surface"]["below_5_percent"]),
                _percent(row["remaining_error_ratio"]),
                *(_percent(row["coverage"][name]) for name in ("p50", "p90", "p99")),
                _won(row),
            )
            for row in figures["lengths"]
        ]
        self._print(
            f"output lengths of {figures['workload']}: {figures['requests']} requests, "
            f"{_percent(figures['held_back_ratio'])} held back",
            (
                *("estimator", "max_tokens", "curves", "learned ends", "Brier", "best", "calib. error"),
                *("surface mean", "max", "below 5 %", "remaining", "q50 holds", "q90", "q99", "own curve better"),
            ),
            rows,
        )

    def _bins(self, row: Figures) -> None:
        bins = [one for one in row["bins"] if one["predictions"]]
        self._print(
            f"P(still running later | age), {row['estimator']}: predicted and what happened",
            ("predicted", *(_percent(one["predicted"]) for one in bins)),
            [("observed", *(_percent(one["observed"]) for one in bins))],
        )

    def _surface(self, row: Figures) -> None:
        surface = row["surface"]
        errors, ages, later = surface["error"], surface["ages_tokens"], surface["look_aheads_tokens"]
        size = len(ages) // SURFACE_CELLS
        rows = []
        for first in range(0, len(ages), size):
            cells = [
                [
                    error
                    for line in errors[first : first + size]
                    for error in line[start : start + size]
                    if error is not None
                ]
                for start in range(0, len(later), size)
            ]
            rows.append((f"{ages[first]:.0f}", *(_percent(max(cell)) if cell else "" for cell in cells)))
        self._print(
            f"largest |predicted - actual| of P, {row['estimator']}: age l(now) from (down), look-ahead up to (across) "
            "in tokens",
            ("l(now)", *(f"{later[start + size - 1]:.0f}" for start in range(0, len(later), size))),
            rows,
        )

    def _fleet(self, rows: Sequence[Figures]) -> None:
        first = rows[0]
        rate = "-" if first["rate_rps"] is None else f"{first['rate_rps']:.3g}"
        self._print(
            f"{first['endpoints']}, {first['policy']}, {rate} requests/s: "
            "|predicted / actual - 1| at percentiles; cached prompt tokens",
            (
                *("profiles", "step time: n", "bias", "p50", "p90", "p99", "prefill time: n", "bias", "p50", "p90"),
                *("p99", "p90 s", "hits predicted", "hits", "missed", "imagined"),
            ),
            [
                (
                    "known" if row["profiles_known"] else "unknown",
                    *_error_cells(row["step_time"]),
                    *_error_cells(row["prefill_time"]),
                    "-" if row["prefill_time"]["p90_s"] is None else f"{row['prefill_time']['p90_s']:.3f}",
                    *_prefix_cells(row["prefixes"]),
                )
                for row in rows
            ],
        )

    def _projections(self, row: Figures) -> None:
        found = row["projections"]
        look_aheads = sorted({one["look_ahead_s"] for one in found})
        rows = []
        for age in sorted({one["age_from_tokens"] for one in found}):
            of_age = {one["look_ahead_s"]: one for one in found if one["age_from_tokens"] == age}
            rows.append(
                (
                    str(age),
                    str(of_age[look_aheads[0]]["requests"]),
                    *(f"{of_age[look_ahead_s]['bias_ratio']:+.1%}" for look_ahead_s in look_aheads),
                )
            )
        self._print(
            "projected load of running requests, (expected - actual) / load if all lived: age l(now) from (down), "
            "look-ahead tau (across)",
            ("l(now)", "samples", *(f"{look_ahead_s:g} s" for look_ahead_s in look_aheads)),
            rows,
        )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _won(row: Figures) -> str:
    classes = row["classes"]
    return f"{sum(one['brier'] < one['brier_pooled'] for one in classes)}/{len(classes)}" if classes else ""


def _error_cells(error: Figures) -> tuple[str, ...]:
    bias = error["bias_ratio"]
    return (
        str(error["predictions"]),
        "-" if bias is None else f"{bias:+.1%}",
        *(_percent(error[name]) for name in ("p50_ratio", "p90_ratio", "p99_ratio")),
    )


def _prefix_cells(prefixes: Figures | None) -> tuple[str, ...]:
    names = ("predicted_ratio", "actual_ratio", "missed_ratio", "imagined_ratio")
    return ("-",) * len(names) if prefixes is None else tuple(_percent(prefixes[name]) for name in names)
