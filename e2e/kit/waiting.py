"""Waiting for something to become true, with a message that says what did not."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T | None], timeout_s: float, what: str, poll_s: float = 0.25) -> T:
    """The first true value of `predicate`; raises AssertionError that names `what` and the last value or error.

    CommandError and AssertionError count as "not yet": objects come and go while a cluster works.
    """
    from kit.commands import CommandError

    deadline_s = time.monotonic() + timeout_s
    while True:
        last: object
        try:
            value = predicate()
            if value:
                return value
            last = value
        except (CommandError, AssertionError) as error:
            last = error
        if time.monotonic() > deadline_s:
            raise AssertionError(f"{what}: not within {timeout_s:g} s; last seen: {last!r}"[:2000])
        time.sleep(poll_s)
