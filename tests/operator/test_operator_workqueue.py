"""The work queue: one worker for each key, nothing lost, nothing twice, failures come back later and later."""

from __future__ import annotations

import asyncio

from ballast_operator.workqueue import WorkQueue


async def test_a_key_waits_once_however_often_it_is_added() -> None:
    """Ten events of one object are one look."""
    queue: WorkQueue[str] = WorkQueue()
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await queue.get(), await queue.get()] == ["a", "b"]


async def test_a_key_added_while_worked_on_is_worked_on_once_more_and_never_by_two() -> None:
    """The second look comes after the first."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    queue.done("a")
    assert await waiting == "a"


async def test_a_failure_comes_back_after_a_delay_that_doubles_until_it_succeeds() -> None:
    """Delays as the loop's timers show them."""
    queue: WorkQueue[str] = WorkQueue(first_delay_s=10.0, last_delay_s=30.0)
    delays = []
    for _ in range(3):
        queue.add("a")
        await queue.get()
        started = asyncio.get_running_loop().time()
        queue.done("a", failed=True)
        delays.append(round(queue._timers["a"].when() - started))
    queue.add("a")
    await queue.get()
    queue.done("a")
    assert delays == [10, 20, 30]
    assert not queue._timers
    assert not queue._failures


async def test_an_event_does_not_wait_for_a_delay() -> None:
    """A fixed spec is looked at now, and once."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 60.0)
    queue.add("a")
    assert await asyncio.wait_for(queue.get(), 1.0) == "a"
    assert not queue._timers


async def test_the_earlier_of_two_delays_counts() -> None:
    """A long one does not put off a short one."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 0.01)
    queue.add_after("a", 60.0)
    assert await asyncio.wait_for(queue.get(), 1.0) == "a"
    queue.close()
