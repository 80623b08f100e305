"""The waiting room against a list that is sorted at every question."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.waiting_room import WaitingRoom
from ballast_core.model import RequestId
from ballast_core.policies.queue.protocol import Service, Work
from ballast_core.policies.queue.ranking import rank
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, build

SERVICE = Service(5000.0, 30.0)
ids = st.sampled_from([RequestId(f"r{k}") for k in range(12)])
works = st.builds(
    Work,
    arrived_s=st.sampled_from([0.0, 1.0, 2.5]),
    prompt_tokens=st.integers(1, 3000),
    generated_tokens=st.integers(0, 3000),
    expected_output_tokens=st.none() | st.floats(1, 3000),
    priority=st.integers(-1, 1),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), ids, works),
        st.tuples(st.just("remove"), ids, st.none()),
        st.tuples(st.just("pop"), st.none(), st.none()),
        st.tuples(st.just("rekey"), st.floats(0.01, 100), st.none()),
    ),
    max_size=80,
)


@pytest.mark.parametrize("name", sorted(QUEUE_ORDERS))
@settings(max_examples=60, deadline=None)
@given(script=steps)
def test_it_is_a_list_that_is_kept_sorted(name: str, script: list[tuple[str, object, Work | None]]) -> None:
    """Whatever is added, taken, removed and keyed anew; one who left may come back."""
    order, service = build(QUEUE_ORDER, name), SERVICE
    room, model = WaitingRoom(order), dict[RequestId, Work]()
    for what, argument, work in script:
        if what == "add" and work is not None and argument not in model:
            model[RequestId(str(argument))] = work
            room.add(RequestId(str(argument)), work, service)
        elif what == "remove":
            assert room.remove(RequestId(str(argument))) == (model.pop(RequestId(str(argument)), None) is not None)
        elif what == "pop":
            expected = min(model, key=lambda each: rank(order, each, model[each], service), default=None)
            assert room.first() == expected
            assert room.first_rank() == (None if expected is None else rank(order, expected, model[expected], service))
            assert room.pop() == expected
            model.pop(expected, None)  # type: ignore[arg-type]
        elif what == "rekey":
            service = Service(5000.0, 30.0, float(str(argument)))
            room.rekey(service)
        assert len(room) == len(model)
        assert set(room) == set(model)
    left = sorted(model, key=lambda each: rank(order, each, model[each], service))
    assert [room.pop() for _ in range(len(model))] == left
    assert room.pop() is None


def test_a_request_waits_once() -> None:
    """A second place in the queue would be a second dispatch."""
    room = WaitingRoom(build(QUEUE_ORDER, "fcfs"))
    room.add(RequestId("r"), Work(0.0, 1), SERVICE)
    with pytest.raises(ValueError, match="'r' waits already"):
        room.add(RequestId("r"), Work(1.0, 1), SERVICE)


def test_who_left_early_takes_no_lasting_space() -> None:
    """Clients that give up do not fill the heap."""
    room = WaitingRoom(build(QUEUE_ORDER, "fcfs"))
    room.add(RequestId("stays"), Work(0.0, 1), SERVICE)
    for number in range(5000):
        room.add(RequestId(f"r{number}"), Work(1.0 + number, 1), SERVICE)
        room.remove(RequestId(f"r{number}"))
        assert len(room._heap) <= 2 * len(room) + 66
