"""The kernel against closed forms: what a queue on it does is what queueing theory says."""

from __future__ import annotations

import gc
import random
from collections import deque
from collections.abc import Callable

import pytest

from ballast_sim.simulation.kernel import Kernel


def sojourn_s(arrival_rate: float, service_s: Callable[[], float], customers: int, rng: random.Random) -> float:
    """Mean time in the system of a single first-come first-served server with Poisson arrivals."""
    kernel, queue, total_s, busy = Kernel(), deque[float](), 0.0, False

    def start() -> None:
        nonlocal busy
        busy = True
        kernel.at(kernel.now_s + service_s(), leave)

    def leave() -> None:
        nonlocal busy, total_s
        total_s += kernel.now_s - queue.popleft()
        busy = False
        if queue:
            start()

    def arrive(left: int) -> None:
        queue.append(kernel.now_s)
        if not busy:
            start()
        if left > 1:
            kernel.at(kernel.now_s + rng.expovariate(arrival_rate), lambda: arrive(left - 1))

    kernel.at(0.0, lambda: arrive(customers))
    kernel.run()
    return total_s / customers


def processor_sharing_sojourn_s(arrival_rate: float, customers: int, rng: random.Random) -> float:
    """Mean time in the system when all present share one server of rate 1 equally; work is exponential, mean 1."""
    kernel, work, total_s = Kernel(), dict[int, tuple[float, float]](), 0.0
    last_s = 0.0
    generation = 0

    def progress() -> None:
        nonlocal last_s
        if work:
            done = (kernel.now_s - last_s) / len(work)
            for key, (left, since_s) in work.items():
                work[key] = (left - done, since_s)
        last_s = kernel.now_s

    def plan() -> None:
        nonlocal generation
        generation += 1
        mine = generation
        if work:
            first = min(work, key=lambda key: work[key][0])
            kernel.at(kernel.now_s + max(0.0, work[first][0]) * len(work), lambda: leave(first, mine))

    def leave(key: int, mine: int) -> None:
        nonlocal total_s
        if mine != generation:
            return
        progress()
        total_s += kernel.now_s - work.pop(key)[1]
        plan()

    def arrive(number: int) -> None:
        progress()
        work[number] = (rng.expovariate(1.0), kernel.now_s)
        plan()
        if number + 1 < customers:
            kernel.at(kernel.now_s + rng.expovariate(arrival_rate), lambda: arrive(number + 1))

    kernel.at(0.0, lambda: arrive(0))
    kernel.run()
    return total_s / customers


def test_mm1_mean_sojourn_is_one_over_mu_minus_lambda() -> None:
    """M/M/1 at load 0.7: 1 / (1 - 0.7)."""
    rng = random.Random(1)
    assert sojourn_s(0.7, lambda: rng.expovariate(1.0), 60_000, rng) == pytest.approx(1 / 0.3, rel=0.06)


def test_md1_mean_sojourn_follows_pollaczek_khinchine() -> None:
    """M/D/1 at load 0.7: service 1 plus waiting 0.7 / (2 (1 - 0.7))."""
    assert sojourn_s(0.7, lambda: 1.0, 60_000, random.Random(2)) == pytest.approx(1 + 0.7 / 0.6, rel=0.04)


def test_processor_sharing_has_the_mean_sojourn_of_mm1() -> None:
    """M/M/1-PS at load 0.6: 1 / (1 - 0.6), as first-come first-served."""
    assert processor_sharing_sojourn_s(0.6, 30_000, random.Random(3)) == pytest.approx(2.5, rel=0.06)


def test_at_one_time_priority_then_order_of_scheduling_decides() -> None:
    """Ties are never left to chance."""
    kernel, log = Kernel(), list[str]()
    for name, priority in (("c", 1), ("a", 0), ("d", 1), ("b", 0)):
        kernel.at(5.0, lambda name=name: log.append(name), priority)  # type: ignore[misc]
    kernel.run()
    assert "".join(log) == "abcd"


def test_the_past_cannot_be_scheduled() -> None:
    """Time never goes back, and NaN is no time."""
    kernel = Kernel()
    kernel.at(2.0, lambda: None)
    kernel.run()
    for time_s in (1.9, float("nan")):
        with pytest.raises(ValueError, match="time_s"):
            kernel.at(time_s, lambda: None)


def test_collection_of_cycles_pauses_while_it_runs_even_where_an_action_fails() -> None:
    kernel, collects = Kernel(), list[bool]()

    def fail() -> None:
        collects.append(gc.isenabled())
        raise RuntimeError

    kernel.at(0.0, fail)
    with pytest.raises(RuntimeError):
        kernel.run()
    assert (collects, gc.isenabled()) == ([False], True)
