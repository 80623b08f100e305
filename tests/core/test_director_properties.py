"""Properties of the Director: whatever happens, and with every part of a suite.

1. Conservation: what is booked per endpoint and stage is what the requests in flight and their reservations add up to,
   each has its row of flights, and the books name the endpoint that the driver was given. Never negative.
2. No dispatch, hand-off or move to an endpoint that is not ready, of the wrong role, outside the request's subset, or
   on which the request failed. A hand-off may keep the endpoint that it had: under early binding, and if no other is
   left. Only requests that may move are moved, none before its cut.
3. One final answer: each request ends once, by a rejection, its end, or its client's leave, and no effect comes for it
   after that. One that runs is not dispatched, held or rejected; one that comes or fails is one of these at once.
4. Replay: the same events give the same effects, in every field, from a fresh Director.
5. Nothing leaks: when all requests have ended, all endpoints are lost and all timers have fired, nothing is kept.
6. Capacity: under a bounded admission no endpoint is given more than its limit by a dispatch or a move, and no more
   wait than may; no more are in flight than `max_in_flight`.
7. Batches: `ProgressBatch` and `EndpointsScraped` equal their single events. What is learned of them is in
   `test_director_progress.py` and `test_director_scrape.py`.
8. Timers: none is asked for in the past; a held request has one at the time when it is given up, and gets its answer
   by timers alone.
9. The watch speaks at its own ticks only, and names an endpoint where the request runs.

`tests/support/director_watch.py` checks all but 7 after each event, and names the number of what is broken.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Observation, Outcome, Request, Stage
from ballast_core.model.effects import Effect, Handoff
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointRestored,
    EndpointsScraped,
    Event,
    FirstToken,
    LengthPredicted,
    Migrated,
    MigrationFailed,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestArrived,
    RequestEnded,
    RequestRedirected,
    SegmentDone,
)
from ballast_core.model.observations import Observations
from tests.support.core_builders import endpoint
from tests.support.director_strategies import (
    ANY,
    FLEETS,
    NAMES,
    Step,
    dated,
    fleet,
    kinds_of,
    names,
    observations,
    requests,
    scripts,
    settings,
)
from tests.support.director_watch import Life, Watch, plain
from tests.support.recount import check_books, on_engine

CROWD = tuple(f"r{k}" for k in range(12))
crowds = st.lists(requests(st.sampled_from(CROWD)), min_size=1, max_size=4)
picks = st.integers(0, 11)


def test_every_kind_of_event_is_generated() -> None:
    """A kind of event that is new needs a generator."""
    assert set(ANY) == kinds_of(Event)


def play(feed: Callable[[Event, float], object], in_flight: Callable[[Request], bool], script: list[Step]) -> None:
    """Feed a script, leaving out arrivals under an id that is in flight: drivers refuse them."""
    now_s = 0.0
    for gap_s, what in script:
        event = dated(what, now_s, now_s + gap_s)
        now_s += gap_s
        if not (isinstance(event, RequestArrived) and in_flight(event.request)):
            feed(event, now_s)


@pytest.mark.rotating(4)
@given(settings, st.sampled_from(FLEETS), scripts, st.booleans())
def test_any_events_at_any_time(
    given_settings: DirectorSettings, ready: tuple[str, ...], script: list[Step], lose_first: bool
) -> None:
    """Invariants 1 to 6 and 8, whatever a driver makes of its effects: unknown ids and late words among the events."""
    watch = Watch(given_settings)
    for one in fleet(ready):
        watch.feed(EndpointObserved(one), 0.0)
    play(watch.feed, lambda request: watch.director.ledger.get(request.id) is not None, script)
    watch.finish(lose_first=lose_first)


class WellBehaved(RuleBasedStateMachine):
    """Invariants 1 to 6 and 8 with a driver that carries effects out: legs end, fail, move and report in any order.

    Timers fire at their time, or a little late or early; endpoints come and go as they like.
    """

    watch: Watch
    lose_first: bool

    @initialize(given_settings=settings, ready=st.sampled_from(FLEETS), arriving=crowds, lose_first=st.booleans())
    def begin(
        self, given_settings: DirectorSettings, ready: tuple[str, ...], arriving: list[Request], lose_first: bool
    ) -> None:
        self.watch = Watch(given_settings)
        self.lose_first = lose_first
        for one in fleet(ready):
            self.feed(EndpointObserved(one))
        self.some_arrive(arriving)

    def teardown(self) -> None:
        if hasattr(self, "watch") and self.watch.sound:
            self.watch.finish(lose_first=self.lose_first)

    def feed(self, event: Event) -> list[Effect]:
        return self.watch.feed(event, self.watch.now_s)

    def lives(self, fits: Callable[[Life], bool]) -> list[Life]:
        return [life for life in self.watch.lives.values() if fits(life)]

    def one(self, pick: int, fits: Callable[[Life], bool]) -> Life:
        """One of the requests that fit, of which there are some."""
        found = self.lives(fits)
        return found[pick % len(found)]

    @rule(gap_s=st.sampled_from([0.01, 0.3, 1.0, 3.0]), off_s=st.sampled_from([0.0, 0.0, 0.02, -0.0005]))
    def time_passes(self, gap_s: float, off_s: float) -> None:
        """Timers fire on the way; one that fires too soon is asked for again."""
        self.pass_time(gap_s, off_s)

    def pass_time(self, gap_s: float, off_s: float) -> None:
        watch = self.watch
        until_s = watch.now_s + gap_s
        if watch.timers and watch.timers[0] <= until_s and off_s < 0:
            watch.fire(off_s)
        while watch.timers and watch.timers[0] <= until_s:
            watch.fire(max(off_s, 0.0))
        watch.now_s = max(watch.now_s, until_s)

    @rule(arriving=crowds)
    def arrivals(self, arriving: list[Request]) -> None:
        self.some_arrive(arriving)

    def some_arrive(self, arriving: list[Request]) -> None:
        for request in arriving:
            if request.id not in self.watch.lives:
                self.feed(RequestArrived(request))

    @precondition(lambda self: self.lives(leg_is_to_end))
    @rule(pick=picks, computed=st.sampled_from([True, True, False]))
    def leg_ends(self, pick: int, computed: bool) -> None:
        """A prefill, or a segment before its last one: the Director says where it goes on."""
        self.end_leg(self.one(pick, leg_is_to_end), computed)

    def end_leg(self, life: Life, computed: bool) -> None:
        request_id, end = life.request.id, life.cut_at
        if end is None:
            effects = self.feed(PrefillDone(request_id))
        else:
            computed = computed or life.tokens > 0
            life.tokens = max(life.tokens, end - life.request.prompt_tokens) if computed else 0
            effects = self.feed(SegmentDone(request_id, life.tokens, computed))
        handoffs = [effect.request_id for effect in effects if isinstance(effect, Handoff)]
        assert handoffs == [request_id], "3: a leg that has ended is handed on once"

    @precondition(lambda self: self.lives(decodes))
    @rule(pick=picks, count=st.integers(1, 60))
    def tokens_come(self, pick: int, count: int) -> None:
        life = self.one(pick, decodes)
        if life.tokens == 0:
            life.tokens = 1
            self.feed(FirstToken(life.request.id))
        else:
            self.feed(Progress(life.request.id, more(life, count)))

    @precondition(lambda self: self.watch.lives)
    @rule(count=st.integers(1, 60), gap_s=st.sampled_from([0.0, 0.6]))
    def work_goes_on(self, count: int, gap_s: float) -> None:
        """Each leg comes to its end, each decode gives tokens, and the timers that are due fire."""
        for life in self.lives(leg_is_to_end):
            self.end_leg(life, True)
        for life in self.lives(lambda life: decodes(life) and not life.tokens):
            life.tokens = 1
            self.feed(FirstToken(life.request.id))
        now_s, decoding = self.watch.now_s, self.lives(decodes)
        self.feed(ProgressBatch(tuple((now_s, life.request.id, more(life, count)) for life in decoding)))
        self.pass_time(gap_s, 0.0)

    @precondition(lambda self: self.lives(decodes))
    @rule(pick=picks, remaining=st.sampled_from([0.0, 20.0, 900.0]))
    def length_is_predicted(self, pick: int, remaining: float) -> None:
        self.feed(LengthPredicted(self.one(pick, decodes).request.id, remaining))

    @precondition(lambda self: self.lives(may_fail))
    @rule(pick=picks)
    def leg_fails(self, pick: int) -> None:
        """Before the first token."""
        life = self.one(pick, may_fail)
        assert life.endpoint is not None
        stage = Stage.PREFILL if life.prefilling else Stage.DECODE
        self.feed(DispatchFailed(life.request.id, stage, life.endpoint))

    @precondition(lambda self: self.watch.lives)
    @rule(pick=picks, outcome=st.sampled_from(Outcome))
    def one_ends(self, pick: int, outcome: Outcome) -> None:
        life = self.one(pick, lambda _: True)
        if outcome is Outcome.CANCELLED:
            self.feed(ClientGone(life.request.id))
        elif life.tokens:
            self.feed(RequestEnded(life.request.id, outcome, life.tokens))

    @precondition(lambda self: self.lives(runs))
    @rule(pick=picks, prefill=st.none() | names, decode=st.sampled_from(["nowhere", *NAMES]))
    def one_is_elsewhere(self, pick: int, prefill: str | None, decode: str) -> None:
        """A proxy, or another holder of streams, has sent it to endpoints of its own choice, known or not."""
        life = self.one(pick, runs)
        first = EndpointId(prefill) if life.prefilling and prefill is not None else None
        self.feed(RequestRedirected(life.request.id, first, EndpointId(decode)))

    @precondition(lambda self: self.lives(moves))
    @rule(pick=picks, fails=st.booleans())
    def move_ends(self, pick: int, fails: bool) -> None:
        life = self.one(pick, moves)
        assert life.moving_to is not None
        self.feed((MigrationFailed if fails else Migrated)(life.request.id, life.moving_to))

    @rule(
        kind=st.sampled_from([*[EndpointDraining] * 2, EndpointRestored, EndpointLost, *[EndpointObserved] * 3]),
        name=names,
        seen=st.none() | observations,
    )
    def endpoint_changes(self, kind: type[Event], name: str, seen: Observation | None) -> None:
        if kind is EndpointObserved:
            self.feed(EndpointObserved(endpoint(name), seen))
        elif kind is EndpointDraining:
            self.feed(EndpointDraining(EndpointId(name)))
        elif kind is EndpointRestored:
            self.feed(EndpointRestored(EndpointId(name)))
        else:
            self.feed(EndpointLost(EndpointId(name)))

    @precondition(lambda self: self.watch.ready)
    @rule(others=st.sampled_from([0, 0, 1, 3]), kv_usage_ratio=st.sampled_from([0.1, 0.95]))
    def all_are_scraped(self, others: int, kv_usage_ratio: float) -> None:
        """Each shows our requests, and perhaps others: twice, as others count from then on."""
        director, now_s = self.watch.director, self.watch.now_s
        answers = []
        for one in self.watch.ready.values():
            slot = director.inventory.slot_of(one.id)
            ours = 0 if slot is None else on_engine(director.ledger, slot)
            answers.append((one, Observation(now_s, ours, others, kv_usage_ratio)))
        for _ in range(2):
            self.feed(EndpointsScraped(Observations.of(answers)))


def runs(life: Life) -> bool:
    """Whether it has been dispatched."""
    return life.dispatch is not None


def leg_is_to_end(life: Life) -> bool:
    """Whether the Director has to say where it goes on, and can."""
    return life.decode is not None and (life.prefilling or life.cut_at is not None)


def decodes(life: Life) -> bool:
    """Whether the leg that runs gives one more token."""
    if life.dispatch is None or life.prefilling:
        return False
    return life.cut_at is None or life.request.prompt_tokens + life.tokens + 1 < life.cut_at


def may_fail(life: Life) -> bool:
    """Whether a failure of its leg can be mended: it runs, and its client has no token."""
    return life.endpoint is not None and life.tokens == 0


def moves(life: Life) -> bool:
    """Whether a move of it is under way."""
    return life.moving_to is not None


def more(life: Life, count: int) -> int:
    """Its output after so many more tokens, within its limit and its cut."""
    prompt_tokens, limit = life.request.prompt_tokens, life.request.max_output_tokens
    ends = [life.tokens + count, *([] if limit is None else [limit])]
    life.tokens = min([*ends, *([] if life.cut_at is None else [life.cut_at - prompt_tokens - 1])])
    return life.tokens


TestWellBehaved = pytest.mark.rotating(3)(WellBehaved.TestCase)


open_settings = settings.filter(lambda each: each.admission is None or not each.admission.bounded)


@pytest.mark.rotating(4)
@given(open_settings, st.sampled_from(FLEETS), scripts)
def test_a_batch_equals_its_single_events(
    given_settings: DirectorSettings, ready: tuple[str, ...], script: list[Step]
) -> None:
    """Invariant 7, where no request waits for capacity: what does is dispatched once a batch, not once a report."""
    at_once, one_by_one = Director(given_settings), Director(given_settings)

    def feed(event: Event, now_s: float) -> None:
        singles: list[tuple[Event, float]] = [(event, now_s)]
        if isinstance(event, ProgressBatch):
            singles = [(Progress(request_id, count), at_s) for at_s, request_id, count in event.reports]
        elif isinstance(event, EndpointsScraped):
            singles = [(EndpointObserved(*answer), now_s) for answer in event.answers]
        effects = [effect for single, at_s in singles for effect in one_by_one.on_event(single, at_s)]
        assert plain(at_once.on_event(event, now_s)) == plain(effects)
        for each in (at_once, one_by_one):
            check_books(each.ledger)
        assert at_once.ledger.entries == one_by_one.ledger.entries
        np.testing.assert_array_equal(at_once.ledger.foreign, one_by_one.ledger.foreign)

    for one in fleet(ready):
        feed(EndpointObserved(one), 0.0)
    play(feed, lambda request: at_once.ledger.get(request.id) is not None, script)
