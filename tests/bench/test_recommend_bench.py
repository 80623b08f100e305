"""`bench.recommend_bench`: its cases can be asked, and what is not there is skipped by name."""

import pytest

from bench.recommend_bench import GOAL, STUDY, TRACES, Case, ask


def test_a_trace_that_is_not_there_is_skipped_with_its_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(Case("nowhere_w1.csv.gz"), 1, both=True)
    assert capsys.readouterr().out == f"nowhere: skipped, {TRACES / 'nowhere_w1.csv.gz'} is not there\n"


@pytest.mark.parametrize("case", [*GOAL, *STUDY], ids=str)
def test_every_case_is_a_question_with_traffic(case: Case) -> None:
    question = case.question()
    if question is None:
        pytest.skip(f"{TRACES / case.traffic} is not there")
    assert len(question.source.load(0, question.rate_scale).requests) == case.limit


@pytest.mark.rotating(3)
def test_an_answer_is_printed_with_what_it_cost(capsys: pytest.CaptureFixture[str]) -> None:
    """Traffic too short for a stretch has the same answer both ways."""
    assert ask(Case("chat", "a100=2,h20=1", limit=20), 1, both=True)
    short, full, verdict = capsys.readouterr().out.splitlines()
    assert "full length" not in short
    assert "full length" in full
    assert "the same answer" in verdict
