"""Queue orders: what all of them promise, and each against its formula."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.policies.queue.protocol import Service, Work
from ballast_core.policies.queue.ranking import rank
from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, PolicyError, build

quick = settings(max_examples=60, deadline=None)
rates = st.floats(1.0, 1e6)
services = st.builds(Service, rates, rates, st.none() | st.floats(1e-6, 1e6))
works = st.builds(
    Work,
    arrived_s=st.floats(0, 1e7),
    prompt_tokens=st.integers(0, 2_000_000),
    cached_tokens=st.integers(0, 2_000_000),
    prefilled_tokens=st.integers(0, 2_000_000),
    generated_tokens=st.integers(0, 200_000),
    expected_output_tokens=st.none() | st.floats(0, 1e6),
    deadline_s=st.none() | st.floats(0, 1e7),
    priority=st.integers(-3, 3),
)
SERVICE = Service(prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0)


@pytest.mark.parametrize("name", sorted(QUEUE_ORDERS))
@quick
@given(work=works, service=services)
def test_keys_are_finite_and_equal_for_equal_work(name: str, work: Work, service: Service) -> None:
    """Whatever the rates and gamma; and the work is left as it is."""
    order, before = build(QUEUE_ORDER, name), replace(work)
    key = order.key(work, service)
    assert math.isfinite(key)
    assert order.key(replace(work), service) == key
    assert work == before
    assert order.preemption_margin >= 0


@pytest.mark.parametrize("name", sorted(QUEUE_ORDERS))
@quick
@given(many=st.lists(works, max_size=40), service=services)
def test_many_keys_at_once_are_the_same_numbers(name: str, many: list[Work], service: Service) -> None:
    """To the last bit: a queue that is keyed anew stays consistent with what joins it later."""
    order = build(QUEUE_ORDER, name)
    assert order.keys(many, service).tolist() == [order.key(work, service) for work in many]


@pytest.mark.parametrize("name", sorted(set(QUEUE_ORDERS) - {"srpt"}))
@quick
@given(work=works, service=services, prefilled=st.integers(0, 10_000), generated=st.integers(0, 10_000))
def test_service_never_raises_priority(name: str, work: Work, service: Service, prefilled: int, generated: int) -> None:
    """Monotone in attained work; only srpt means to favour who is nearly done."""
    order = build(QUEUE_ORDER, name)
    served = replace(
        work,
        prefilled_tokens=work.prefilled_tokens + prefilled,
        generated_tokens=work.generated_tokens + generated,
    )
    assert order.key(served, service) >= order.key(work, service)


@pytest.mark.parametrize("name", sorted(QUEUE_ORDERS))
@quick
@given(first=works, second=works, service=services)
def test_own_priority_comes_first_and_ties_go_to_arrival_then_id(
    name: str, first: Work, second: Work, service: Service
) -> None:
    """A total order on requests."""
    order = build(QUEUE_ORDER, name)
    one, two = rank(order, "a", first, service), rank(order, "b", second, service)
    if first.priority != second.priority:
        assert (one < two) == (first.priority < second.priority)
    twin = rank(order, "b", replace(first), service)
    assert one < twin
    assert (one < two) != (two < one)


def test_examples() -> None:
    """Worked by hand at 1,000 prompt tokens and 50 output tokens a second."""
    work = Work(10.0, 3000, cached_tokens=1000, prefilled_tokens=500, generated_tokens=20, expected_output_tokens=100)

    def key(name: str, of: Work = work, **parameters: object) -> float:
        return build(QUEUE_ORDER, name, parameters).key(of, SERVICE)

    assert key("fcfs") == 10.0
    assert key("edf") == 15.0
    assert key("edf", default_objective_s=1) == 11.0
    assert key("edf", replace(work, deadline_s=10.5)) == 10.5
    assert key("shortest-prompt") == 2000
    assert key("sjf") == pytest.approx(2000 / 1000 + 100 / 50)
    assert key("sjf", replace(work, expected_output_tokens=None), unknown_output_tokens=50) == pytest.approx(3.0)
    assert key("srpt") == pytest.approx(1500 / 1000 + 80 / 50)
    assert key("srpt", replace(work, generated_tokens=500)) == pytest.approx(1500 / 1000 + 1 / 50)
    assert key("las") == pytest.approx(500 / 1000 + 20 / 50)


def test_who_gives_way() -> None:
    """Only preemptive orders evict; srpt not after 0.6 of the output, as TRAIL."""
    work = Work(0.0, 10, generated_tokens=59, expected_output_tokens=100)
    evicting = {name for name in QUEUE_ORDERS if build(QUEUE_ORDER, name).may_evict(work, 0)}
    assert evicting == {"las", "srpt"}
    assert build(QUEUE_ORDER, "uniboost", {"quantise": False}).may_evict(work, 0)
    assert not build(QUEUE_ORDER, "srpt").may_evict(replace(work, generated_tokens=60), 0)


@pytest.mark.parametrize(
    ("name", "parameters", "field"),
    [
        ("edf", {"default_objective_s": -1.0}, "parameters.default_objective_s"),
        ("sjf", {"unknown_output_tokens": 0}, "parameters.unknown_output_tokens"),
        ("srpt", {"protected_after": 1.5}, "parameters.protected_after"),
        ("las", {"preemption_margin_s": math.inf}, "parameters.preemption_margin_s"),
        ("uniboost", {"gamma_per_s": 0.0}, "parameters.gamma_per_s"),
        ("uniboost", {"bin_tokens": 0}, "parameters.bin_tokens"),
        ("uniboost", {"gamma_window": 99}, "parameters.gamma_window"),
        ("uniboost", {"gamma_max_per_s": 0.001}, "parameters.gamma_max_per_s"),
        ("uniboost", {"tail": "tpot"}, "parameters.tail"),
        ("fcfs", {"fair": True}, "parameters.fair"),
        ("lifo", {}, "type"),
    ],
)
def test_what_is_wrong_is_named(name: str, parameters: dict[str, object], field: str) -> None:
    """Field by field."""
    with pytest.raises(PolicyError) as caught:
        build(QUEUE_ORDER, name, parameters)
    assert caught.value.field == field


def test_every_order_says_what_its_key_is() -> None:
    """The reference page is made of these texts."""
    for order in QUEUE_ORDERS.values():
        assert "key = " in (order.__doc__ or "")


def test_a_queue_of_many_is_keyed_as_one_by_one() -> None:
    """Large enough that every branch of the arrays is taken."""
    draws = np.random.default_rng(0)
    order = build(QUEUE_ORDER, "uniboost")
    many = [
        Work(float(at), int(prompt), prefilled_tokens=int(done), generated_tokens=int(made))
        for at, prompt, done, made in zip(
            draws.uniform(0, 100, 500),
            draws.integers(0, 50_000, 500),
            draws.integers(0, 50_000, 500),
            draws.integers(0, 5_000, 500),
            strict=True,
        )
    ]
    assert order.keys(many, SERVICE).tolist() == [order.key(work, SERVICE) for work in many]
