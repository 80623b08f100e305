"""The columns of requests in flight: a watcher that copies only what has changed sees what everybody sees."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ballast_core.state.flights import Flights

Row = tuple[int, int, int, bool, float, float, float]


def row_of(flights: Flights, row: int) -> Row:
    return (
        int(flights.slot[row]),
        int(flights.prompt_tokens[row]),
        int(flights.generated_tokens[row]),
        bool(flights.decoding[row]),
        float(flights.handoff_at_s[row]),
        float(flights.first_token_at_s[row]),
        float(flights.progress_at_s[row]),
    )


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add", "start", "progress", "remove", "look"]), st.integers(0, 10**6)),
        max_size=200,
    ),
    crowd=st.sampled_from([0, 63, 70]),
)
def test_a_watcher_that_copies_changed_rows_has_all(steps: list[tuple[str, int]], crowd: int) -> None:
    """Whatever is added, moved on, or removed between two looks, across the growth of the columns too."""
    flights, copy = Flights(), dict[int, Row]()
    watcher, idle = flights.watch(), flights.watch()
    for number, (step, pick) in enumerate([("add", k) for k in range(crowd)] + steps + [("look", 0)]):
        now_s, row = float(number), pick % max(flights.count, 1)
        if step == "add":
            flights.add(slot=pick % 7, prompt_tokens=pick, limit_tokens=None, handoff_at_s=now_s + 1.0, now_s=now_s)
        elif step == "look":
            changed = flights.changes(watcher).tolist()
            assert changed == sorted(set(changed))
            copy.update((row, row_of(flights, row)) for row in changed)
            assert [copy[row] for row in range(flights.count)] == [row_of(flights, k) for k in range(flights.count)]
            assert not len(flights.changes(watcher))
        elif flights.count:
            if step == "start":
                flights.start_decoding(row, now_s)
            elif step == "progress":
                flights.progress(row, pick, now_s)
            else:
                flights.remove(row)
    assert flights.changes(idle).tolist() == list(range(flights.count))
