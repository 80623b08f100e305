"""What the report promises: every claim is put to the test or says why not, and every row can be computed."""

import pytest

from bench.common.code import closure, file_of, imports
from bench.reproduce.form import (
    FULL_SEEDS,
    REDUCED_SEEDS,
    Experiment,
    Paper,
    Setting,
)
from bench.reproduce.papers import CLAIMS, EXPERIMENTS, PAPERS
from bench.reproduce.render import judged
from bench.reproduce.results import Measured, Results
from bench.reproduce.tasks import Called, Simulated
from bench.reproduce.verdicts import Verdict

experiments = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)


def made_up(experiment: Experiment, *, seeds: tuple[int, ...] = FULL_SEEDS) -> Results:
    """Figures for every run: unlike each other, and never 0."""
    return Results(
        {
            run.name: {
                seed: {
                    figure: 1 + 0.1 * place + 0.03 * number + 0.001 * seed
                    for number, figure in enumerate(experiment.figures)
                }
                for seed in seeds
            }
            for place, run in enumerate(experiment.runs)
        }
    )


def test_names_are_told_apart() -> None:
    names = [experiment.name for paper in PAPERS for experiment in paper.experiments]
    claims = [claim.name for paper in PAPERS for claim in paper.claims]
    assert len(set(names)) == len(names)
    assert len(set(claims)) == len(claims)
    assert {"sibyl"} <= {paper.name for paper in PAPERS}
    for paper in PAPERS:
        own = [claim.name for claim in paper.claims] + [experiment.name for experiment in paper.experiments]
        assert all(name.startswith(f"{paper.name}/") for name in own)


@experiments
def test_an_experiment_has_runs_of_the_reduced_set_among_those_of_the_full_set(experiment: Experiment) -> None:
    assert len({run.name for run in experiment.runs}) == len(experiment.runs) > 0
    assert set(experiment.reduced_seeds) <= set(experiment.seeds)
    assert len(set(experiment.figures)) == len(experiment.figures)
    for run in experiment.runs:
        assert set(experiment.seeds_of(run, full=False)) <= set(experiment.seeds_of(run, full=True))
        assert experiment.seeds_of(run, full=True)


def test_the_reduced_set_takes_a_quarter_of_an_hour_on_two_cores() -> None:
    taken_s = sum(
        run.cost_s * len(each.seeds_of(run, full=False)) for each in EXPERIMENTS.values() for run in each.runs
    )
    assert taken_s < 15 * 60 * 2


@experiments
def test_every_row_is_computed_where_all_runs_are_known(experiment: Experiment) -> None:
    finding = experiment.analyse(made_up(experiment))
    assert finding.rows
    for row in finding.rows:
        assert row.ours is not None, row.what
        assert row.claim is None or row.claim in CLAIMS, row.what
        assert row.verdict is not Verdict.OPEN, row.what
        assert (row.verdict is None) or row.claim is not None, row.what
    assert len({(row.what, row.setting) for row in finding.rows}) == len(finding.rows)


@experiments
def test_an_analysis_stands_missing_runs(experiment: Experiment) -> None:
    nothing = experiment.analyse(Results())
    assert all(row.ours is None for row in nothing.rows)
    assert all(row.verdict in (None, Verdict.OPEN) for row in nothing.rows)
    for plot in nothing.plots:
        assert all("<svg" in chart.render() for chart in plot.charts)
    reduced = {run.name for run in experiment.runs if experiment.seeds_of(run, full=False)}
    known = made_up(experiment, seeds=REDUCED_SEEDS).figures
    experiment.analyse(Results({name: figures for name, figures in known.items() if name in reduced}))


@pytest.mark.parametrize("paper", PAPERS, ids=[paper.name for paper in PAPERS])
def test_every_claim_gets_a_verdict(paper: Paper) -> None:
    found = {experiment.name: experiment.analyse(made_up(experiment)) for experiment in paper.experiments}
    for claim in paper.claims:
        verdict = judged(claim, paper, found, Setting.THEIRS).verdict
        if claim.cannot:
            assert verdict is None, claim.name
        else:
            assert verdict is not None, claim.name


@pytest.mark.parametrize("paper", PAPERS, ids=[paper.name for paper in PAPERS])
def test_no_run_of_a_paper_depends_on_its_analyses(paper: Paper) -> None:
    entries = set()
    for task in (run.task for experiment in paper.experiments for run in experiment.runs):
        if isinstance(task, Called):
            entries.add(task.function.__module__)
        elif isinstance(task, Simulated):
            entries.add(type(task.spec.setup.source).__module__)
    for module in closure(entries):
        if module.startswith(f"bench.reproduce.{paper.name}"):
            file = file_of(module)
            assert file is not None
            assert "bench.reproduce.form" not in imports(file.read_text(encoding="utf-8")), module


def test_measurements_pair_the_seeds_that_both_have() -> None:
    results = Results({"a": {0: {"x": 2.0}, 1: {"x": 8.0}, 2: {"x": 1.0}}, "b": {0: {"x": 1.0}, 1: {"x": 2.0}}})
    ratio = results.ratio("a", "b", "x")
    assert ratio is not None
    assert ratio.value == pytest.approx(8**0.5)
    assert ratio.count == 2
    assert ratio.low == ratio.value == ratio.high  # the interval of two tells nothing
    change = results.change("b", "a", "x")
    assert change is not None
    assert change.value == pytest.approx(100 * (8**-0.5 - 1))
    assert results.ratio("a", "c", "x") is None
    assert results.mean("a", "y") is None
    one = Results({"a": {0: {"x": 2.0}}}).mean("a", "x", 1e3)
    assert one == Measured(2000.0, 2000.0, 2000.0, 1)
