"""The work queue: one worker for each key, nothing lost, nothing twice, failures come back later and later."""

from __future__ import annotations

import asyncio

from ballast_operator.workqueue import NEWS_IN_A_ROW, WorkQueue


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


async def test_news_do_not_wait_behind_routine() -> None:
    """An edit is looked at before hundreds of objects that have not changed, and so is one of these that changes."""
    queue: WorkQueue[str] = WorkQueue()
    for key in "abcd":
        queue.add_routine(key)
    queue.add("edited")
    queue.add("c")
    assert [await queue.get() for _ in range(5)] == ["edited", "c", "a", "b", "d"]


async def test_routine_ends_however_much_is_new() -> None:
    """One turn in nine."""
    queue: WorkQueue[int] = WorkQueue()
    queue.add_routine(-1)
    queue.add_routine(-2)
    for key in range(40):
        queue.add(key)
    got = [await queue.get() for _ in range(20)]
    assert [got.index(-1), got.index(-2)] == [NEWS_IN_A_ROW, 2 * NEWS_IN_A_ROW + 1]


async def test_routine_does_not_put_off_what_is_due() -> None:
    """A delayed addition stays until its key is taken, and then is over: that look decides when the next one is due."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("due", 0.01)
    queue.add_after("later", 60.0)
    for key in ("a", "due", "later"):
        queue.add_routine(key)
    await asyncio.sleep(0.05)
    assert [await queue.get() for _ in range(3)] == ["due", "a", "later"]
    assert not queue._timers


async def test_routine_asks_for_no_second_look_at_what_is_looked_at() -> None:
    """Nor does a key that was both routine and news come twice, now or with the next routine."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add_routine("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add_routine("a")
    queue.done("a")
    queue.add("last")
    assert await queue.get() == "last"
    queue.add_routine("a")
    queue.add_routine("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    queue.add("c")
    assert await queue.get() == "c"
