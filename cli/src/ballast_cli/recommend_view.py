"""What `ballast recommend` shows to people; all of it on standard error, the manifests have standard output."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.status import Status
from rich.table import Table

from ballast_cli.simulate_view import table_console

if TYPE_CHECKING:
    from ballast_sim.recommend.search import Answer

ROWS = 12


class View:
    """Progress, the candidates, and notes."""

    def __init__(self) -> None:
        """Writes to standard error."""
        self._errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._tables = table_console(stderr=True)
        self._running: Status | None = None

    def note(self, line: str) -> None:
        """One line."""
        self.close()
        self._errors.print(line, soft_wrap=True)

    def progress(self, what: str, done: int, runs: int) -> None:
        """Show how many runs of a stage are done: one line that is redrawn on a terminal, quiet elsewhere."""
        if not self._errors.is_terminal:
            return
        words = f"{what}: {done} of {runs} runs"
        if self._running is None:
            self._running = self._errors.status(words)
            self._running.start()
        self._running.update(words)
        if done == runs:
            self.close()

    def close(self) -> None:
        """Take the line of progress away, where there is one."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def table(self, answer: "Answer", prices: Mapping[str, float] | None = None) -> None:
        """The candidates in order of preference; with what they cost an hour, or their GPUs, where that was asked."""
        from ballast_sim.recommend.smallest import cost_of, gpus_of

        table = Table(box=None, pad_edge=False)
        suffix = _common_model([each.profile.name for each in answer.question.hardware])
        endpoints = f"endpoints,\n@NAME{suffix}" if suffix else "endpoints"
        priced = () if prices is None else ("GPUs", "cost /h") if prices else ("GPUs",)
        titles = (endpoints, "policy", "within\nSLO", "TTFT\np99 s", "TPOT\np99 ms", "goodput\n/s", *priced)
        for index, title in enumerate(titles):
            table.add_column(title, justify="right" if index > 1 else "left", overflow="fold")
        for each in answer.candidates[:ROWS]:
            table.add_row(
                each.shape.replace(suffix, ""),
                each.variant.name + ("*" if each.variant.obstacle else ""),
                f"{each.attainment:.1%}",
                known(each.mean("ttft_s", "p99"), 2),
                known(1e3 * each.mean("tpot_s", "p99"), 1),
                f"{each.mean('goodput_rps'):.3g}",
                *([f"{gpus_of(each.layout)}"] if priced else ()),
                *([f"{cost_of(each.layout, prices):.4g}"] if prices else ()),
            )
        self._tables.print(table)
        for obstacle in dict.fromkeys(each.variant.obstacle for each in answer.candidates[:ROWS]):
            if obstacle:
                self.note(f"* simulated to be compared, not recommended: {obstacle}")
        if len(answer.candidates) > ROWS:
            self.note(f"({len(answer.candidates) - ROWS} more; --json has all)")
        for line in dropped(answer):
            self.note(line)


def known(value: float, digits: int, unit: str = "") -> str:
    """A figure; a dash where no request was completed, or none had a second token."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}{unit}"


def _common_model(profiles: Sequence[str]) -> str:
    """What all names end in, from a dash on: said once, so that a table fits 80 columns. Empty where there is none."""
    endings = {name[name.index("-") :] if "-" in name else "" for name in profiles}
    return endings.pop() if len(endings) == 1 else ""


def dropped(answer: "Answer") -> list[str]:
    """What was not simulated on the whole traffic, one line for each reason; and how much was simulated."""
    lines = []
    for why in dict.fromkeys(each.why for each in answer.dropped):
        named = [each for each in answer.dropped if each.why == why]
        where = "without a run"
        if answer.stretch is not None and named[0].tried is not None:
            where = f"after the busiest {answer.stretch.count:,} of {answer.requests:,} requests"
        lines.append(
            f"dropped {where}, {why}: "
            + "; ".join(
                f"{each.shape} with {each.policy}" + (f" {each.tried.attainment:.1%}" if each.tried else "")
                for each in named
            )
        )
    effort = answer.effort
    return [*lines, f"simulated: {effort.runs} runs, {effort.requests:,} requests"]
