"""Engines of different revisions exchange no KV blocks: no pair, no hand-off, no cut and no fall-back across them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Binding, Endpoint, EndpointId, Fault, RequestId, Stage
from ballast_core.model.canary import Canary
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.model.events import (
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    PrefillDone,
    RequestArrived,
    SegmentDone,
)
from ballast_core.policies.partition.fixed import Fixed
from tests.support.core_builders import director, endpoint, only_dispatch, request


def of(name: str, revision: str) -> Endpoint:
    return replace(endpoint(name), revision=revision)


def fleet(revisions: dict[str, str], **settings: object) -> Director:
    """A Director with these endpoints, by name, ready."""
    made = Director(replace(director(()).settings, fallbacks=9, **settings))  # type: ignore[arg-type]
    for name, revision in revisions.items():
        made.on_event(EndpointObserved(of(name, revision)), 0.0)
    return made


def revisions_of(dispatch: Dispatch) -> set[str]:
    """Of all endpoints between which KV may travel by this dispatch."""
    named = [dispatch.prefill, dispatch.decode, *dispatch.prefill_fallbacks, *(s.endpoint for s in dispatch.segments)]
    named += dispatch.fallbacks if dispatch.prefill is not None else ()
    return {one.revision for one in named if one is not None}


def arrive(on: Director, numbers: Iterable[int]) -> list[Dispatch]:
    return [only_dispatch(on.on_event(RequestArrived(request(f"r{k}")), 0.0)) for k in numbers]


def test_prefill_and_decode_are_of_one_revision() -> None:
    """In the middle of a rollout both old and new pairs serve, never a mixed one."""
    on = fleet({"p0": "new", "p1": "old", "d0": "new", "d1": "old"})
    dispatches = arrive(on, range(20))
    assert [len(revisions_of(each)) for each in dispatches] == [1] * 20
    assert Counter(each.decode.revision for each in dispatches) == {"new": 10, "old": 10}


def test_requests_follow_the_scarcer_side_of_a_revision() -> None:
    """3 of 4 prefills and 1 of 4 decodes are new: the one new decode gets its quarter, not three."""
    prefills = {"p0": "new", "p1": "new", "p2": "new", "p3": "old"}
    decodes = {"d0": "new", "d1": "old", "d2": "old", "d3": "old"}
    counts = Counter(each.decode.revision for each in arrive(fleet(prefills | decodes), range(80)))
    assert counts == {"new": 40, "old": 40}  # each revision has one endpoint of its scarcer role


def test_where_no_pair_is_left_decodes_serve_alone() -> None:
    """All prefills new, all decodes old: a decode endpoint computes prompts itself, and no request fails."""
    dispatches = arrive(fleet({"p0": "new", "d0": "old", "d1": "old"}), range(4))
    assert [(each.prefill, each.decode.id) for each in dispatches] == [(None, "d0"), (None, "d1")] * 2


def test_an_unknown_revision_is_one_of_its_own() -> None:
    """An endpoint that does not say is not taken for compatible with those that do."""
    (dispatch,) = arrive(fleet({"p0": "", "p1": "new", "d0": "new"}), [0])
    assert dispatch.prefill is not None
    assert dispatch.prefill.id == "p1"


def handed_off(on: Director) -> str:
    (effect,) = on.on_event(PrefillDone(RequestId("r0")), 1.0)
    assert isinstance(effect, Handoff)
    return effect.decode.id


def test_late_binding_stays_within_the_revision_of_the_prefill() -> None:
    """A far emptier decode endpoint of the other revision is no choice."""
    on = fleet({"p0": "old", "d0": "old"})
    arrive(on, range(9))
    on.on_event(EndpointObserved(of("d1", "new")), 0.5)
    assert handed_off(on) == "d0"


def test_a_prefill_that_drains_hands_off_to_its_own_revision() -> None:
    """All that is ready is new; the old decode endpoint only drains, and still takes what an old one has prefilled."""
    on = fleet({"p0": "old", "d0": "old"})
    arrive(on, [0])
    for name in ("p1", "d1"):
        on.on_event(EndpointObserved(of(name, "new")), 0.5)
    for name in ("p0", "d0"):
        on.on_event(EndpointDraining(EndpointId(name)), 0.6)
    assert handed_off(on) == "d0"


def test_a_failed_request_goes_to_another_pair_of_one_revision() -> None:
    """What is sent again is paired anew."""
    on = fleet({"p0": "old", "d0": "old", "p1": "new", "d1": "new"})
    (first,) = arrive(on, [0])
    again = only_dispatch(on.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, first.decode.id, Fault.BROKE), 1.0))
    assert again.decode.revision != first.decode.revision
    assert len(revisions_of(again)) == 1


@pytest.mark.parametrize("binding", Binding)
def test_segments_of_a_cut_are_of_one_revision(binding: Binding) -> None:
    """KV travels at the cut, too; where the planned endpoint has gone, another one of its revision is chosen."""
    on = fleet({"f0": "a", "f1": "b", "f2": "b", "f3": "a", "f4": "b"}, partition=Fixed(), binding=binding)
    dispatches = arrive(on, range(12))
    cut = [each for each in dispatches if each.segments]
    assert cut
    assert [len(revisions_of(each)) for each in cut] == [1] * len(cut)


def test_a_lost_target_of_a_cut_is_replaced_within_the_revision() -> None:
    """The endpoint that was planned for the second segment has gone; one of the other revision would be emptier."""
    on = fleet({"f0": "a", "f1": "a"}, partition=Fixed())
    (dispatch,) = arrive(on, [0])
    first, second = (each.endpoint for each in dispatch.segments)
    on.on_event(EndpointObserved(of("f8", "b")), 0.1)
    on.on_event(EndpointObserved(of("f9", "a")), 0.1)
    on.on_event(EndpointLost(second.id), 0.2)
    done = PrefillDone(RequestId("r0")) if dispatch.prefill else SegmentDone(RequestId("r0"), 0)
    handoffs = [each for each in on.on_event(done, 0.3) if isinstance(each, Handoff)]
    assert [each.decode.id for each in handoffs] == ["f9"]
    assert first.revision == "a"


def pairs(effects: Sequence[Effect]) -> list[Dispatch]:
    return [each for each in effects if isinstance(each, Dispatch)]


@given(
    st.lists(st.tuples(st.sampled_from("pdf"), st.sampled_from("ab")), min_size=1, max_size=9),
    st.lists(st.sampled_from(["arrive", "drain", "lose"]), max_size=30),
    st.booleans(),
)
def test_no_dispatch_pairs_two_revisions(kinds: list[tuple[str, str]], steps: list[str], cutting: bool) -> None:
    """Whatever the fleet is and becomes, and every request that has an endpoint of either role is dispatched."""
    named = {f"{letter}{k}": revision for k, (letter, revision) in enumerate(kinds)}
    on = fleet(named, partition=Fixed() if cutting else None)
    left = list(named)
    for k, step in enumerate(steps):
        if step == "arrive":
            found = pairs(on.on_event(RequestArrived(request(f"r{k}")), float(k)))
            assert all(len(revisions_of(each)) == 1 for each in found)
            assert bool(found) is bool(left)
        elif left:
            gone = EndpointId(left.pop())
            on.on_event(EndpointDraining(gone) if step == "drain" else EndpointLost(gone), float(k))


PAIRS = {"p0": "new", "d0": "new", "p1": "old", "d1": "old"}


@pytest.mark.parametrize("weight", [0.0, 0.1, 0.5, 1.0])
def test_a_canary_serves_the_requests_that_its_rule_gives_it(weight: float) -> None:
    """Each request by its id alone, whatever the load: a tenth of them within the noise of as many coins."""
    canary = Canary("new", weight)
    dispatches = arrive(fleet(PAIRS, canary=canary), range(1000))
    assert all(len(revisions_of(each)) == 1 for each in dispatches)
    served = [each.decode.revision == "new" for each in dispatches]
    assert served == [canary.takes(f"r{k}") for k in range(1000)]
    assert abs(sum(served) - 1000 * weight) <= 4 * (1000 * weight * (1 - weight)) ** 0.5


def test_without_the_one_side_the_other_serves_all() -> None:
    """Before the canary is ready, where it lacks a stage, and where nothing else is left."""
    canary = Canary("new", 0.5)
    for endpoints in ({"p1": "old", "d1": "old"}, {"p0": "new", "p1": "old", "d1": "old"}):
        assert {each.decode.revision for each in arrive(fleet(endpoints, canary=canary), range(20))} == {"old"}
    alone = fleet({"p0": "new", "d0": "new"}, canary=Canary("new", 0.0))
    assert {each.decode.revision for each in arrive(alone, range(20))} == {"new"}


def test_a_request_that_fails_on_the_canary_is_retried_elsewhere() -> None:
    """Its only pair is avoided by then."""
    on = fleet(PAIRS, canary=Canary("new", 1.0))
    (first,) = arrive(on, [0])
    assert first.prefill is not None
    again = only_dispatch(on.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, first.decode.id), 1.0))
    assert again.decode.revision == "old"


def test_new_settings_change_the_weight() -> None:
    """A pause takes effect at the next decision."""
    on = fleet(PAIRS, canary=Canary("new", 1.0))
    on.on_event(SettingsChanged(replace(on.settings, canary=Canary("new", 0.0))), 0.0)
    assert {each.decode.revision for each in arrive(on, range(20))} == {"old"}
