"""Which policies go together: what is refused with the reason, and what the Director makes of the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import pytest

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Role
from ballast_core.model.effects import Dispatch, Hold
from ballast_core.model.events import EndpointObserved, RequestArrived
from ballast_core.policies.admission import Bounded, Open
from ballast_core.policies.composing import NOTHING_CUTS, NOTHING_WAITS, problems, remarks
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.queue.orders import Fcfs, ShortestPrompt
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import (
    ADMISSION,
    PARTITION,
    PARTS,
    QUEUE_ORDER,
    RESCHEDULING,
    Kind,
    PolicyError,
    build,
)
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.policies.suite import Suite
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import endpoint, only_dispatch, request

FLEXIBLE = {Role.FLEXIBLE: 2}


def suite(**parts: Any) -> Suite:
    return Suite(prefill=LeastRequests(), decode=LeastRequests(), **parts)


def found(parts: Mapping[str, Any], endpoints: Mapping[Role, int] | None = None) -> list[tuple[str, str]]:
    return [(each.part, each.reason) for each in problems(suite(**parts), endpoints)]


@pytest.mark.parametrize("kind", [QUEUE_ORDER, ADMISSION, PARTITION, RESCHEDULING], ids=lambda kind: kind.name)
def test_policies_of_every_kind_are_built_with_errors_alike(kind: Kind[Any]) -> None:
    """Each registered type under its own name; others, and foreign parameters, are named with what there is."""
    for type_name in kind.types:
        assert build(kind, type_name).type == type_name
    with pytest.raises(PolicyError, match=rf"unknown {kind.name} 'x'; known: ") as caught:
        build(kind, "x")
    assert caught.value.field == "type"
    with pytest.raises(PolicyError, match=rf"{type_name} has no parameter 'x'; it takes ") as caught:
        build(kind, type_name, {"x": 1})
    assert caught.value.field == "parameters.x"


def test_every_part_of_a_suite_has_a_kind() -> None:
    """A part that no manifest could name would be out of reach."""
    assert list(suite().parts()) == list(PARTS)


@pytest.mark.parametrize("order", sorted(QUEUE_ORDERS))
def test_an_order_that_orders_nobody_is_refused(order: str) -> None:
    """Unless someone can wait, or the engines are told. First come, first served is no order of its own."""
    queue = build(QUEUE_ORDER, order)
    expected = [] if order == "fcfs" else [("queue", NOTHING_WAITS)]
    assert found({"queue": queue}) == expected
    assert found({"queue": queue, "admission": Open()}) == expected
    assert found({"queue": queue, "admission": Bounded()}) == []


def test_an_order_that_engines_are_told_needs_no_admission() -> None:
    """They are where requests wait."""
    assert found({"queue": ShortestPrompt(engine_priority=True)}) == []


def test_a_partition_needs_somebody_to_cut_for() -> None:
    """Known only where the fleet is."""
    assert found({"partition": Fixed()}) == []
    assert found({"partition": Fixed()}, {Role.PREFILL: 2, Role.DECODE: 4}) == [("partition", NOTHING_CUTS)]
    assert found({"partition": Fixed()}, {Role.FLEXIBLE: 1}) == []


@pytest.mark.parametrize(
    ("parts", "endpoints", "words"),
    [
        ({}, {Role.DECODE: 1}, []),
        ({"partition": Fixed()}, {Role.FLEXIBLE: 2}, []),
        ({"partition": Fixed()}, {Role.FLEXIBLE: 1}, ["only one flexible endpoint"]),
        ({"partition": Fixed()}, {Role.FLEXIBLE: 2, Role.DECODE: 1}, ["only prefill or decode"]),
        ({"rescheduling": Ares()}, {Role.PREFILL: 4, Role.DECODE: 1}, ["only one endpoint that decodes"]),
        ({"rescheduling": Ares()}, {Role.FLEXIBLE: 1, Role.DECODE: 1}, []),
    ],
)
def test_what_has_no_effect_yet_is_worth_a_word(
    parts: dict[str, Any], endpoints: dict[Role, int], words: list[str]
) -> None:
    """Fleets grow: nothing to refuse."""
    said = remarks(suite(**parts), endpoints)
    assert len(said) == len(words)
    assert all(word in each.reason for word, each in zip(words, said, strict=True))
    assert problems(suite(**parts), endpoints) == []


def combinations() -> Iterator[dict[str, Any]]:
    """One policy of each kind and none, in every combination that makes sense."""
    queues = (None, Fcfs(), ShortestPrompt(), ShortestPrompt(engine_priority=True))
    for queue, admission, partition, rescheduling in product(
        queues, (None, Open(), Bounded()), (None, Fixed()), (None, Ares())
    ):
        parts = {"queue": queue, "admission": admission, "partition": partition, "rescheduling": rescheduling}
        if not found(parts, FLEXIBLE):
            yield parts


def director(names: tuple[str, ...] = ("f0", "f1"), **parts: Any) -> Director:
    made = Director(DirectorSettings(**suite(**parts).parts(), profiles=SHIPPED_PROFILES))
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


@pytest.mark.parametrize("parts", list(combinations()), ids=lambda parts: "-".join(
    policy.type + ("!" if getattr(policy, "engine_priority", False) else "") for policy in parts.values() if policy
))  # fmt: skip
def test_each_part_does_its_work_beside_any_others(parts: dict[str, Any]) -> None:
    """Cut where there is a partition, told where the order says so, whatever else is there."""
    dispatch = only_dispatch(director(**parts).on_event(RequestArrived(request("r", 100)), 0.0))
    assert bool(dispatch.segments) is (parts["partition"] is not None)
    told = parts["queue"] is not None and parts["queue"].engine_priority
    assert (dispatch.priority is not None) is told


def test_a_cut_request_takes_places_like_any_other() -> None:
    """With a place on one endpoint it stays whole there; with none it waits, and goes when it is its turn."""
    made = director(partition=Fixed(), admission=Bounded(max_prefill_requests=1, max_decode_requests=1))
    first = only_dispatch(made.on_event(RequestArrived(request("a", 100)), 0.0))
    assert [segment.endpoint.id for segment in first.segments] == ["f0", "f1"]
    answers = [made.on_event(RequestArrived(request(name, 100)), 0.1) for name in ("b", "c")]
    dispatched = [effect for effects in answers for effect in effects if isinstance(effect, Dispatch)]
    assert all(not dispatch.segments for dispatch in dispatched)
    assert any(isinstance(effect, Hold) for effect in answers[-1])
