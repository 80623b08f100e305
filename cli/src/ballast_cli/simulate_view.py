"""What `ballast simulate` shows to people: progress, the search for the capacity, and the table."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

PIPE_WIDTH = 80
"""Columns of a table that does not go to a terminal, where COLUMNS says nothing else."""

Figures = Mapping[str, Any]


def table_console(*, stderr: bool) -> Console:
    """As wide as the terminal; elsewhere as COLUMNS says, or `PIPE_WIDTH`."""
    console = Console(stderr=stderr, highlight=False, markup=False)
    if console.is_terminal or "COLUMNS" in os.environ:
        return console
    return Console(stderr=stderr, highlight=False, markup=False, width=PIPE_WIDTH)


class View:
    """Tables go to standard output unless that belongs to the JSON; all else goes to standard error."""

    def __init__(self, plain_stdout: bool) -> None:
        """`plain_stdout`: whether standard output may carry the table."""
        self._errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._tables = table_console(stderr=not plain_stdout)

    def error(self, message: str) -> None:
        """Print why nothing was run."""
        self._errors.print(f"error: {message}")

    def note(self, message: str) -> None:
        """One line that is no figure."""
        self._errors.print(message)

    def _bars(self) -> Progress:
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._errors,
            transient=True,
            disable=not self._errors.is_terminal,
        )

    @contextmanager
    def progress(self, names: Sequence[str]) -> Iterator[Callable[[int, float], None]]:
        """A bar for each run, on a terminal."""
        with self._bars() as bars:
            tasks = [bars.add_task(name, total=1.0, start=False) for name in names]

            def report(index: int, share: float) -> None:
                bars.start_task(tasks[index])
                bars.update(tasks[index], completed=share)

            yield report

    @contextmanager
    def search(self, name: str) -> Iterator[tuple[Callable[[float, bool], None], Callable[[float], None]]]:
        """The probes of a search, on a terminal; yields (a probe's answer, the share of the probe under way)."""
        spinner = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=self._errors,
            transient=True,
            disable=not self._errors.is_terminal,
        )
        with spinner as bars:
            task = bars.add_task(name, total=1.0)

            def on_probe(scale: float, sustained: bool) -> None:
                word = "sustained" if sustained else "too much"
                bars.update(task, description=f"{name}: rate scale {scale:.4g} is {word}", completed=0.0)

            yield on_probe, lambda share: bars.update(task, completed=share)

    def table(self, rows: Sequence[Figures]) -> None:
        """One line for each run."""
        first = rows[0]
        title = f"{first['workload']} on {first['shape']}, {_number(first['rate_rps'])} requests/s"
        if first["load"] is not None:
            title += f", load {first['load']:g}"
        if first["physics"] != "vllm":
            title += f", physics {first['physics']}"
        if first["engine_scheduler"] != "fcfs":
            title += f", engines by {first['engine_scheduler']}"
        columns = [column for column in COLUMNS if column.shown(rows)]
        heads = [column.title for column in columns]
        cells = [[column.text(row) for column in columns] for row in rows]
        self._tables.print(title, soft_wrap=True)
        across = _table([heads, *cells])
        if self._needs(across) <= self._tables.width:
            self._tables.print(across)
            return
        for start, count in self._blocks(heads, cells):
            down = _table(list(map(list, zip(heads, *cells[start : start + count], strict=True))))
            self._tables.print(down, width=max(self._tables.width, self._needs(down)), crop=False)

    def _blocks(self, heads: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterator[tuple[int, int]]:
        """Tables that stand on end, one beside each other as far as there is room: (first row, rows), one at least."""
        first = 0
        while first < len(cells):
            count = 1
            while first + count < len(cells):
                wider = _table(list(map(list, zip(heads, *cells[first : first + count + 1], strict=True))))
                if self._needs(wider) > self._tables.width:
                    break
                count += 1
            yield first, count
            first += count

    def _needs(self, table: Table) -> int:
        """Columns of the terminal without which figures would be cut."""
        return self._tables.measure(table, options=self._tables.options.update(max_width=10_000)).maximum


def _table(cells: Sequence[Sequence[str]]) -> Table:
    """The first line is the header."""
    table = Table(box=None, pad_edge=False)
    for index, name in enumerate(cells[0]):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for line in cells[1:]:
        table.add_row(*line)
    return table


class _Column:
    """A column of the table.

    `only_if_varied` leaves it out where every row has the same value, `only_if_any` where every row has 0.
    """

    def __init__(
        self,
        title: str,
        text: Callable[[Figures], str],
        *,
        only_if_varied: bool = False,
        only_if_any: bool = False,
    ) -> None:
        self.title, self.text = title, text
        self._only_if_varied, self._only_if_any = only_if_varied, only_if_any

    def shown(self, rows: Sequence[Figures]) -> bool:
        texts = {self.text(row) for row in rows}
        return not (self._only_if_varied and len(texts) == 1) and not (self._only_if_any and texts == {"0"})


def _number(value: float | None, digits: int = 4) -> str:
    return "-" if value is None else f"{value:.{digits}g}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value * 1e3:.1f}"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _scaled(row: Figures, name: str) -> str:
    value = row.get("autoscaling", {}).get(name)
    return "0" if value is None else f"{value:.4g}"


COLUMNS = (
    _Column("policy", lambda row: row["policy"]),
    _Column("binding", lambda row: row["binding"], only_if_varied=True),
    _Column("seed", lambda row: str(row["seed"]), only_if_varied=True),
    _Column("done", lambda row: f"{row['completed']}/{row['requests']}"),
    _Column("broken", lambda row: str(row["broken"]), only_if_any=True),
    _Column("retried", lambda row: str(row["retried"]), only_if_any=True),
    _Column("TTFT p50 s", lambda row: _seconds(row["ttft_s"]["p50"])),
    _Column("p99 s", lambda row: _seconds(row["ttft_s"]["p99"])),
    _Column("TPOT p50 ms", lambda row: _milliseconds(row["tpot_s"]["p50"])),
    _Column("p99 ms", lambda row: _milliseconds(row["tpot_s"]["p99"])),
    _Column("p99.9 ms", lambda row: _milliseconds(row["tpot_s"]["p999"])),
    _Column("TBT p99 ms", lambda row: _milliseconds(row["tbt_s"]["p99"])),
    _Column("E2E p99 s", lambda row: _seconds(row["e2e_s"]["p99"])),
    _Column("goodput /s", lambda row: _number(row["goodput_rps"], 3)),
    _Column("attained", lambda row: _share(row["attainment"])),
    _Column("GPU h", lambda row: _scaled(row, "gpu_hours"), only_if_any=True),
    _Column("cost", lambda row: _scaled(row, "cost"), only_if_any=True),
    _Column("changes", lambda row: _scaled(row, "changes"), only_if_any=True),
    _Column("tokens/s", lambda row: f"{row['throughput_tok_s']:.0f}"),
    _Column("good tok/s", lambda row: f"{row['goodput_tok_s']:.0f}"),
    _Column("split", lambda row: str(row["split_requests"]), only_if_any=True),
    _Column("preempted", lambda row: str(row["preemptions"])),
    _Column("KV hits", lambda row: _share(row["kv_hit_ratio"])),
    _Column("optimal", lambda row: _share(row["optimal_assignment_ratio"])),
    _Column("pick us", lambda row: _number(row["decision_us"]["p50"], 3)),
)
