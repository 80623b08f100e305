"""The scheduler's rules on scenarios small enough to be worked by hand.

Every step lasts 10 ms; blocks have 4 tokens.
"""

import math

import pytest

from ballast_sim.engine import EngineRequest, FinishReason
from ballast_sim.engine_sim.text import GeneratedContent
from tests.support.engines import config, request, started


def test_asynchronous_scheduling_composes_a_step_when_the_one_before_starts() -> None:
    """Step 1 is composed beside step 0, with a placeholder for the token that step 0 will bring.

    After 3 outputs the end is foreseen: no step computes a token too many.
    """
    run = started(config(async_scheduling=True), [request(1, 8, 3)]).until()
    assert run.chunks() == [[(8, 0, "1")], [(1, 8, "1")], [(1, 9, "1")]]
    assert [step.composed_s for step in run.steps] == [0.0, 0.0, 0.01]
    assert [step.starts_s for step in run.steps] == [0.0, 0.01, 0.02]
    assert run.token_times_s["1"] == [0.01, 0.02, 0.03]
    assert run.finished["1"].reason is FinishReason.LENGTH


def test_an_end_that_is_not_foreseen_costs_one_more_decode() -> None:
    """The second output is a stop token; step 2 was composed before anyone knew."""
    run = started(config(async_scheduling=True), [request(1, 8, 9, stop_after=2)]).until()
    assert run.chunks() == [[(8, 0, "1")], [(1, 8, "1")], [(1, 9, "1")]]
    assert run.token_times_s["1"] == [0.01, 0.02]
    assert run.finished["1"].reason is FinishReason.STOP
    assert run.engine.load().kv_usage_ratio == 0


@pytest.mark.parametrize(("asynchronous", "first_token_s"), [(True, 0.03), (False, 0.02)])
def test_an_arrival_waits_for_up_to_two_step_ends(asynchronous: bool, first_token_s: float) -> None:
    """It comes at 5 ms, in the middle of step 0. Asynchronously step 1 is composed already, so it joins step 2."""
    requests = [request(1, 4, 9), request(2, 4, 9, at_s=0.005)]
    run = started(config(async_scheduling=asynchronous), requests).until()
    assert run.token_times_s["2"][0] == first_token_s


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    """Budget 8: a prompt of 20 takes 8, 8 and 4 tokens, and only the last chunk brings a token."""
    run = started(config(max_num_batched_tokens=8), [request(1, 20, 1)]).until()
    assert run.chunks() == [[(8, 0, "1")], [(8, 8, "1")], [(4, 16, "1")]]
    assert run.token_times_s["1"] == [0.03]


def test_running_requests_take_the_budget_before_waiting_ones() -> None:
    """Budget 8: the decode of the first leaves 7 tokens for the second's prompt."""
    run = started(config(max_num_batched_tokens=8), [request(1, 8, 3), request(2, 8, 1, at_s=0.001)]).until()
    assert run.chunks() == [[(8, 0, "1")], [(1, 8, "1"), (7, 0, "2")], [(1, 9, "1"), (1, 7, "2")]]


def test_a_threshold_caps_a_long_prefill_only_beside_others() -> None:
    """Threshold 4: alone the prompt is taken whole; beside another request it is cut to 4 tokens a step."""
    alone = started(config(long_prefill_token_threshold=4), [request(1, 12, 1)]).until()
    assert alone.chunks() == [[(12, 0, "1")]]
    both = started(config(long_prefill_token_threshold=4), [request(1, 12, 1), request(2, 4, 1)]).until()
    assert both.chunks() == [[(4, 0, "1"), (4, 0, "2")], [(8, 4, "1")]]


def test_a_cached_prefix_is_not_computed_again_but_for_its_last_token() -> None:
    """12 equal tokens are 3 blocks. At most (12 - 1) // 4 = 2 of them may be hit, so the second computes 4 tokens."""
    requests = [request(1, 12, 1, ids=(7, 8, 9)), request(2, 12, 1, at_s=1.0, ids=(7, 8, 9))]
    run = started(config(), requests).until()
    assert run.chunks() == [[(12, 0, "1")], [(4, 8, "2")]]
    assert run.finished["2"].stats.cached_tokens == 8
    assert run.engine.scheduler.state.counters.prefix_hits == 8
    assert run.engine.scheduler.state.counters.prefix_queries == 24


def test_a_block_can_be_hit_in_the_very_call_that_allocates_it() -> None:
    """Two equal prompts arrive together: blocks get their hash at allocation, so the second shares two of them."""
    run = started(config(), [request(1, 12, 1, ids=(7, 8, 9)), request(2, 12, 1, ids=(7, 8, 9))]).until()
    assert run.chunks() == [[(12, 0, "1"), (4, 8, "2")]]


def test_generated_tokens_can_be_hit_as_well() -> None:
    """8 prompt and 5 output tokens leave KV for 12: two prompt blocks and one of output.

    The next turn of the conversation has these 13 tokens and 7 more: 3 blocks are hit, 8 tokens computed.
    """
    first = GeneratedContent(list(range(8)), 4, seed=0)
    first.word(4)
    second = GeneratedContent([*first.tokens, *range(7)], 4, seed=0)
    requests = [
        EngineRequest(request_id="1", input_tokens=8, max_tokens=5, content=first, arrival_s=0.0),
        EngineRequest(request_id="2", input_tokens=20, max_tokens=1, content=second, arrival_s=1.0),
    ]
    run = started(config(), requests).until()
    assert run.chunks()[-1] == [(8, 12, "2")]


def test_eviction_takes_the_least_recently_freed_block_from_its_tail() -> None:
    """5 usable blocks. Request 1 leaves blocks A1 A2 cached, freed tail first: the queue is [free x3, A2, A1].

    Request 2 takes 4 blocks: the 3 free ones and A2. So request 3, equal to 1, hits A1 only.
    """
    requests = [
        request(1, 9, 1, ids=(1, 2, 3)),
        request(2, 16, 1, at_s=1.0),
        request(3, 9, 1, at_s=2.0, ids=(1, 2, 3)),
    ]
    run = started(config(kv_blocks=6), requests).until()
    assert run.chunks() == [[(9, 0, "1")], [(16, 0, "2")], [(5, 4, "3")]]


def test_without_prefix_caching_nothing_is_hit() -> None:
    """The same prompt twice is computed twice."""
    requests = [request(1, 12, 1, ids=(7, 8, 9)), request(2, 12, 1, at_s=1.0, ids=(7, 8, 9))]
    run = started(config(prefix_caching=False), requests).until()
    assert run.chunks() == [[(12, 0, "1")], [(12, 0, "2")]]


def test_the_youngest_is_preempted_and_computed_anew() -> None:
    """6 usable blocks, two requests of 8 tokens: 2 blocks each, a third each from the 9th token on; all 6 are taken.

    In step 5 both need a fourth block. Request 1 preempts request 2, whose 12 computed tokens lie in 3 cached blocks,
    freed tail first; request 1 takes the tail. It ends there with its 6th token. Request 2 has 8 + 5 tokens; it hits
    2 blocks and computes the other 5 tokens anew, which brings its 6th.
    """
    run = started(config(kv_blocks=7), [request(1, 8, 6), request(2, 8, 6)]).until()
    assert run.chunks() == [
        [(8, 0, "1"), (8, 0, "2")],
        *([(1, context, "1"), (1, context, "2")] for context in (8, 9, 10, 11)),
        [(1, 12, "1")],
        [(5, 8, "2")],
    ]
    assert [step.preempted for step in run.steps] == [0, 0, 0, 0, 0, 1, 0]
    assert run.steps[6].resumed == 1
    assert run.finished["2"].stats.preemptions == 1
    assert len(run.token_times_s["2"]) == 6


def test_under_priority_the_least_important_is_preempted() -> None:
    """As before, but request 1 has the larger priority number: it is the victim, though it came first.

    It stands before request 2 in the running list and is scheduled already when request 2 finds no block, so its
    token goes back to the budget.
    """
    requests = [request(1, 8, 6, priority=5), request(2, 8, 6, priority=1)]
    run = started(config(kv_blocks=7, policy="priority"), requests).until()
    assert run.steps[0].chunks == [(8, 0, "2"), (8, 0, "1")]
    assert run.finished["1"].stats.preemptions == 1
    assert run.finished["2"].stats.preemptions == 0


def test_a_request_is_admitted_only_if_its_whole_prompt_fits_and_nobody_overtakes() -> None:
    """10 usable blocks: request 1 holds 5; request 2 needs 6 and waits, though its first chunk of 2 blocks would fit.

    Request 3 needs 1 block and waits behind it.
    """
    settings = config(kv_blocks=11, max_num_batched_tokens=20)
    requests = [request(1, 17, 4), request(2, 24, 1, at_s=0.001), request(3, 4, 1, at_s=0.001)]
    run = started(settings, requests).until()
    assert run.chunks()[:4] == [[(17, 0, "1")], [(1, 17, "1")], [(1, 18, "1")], [(1, 19, "1")]]
    assert run.steps[4].chunks == [(20, 0, "2")]
    assert run.steps[5].chunks == [(4, 20, "2"), (4, 0, "3")]


def test_max_num_seqs_limits_the_running_list() -> None:
    """One at a time: the second starts when the first has ended."""
    run = started(config(max_num_seqs=1), [request(1, 4, 2), request(2, 4, 1)]).until()
    assert run.chunks() == [[(4, 0, "1")], [(1, 4, "1")], [(4, 0, "2")]]


def pulling(**changes: object) -> dict[str, object]:
    """The decode side of a hand-off whose pulls last 4 ms."""
    return {"pulls_kv": True, "async_scheduling": True, "pull_setup_s": 0.004, **changes}


def test_a_pulled_prompt_computes_its_last_token_only() -> None:
    """Blocks are reserved at 0 ms and the pull starts; it ends at 4 ms; one token after 7 brings the first output."""
    run = started(config(**pulling()), [request(1, 8, 2, pull=True)])
    run.until(0.0)
    assert run.engine.load().kv_usage_ratio == pytest.approx(2 / 100)
    assert (run.engine.load().waiting, run.engine.load().deferred, run.engine.load().running) == (1, 1, 0)
    run.until()
    assert run.chunks() == [[(1, 7, "1")], [(1, 8, "1")]]
    assert run.steps[0].composed_s == 0.004
    assert run.token_times_s["1"] == [0.014, 0.024]
    assert (run.pulls[0].at_s, run.pulls[0].tokens) == (0.0, 8)
    assert run.finished["1"].stats.pulled_tokens == 8


def test_a_pull_takes_only_what_is_not_cached() -> None:
    """The second prompt shares 2 blocks of 4 with the first: 12 - 8 = 4 tokens are pulled."""
    requests = [
        request(1, 12, 1, pull=True, ids=(1, 2, 3)),
        request(2, 12, 1, at_s=1.0, pull=True, ids=(1, 2, 3)),
    ]
    run = started(config(**pulling()), requests).until()
    assert [pull.tokens for pull in run.pulls] == [12, 4]


def test_a_pull_waits_until_loads_in_flight_leave_room() -> None:
    """8 usable blocks; the first prompt takes 6. The second needs 4 and starts when the first has ended."""
    requests = [request(1, 24, 1, pull=True), request(2, 16, 1, pull=True)]
    run = started(config(kv_blocks=9, **pulling()), requests).until()
    assert [pull.at_s for pull in run.pulls] == [0.0, pytest.approx(0.014)]
    assert run.finished["2"].reason is FinishReason.LENGTH


def test_a_request_that_preempts_itself_makes_way_for_one_that_is_ready() -> None:
    """17 usable blocks, one place. Request 1's pull takes 6 and is ready at 4 ms, but request 2 has the place.

    With 44 tokens it holds the other 11 blocks; its 45th finds none and it preempts itself. That step is empty; the
    next one, at the same time, admits request 1, and when that has ended request 2 goes on.
    """
    settings = config(kv_blocks=18, max_num_seqs=1, **pulling(async_scheduling=False))
    run = started(settings, [request(1, 21, 1, pull=True), request(2, 22, 24)]).until()
    assert run.steps[0].chunks == [(22, 0, "2")]
    assert run.steps[22].chunks == [(1, 43, "2")]
    assert run.steps[23].chunks == [(1, 20, "1")]
    assert run.steps[23].composed_s == pytest.approx(0.23)
    assert run.finished["2"].stats.preemptions == 1
    assert {end.reason for end in run.finished.values()} == {FinishReason.LENGTH}


def test_a_failed_pull_ends_the_request_or_is_recomputed() -> None:
    """As kv_load_failure_policy says: an error, or a prefill of our own."""
    failing = started(config(**pulling(pull_setup_s=None)), [request(1, 8, 1, pull=True)]).until()
    failing.engine.pull_ended("1", 0.5, failed=True)
    assert failing.until().finished["1"].reason is FinishReason.ERROR
    assert failing.engine.load().kv_usage_ratio == 0
    settings = config(**pulling(pull_setup_s=None, recompute_failed_pulls=True))
    healing = started(settings, [request(1, 8, 1, pull=True)]).until()
    healing.engine.pull_ended("1", 0.5, failed=True)
    assert healing.until().chunks() == [[(8, 0, "1")]]
    assert healing.finished["1"].reason is FinishReason.LENGTH
    assert healing.finished["1"].stats.pulled_tokens == 0


def test_an_aborted_pull_gives_its_blocks_back_when_the_read_has_ended() -> None:
    """Nobody can call back a read under way: 2 of 100 blocks stay taken until 4 ms."""
    run = started(config(**pulling()), [request(1, 8, 2, pull=True)]).until(0.0)
    assert run.engine.abort("1", 0.001)
    run.until(0.001)
    assert run.finished["1"].reason is FinishReason.ABORT
    assert run.engine.load().kv_usage_ratio == pytest.approx(2 / 100)
    run.until()
    assert run.engine.load().kv_usage_ratio == 0
    assert run.engine.next_event_s() == math.inf


def test_finished_prefills_hold_their_blocks_until_they_are_pulled() -> None:
    """8 tokens are 2 blocks; the hand-off names them; a release frees them and works once."""
    run = started(config(), [request(1, 8, 1, hold=True)]).until(0.5)
    hand_off = run.finished["1"].hand_off
    assert hand_off is not None
    assert (len(hand_off.blocks), hand_off.tokens) == (2, 8)
    assert hand_off.expires_at_s == pytest.approx(30.01)
    assert run.engine.load().kv_usage_ratio == pytest.approx(2 / 100)
    assert run.engine.load().running == 0
    assert run.engine.release("1", 1.0)
    run.until(1.0)
    assert run.engine.load().kv_usage_ratio == 0
    assert not run.engine.release("1", 2.0)
    assert run.engine.expired_leases == 0


def test_pulled_blocks_are_free_when_the_next_step_of_the_worker_has_been_processed() -> None:
    """Read at 25 ms, beside step 2. Step 3 is composed at 30 ms and reports it, so at 40 ms the blocks are free."""
    requests = [request(1, 8, 1, hold=True), request(2, 4, 9, at_s=0.005)]
    run = started(config(hands_over_kv=True), requests).until(0.025)
    assert run.engine.release("1", 0.025)
    run.until(0.039)
    assert run.engine.load().kv_usage_ratio == pytest.approx((2 + 2) / 100)
    run.until(0.041)
    assert run.engine.load().kv_usage_ratio == pytest.approx(2 / 100)


def test_a_producer_drops_the_output_in_flight_of_a_request_that_it_preempts() -> None:
    """Victim 2's step is under way when its blocks go to request 1.

    Elsewhere the token of that step still comes, and the victim waits for it; a producer computes it again, so it
    has one token fewer when it resumes.
    """
    settings = {"kv_blocks": 7, "max_model_len": 24, "async_scheduling": True}
    requests = [request(1, 12, 8), request(2, 4, 8)]
    runs = [started(config(hands_over_kv=role, **settings), requests).until() for role in (False, True)]
    assert [run.finished["2"].stats.preemptions for run in runs] == [1, 1]
    assert [len(run.token_times_s["2"]) for run in runs] == [8, 8]
    resumed = [max(tokens for step in run.chunks()[1:] for tokens, _, name in step if name == "2") for run in runs]
    assert resumed[0] == resumed[1] + 1


def test_kv_that_nobody_pulls_is_stranded_until_its_lease_ends() -> None:
    """30 s after the end; a heartbeat at 20 s moves that to 40 s, one at 5 s moves nothing (5 + 20 < 30)."""
    run = started(config(), [request(1, 8, 1, hold=True), request(2, 8, 1, hold=True)]).until(5.0)
    assert run.engine.extend_lease("1", 5.0)
    run.until(20.0)
    assert run.engine.extend_lease("2", 20.0)
    run.until(31.0)
    assert run.engine.expired_leases == 1
    assert run.engine.load().kv_usage_ratio == pytest.approx(2 / 100)
    run.until(39.9)
    assert run.engine.expired_leases == 1
    run.until(40.1)
    assert run.engine.expired_leases == 2
    assert run.engine.load().kv_usage_ratio == 0


def test_an_aborted_prefill_holds_nothing() -> None:
    """An abort gives no handle, and the blocks are free at once."""
    run = started(config(max_num_batched_tokens=8), [request(1, 40, 1, hold=True)]).until(0.01)
    assert run.engine.abort("1", 0.011)
    run.until()
    assert run.finished["1"].hand_off is None
    assert run.engine.load().kv_usage_ratio == 0


def test_an_abort_takes_effect_when_the_step_under_way_ends() -> None:
    """Asked at 12 ms, done at 20 ms; the token of that step is lost, its blocks come back."""
    run = started(config(), [request(1, 8, 9)]).until(0.01)
    assert run.engine.abort("1", 0.012)
    run.until()
    assert run.finished["1"].at_s == pytest.approx(0.02)
    assert run.token_times_s["1"] == [0.01]
    assert not run.engine.abort("1", 0.03)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (request(1, 0, 1), "input_tokens: must be 1 or more"),
        (request(1, 4, 0), "max_tokens: must be 1 or more"),
        (request(1, 64, 1), "input_tokens: 64 leave no room"),
        (request(1, 4, 1, pull=True), "pull: this engine has no pull connector"),
    ],
    ids=["no prompt", "no output", "too long", "no connector"],
)
def test_a_request_that_could_never_run_is_refused(bad: object, message: str) -> None:
    """The message names the field."""
    run = started(config())
    with pytest.raises(ValueError, match=message):
        run.engine.add(bad, 0.0)  # type: ignore[arg-type]


def test_a_model_longer_than_the_cache_is_refused() -> None:
    """Such a request would wait for ever."""
    run = config(kv_blocks=3)
    assert run.max_model_len == 8
    with pytest.raises(ValueError, match="max_model_len: 9 tokens do not fit the KV cache of 8 tokens"):
        type(run)(timer=run.timer, kv_blocks=3, block_size=4, max_model_len=9)


def test_the_clock_never_goes_back() -> None:
    """A driver that mixes up its times is told so."""
    run = started(config(), [request(1, 4, 1, at_s=5.0)]).until()
    with pytest.raises(ValueError, match="now_s: the clock went back"):
        run.engine.add(request(2, 4, 1), 1.0)
