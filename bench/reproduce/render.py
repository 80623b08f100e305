"""The page of verdicts, a page for each paper, their tables as CSV and their plots, all from the record.

python -m bench.reproduce.render            write them
python -m bench.reproduce.render --check    say what differs, exit status 1 where something does
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ballast_sim.simulation.report.svg import Chart
from bench.reproduce import record as recorded
from bench.reproduce.form import FULL_SEEDS, Claim, Experiment, Finding, Paper, Plot, Row, Setting
from bench.reproduce.papers import PAPERS
from bench.reproduce.plots import Drawing, Whiskers, svg_file
from bench.reproduce.record import CHECKOUT, Record
from bench.reproduce.results import measured
from bench.reproduce.verdicts import LIFETIMES, Verdict, together, valid

PAGE = CHECKOUT / "docs" / "reproduction.md"
FOLDER = CHECKOUT / "docs" / "reproduction"
GENERATED = ("*.svg", "*.csv", "*.md")
"""What of the folder is written here."""

HEAD = f"""# Five papers, rerun

Generated from `bench/recorded/reproduction.json`; do not edit. All is simulated, on vLLM's own scheduling rules
(`ballast validate` holds them against vLLM) or on a paper's own model of an engine: this tests claims about
scheduling, not those about kernels, networks or measured machines.

- **Ours** is their set-up: fleet, lengths, arrivals and engine as the paper has them; what it leaves open is decided
  and named. Public generators with the published moments stand for traces that are not. **Realistic** adds limited KV,
  queues, caches and transfers, and the baselines that an operator would try first.
- **Numbers** are means over seeds with a 95 % interval; of a claim's rows the first is shown, with their number.
- **Verdicts**: *holds*: the whole interval supports the claim, by half of its effect or more (a level: within a tenth;
  a ratio of about 1: 3 %). *Holds in part*: by less, or only some rows. *Contradicted*: it lies on the other side, or
  below a tenth, in runs that last {LIFETIMES:g} P99 lifetimes of a request. *Inconclusive*: all else. *Not comparable*:
  our level is not theirs. The rules: `bench/reproduce/verdicts.py`.
- **Commands**: `PYTHONPATH=. python -m bench.reproduce.run --only NAME --show` prints the experiment beside a verdict;
  without `--show` it computes what is missing, with `--set full` for all seeds.

`make reproduce` reruns a small set in a quarter of an hour and compares; `make reproduce-full` computes what the code
at hand lacks, with `REPRODUCE_ARGS=--missing` only what is not recorded here.
"""


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one claim in one setting."""

    rows: Sequence[Row]

    @property
    def verdict(self) -> Verdict | None:
        """None where no row judges."""
        verdicts = [row.verdict for row in self.rows if row.verdict is not None]
        return together(verdicts) if verdicts else None

    @property
    def counted(self) -> str:
        """How many rows have which verdict; empty where they agree."""
        counts = Counter[Verdict](row.verdict for row in self.rows if row.verdict is not None)
        return ", ".join(f"{each} in {counts[each]}" for each in Verdict if counts[each]) if len(counts) > 1 else ""

    @property
    def text(self) -> str:
        """The first number that is known, and how many rows there are."""
        known = [row for row in self.rows if row.ours is not None and row.verdict is not None]
        if not known:
            return ""
        more = f"; {len(known)} rows" if len(known) > 1 else ""
        return measured(known[0].ours, known[0].unit, seeds=False) + more


def findings(record: Record, papers: Sequence[Paper] = PAPERS) -> dict[str, Finding]:
    """Of every experiment, by name."""
    return {
        experiment.name: experiment.analyse(record.results(experiment))
        for paper in papers
        for experiment in paper.experiments
    }


def page(record: Record, papers: Sequence[Paper] = PAPERS) -> str:
    """The page of verdicts."""
    return "\n".join(_page(record, papers, findings(record, papers))).rstrip() + "\n"


def _page(record: Record, papers: Sequence[Paper], found: Mapping[str, Finding]) -> Iterator[str]:
    yield HEAD
    runs = [done for known in record.experiments.values() for run in known.values() for done in run.seeds.values()]
    left = {paper.name: _left(record, paper) for paper in papers}
    missing = f"; {sum(left.values()):,} of the full set are missing" if any(left.values()) else ""
    minutes = sum(done.cpu_s for done in runs) / 60
    yield f"{len(runs):,} runs, recorded {record.date}{missing}; {minutes:.0f} minutes of processor time."
    if len({done.code.common for done in runs}) > 1:
        yield "They come from more than one state of the simulator: what would be run as it was is kept."
    else:
        yield "All come from one state of the simulator."
    for paper in papers:
        yield f"\n## {paper.title}\n"
        missing = f" Missing: {left[paper.name]} runs." if left[paper.name] else ""
        yield f"[Set-up, tables, plots](reproduction/{paper.name}.md).{missing}\n"
        outcomes = [
            (claim, judged(claim, paper, found, Setting.THEIRS), judged(claim, paper, found, Setting.REALISTIC))
            for claim in paper.claims
        ]
        realistic = any(real.text for _, _, real in outcomes)
        yield from _header("claim", "paper", "ours", *(["realistic"] if realistic else []), "verdict")
        for claim, theirs, real in outcomes:
            also = f": {real.verdict}" if real.verdict is not None else ""
            verdict = Verdict.NOT_COMPARABLE if claim.cannot else theirs.verdict
            yield _row(
                claim.short,
                claim.number,
                theirs.text,
                *([real.text + also if real.text else ""] if realistic else []),
                f"**{verdict}** `{_source(claim, paper, found)}`",
            )


def _source(claim: Claim, paper: Paper, found: Mapping[str, Finding]) -> str:
    """The first experiment with a number about a claim; else the first that would have one."""
    about = [
        (row.ours is None, number, experiment.name)
        for number, experiment in enumerate(paper.experiments)
        for row in found[experiment.name].rows
        if row.claim == claim.name and row.setting is Setting.THEIRS
    ]
    return min(about)[2] if about else f"{paper.name}/*"


def _left(record: Record, paper: Paper) -> int:
    """How many runs of the full set are missing."""
    return sum(len(seeds) for experiment in paper.experiments for seeds in _missing(record, experiment).values())


def _missing(record: Record, experiment: Experiment) -> dict[str, list[int]]:
    """Seeds to be computed, by run."""
    known = record.experiments.get(experiment.name, {})
    found = {
        run.name: [seed for seed in experiment.seeds if run.name not in known or seed not in known[run.name].seeds]
        for run in experiment.runs
    }
    return {name: seeds for name, seeds in found.items() if seeds}


def judged(claim: Claim, paper: Paper, found: Mapping[str, Finding], setting: Setting) -> Judged:
    """All rows of a paper's experiments that speak about a claim under a setting."""
    return Judged(
        [
            row
            for experiment in paper.experiments
            for row in found[experiment.name].rows
            if row.claim == claim.name and row.setting is setting
        ]
    )


# --- a paper's page ---------------------------------------------------------------------------------------------------


def paper_page(paper: Paper, record: Record) -> str:
    """Set-up, claims and experiments of one paper."""
    return "\n".join(_paper(paper, record, findings(record, [paper]))).rstrip() + "\n"


def _paper(paper: Paper, record: Record, found: Mapping[str, Finding]) -> Iterator[str]:
    yield f"# {paper.title}\n"
    yield "Generated from `bench/recorded/reproduction.json`; do not edit. [All verdicts](../reproduction.md).\n"
    yield paper.set_up.strip() + "\n"
    yield f"Seeds {', '.join(map(str, FULL_SEEDS))} unless an experiment says otherwise, as far as computed.\n"
    verdict = paper.verdict({each.name: record.results(each) for each in paper.experiments}).strip()
    if verdict:
        yield verdict + "\n"
    yield "## Claims\n"
    for claim in paper.claims:
        outcome = judged(claim, paper, found, Setting.THEIRS)
        rows = f" ({outcome.counted})" if outcome.counted else ""
        said = f"*{Verdict.NOT_COMPARABLE}*: {claim.cannot}" if claim.cannot else f"*{outcome.verdict}*{rows}"
        yield f"- {claim.says} ({claim.where}): {said}."
    yield ""
    for experiment in paper.experiments:
        yield from _experiment(experiment, found[experiment.name], record)


def _experiment(experiment: Experiment, finding: Finding, record: Record) -> Iterator[str]:
    yield f"## {experiment.title}\n"
    seeds = experiment.seeds
    seeds_used = f" Seeds {seeds[0]} to {seeds[-1]}." if seeds != FULL_SEEDS else ""
    yield f"{experiment.text.strip()}{seeds_used}\n"
    yield f"`{experiment.command}`\n"
    computed = [row for row in finding.rows if row.ours is not None]
    yield from table(computed)
    if computed:
        yield f"\nAll {len(computed)} rows: [{data_file(experiment)}]({data_file(experiment)}).\n"
    for plot in _drawn(finding):
        yield f"![{plot.caption}]({plot_file(experiment, plot.name)})\n"
    if finding.text:
        yield finding.text.strip() + "\n"
    missing = _missing(record, experiment)
    if missing:
        count = sum(map(len, missing.values()))
        shown = ", ".join(f"`{name}`" for name in list(missing)[:12])
        more = f" and {len(missing) - 12} more" if len(missing) > 12 else ""
        yield (
            f"To be computed: {count} runs, of {shown}{more}: "
            f"`python -m bench.reproduce.run --set full --only {experiment.name}`\n"
        )


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Those that judge, with for how long requests arrived."""
    judging = [row for row in rows if row.verdict is not None]
    if not judging:
        return
    yield from _header("", "set-up", "paper", "ours (95 % interval)", "P99 lifetimes", "verdict")
    for row in judging:
        yield _row(row.what, row.setting, row.paper, measured(row.ours, row.unit), lifetimes(row), f"{row.verdict}")


def lifetimes(row: Row) -> str:
    """For how many P99 lifetimes of a request arrivals last; what is too short to contradict is marked."""
    if row.ours is None or row.ours.lifetimes is None:
        return ""
    return f"{row.ours.lifetimes:.1f}" + ("" if valid(row.ours) else ", too short")


COLUMNS = ("what", "set-up", "paper", "ours", "low", "high", "unit", "seeds", "p99_lifetimes", "claim", "verdict")


def data(finding: Finding) -> str:
    """All rows of an experiment that are computed, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in finding.rows:
        if row.ours is None:
            continue
        ours = row.ours
        values = [f"{each:.6g}" for each in (ours.value, ours.low, ours.high)]
        lasting = "" if ours.lifetimes is None else f"{ours.lifetimes:.3g}"
        writer.writerow(
            [row.what, row.setting, row.paper, *values, row.unit, ours.count, lasting, row.claim, row.verdict]
        )
    return text.getvalue()


def _drawn(finding: Finding) -> list[Plot]:
    """Those that have something to show."""
    return [plot for plot in finding.plots if any(_has_data(chart) for chart in plot.charts)]


def _has_data(chart: Drawing) -> bool:
    if isinstance(chart, Whiskers):
        return any(row.ours is not None for row in chart.rows)
    return not isinstance(chart, Chart) or bool(chart.series)


def plot_file(experiment: Experiment, name: str) -> str:
    """The name of a plot's file."""
    return f"{experiment.name.replace('/', '-')}-{name}.svg"


def data_file(experiment: Experiment) -> str:
    """The name of a table's file."""
    return f"{experiment.name.replace('/', '-')}.csv"


def files(record: Record, papers: Sequence[Paper] = PAPERS) -> dict[str, str]:
    """What the folder holds, by file name: pages of papers, tables, plots."""
    found = findings(record, papers)
    made = {f"{paper.name}.md": paper_page(paper, record) for paper in papers}
    for paper in papers:
        for experiment in paper.experiments:
            finding = found[experiment.name]
            if any(row.ours is not None for row in finding.rows):
                made[data_file(experiment)] = data(finding)
            for plot in _drawn(finding):
                made[plot_file(experiment, plot.name)] = svg_file(plot.caption, plot.charts)
    return made


def write(record: Record, page_file: Path = PAGE, folder: Path = FOLDER) -> None:
    """All files; those that are no more are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    page_file.write_text(page(record), encoding="utf-8")
    wanted = files(record)
    for old in _present(folder):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text, encoding="utf-8")


def _present(folder: Path) -> list[Path]:
    return sorted(path for pattern in GENERATED for path in folder.glob(pattern))


def differences(record: Record, page_file: Path = PAGE, folder: Path = FOLDER) -> list[str]:
    """Files that are not what the record renders to."""
    wanted = {page_file: page(record)} | {folder / name: text for name, text in files(record).items()}
    found = [str(path) for path, text in wanted.items() if not path.exists() or path.read_text("utf-8") != text]
    return found + [str(path) for path in _present(folder) if path not in wanted]


def _header(*titles: str) -> Iterator[str]:
    yield _row(*titles)
    yield f"|{'|'.join('---' for _ in titles)}|"


def _row(*values: object) -> str:
    return f"| {' | '.join(map(_cell, values))} |"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def terminal_lines(experiments: Iterable[Experiment], found: Mapping[str, Finding]) -> Iterator[str]:
    """Experiments with their rows, for a terminal."""
    for experiment in experiments:
        yield f"\n{experiment.name}: {experiment.title}"
        rows = [row for row in found[experiment.name].rows if row.ours is not None]
        if not rows:
            yield "  nothing computed yet"
        widest = max((len(row.what) for row in rows), default=0)
        for row in rows:
            paper = f"  paper {row.paper}" if row.paper else ""
            verdict = f"  [{row.verdict}]" if row.verdict else ""
            lasts = f"  (arrivals: {lasting} P99 lifetimes)" if (lasting := lifetimes(row)) else ""
            yield f"  {row.what:<{widest}}  {measured(row.ours, row.unit)}{paper}{lasts}{verdict}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    record = recorded.read()
    if not options.check:
        write(record)
        return 0
    found = differences(record)
    for path in found:
        print(f"{path} is not what {recorded.FILE.name} renders to; run `make reproduce-render`")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
