"""When an endpoint counts as lost, as usable again, and what the Director learns of it."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.model import EndpointId
from ballast_core.model.events import EndpointDraining, EndpointLost, EndpointRestored
from ballast_core.state.liveness import Liveness, news

D0 = EndpointId("d0")
FOUND = Liveness(usable=True)


def states(scrapes: list[bool], until_lost: int, start: Liveness = FOUND) -> list[Liveness]:
    """The state at the start and after each scrape."""
    found = [start]
    for success in scrapes:
        found.append(found[-1].answered() if success else found[-1].failed(until_lost))
    return found


def longest_failure(scrapes: list[bool]) -> int:
    return max((len(list(run)) for success, run in groupby(scrapes) if not success), default=0)


@given(scrapes=st.lists(st.booleans(), max_size=20), until_lost=st.integers(1, 4))
def test_it_is_lost_after_so_many_failures_in_a_row_until_one_success(scrapes: list[bool], until_lost: int) -> None:
    """The last scrapes alone decide, and the Director learns of each loss once."""
    seen = states(scrapes, until_lost)
    for count, state in enumerate(seen):
        last = scrapes[:count][-until_lost:]
        assert state.usable is (len(last) < until_lost or any(last))
    told = [news(before, after, D0) for before, after in pairwise(seen)]
    losses = sum(before.usable and not after.usable for before, after in pairwise(seen))
    assert told.count(EndpointLost(D0)) == losses
    assert told.count(None) == len(told) - losses


@given(scrapes=st.lists(st.booleans(), max_size=20), until_lost=st.integers(1, 4))
def test_one_that_drains_never_comes_back(scrapes: list[bool], until_lost: int) -> None:
    """It goes on as long as its scrapes succeed; once lost, it stays lost."""
    seen = states(scrapes, until_lost, FOUND.drained())
    for count, state in enumerate(seen):
        assert state.usable is (longest_failure(scrapes[:count]) < until_lost)


@pytest.mark.parametrize("until_lost", [1, 3])
def test_one_that_never_answered_is_not_lost(until_lost: int) -> None:
    """It was never given to the Director. Its first answer, or discovery's word, makes it usable."""
    seen = states([False] * 5, until_lost, Liveness())
    assert [news(before, after, D0) for before, after in pairwise(seen)] == [None] * 5
    assert seen[-1].answered().usable
    assert Liveness().proven().usable


def test_what_the_director_learns_of_discovery() -> None:
    """Draining once, and that it is gone if it was there."""
    draining = FOUND.drained()
    assert news(FOUND, draining, D0) == EndpointDraining(D0)
    assert news(draining, draining.drained(), D0) is None
    assert news(draining, draining.gone(), D0) == EndpointLost(D0)
    assert news(Liveness(), Liveness().gone(), D0) is None
    assert news(draining, draining.restored(), D0) == EndpointRestored(D0)
    assert news(FOUND, FOUND.restored(), D0) is None


@given(scrapes=st.lists(st.booleans(), max_size=12), after=st.lists(st.booleans(), max_size=12))
def test_one_whose_drain_is_taken_back_is_as_if_it_had_never_drained(scrapes: list[bool], after: list[bool]) -> None:
    """But for the time in which it was lost and drained: the next success brings it back."""
    drained = states(scrapes, 2, FOUND.drained())[-1].restored()
    plain = states(scrapes, 2)[-1]
    assert not drained.draining
    for one, other in zip(states([*after, True], 2, drained), states([*after, True], 2, plain), strict=True):
        assert one.usable <= other.usable
        assert one.failures == other.failures
    assert one == other
