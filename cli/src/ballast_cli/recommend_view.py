"""What `ballast recommend` shows to people; all of it on standard error, the manifests have standard output."""

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from ballast_sim.recommend.search import Answer

PIPE_WIDTH = 200
ROWS = 12


class View:
    """Progress, the candidates, and notes."""

    def __init__(self) -> None:
        """Writes to standard error."""
        errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
        self._errors = errors if errors.is_terminal else Console(stderr=True, width=PIPE_WIDTH, markup=False)

    def note(self, line: str) -> None:
        """One line."""
        self._errors.print(line, soft_wrap=True)

    def progress(self, what: str, done: int, runs: int) -> None:
        """Show how many runs of a stage are done; on a terminal the line is overwritten."""
        if self._errors.is_terminal:
            self._errors.print(f"\r{what}: {done} of {runs} runs ", end="\n" if done == runs else "")
        elif done in (0, runs):
            self.note(f"{what}: {done} of {runs} runs")

    def table(self, answer: "Answer") -> None:
        """The candidates in order of preference."""
        table = Table(box=None, pad_edge=False)
        titles = ("endpoints", "policy", "attained", "TTFT p99 s", "TPOT p99 ms", "goodput /s", "preempted", "moved")
        for index, title in enumerate(titles):
            table.add_column(title, justify="right" if index > 1 else "left", no_wrap=True)
        for each in answer.candidates[:ROWS]:
            table.add_row(
                each.shape,
                each.variant.name + ("*" if each.variant.obstacle else ""),
                f"{each.attainment:.1%}",
                f"{each.mean('ttft_s', 'p99'):.2f}",
                f"{1e3 * each.mean('tpot_s', 'p99'):.1f}",
                f"{each.mean('goodput_rps'):.3g}",
                f"{each.mean('preemptions'):.0f}",
                f"{each.mean('migrations'):.0f}",
            )
        self._errors.print(table)
        for obstacle in dict.fromkeys(each.variant.obstacle for each in answer.candidates[:ROWS]):
            if obstacle:
                self.note(f"* simulated to be compared, not recommended: {obstacle}")
        if len(answer.candidates) > ROWS:
            self.note(f"({len(answer.candidates) - ROWS} more; --json has all)")
        for line in dropped(answer):
            self.note(line)


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
