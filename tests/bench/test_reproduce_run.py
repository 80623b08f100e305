"""Runs are kept one by one, a kill loses nothing that was finished, and the page is what the record says."""

import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.common.processes import compute
from bench.common.store import Code, Store, digest_of
from bench.reproduce import record as recorded
from bench.reproduce import render
from bench.reproduce.form import (
    STANDARD_FIGURES,
    Claim,
    Experiment,
    Finding,
    Paper,
    Plot,
    Row,
    Run,
    Setting,
)
from bench.reproduce.papers import EXPERIMENTS, PAPERS
from bench.reproduce.plan import Carried, Job, Plan, carry_out
from bench.reproduce.plots import Whisker, Whiskers, lines
from bench.reproduce.record import FILE, Done, Record, RecordedRun
from bench.reproduce.render import PAGE
from bench.reproduce.results import Results
from bench.reproduce.run import compare
from bench.reproduce.tasks import Called, Simulated, description_of, flat, simulated
from bench.reproduce.verdicts import judge_change

pytestmark = pytest.mark.rotating(4, each=True)

CLAIM = Claim(name="tiny/tail", where="nowhere", says="P99 TPOT 1 % below round-robin", short="P99 TPOT", number="-1 %")


def number(seed: int, *, times: float = 1.0) -> dict[str, float]:
    """A task that its argument distinguishes from others."""
    return {"tpot_p99_s": (seed + 1) * times, "unrecorded": 1.0}


def die(seed: int) -> dict[str, float]:
    """A worker that is killed, as by the kernel for want of memory."""
    os._exit(7)


def fail(seed: int) -> dict[str, float]:
    raise ValueError("no such thing")


def analyse(results: Results) -> Finding:
    ours = results.change("few", "turns", "tpot_p99_s")
    row = Row(
        what="P99 TPOT",
        ours=ours,
        unit="% change",
        paper="-1 %",
        setting=Setting.THEIRS,
        claim=CLAIM.name,
        verdict=judge_change(ours, -1.0),
    )
    chart = Whiskers("P99 TPOT", "s", [Whisker("few", results.mean("few", "tpot_p99_s"), 0.03)])
    values = results.values("few", "tpot_p99_s")
    line = lines("by seed", "seed", "s", [("few", list(values.items()))] if values else [])
    plot = Plot(name="tail", caption="tails", charts=[chart, line])
    return Finding(rows=[row], plots=[plot], text="As *measured*.")


def experiment(*runs: Run) -> Experiment:
    return Experiment(
        name="tiny/tail", title="Tails", text="A tiny fleet.", runs=runs, analyse=analyse, seeds=(0, 1, 2)
    )


def paper(each: Experiment) -> Paper:
    return Paper(name="tiny", title="Tiny", set_up="Two endpoints.", claims=(CLAIM,), experiments=(each,))


CALLED = experiment(
    Run("few", Called(number, {"times": 1.0})), Run("turns", Called(number, {"times": 2.0}), reduced=False)
)


def work_off(plan: Plan, jobs: int | None = None) -> int:
    done = 0
    while (jobs is None or done < jobs) and (job := plan.take()) is not None:
        plan.finish(job, carry_out(job))
        done += 1
    return done


def test_a_set_goes_on_where_it_was_killed(tmp_path: Path) -> None:
    first = Plan([CALLED], Store(tmp_path), full=True)
    assert work_off(first, 4) == 4
    lost = first.take()
    assert lost is not None  # under way when the process dies
    second = Plan([CALLED], Store(tmp_path), full=True)
    assert work_off(second) == 2
    assert second.cpu_left_s() == 0
    assert second.known == Plan([CALLED], Store(tmp_path), full=True).known
    assert second.known["tiny/tail", "turns"][2].figures == {"tpot_p99_s": 6.0}
    assert work_off(Plan([CALLED], Store(tmp_path), full=True)) == 0


def test_seeds_take_turns_and_the_reduced_set_is_part_of_the_full_one(tmp_path: Path) -> None:
    full = Plan([CALLED], Store(tmp_path), full=True)
    everything_once = [("few", 0), ("turns", 0)]
    assert [(job.run, job.seed) for job in full.left] == [
        *everything_once,
        *(("few", seed) for seed in (1, 2)),
        *(("turns", seed) for seed in (1, 2)),
    ]
    reduced = Plan([CALLED], Store(tmp_path), full=False)
    assert [(job.run, job.seed) for job in reduced.left] == [("few", 0), ("few", 1)]


def test_the_same_task_of_two_experiments_is_done_once(tmp_path: Path) -> None:
    twice = experiment(Run("few", Called(number, {"times": 1.0})), Run("again", Called(number, {"times": 1.0})))
    plan = Plan([twice], Store(tmp_path), full=True)
    jobs = [job for job in (plan.take() for _ in range(4)) if job is not None]
    assert [job.run for job in jobs] == ["few"] * 3
    assert plan.take() is None  # the rest waits for these
    for job in jobs:
        plan.finish(job, carry_out(job))
    assert plan.take() is None
    assert plan.known["tiny/tail", "again"] == plan.known["tiny/tail", "few"]


def test_another_argument_is_another_run_and_other_code_is_not_trusted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    work_off(Plan([CALLED], store, full=True))
    other = experiment(Run("few", Called(number, {"times": 3.0})))
    assert len(Plan([other], store, full=True).left) == 3
    job = Plan([other], store, full=True).left[0]
    assert store.get({**CALLED.runs[0].task.description, "seed": 0}, Code("x", "y")) is None
    assert store.get(job.description, job.task.code) is None


@pytest.mark.rotating(4)
def test_a_worker_that_dies_and_a_task_that_fails_stop_nothing_else(tmp_path: Path) -> None:
    runs = (
        Run("few", Called(number, {"times": 1.0})),
        Run("bad", Called(fail)),
        Run("killed", Called(die)),
        Run("turns", Called(number, {"times": 2.0})),
    )
    plan = Plan([experiment(*runs)], Store(tmp_path), full=True)
    status = compute(plan.take, carry_out, plan.finish, plan.fail, processes=1)
    assert status == 1
    assert {len(plan.known["tiny/tail", run]) for run in ("few", "turns")} == {3}
    assert len(plan.failures) == 6
    assert "no such thing" in plan.failures["tiny/tail bad seed 1"]


def test_what_a_record_has_is_left_out_unless_it_would_be_run_otherwise(tmp_path: Path) -> None:
    first = Plan([CALLED], Store(tmp_path / "a"), full=True)
    work_off(first, 4)  # both runs with seed 0, and one with all seeds
    record = first.record()
    rest = Plan([CALLED], Store(tmp_path / "b"), full=True, earlier=record)
    assert [(job.run, job.seed) for job in rest.left] == [("turns", 1), ("turns", 2)]
    work_off(rest)
    assert {run: sorted(each.seeds) for run, each in rest.record(record).experiments["tiny/tail"].items()} == {
        "few": [0, 1, 2],
        "turns": [0, 1, 2],
    }
    changed = experiment(Run("few", Called(number, {"times": 3.0})), CALLED.runs[1])
    plan = Plan([changed], Store(tmp_path / "c"), full=True, earlier=record)
    assert [job.seed for job in plan.left if job.run == "few"] == [0, 1, 2]


def test_a_missing_trace_is_said_and_its_recorded_figures_are_kept(tmp_path: Path) -> None:
    needing = experiment(Run("few", Called(number, {"times": 1.0}), needs=tmp_path / "trace.gz"))
    plan = Plan([needing], Store(tmp_path / "store"), full=True)
    assert plan.left == []
    assert plan.skipped == {"tiny/tail few": "needs trace.gz of ../shared/traces"}
    earlier = Record({}, "2026-01-01", "elsewhere")
    earlier.experiments["tiny/tail"] = {"few": RecordedRun("abc", {0: Done(Code("p", "c"), 1.0, {"tpot_p99_s": 9.0})})}
    earlier.experiments["other/thing"] = {"run": RecordedRun("def", {})}
    record = plan.record(earlier)
    assert record.experiments == earlier.experiments


def test_a_record_is_read_as_it_was_written_and_the_page_is_a_function_of_it(tmp_path: Path) -> None:
    plan = Plan([CALLED], Store(tmp_path / "store"), full=True)
    work_off(plan)
    record, papers = plan.record(), [paper(CALLED)]
    recorded.write(record, tmp_path / "record.json")
    read = recorded.read(tmp_path / "record.json")
    assert read == record
    assert render.page(read, papers) == render.page(record, papers)
    files = render.files(record, papers)
    assert render.files(read, papers) == files
    assert set(files) == {"tiny.md", "tiny-tail.csv", "tiny-tail-tail.svg"}
    row = "| P99 TPOT | -1 % | -50.0 % (-50.0 to -50.0) | **holds** `tiny/tail` |"
    assert row in render.page(record, papers)
    text = files["tiny.md"]
    assert "| P99 TPOT | their set-up | -1 % | -50.0 % (-50.0 to -50.0, n = 3) |  | holds |" in text
    assert "python -m bench.reproduce.run --only tiny/tail --show" in text
    assert "![tails](tiny-tail-tail.svg)" in text
    assert files["tiny-tail.csv"].splitlines()[1] == (
        "P99 TPOT,their set-up,-1 %,-50,-50,-50,% change,3,,tiny/tail,holds"
    )


def test_few_seeds_have_no_interval_and_judge_nothing(tmp_path: Path) -> None:
    plan = Plan([CALLED], Store(tmp_path / "store"), full=True)
    work_off(plan, 4)
    papers = [paper(CALLED)]
    text = render.page(plan.record(), papers)
    assert "| P99 TPOT | -1 % | -50.0 % (n = 1) | **inconclusive** `tiny/tail` |" in text
    assert "2 of the full set are missing" in text
    of_paper = render.files(plan.record(), papers)["tiny.md"]
    assert "To be computed: 2 runs, of `turns`: `python -m bench.reproduce.run --set full --only tiny/tail`" in of_paper


def test_plots_without_a_single_value_are_not_drawn() -> None:
    record, papers = Record({"ballast": "0"}, "2026-01-01", "2 cores"), [paper(CALLED)]
    assert list(render.files(record, papers)) == ["tiny.md"]
    assert ".svg" not in render.files(record, papers)["tiny.md"]


def test_a_broken_record_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text('{"codes": []}')
    with pytest.raises(ValueError, match=r"record\.json: is no reproduction record"):
        recorded.read(file)


def test_files_that_are_not_what_the_record_says_are_named(tmp_path: Path) -> None:
    record = Record({"ballast": "0"}, "2026-01-01", "2 cores")
    page, folder = tmp_path / "page.md", tmp_path / "plots"
    (folder / "x").parent.mkdir()
    (folder / "old.svg").write_text("old")
    assert str(folder / "old.svg") in render.differences(record, page, folder)
    render.write(record, page, folder)
    assert render.differences(record, page, folder) == []
    page.write_text(page.read_text() + "more")
    assert render.differences(record, page, folder) == [str(page)]


@pytest.mark.skipif(not FILE.exists(), reason="nothing has been recorded yet")
def test_the_committed_page_is_what_the_committed_record_says() -> None:
    assert render.differences(recorded.read()) == []


@pytest.mark.skipif(not FILE.exists(), reason="nothing has been recorded yet")
def test_a_recorded_run_is_what_its_experiment_would_run_now() -> None:
    """Figures of an experiment that has been mended never stand under its new name."""
    record = recorded.read()
    for experiment in EXPERIMENTS.values():
        known = record.experiments.get(experiment.name, {})
        for run in experiment.runs:
            if run.name in known and run.available:
                assert known[run.name].of == digest_of(run.task.description), f"{experiment.name} {run.name}"
        assert set(known) <= {run.name for run in experiment.runs}
    assert set(record.experiments) <= set(EXPERIMENTS)


def test_the_page_of_verdicts_is_short() -> None:
    assert len(PAGE.read_text(encoding="utf-8").split()) <= 1500


def test_a_reduced_run_says_how_it_compares_with_what_is_committed(tmp_path: Path) -> None:
    def record_of(times: float, store: str) -> Record:
        each = experiment(Run("few", Called(number, {"times": 1.0})))
        plan = Plan([each], Store(tmp_path / store), full=False)
        while (job := plan.take()) is not None:
            plan.finish(job, Carried({"tpot_p99_s": 0.03 * times}, 1.0))
        return plan.record()

    each = experiment(Run("few", Called(number, {"times": 1.0})))
    assert "2 runs give the same, 0 differ" in compare([each], record_of(1, "a"), record_of(1.000001, "b"))[0]
    lines = compare([each], record_of(1, "a"), record_of(1.01, "c"))
    assert "0 runs give the same, 2 differ" in lines[0]
    assert "tpot_p99_s 0.03, committed 0.0303" in lines[1]
    assert "2 are not in the committed record" in compare([each], record_of(1, "a"), Record({}, "", ""))[1]


def tiny(policy: str, limit: int = 40) -> Simulated:
    return simulated("1P2D@h20-qwen3-32b", policy, workload="chat", limit=limit)


def test_a_tiny_experiment_runs_from_end_to_end(tmp_path: Path) -> None:
    whole = experiment(Run("few", tiny("least-requests")), Run("turns", tiny("round-robin")))
    plan = Plan([whole], Store(tmp_path), full=False)
    assert compute(plan.take, carry_out, plan.finish, plan.fail, processes=2) == 0
    record = plan.record()
    figures = record.experiments["tiny/tail"]["few"].seeds[1].figures
    assert figures["requests"] == figures["completed"] == 40
    assert set(STANDARD_FIGURES) == set(figures)
    job = Job("tiny/tail", "few", 1, whole.runs[0].task, whole.figures)
    assert carry_out(job).figures["tpot_p99_s"] == pytest.approx(figures["tpot_p99_s"], rel=1e-5)
    text = render.page(record, [paper(whole)])
    assert "n = 2)" in text


def test_runs_are_told_apart_by_all_that_matters() -> None:
    base = tiny("least-requests")
    assert base.description == tiny("least-requests").description
    assert base.description != tiny("round-robin").description
    assert base.description != tiny("least-requests", limit=41).description
    assert base.code != tiny("sibyl").code
    assert base.code.common == tiny("sibyl").code.common


@dataclass(frozen=True)
class Old:
    """Settings as they were."""

    name: str
    parts: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class New(Old):
    """The same with a field that did not exist."""

    extra: dict[str, int] = field(default_factory=dict)


def test_a_field_with_a_default_that_is_new_changes_no_description() -> None:
    assert description_of(Old("a")) == "Old(name='a')"
    assert description_of([New("a"), {"b": New("c", (3,), {"d": 4})}]) == (
        "[New(name='a'), {'b': New(name='c', parts=[3], extra={'d': 4})}]"
    )


def test_rows_are_flattened_to_numbers() -> None:
    row = {
        "tpot_s": {"p99": 0.03, "mean": None},
        "completed": 9,
        "policy": "a",
        "interrupted": False,
        "sim_wall_s": 1.0,
    }
    assert flat(row) == {"tpot_p99_s": 0.03, "completed": 9.0}


def test_the_papers_render_without_a_single_run() -> None:
    text = render.page(Record({"ballast": "0"}, "2026-01-01", "2 cores"))
    assert all(f"## {each.title}" in text for each in PAPERS)
    assert "**to be computed**" in text


PARENT = """
import os, time
from bench.common.processes import compute

def sleep(job):
    print(os.getpid(), flush=True)
    time.sleep(600)

if __name__ == "__main__":
    compute(iter([1, None]).__next__, sleep, print, print, processes=1)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc to see which processes run")
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    """Whoever kills a run of hours finds no process left that goes on for nobody."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = Path("/proc", parent.stdout.readline().strip())
        assert worker.exists()
        parent.kill()
    until_s = time.monotonic() + 30
    while worker.exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not worker.exists()
