"""More requests than endpoints can serve: what waits in the gateway, who is shed, whose turn it is, when to return."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.backlog import Backlog
from ballast_core.directing.director import Director
from ballast_core.directing.fair_room import FairRoom
from ballast_core.directing.returns import LEAST_S, MOST_S, Returns
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.directing.turns import Turns
from ballast_core.model import Fault, Outcome, RejectReason, Request, RequestId, ShedCause, Stage
from ballast_core.model.effects import Dispatch, Effect, Hold, Reject
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointLost,
    EndpointObserved,
    FirstToken,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.policies.admission import Admission, Bounded, ExpectedTtft
from ballast_core.policies.placement.cache_aware import LeastUncachedTokens
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.queue.orders import Fcfs
from ballast_core.policies.queue.protocol import Service, Work
from ballast_core.profiles import SHIPPED_PROFILES
from tests.support.core_builders import endpoint, observation, request

PROMPT_TOKENS = 4000
SERVICE = Service(prefill_tokens_per_s=1000.0, decode_tokens_per_s=50.0)


def overloaded(admission: Admission | None = None, names: tuple[str, ...] = ("f0",), hold_s: float = 0.0) -> Director:
    d = Director(
        DirectorSettings(
            prefill=LeastUncachedTokens(),
            decode=LeastRequests(),
            admission=admission or ExpectedTtft(),
            profiles=SHIPPED_PROFILES,
            hold_s=hold_s,
        )
    )
    for name in names:
        d.on_event(EndpointObserved(endpoint(name), observation()), 0.0)
    return d


def ask(name: str, tenant: str = "", tokens: int = PROMPT_TOKENS, priority: int = 0) -> Request:
    return replace(request(name, tokens), tenant=tenant, priority=priority, max_output_tokens=1)


def arrive(d: Director, now_s: float, *asked: Request) -> list[Effect]:
    return [effect for each in asked for effect in d.on_event(RequestArrived(each), now_s)]


def serve(d: Director, request_id: RequestId, now_s: float) -> list[Effect]:
    effects = d.on_event(FirstToken(request_id), now_s)
    return effects + d.on_event(RequestEnded(request_id, Outcome.COMPLETED, 1), now_s)


def sent(effects: list[Effect]) -> list[RequestId]:
    return [each.request_id for each in effects if isinstance(each, Dispatch)]


def shed(effects: list[Effect]) -> list[Reject]:
    return [each for each in effects if isinstance(each, Reject)]


def waiting(d: Director) -> Counter[str]:
    return Counter(entry.request.tenant for entry in d.ledger if entry.request.id in d.queue)


# --- what waits, and what is shed -----------------------------------------------------------------------------------


def test_engines_get_what_keeps_them_busy_the_gateway_keeps_some_and_the_rest_is_shed() -> None:
    """A burst of a hundred prompts at one endpoint: few are dispatched, few wait, each other one is told at once."""
    d = overloaded()
    effects = arrive(d, 0.0, *(ask(f"r{number}") for number in range(100)))
    held = {each.request_id for each in effects if isinstance(each, Hold)}
    rejected = shed(effects)
    assert 2 <= len(sent(effects)) <= 10
    assert len(d.queue) == len(held) > 0
    assert len(sent(effects)) + len(d.queue) + len(rejected) == 100
    assert {(each.reason, each.cause) for each in rejected} == {(RejectReason.SATURATED, ShedCause.BACKLOG)}
    assert d.expected_wait_s == pytest.approx(2.0, rel=0.5)


def test_a_tighter_bound_leaves_less_to_wait_and_an_open_door_all() -> None:
    """The bound is in seconds: half of it, about half of the queue."""
    lengths = []
    for seconds in (20.0, 10.0, 5.0):
        d = overloaded(ExpectedTtft(max_ttft_s=seconds))
        arrive(d, 0.0, *(ask(f"r{number}") for number in range(200)))
        lengths.append(len(d.queue))
    assert lengths[0] > 1.5 * lengths[1] > 2 * lengths[2] > 0


def standing(d: Director, begin_s: float, seconds: float) -> float:
    """Far more than is served comes for so long, and two requests a second are served. What waits then, in seconds."""
    for tick in range(int(seconds / 0.5)):
        now_s = begin_s + tick * 0.5
        arrive(d, now_s, *(ask(f"{now_s}-{number}") for number in range(10)))
        there = next(entry.request.id for entry in d.ledger if entry.request.id not in d.queue)
        serve(d, there, now_s + 0.4)
    return d.expected_wait_s


def test_a_queue_that_stands_is_cut_to_half_and_a_fresh_one_is_not() -> None:
    """Two seconds of work even out what comes at random; where work waits all the time they make everybody late."""
    d = overloaded()
    assert standing(d, 0.0, 1.0) == pytest.approx(2.0, rel=0.3)
    assert standing(d, 1.0, 9.0) == pytest.approx(1.0, rel=0.3)
    for entry in [*d.ledger]:
        d.on_event(ClientGone(entry.request.id), 10.0)
    assert (len(d.queue), d.expected_wait_s) == (0, 0.0)
    assert standing(d, 30.0, 1.0) == pytest.approx(2.0, rel=0.4)


def test_time_without_an_endpoint_is_no_standing_queue() -> None:
    """It was too much for nobody."""
    d = overloaded(hold_s=60.0)
    d.on_event(EndpointLost(endpoint("f0").id), 0.0)
    arrive(d, 0.1, ask("held"))
    for second in range(1, 30):
        arrive(d, float(second), ask(f"r{second}"))
    d.on_event(EndpointObserved(endpoint("f0"), observation()), 30.0)
    assert d.queue.backlog.stood_s == pytest.approx(0.0, abs=0.1)


def tight(name: str, tenant: str = "", priority: int = 0) -> Request:
    """One that the queue of `filled` is too long for."""
    return replace(ask(name, tenant, priority=priority), ttft_objective_s=1.0)


def filled(tenant: str = "", priority: int = 0) -> Director:
    """As much waits as may, all of one tenant: about two seconds."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"r{number}", tenant, priority=priority) for number in range(100)))
    return d


def test_a_request_that_cannot_keep_its_objective_is_shed_at_once() -> None:
    """Behind its own tenant's work: all of that goes before it."""
    d = filled()
    before = len(d.queue)
    assert [each.request_id for each in shed(arrive(d, 0.1, tight("t")))] == ["t"]
    assert len(d.queue) == before


def test_less_urgent_work_does_not_stand_in_the_way_of_an_objective() -> None:
    """It goes after the urgent request, which waits in its place; of two seconds of work the last gives way."""
    d = filled(priority=5)
    rejected = shed(arrive(d, 0.1, tight("t", priority=-5)))
    assert RequestId("t") in d.queue
    assert RequestId("t") not in {each.request_id for each in rejected}
    d = filled(priority=-5)
    assert "t" in {each.request_id for each in shed(arrive(d, 0.1, tight("t", priority=5)))}


def test_another_tenants_work_stands_in_the_way_of_an_objective_by_its_turn_alone() -> None:
    """Turns are kept: who has nothing waiting is next but for one request, however much the other has."""
    d = overloaded(ExpectedTtft(max_ttft_s=40.0))
    arrive(d, 0.0, *(ask(f"r{number}", "greedy") for number in range(200)))
    objective_s = 8.0
    modest, greedy = (replace(tight(name, name), ttft_objective_s=objective_s) for name in ("modest", "greedy"))
    assert d.expected_wait_s > 0.2 * objective_s
    assert "modest" not in {each.request_id for each in shed(arrive(d, 0.1, modest))}
    assert "greedy" in {each.request_id for each in shed(arrive(d, 0.1, greedy))}


def test_a_request_whose_leg_has_failed_waits_no_second_time() -> None:
    """The one endpoint that is left for it is full, and may stay so for long; `bounded` keeps to its places."""
    for admission, sent_on in ((ExpectedTtft(), True), (Bounded(max_prefill_requests=2), False)):
        d = overloaded(admission, ("p0", "p1", "d0"))
        effects = arrive(d, 0.0, *(ask(f"r{number}", tokens=40_000) for number in range(4)))
        first = next(each for each in effects if isinstance(each, Dispatch) and each.prefill is not None)
        assert first.prefill is not None
        again = d.on_event(DispatchFailed(first.request_id, Stage.PREFILL, first.prefill.id, Fault.REFUSED, 401), 0.1)
        (effect,) = [
            each for each in again if isinstance(each, (Dispatch, Hold)) and each.request_id == first.request_id
        ]
        assert isinstance(effect, Dispatch) is sent_on


def test_a_single_prompt_of_any_length_may_wait() -> None:
    """Counted is the work before a request, not its own: no prompt is too long to be served."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"r{number}", tokens=20_000) for number in range(2)))
    assert isinstance(arrive(d, 0.0, ask("long", tokens=500_000))[0], Hold)


def test_what_served_slowly_holds_fewer() -> None:
    """The rate is measured: endpoints that prefill a tenth as fast as their profile says are given a shorter queue."""
    d = overloaded()
    running = sent(arrive(d, 0.0, *(ask(f"r{number}") for number in range(40))))
    before, now_s, cut = len(d.queue), 0.0, []
    for _ in range(10):
        now_s += 3.0
        effects = serve(d, running.pop(0), now_s)
        running += sent(effects)
        cut += shed(effects)
        arrive(d, now_s, *(ask(f"s{now_s}-{number}") for number in range(20)))
    assert 1 <= len(d.queue) < before / 2
    assert {each.cause for each in cut} <= {ShedCause.BACKLOG, ShedCause.WAITED}


def test_time_without_endpoints_is_no_sign_of_slow_ones() -> None:
    """As many as may come together to an endpoint that is there may have been held until one appears."""
    many = [ask(f"r{number}", tokens=1000) for number in range(200)]
    most = next(count for count in range(200, 0, -8) if not shed(arrive(overloaded(), 0.0, *many[:count])))
    woken = overloaded(names=(), hold_s=300.0)
    for number, each in enumerate(many[:most]):
        assert isinstance(arrive(woken, float(number), each)[0], Hold)
    effects = woken.on_event(EndpointObserved(endpoint("f0"), observation(at_s=150.0)), 150.0)
    assert sent(effects)
    assert not shed(effects)


def test_what_came_while_there_was_no_endpoint_is_not_shed_by_the_first_one() -> None:
    """It is far more than that one's bound; what comes later counts by itself."""
    held = [ask(f"r{number}", tokens=1000) for number in range(400)]
    assert shed(arrive(overloaded(), 0.0, *held))
    woken = overloaded(names=(), hold_s=300.0)
    effects = arrive(woken, 0.0, *(replace(each, ttft_objective_s=1.0) for each in held))
    assert not shed(effects)
    effects = woken.on_event(EndpointObserved(endpoint("f0"), observation(at_s=40.0)), 40.0)
    assert sent(effects)
    assert not shed(effects)
    later = shed(arrive(woken, 40.0, *(ask(f"l{number}", "other", tokens=1000) for number in range(400))))
    assert all(each.request_id.startswith("l") for each in later)
    running, now_s = sent(effects), 40.0
    served = set(running)
    while running:  # all that was held is served, within its time
        now_s += 0.2
        effects = serve(woken, running.pop(0), now_s)
        assert not any(each.request_id.startswith("r") for each in shed(effects))
        running += sent(effects)
        served |= {*sent(effects)}
    assert {each.id for each in held} <= served


def test_who_cannot_wait_for_an_endpoint_comes_back_when_one_should_have_started() -> None:
    """Counted from the first request, which wakes the fleet; one that is late is asked for again and again."""

    def after_s(d: Director, now_s: float) -> float:
        [effect] = shed(arrive(d, now_s, ask(f"at{now_s}", tokens=100)))
        assert effect.reason is RejectReason.NO_ENDPOINTS
        return effect.retry_after_s

    d = overloaded(names=())
    d.on_event(SettingsChanged(replace(d.settings, startup_s=80.0)), 0.0)
    assert 80.0 <= after_s(d, 5.0) <= 120.0
    assert 50.0 <= after_s(d, 35.0) <= 75.0
    assert 8.0 <= after_s(d, 500.0) <= 12.0
    d.on_event(EndpointObserved(endpoint("f0"), observation(at_s=510.0)), 510.0)
    arrive(d, 511.0, ask("served", tokens=100))
    serve(d, RequestId("served"), 512.0)
    d.on_event(EndpointLost(endpoint("f0").id), 600.0)
    assert 80.0 <= after_s(d, 700.0) <= 120.0
    assert after_s(overloaded(names=()), 0.0) <= 2.0


def test_what_has_waited_for_the_whole_bound_is_late_and_rejected() -> None:
    """Whatever was expected when it came."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"r{number}") for number in range(20)))
    late = shed(d.on_event(TimerFired(), 10.0))
    assert late
    assert {each.cause for each in late} <= {ShedCause.WAITED, ShedCause.BACKLOG}
    assert len(d.queue) == 0


def test_an_engine_that_reports_a_queue_or_full_kv_gets_nothing_more() -> None:
    """Whoever filled it: this needs no profile."""
    for seen in (observation(64, 16, 1.0), replace(observation(3, 0, 1.0), kv_usage_ratio=0.96)):
        d = overloaded()
        d.on_event(EndpointObserved(endpoint("f0"), seen), 1.0)
        assert isinstance(arrive(d, 1.0, ask("r"))[0], Hold)
        free = d.on_event(EndpointObserved(endpoint("f0"), observation(3, 0, 2.0)), 2.0)
        assert sent(free) == ["r"]


def test_clients_that_leave_while_they_wait_leave_nothing_behind() -> None:
    """No request, no work, no turn."""
    d = overloaded()
    effects = arrive(d, 0.0, *(ask(f"r{number}", tenant=f"t{number % 3}") for number in range(60)))
    for name in {each.request_id for each in effects if isinstance(each, Hold)} | set(sent(effects)):
        d.on_event(ClientGone(name), 1.0)
    assert (len(d.queue), len(d.ledger), d.queue.backlog.tokens, d.expected_wait_s) == (0, 0, 0, 0.0)
    assert d.queue.backlog.last() is None
    assert len(d.queue._turns) == len(d.queue._rooms) == 0


# --- who ------------------------------------------------------------------------------------------------------------


def test_the_tenant_with_the_most_waiting_work_loses_its_newest_request() -> None:
    """A greedy tenant fills the queue; another one still gets in, and pushes one of the greedy one's out."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"g{number}", tenant="greedy") for number in range(100)))
    full = waiting(d)["greedy"]
    effects = arrive(d, 0.0, ask("m0", tenant="modest"))
    assert isinstance(effects[0], Hold)
    (out,) = shed(effects)
    assert out.request_id.startswith("g")
    assert waiting(d) == {"greedy": full - 1, "modest": 1}


def test_waiting_tenants_get_the_same_work_however_much_they_ask_for() -> None:
    """A hundred times as many requests and ten times as long prompts win nothing."""
    d = overloaded()
    rng, tokens, now_s = random.Random(1), Counter[str](), 0.0
    running: list[RequestId] = []
    sizes: dict[RequestId, tuple[str, int]] = {}
    for step in range(400):
        now_s += 0.1
        asked = [ask(f"g{step}-{number}", tenant="greedy", tokens=rng.randint(2000, 8000)) for number in range(5)]
        if step % 3 == 0:
            asked.append(ask(f"m{step}", tenant="modest", tokens=rng.randint(200, 800)))
        for each in asked:
            sizes[each.id] = each.tenant, each.prompt_tokens
        effects = arrive(d, now_s, *asked)
        if running:
            effects += serve(d, running.pop(0), now_s)
        running += sent(effects)
        for name in sent(effects):
            tenant, size = sizes[name]
            tokens[tenant] += size
    modest_asked = sum(size for tenant, size in sizes.values() if tenant == "modest")
    assert tokens["modest"] > 0.9 * modest_asked, "it asks for less than its share, and gets all of it"


def test_each_of_a_few_tenants_may_have_one_waiting_however_slow_the_queue_is() -> None:
    """Nothing moves for seconds: the greedy one's go, the other's only one stays."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"g{number}", tenant="greedy") for number in range(100)), ask("m0", tenant="modest"))
    for step in range(1, 90):
        arrive(d, 0.1 * step, ask(f"h{step}", tenant="greedy"))
    assert waiting(d)["modest"] == 1


def test_the_least_urgent_are_shed_first() -> None:
    """A request that is more urgent takes the place of one that is less."""
    d = overloaded()
    arrive(d, 0.0, *(ask(f"b{number}", priority=5) for number in range(100)))
    effects = arrive(d, 0.0, ask("urgent", priority=-5))
    assert isinstance(effects[0], Hold)
    assert shed(effects)[0].request_id.startswith("b")


def test_a_full_queue_of_counted_places_treats_tenants_alike() -> None:
    """`bounded` counts requests: there, too, the greedy tenant makes room."""
    d = overloaded(Bounded(max_prefill_requests=1, max_waiting=3))
    arrive(d, 0.0, *(ask(f"g{number}", tenant="greedy") for number in range(5)))
    (out,) = shed(arrive(d, 0.0, ask("m0", tenant="modest")))
    assert out.request_id == "g3"
    assert out.cause is ShedCause.QUEUE_FULL
    assert waiting(d) == {"greedy": 2, "modest": 1}


# --- turns ----------------------------------------------------------------------------------------------------------


def work(arrived_s: float, priority: int = 0) -> Work:
    return Work(arrived_s=arrived_s, prompt_tokens=100, priority=priority)


class Rooms:
    """A fair room driven as the queue does it."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.room = FairRoom(Fcfs(), self.turns)
        self.of: dict[str, tuple[str, Work, int]] = {}

    def add(self, name: str, tenant: str, at: Work, tokens: int) -> None:
        self.turns.joins(tenant)
        self.room.add(RequestId(name), tenant, at, SERVICE)
        self.of[name] = tenant, at, tokens

    def leave(self, name: str) -> None:
        tenant, _, _ = self.of.pop(name)
        self.room.remove(RequestId(name), tenant)
        self.turns.leaves(tenant)

    def take(self) -> str | None:
        rank = self.room.first_rank()
        if rank is None:
            return None
        tenant, _, tokens = self.of[rank[4]]
        self.turns.served(tenant, tokens)
        self.leave(rank[4])
        return rank[4]


def test_turns_go_round_by_tokens() -> None:
    """A tenant with prompts three times as long has a third of the turns."""
    rooms = Rooms()
    for number in range(40):
        rooms.add(f"long{number:02}", "long", work(number), 300)
        rooms.add(f"short{number:02}", "short", work(number), 100)
    taken = Counter(str(rooms.take())[:4] for _ in range(20))
    assert taken == {"shor": 15, "long": 5}


def test_who_has_been_away_has_saved_nothing() -> None:
    """A tenant that comes late takes its turns from now on, and does not catch up."""
    rooms = Rooms()
    for number in range(40):
        rooms.add(f"a{number:02}", "a", work(number), 100)
    for _ in range(20):
        rooms.take()
    for number in range(20):
        rooms.add(f"b{number:02}", "b", work(100 + number), 100)
    taken = Counter(str(rooms.take())[0] for _ in range(10))
    assert taken == {"a": 5, "b": 5}


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(1, 500), st.integers(-1, 1)),
        st.tuples(st.just("take"), st.just(""), st.just(0), st.just(0)),
        st.tuples(st.just("leave"), st.just(""), st.integers(0, 99), st.just(0)),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_first_is_always_the_first_of_all(taken: list[tuple[str, str, int, int]]) -> None:
    """Against a plain sort by priority, tag, key, arrival and id, after any sequence of changes."""
    rooms = Rooms()
    for at, (what, tenant, number, priority) in enumerate(taken):
        if what == "add":
            rooms.add(f"r{at:03}", tenant, work(at, priority), number)
        elif what == "leave" and rooms.of:
            rooms.leave(sorted(rooms.of)[number % len(rooms.of)])
        else:
            order = sorted(
                ((made.priority, rooms.turns.tag(of), made.arrived_s, name) for name, (of, made, _) in rooms.of.items())
            )
            assert rooms.take() == (order[0][3] if order else None)
    assert bool(rooms.room) == bool(rooms.of)


@settings(max_examples=150, deadline=None)
@given(steps)
def test_the_one_to_shed_is_the_newest_of_the_largest_backlog(taken: list[tuple[str, str, int, int]]) -> None:
    """Against plain sums, after any sequence of changes; and the sum of all is right."""
    backlog, held = Backlog(), {}
    for at, (what, tenant, number, priority) in enumerate(taken):
        if what == "add":
            held[f"r{at:03}"] = replace(ask(f"r{at:03}", tenant, number, priority)), number
            backlog.add(held[f"r{at:03}"][0], number, float(at))
        elif held and what == "leave":
            backlog.remove(held.pop(sorted(held)[number % len(held)])[0])
        found = backlog.last()
        assert backlog.tokens == sum(tokens for _, tokens in held.values())
        if not held:
            assert found is None
            continue
        assert found is not None
        last, tokens = held[found[0]]
        least_urgent = [
            each for each in held.values() if each[0].priority == max(one.priority for one, _ in held.values())
        ]
        sums = Counter[str]()
        for each, size in least_urgent:
            sums[each.tenant] += size
        assert sums[last.tenant] == max(sums.values())
        assert found == (max(each.id for each, _ in least_urgent if each.tenant == last.tenant), tokens)


# --- when to come back ----------------------------------------------------------------------------------------------


def test_rejected_clients_come_back_one_after_the_other() -> None:
    """As fast as they can be served: their times cover what their work takes, within the bounds."""
    returns = Returns()
    at_s = [
        returns.after_s(RequestId(f"r{number}"), 1000, 0.0, wait_s=0.0, tokens_per_s=10_000.0) for number in range(200)
    ]
    assert min(at_s) >= LEAST_S
    assert max(at_s) <= 1.5 * MOST_S
    per_second = Counter(int(each) for each in at_s)
    assert max(per_second[second] for second in range(2, 30)) <= 20  # ten can be served
    later = returns.after_s(RequestId("later"), 1000, 100.0, wait_s=0.0, tokens_per_s=10_000.0)
    assert later <= 2 * LEAST_S, "their turns have passed"


def test_retry_after_is_the_same_for_the_same_events() -> None:
    """The jitter is the request's own, not chance."""
    made = [
        [each.retry_after_s for each in shed(arrive(overloaded(), 0.0, *(ask(f"r{n}") for n in range(60))))]
        for _ in range(2)
    ]
    assert made[0] == made[1]
    assert len(set(made[0])) > len(made[0]) / 2


def test_one_tenant_is_served_as_if_there_were_no_turns() -> None:
    """In order of arrival, here as before."""
    d = overloaded()
    effects = arrive(d, 0.0, *(ask(f"r{number:02}") for number in range(30)))
    order, running, now_s = sent(effects), sent(effects), 0.0
    while running:
        now_s += 0.2
        more = sent(serve(d, running.pop(0), now_s))
        order += more
        running += more
    assert order == sorted(order)
    assert len(d.queue) == len(d.ledger) == 0
