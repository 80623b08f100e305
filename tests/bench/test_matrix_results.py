"""Results on disk, in the record, and on the page: nothing is lost, nothing of other code is taken for new."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.common.store import Code, Store, digest_of, rounded
from bench.matrix import record as recorded
from bench.matrix.cells import CELLS, Cell, Fleet, Workload, shape
from bench.matrix.check import Check, draw, problems, renewed
from bench.matrix.measure import RunJob
from bench.matrix.record import Record, RecordedCapacity, RecordedCell, Run
from bench.matrix.render import page
from bench.matrix.results import Capacity, Figures
from bench.matrix.state import Choice, Matrix, capacity_job, capacity_name
from bench.matrix.tables import data_files

pytestmark = pytest.mark.rotating(4, each=True)

CODE = Code("p" * 12, "c" * 12)
FIGURES = Figures(0.03, 1.5, 0.02, 0.5, 5.0, 3, 100, 0, 2.5)
OF = {"workload": "chat", "seed": 1}
TINY = Cell(Workload("tiny", "chat", 40, 0.1), Fleet("balanced", shape(1, 2)), 0.7)


def test_a_result_comes_back_for_its_own_code_only(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(OF, CODE, asdict(FIGURES))
    found = store.get(dict(reversed(OF.items())), CODE)
    assert found is not None
    assert (Figures(**found[0]), found[1]) == (FIGURES, CODE)
    assert store.get({**OF, "seed": 2}, CODE) is None
    assert store.get(OF, Code(CODE.placement, "d" * 12)) is None


def test_trusted_common_code_may_differ_a_placements_own_may_not(tmp_path: Path) -> None:
    Store(tmp_path).put(OF, CODE, asdict(FIGURES))
    trusting = Store(tmp_path, trust_common=True)
    found = trusting.get(OF, Code(CODE.placement, "d" * 12))
    assert found is not None
    assert found[1] == CODE
    assert trusting.get(OF, Code("q" * 12, CODE.common)) is None


def test_a_damaged_file_is_no_result(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(OF, CODE, asdict(FIGURES))
    (file,) = tmp_path.iterdir()
    file.write_text(file.read_text()[:20])
    assert store.get(OF, CODE) is None


def test_a_description_without_a_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_of({"load": float("nan")})


def test_rounding_keeps_what_the_record_keeps() -> None:
    assert rounded(0.123456789) == 0.1234568
    assert rounded(rounded(1234.56789)) == rounded(1234.56789)


def test_a_matrix_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    placements = ("ballast", "least-requests", "round-robin")
    first = Matrix([TINY], placements, Store(tmp_path))
    finished = 0
    while finished < 6 and (job := first.take()) is not None:
        first.finish(job, job.carry_out())
        finished += 1
    assert finished == 6
    second = Matrix([TINY], placements, Store(tmp_path))
    assert second.figures(TINY) == first.figures(TINY)
    assert len(second.figures(TINY)) == finished - 1  # one was the capacity
    left = 0
    while (job := second.take()) is not None:
        second.finish(job, job.carry_out())
        left += 1
    assert len(second.figures(TINY)) == 5 + left
    assert second.cpu_left_s() == 0
    assert Matrix([TINY], placements, Store(tmp_path)).take() is None


def test_jobs_are_given_out_once_and_the_same_job_gives_the_same_figures(tmp_path: Path) -> None:
    matrix = Matrix([TINY], ("ballast", "least-requests"), Store(tmp_path), Choice("ballast", "t*"))
    job = matrix.take()
    assert job == capacity_job(TINY)
    assert matrix.take() is None  # all else waits for it
    matrix.finish(job, job.carry_out())
    runs = [job for job in iter(matrix.take, None) if isinstance(job, RunJob)]
    assert {run.policy for run in runs} == {"ballast"}
    assert len(runs) == len(set(runs)) == 4
    once, again = runs[0].carry_out(), runs[0].carry_out()
    assert problems(once, again, stale=False) == []


@pytest.mark.parametrize("text", ["ballast", "/azure", "ballast/"])
def test_a_choice_names_placement_and_workload(text: str) -> None:
    with pytest.raises(ValueError, match="PLACEMENT/WORKLOAD"):
        Choice.parse(text)


def record_of(figures: dict[str, dict[tuple[str, int], Figures]]) -> Record:
    record = Record({"ballast": "0"}, {name: [name, name] for name in ("ballast", "least-requests", "sibyl")})
    for name, runs in figures.items():
        record.cells[name] = RecordedCell({"load": 0.7}, 4.5, {key: Run(run, CODE) for key, run in runs.items()})
    return record


def test_a_record_is_read_as_it_was_written_and_feeds_a_store(tmp_path: Path) -> None:
    matrix = Matrix([TINY], ("least-requests",), Store(tmp_path / "store"))
    for _ in range(3):
        job = matrix.take()
        assert job is not None
        matrix.finish(job, job.carry_out())
    written = matrix.record()
    recorded.write(written, tmp_path / "matrix.json")
    read = recorded.read(tmp_path / "matrix.json")
    assert read == written
    assert capacity_name(capacity_job(TINY)) in read.capacities
    read.feed(Store(tmp_path / "other"))
    elsewhere = Matrix([TINY], ("least-requests",), Store(tmp_path / "other"))
    assert elsewhere.figures(TINY) == matrix.figures(TINY)
    assert len(elsewhere.figures(TINY)) == 2


def test_a_broken_record_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "matrix.json"
    file.write_text('{"columns": []}')
    with pytest.raises(ValueError, match=r"matrix\.json: is no matrix"):
        recorded.read(file)


def at(tpot_s: float) -> Figures:
    return Figures(tpot_s, 1.0, 0.02, 0.5, 5.0, 0, 100, 0, 1.0)


def compared() -> tuple[Record, list[str]]:
    """Three cells, and their names from the worst to the best: 15 % and 5 % worse than the baseline, and better."""

    def runs(ours_s: float) -> dict[tuple[str, int], Figures]:
        seeds = (0, 1, 2, 10, 11)
        return {("least-requests", seed): at(0.02) for seed in seeds} | {
            ("ballast", seed): at(ours_s) for seed in seeds
        }

    bad, worse, good = (cell.name for cell in CELLS[:3])
    record = record_of({bad: runs(0.021), worse: runs(0.023), good: runs(0.0198)})
    for cell in CELLS[:3]:
        job = capacity_job(cell)
        record.capacities[capacity_name(job)] = RecordedCapacity({}, Capacity(9.0, 1.1, 7, False, 1.0), CODE)
    return record, [worse, bad, good]


def test_the_page_names_losing_cells_first_and_the_worst_of_them_on_top() -> None:
    record, (worse, bad, good) = compared()
    losing = page(record).partition("## Losing cells")[2].partition("##")[0]
    assert losing.index(worse) < losing.index(bad)
    assert good not in losing
    assert "1.150" in losing
    said = page(record).partition("## In short")[2].partition("##")[0]
    assert "in 1 of the 3 cells that have been compared so far" in said
    assert f"1.150 times at worst ({worse})" in said


def test_fleets_that_colocate_stand_apart_from_those_that_do_not() -> None:
    record, _ = compared()
    apart, together = CELLS[0], next(cell for cell in CELLS if cell.fleet.colocated)
    record.cells[together.name] = record.cells[apart.name]
    job = capacity_job(together)
    record.capacities[capacity_name(job)] = RecordedCapacity({}, Capacity(9.0, 1.1, 7, False, 1.0), CODE)
    said = page(record)
    rows = [line for line in said.splitlines() if line.startswith(("| prefill and decode apart |", "| colocated |"))]
    assert [row.split(" | ")[:3] for row in rows if "P99 TPOT" in row] == [
        ["| prefill and decode apart", "P99 TPOT", "3"],
        ["| colocated", "P99 TPOT", "1"],
    ]
    assert said.index("### Prefill and decode apart") < said.index("### Colocated")
    table = next(text for path, text in data_files(record).items() if path.name == "cells.csv")
    assert f"{together.name},8C," in table


def test_the_data_files_have_a_line_for_each_cell_and_stand_beside_the_page() -> None:
    record, names = compared()
    tables = {path.name: list(csv.DictReader(io.StringIO(text))) for path, text in data_files(record).items()}
    assert all(f"(matrix/{name})" in page(record) for name in tables)
    assert [row["cell"] for row in tables["cells.csv"]] == names
    worst = tables["cells.csv"][0]
    assert (worst["tpot_p99_ballast_ms"], worst["tpot_p99_best_ms"]) == ("23.0", "20.0")
    assert (worst["tpot_p99_best_baseline"], worst["tpot_p99_ratio"]) == ("least-requests", "1.150")
    assert worst["complete"] == "no"
    assert (worst["completed_ballast"], worst["completed_best"]) == ("300", "300")
    assert {row["sibyl"] for row in tables["p99-tpot.csv"]} == {""}
    assert [row["least-requests"] for row in tables["p99-ttft.csv"]] == ["1.00"] * 3
    assert {row["requests_per_s"] for row in tables["capacities.csv"]} == {"9"}


def test_unchanged_code_must_give_the_same_figures_changed_code_near_ones() -> None:
    assert problems(at(0.03), at(0.03 * (1 + 1e-8)), stale=False) == []
    assert "tpot_p99_s" in problems(at(0.03), at(0.030001), stale=False)[0]
    assert problems(at(0.03), at(0.032), stale=True) == []
    assert "too far" in problems(at(0.03), at(0.034), stale=True)[0]
    slow = Figures(0.03, 1.0, 0.021, 0.5, 5.0, 0, 99, 0, 1.0)
    assert len(problems(at(0.03), slow, stale=True)) == 2  # mean TPOT, a request lost


def test_a_draw_is_its_seeds_keeps_to_its_budget_and_varies_cells() -> None:
    candidates = [
        Check(RunJob(cell, "ballast", seed, 1.0), Run(at(0.03), CODE)) for cell in CELLS[:20] for seed in (0, 1, 2)
    ]
    drawn = draw(candidates, "a", 10.0)
    assert drawn == draw(candidates[::-1], "a", 10.0)
    assert drawn != draw(candidates, "b", 10.0)
    assert len(drawn) == len({check.job.cell.name for check in drawn}) == 10
    assert len(draw(candidates, "a", 0.1)) == 1


def test_a_renewed_run_is_recorded_with_its_own_code(tmp_path: Path) -> None:
    """The others of its cell stay as they were."""
    runs = {("ballast", seed): Run(at(0.03), CODE) for seed in (0, 1)}
    record = Record({}, {"ballast": ["a", "b"]}, cells={TINY.name: RecordedCell({}, 1.0, runs)})
    job = RunJob(TINY, "ballast", 1, 1.0)
    renewed(record, Check(job, runs["ballast", 1]), at(0.0400000001))
    recorded.write(record, tmp_path / "matrix.json")
    again = recorded.read(tmp_path / "matrix.json").cells[TINY.name].runs
    assert again["ballast", 0] == Run(at(0.03), CODE)
    assert again["ballast", 1] == Run(at(0.04), job.code)
    assert job.code != CODE
