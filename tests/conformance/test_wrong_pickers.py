"""Each wrong picker fails the cases that are about what it does wrong, and no others."""

from __future__ import annotations

import pytest

from ballast_conformance import suite
from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import IMPATIENT, ask, ids
from tests.conformance.pickers import ENDPOINTS, Honest, running
from tests.conformance.wrong_pickers import FINDS

pytestmark = pytest.mark.rotating(4, each=True)


@pytest.mark.rotating(4)
@pytest.mark.parametrize("kind", FINDS, ids=lambda kind: kind.__name__)
async def test_a_wrong_picker_fails_exactly_its_cases(kind: type[Honest]) -> None:
    """It would pass every other one: it is right in all else."""
    async with running(kind) as picker:
        results = await ask(picker.port, ENDPOINTS, plan=IMPATIENT)
    assert ids(results, Verdict.FAIL) == FINDS[kind], [each for each in results if each.verdict is Verdict.FAIL]


def test_each_wrong_picker_is_found_by_cases_that_exist() -> None:
    """A case that was renamed must not be missed."""
    known = {case.id for case in suite.ALL}
    assert set().union(*FINDS.values()) <= known
