"""The progress watch: who is suspected and lost, after how long, and who never is."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.beliefs.kinds import Belief
from ballast_core.beliefs.silence import Owed, Silence, Silences, Slowness
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.directing.watch import WatchSettings
from ballast_core.model import EndpointId, Observation, RequestId, Stage
from ballast_core.model.effects import Dispatch, Effect, Leave, PulseChanged
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointLost,
    EndpointObserved,
    EndpointsHeard,
    FirstToken,
    PrefillDone,
    RequestArrived,
)
from ballast_core.model.life_signs import LifeSign, Pulse
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from tests.support.core_builders import endpoint, only_dispatch, request

TICK_S = 0.2
SLOWEST = SHIPPED_PROFILES["h20-qwen3-32b"]
"""A chunk of 8,192 tokens takes it 4.6 s, and with 32,000 before it 11 s."""


class Fleet:
    """A Director with a watch; what its driver knows of each endpoint stands in `signs`."""

    def __init__(self, *names: str, profile: str = "h200-llama3-8b", watch: WatchSettings | None = None) -> None:
        self.now_s = 0.0
        self.director = Director(
            DirectorSettings(
                prefill=LeastRequests(),
                decode=LeastRequests(),
                profiles=SHIPPED_PROFILES,
                watch=watch or WatchSettings(),
            )
        )
        self.signs = {name: LifeSign(EndpointId(name), 0) for name in names}
        self.news: list[tuple[str, Pulse]] = []
        self.left: list[tuple[str, str]] = []
        for name in names:
            self.director.on_event(EndpointObserved(replace(endpoint(name), profile=profile)), 0.0)

    def open(self, name: str, prompt_tokens: int = 100) -> Dispatch:
        return only_dispatch(self.director.on_event(RequestArrived(request(name, prompt_tokens)), self.now_s))

    def owe(self, endpoint_id: str, legs: int = 1) -> None:
        sign = self.signs[endpoint_id]
        since_s = sign.owing_since_s if sign.legs else self.now_s
        self.signs[endpoint_id] = sign._replace(legs=sign.legs + legs, owing_since_s=since_s)

    def hear(self, *endpoint_ids: str) -> None:
        for one in endpoint_ids:
            self.signs[one] = self.signs[one]._replace(heard_s=self.now_s)

    def decode(self, name: str, prompt_tokens: int = 100, *, token: bool = True) -> str:
        """A request that has been handed off, with its first token; returns where it decodes."""
        self.open(name, prompt_tokens)
        (handoff,) = self.director.on_event(PrefillDone(RequestId(name)), self.now_s)
        assert not isinstance(handoff, Leave)
        there: str = handoff.decode.id  # type: ignore[union-attr]
        self.owe(there)
        if token:
            self.director.on_event(FirstToken(RequestId(name)), self.now_s)
            self.hear(there)
        return there

    def run(self, seconds: float, *speaking: str) -> None:
        """Let time pass; these endpoints give signs all the time."""
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.hear(*speaking)
            self.tick()

    def tick(self) -> list[Effect]:
        effects = self.director.on_event(EndpointsHeard(list(self.signs.values())), self.now_s)
        self.news += [(one.endpoint.id, one.pulse) for one in effects if isinstance(one, PulseChanged)]
        self.left += [(one.request_id, one.endpoint_id) for one in effects if isinstance(one, Leave)]
        return effects

    def pulse(self, name: str) -> Pulse:
        assert self.director.watch is not None
        return self.director.watch.pulse(EndpointId(name))[0]

    def decodes_go_to(self) -> set[str]:
        return {one.id for one in self.director.inventory.candidates(Stage.DECODE).endpoints}


def test_a_silent_decode_endpoint_is_suspected_then_lost_and_its_legs_are_left() -> None:
    fleet = Fleet("p0", "d0", "d1")
    homes = {name: fleet.decode(name) for name in ("r0", "r1")}
    assert set(homes.values()) == {"d0", "d1"}
    fleet.run(0.8, "d1")
    assert fleet.news == [("d0", Pulse.SUSPECTED)]
    assert fleet.decodes_go_to() == {"d1"}
    fleet.run(0.8, "d1")
    assert fleet.news[1:] == [("d0", Pulse.LOST)]
    on_d0 = next(name for name, home in homes.items() if home == "d0")
    assert fleet.left == [(on_d0, "d0")]


def test_a_leg_is_left_once() -> None:
    fleet = Fleet("p0", "d0")
    fleet.decode("r0")
    fleet.run(20.0)
    assert fleet.left == [("r0", "d0")]


def test_an_endpoint_that_owes_nothing_may_be_silent() -> None:
    fleet = Fleet("p0", "d0", "d1")
    fleet.run(60.0)
    assert fleet.news == []


def test_a_sign_of_life_heals_a_suspected_endpoint_at_once() -> None:
    fleet = Fleet("p0", "d0", "d1")
    there = fleet.decode("r0")
    fleet.run(0.8)
    assert fleet.pulse(there) is Pulse.SUSPECTED
    fleet.run(0.2, there)
    assert fleet.pulse(there) is Pulse.STEADY
    assert fleet.decodes_go_to() == {"d0", "d1"}


def test_an_endpoint_gets_work_while_suspected_if_nothing_else_is_left() -> None:
    fleet = Fleet("p0", "d0")
    fleet.decode("r0")
    fleet.run(0.8)
    assert fleet.pulse("d0") is Pulse.SUSPECTED
    assert fleet.decodes_go_to() == {"d0"}


def test_a_lost_endpoint_proves_itself_by_one_request() -> None:
    """A scrape is no proof."""
    fleet = Fleet("p0", "d0", "d1")
    there = fleet.decode("r0")
    other = ({"d0", "d1"} - {there}).pop()
    fleet.run(1.6)
    fleet.director.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId(there)), fleet.now_s)
    fleet.signs[there] = fleet.signs[there]._replace(legs=0)
    scraped = EndpointObserved(replace(endpoint(there), profile="h200-llama3-8b"), Observation(fleet.now_s, 0, 0))
    fleet.director.on_event(scraped, fleet.now_s)
    assert fleet.decodes_go_to() == {other}
    fleet.run(10.2, other)
    assert fleet.decodes_go_to() == {"d0", "d1"}
    assert fleet.decode("probe", token=False) == there
    assert fleet.decodes_go_to() == {other}
    fleet.director.on_event(FirstToken(RequestId("probe")), fleet.now_s)
    fleet.hear(there)
    fleet.tick()
    assert fleet.pulse(there) is Pulse.STEADY
    assert fleet.decodes_go_to() == {"d0", "d1"}


def test_a_probe_that_gets_nothing_is_left_too() -> None:
    fleet = Fleet("p0", "d0", "d1")
    there = fleet.decode("r0")
    other = ({"d0", "d1"} - {there}).pop()
    fleet.run(1.6)
    fleet.director.on_event(ClientGone(RequestId("r0")), fleet.now_s)
    fleet.signs[there] = fleet.signs[there]._replace(legs=0)
    assert fleet.decode("busy") == other
    fleet.run(10.2, other)
    assert fleet.decode("probe", token=False) == there
    fleet.run(12.0, other)
    assert fleet.left == [("r0", there), ("probe", there)]
    assert fleet.pulse(there) is Pulse.LOST
    assert fleet.decodes_go_to() == {other}


def test_scrapes_without_an_answer_are_evidence() -> None:
    """An idle endpoint that answers no scrape gets no new work long before it is lost by its scrapes."""
    fleet = Fleet("p0", "d0", "d1")
    fleet.signs["d0"] = fleet.signs["d0"]._replace(asked_s=0.0)
    fleet.run(1.0)
    assert fleet.news == [("d0", Pulse.SUSPECTED)]
    assert fleet.decodes_go_to() == {"d1"}
    fleet.signs["d0"] = fleet.signs["d0"]._replace(asked_s=inf)
    fleet.run(0.2)
    assert fleet.pulse("d0") is Pulse.STEADY


def test_a_prefill_that_answers_neither_scrapes_nor_legs_is_lost_however_long_its_prompts_may_take() -> None:
    fleet = Fleet("p0", "p1", "d0", profile=SLOWEST.name)
    there = fleet.open("r0", 100_000).prefill
    assert there is not None
    fleet.owe(there.id)
    fleet.run(2.8)
    assert fleet.left == []
    fleet.signs[there.id] = fleet.signs[there.id]._replace(asked_s=0.0)
    fleet.run(0.4)
    assert fleet.left == [("r0", there.id)]


def test_an_endpoint_that_is_gone_ends_its_legs_where_they_are_silent() -> None:
    """One that is deleted and streams on may finish."""
    fleet = Fleet("p0", "d0", "d1")
    homes = {fleet.decode(name): name for name in ("r0", "r1")}
    for name in ("d0", "d1"):
        fleet.director.on_event(EndpointLost(EndpointId(name)), fleet.now_s)
    fleet.run(0.8, "d1")
    assert fleet.left == [(homes["d0"], "d0")]


def test_an_engine_that_comes_under_the_name_of_one_that_is_gone_begins_anew() -> None:
    """A container that starts again in its pod: its first prompt may take as long as any engine's first one."""
    fleet = Fleet("f0")
    fleet.hear("f0")
    fleet.tick()
    sign = fleet.signs.pop("f0")
    fleet.director.on_event(EndpointLost(EndpointId("f0")), fleet.now_s)
    fleet.run(1.0)
    assert fleet.director.watch is not None
    assert not fleet.director.watch._seen, "nothing is kept of what is gone"
    fleet.director.on_event(EndpointObserved(endpoint("f0")), fleet.now_s)
    fleet.signs["f0"] = sign._replace(heard_s=-inf)
    fleet.open("r0")
    fleet.owe("f0")
    fleet.run(4.0)
    assert fleet.news == []
    fleet.run(7.0)
    assert fleet.left == [("r0", "f0")]


def test_what_is_owed_may_shrink_during_a_silence_and_the_deadline_stays() -> None:
    """A long prompt's client leaves; the engine is still in the step that it filled."""
    fleet = Fleet("f0", profile=SLOWEST.name)
    fleet.open("short", 10)
    fleet.owe("f0")
    fleet.director.on_event(FirstToken(RequestId("short")), 0.0)
    fleet.hear("f0")
    fleet.open("long", 32_000)
    fleet.owe("f0")
    fleet.run(1.0)
    fleet.director.on_event(ClientGone(RequestId("long")), fleet.now_s)
    fleet.run(10.0)
    assert fleet.news == []


def test_one_request_that_hangs_on_an_engine_that_lives_is_left_alone_after_a_generous_time() -> None:
    fleet = Fleet("p0", "d0", "d1")
    hung = fleet.decode("hung", token=False)
    fleet.run(28.0, "d0", "d1")
    assert fleet.left == []
    fleet.run(4.0, "d0", "d1")
    assert fleet.left == [("hung", hung)]
    assert fleet.news == []


def test_the_last_attempt_of_a_request_is_not_taken_from_an_engine_that_lives() -> None:
    fleet = Fleet("p0", "d0", "d1", "d2")
    fleet.decode("hung", token=False)
    for _ in range(2):
        entry = fleet.director.ledger.get(RequestId("hung"))
        assert entry is not None
        assert entry.decode_slot is not None
        failed = fleet.director.inventory.endpoint(entry.decode_slot).id
        fleet.director.on_event(DispatchFailed(RequestId("hung"), Stage.DECODE, failed), fleet.now_s)
        fleet.director.on_event(PrefillDone(RequestId("hung")), fleet.now_s)
    fleet.run(400.0, "d0", "d1", "d2")
    assert fleet.left == []


# --- honest engines -------------------------------------------------------------------------------------------------

PROFILES = sorted(SHIPPED_PROFILES)
loads = st.builds(
    Owed,
    decodes=st.integers(0, 256),
    opening=st.integers(0, 64),
    prefills=st.integers(0, 64),
    context_tokens=st.integers(0, 2_000_000),
    uncached_tokens=st.integers(1, 2_000_000),
    longest_tokens=st.integers(1, 131_072),
    preempts=st.booleans(),
)


def honest_silence_s(profile: HardwareProfile, owed: Owed) -> float:
    """The longest that an engine of this profile computes without an answer, step by step."""
    budget = profile.max_num_batched_tokens
    decodes = owed.decodes + owed.opening
    chunk = min(budget, owed.longest_tokens)
    longest_chunk_s = profile.step_s(chunk, 0, chunk * max(owed.longest_tokens - chunk / 2, chunk / 2), 0)
    alone_s, done = 0.0, 0
    while done < owed.longest_tokens:
        part = min(budget, owed.longest_tokens - done)
        alone_s += profile.step_s(part, 0, part * (done + part / 2), 0)
        done += part
    if owed.decodes:
        step_s = profile.step_s(decodes, owed.context_tokens, 0, decodes)
        return step_s + (longest_chunk_s if (owed.prefills and owed.uncached_tokens >= chunk) or owed.preempts else 0.0)
    if owed.prefills:
        return alone_s
    return profile.transfer_s(owed.longest_tokens) * owed.opening + alone_s if owed.opening else 0.0


@given(st.sampled_from(PROFILES), loads, st.floats(0.1, 3.0))
def test_an_engine_within_x_times_its_expected_times_is_never_suspected(name: str, owed: Owed, times: float) -> None:
    """For every shipped profile and any load: the deadline covers `patience` times what the law says."""
    profile = SHIPPED_PROFILES[name]
    beliefs = Beliefs(Belief.NONE, SHIPPED_PROFILES)
    beliefs.add(0, name)
    expected = Silences(beliefs).expected(0, owed)
    granted_s = WatchSettings().patience * expected.steps_s + expected.beside_s
    assert times * honest_silence_s(profile, owed) <= granted_s * (1 + 1e-9) + 1e-9


@pytest.mark.parametrize("known", [True, False], ids=["profile known", "profile unknown"])
def test_the_slowest_engine_with_prompts_of_32k_is_not_lost(known: bool) -> None:
    """Step by step: one prompt of 32,000 tokens after the other beside 20 decodes, on one flexible endpoint."""
    fleet = Fleet("f0", profile=SLOWEST.name if known else "")
    for k in range(20):
        fleet.open(f"d{k}", 1000)
        fleet.owe("f0")
        fleet.director.on_event(FirstToken(RequestId(f"d{k}")), 0.0)
    fleet.hear("f0")
    for k in range(3):
        fleet.open(f"long{k}", 32_000)
        fleet.owe("f0")
        done = 0
        while done < 32_000:
            part = min(8192, 32_000 - done)
            fleet.run(SLOWEST.step_s(part + 20, 20_000, part * (done + part / 2), 20))
            fleet.hear("f0")
            done += part
        fleet.director.on_event(FirstToken(RequestId(f"long{k}")), fleet.now_s)
    assert (EndpointId("f0"), Pulse.LOST) not in fleet.news
    assert fleet.left == []
    if known:
        assert fleet.news == []


def test_a_silence_that_ended_by_itself_teaches_that_the_hardware_is_slower() -> None:
    slowness = Slowness()
    slowness.ended(2.0, Silence(0.5), 10.0)
    assert slowness.ratio(10.0) == 4.0
    slowness.ended(1.0, Silence(0.5), 11.0)
    assert slowness.ratio(11.0) == pytest.approx(4.0, rel=0.01)
    assert slowness.ratio(610.0) == pytest.approx(2.5)
    slowness.ended(1000.0, Silence(0.5), 700.0)
    assert slowness.ratio(700.0) == 8.0, "bounded: one hang must not blind the watch"


# --- metrics by which an engine stands still --------------------------------------------------------------------------


def stand(fleet: Fleet, name: str) -> None:
    """Its metrics show running requests, and no token from now on."""
    fleet.signs[name] = fleet.signs[name]._replace(stood_s=fleet.now_s)


def whole(fleet: Fleet, name: str, prompt_tokens: int = 100) -> str:
    """A request whose answer comes whole decodes; returns where."""
    there = fleet.decode(name, prompt_tokens, token=False)
    fleet.signs[there] = fleet.signs[there]._replace(legs=0)
    return there


def test_whole_answers_are_left_where_the_metrics_show_that_nothing_is_computed() -> None:
    """They owe nothing until their end: a long generation and a hung engine look alike, but for the engine's counts."""
    fleet = Fleet("p0", "d0", "d1")
    there = whole(fleet, "r0")
    fleet.run(5.0)
    stand(fleet, there)
    fleet.run(14.6)
    assert fleet.news == []
    fleet.run(0.8)
    assert fleet.news == [(there, Pulse.SUSPECTED)]
    fleet.run(14.0)
    fleet.left.clear()  # by itself it is late, too; its face knows better
    fleet.run(1.0)
    assert (fleet.news[1:], fleet.left) == ([(there, Pulse.LOST)], [("r0", there)])


def test_an_engine_that_stands_still_without_work_of_ours_is_nobodys_concern() -> None:
    """Gauges change with steps alone, so one may show a request that has gone. It counts from our first one on."""
    fleet = Fleet("p0", "d0")
    stand(fleet, "d0")
    fleet.run(100.0)
    whole(fleet, "r0")
    fleet.run(14.0)
    assert fleet.news == []


def test_a_byte_of_a_stream_says_more_than_metrics_that_stand_still() -> None:
    fleet = Fleet("p0", "d0")
    fleet.decode("r0")
    stand(fleet, "d0")
    fleet.run(60.0, "d0")
    assert fleet.news == []


def test_a_long_prompt_alone_shows_no_token_for_as_long_as_it_takes() -> None:
    """Some 50 s by the profile: three times that is granted."""
    fleet = Fleet("p0", "d0", profile=SLOWEST.name)
    whole(fleet, "r0", 100_000)
    stand(fleet, "d0")
    fleet.run(60.0)
    assert fleet.news == []


def test_tokens_that_metrics_show_again_end_it() -> None:
    """And no probe there is left for giving its answer whole."""
    fleet = Fleet("p0", "d0", "d1")
    there = whole(fleet, "r0")
    stand(fleet, there)
    fleet.run(31.0)
    assert fleet.pulse(there) is Pulse.LOST
    fleet.director.on_event(DispatchFailed(RequestId("r0"), Stage.DECODE, EndpointId(there)), fleet.now_s)
    fleet.signs[there] = fleet.signs[there]._replace(stood_s=inf, computed_s=fleet.now_s)
    fleet.run(0.2)
    assert fleet.pulse(there) is Pulse.STEADY
    other = ({"d0", "d1"} - {there}).pop()
    assert fleet.decodes_go_to() == {other}, "it is ejected as before"
    left = len(fleet.left)
    fleet.run(10.0)
    assert whole(fleet, "probe") == there
    fleet.run(25.0)
    assert len(fleet.left) == left
