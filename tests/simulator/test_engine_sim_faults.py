"""Which request gets which fault, and which faults cannot be: decided without a server."""

import json
from typing import Any

import pytest

from ballast_sim.engine_sim.misbehave.choosing import Misbehaviour
from ballast_sim.engine_sim.misbehave.clock import StoppableClock
from ballast_sim.engine_sim.misbehave.facts import Facts
from ballast_sim.engine_sim.misbehave.faults import (
    NAMES,
    Fault,
    FaultError,
    Hang,
    Scope,
    SmallContext,
    Status,
    WrongKey,
    read_faults,
    write_fault,
)
from ballast_sim.engine_sim.text import tokenize
from tests.support.virtual_clock import VirtualClock

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def facts(path: str = COMPLETIONS, **body: Any) -> Facts:
    """A request."""
    return Facts(path, json.dumps(body or {"prompt": "hello", "max_tokens": 5}).encode())


def hits(fault: Fault, *requests: Facts) -> list[bool]:
    """Which of the requests get the fault."""
    misbehaviour = Misbehaviour()
    misbehaviour.replace([fault])
    return [misbehaviour.choose(request) is fault for request in requests]


def test_a_share_is_thrown_with_a_seed() -> None:
    """About so many, the same ones each time, and others with another seed."""
    requests = [facts()] * 2000
    first = hits(Hang(scope=Scope(share=0.3, seed=1)), *requests)
    assert 500 < sum(first) < 700
    assert first == hits(Hang(scope=Scope(share=0.3, seed=1)), *requests)
    assert first != hits(Hang(scope=Scope(share=0.3, seed=2)), *requests)


def test_requests_out_of_scope_throw_no_die() -> None:
    """Scrapes in between do not change which requests are hit."""
    fault = Hang(scope=Scope(share=0.5, seed=3))
    alone = hits(fault, *[facts()] * 50)
    mixed = hits(fault, *[facts(), facts("/metrics")] * 50)
    assert mixed[::2] == alone
    assert not any(mixed[1::2])


def test_the_next_so_many_and_no_more() -> None:
    assert hits(Hang(scope=Scope(requests=2)), *[facts()] * 4) == [True, True, False, False]


def test_paths_name_routes_and_a_star_ends_them() -> None:
    paths = [facts(path) for path in (COMPLETIONS, CHAT, "/v1/models", "/metrics", "/health")]
    assert hits(Hang(), *paths) == [True, True, False, False, False]
    assert hits(WrongKey(), *paths) == [True, True, True, False, False]
    assert hits(Hang(scope=Scope(paths=("/metrics", "/health"))), *paths) == [False, False, False, True, True]
    assert hits(Hang(scope=Scope(paths=("/*",))), *paths) == [True] * 5


def test_legs() -> None:
    """Prefill: one token, and its KV is kept. Every other generation is a decode leg; a scrape is neither."""
    prefill = facts(prompt="a", max_tokens=1, kv_transfer_params={"do_remote_decode": True})
    decode = facts(prompt="a", max_tokens=9, kv_transfer_params={"do_remote_prefill": True})
    segment = facts(prompt="a", max_tokens=9, kv_transfer_params={"do_remote_decode": True})
    short = facts(prompt="a", max_tokens=1)
    requests = [prefill, decode, segment, short, facts(), facts("/metrics")]
    paths = (COMPLETIONS, "/metrics")
    assert hits(Hang(scope=Scope(legs="prefill", paths=paths)), *requests) == [True] + [False] * 5
    assert hits(Hang(scope=Scope(legs="decode", paths=paths)), *requests) == [False] + [True] * 4 + [False]


def test_a_marker_is_found_in_text_ids_and_chats() -> None:
    marked = "tell me about POISON now"
    messages = [{"role": "user", "content": [{"type": "text", "text": marked}]}]
    requests = [
        facts(prompt=marked),
        facts(prompt=tokenize(marked)),
        facts(CHAT, messages=messages),
        facts(CHAT, messages=[{"role": "user", "content": "x"}]),
        facts(prompt="harmless", poison="POISON"),
        Facts(COMPLETIONS, b'{"prompt": "POISON'),
    ]
    assert hits(Hang(scope=Scope(prompt="POISON")), *requests) == [True, True, True, False, False, False]


def test_a_small_context_is_small_for_longer_prompts_only() -> None:
    requests = [facts(prompt=[1] * 10), facts(prompt=[1] * 11), Facts(COMPLETIONS, b"no JSON")]
    assert hits(SmallContext(tokens=10), *requests) == [False, True, False]


def test_the_first_fault_that_hits_is_the_one() -> None:
    misbehaviour = Misbehaviour()
    some, rest = Status(status=500, scope=Scope(requests=1)), Hang()
    misbehaviour.replace([some, rest])
    assert [misbehaviour.choose(facts()) for _ in range(3)] == [some, rest, rest]
    assert [fault["given"] for fault in misbehaviour.state()["faults"]] == [1, 2]


EXAMPLES = [
    {"fault": "status", "status": 429, "scope": {"share": 0.5, "seed": 7, "legs": "prefill", "paths": ["/v1/*"]}},
    {"fault": "hang", "after": "head"},
    {"fault": "hang", "after": 3},
    {"fault": "flap", "down_s": 1, "up_s": 2.5},
]


@pytest.mark.parametrize("example", EXAMPLES, ids=json.dumps)
def test_json_there_and_back(example: dict[str, Any]) -> None:
    """One object or a list; what is left out is its default."""
    (fault,) = read_faults(json.dumps(example))
    assert read_faults(json.dumps([example])) == (fault,)
    written = write_fault(fault)
    assert read_faults(json.dumps(written)) == (fault,)
    scope = {**written.pop("scope", {}), **example.get("scope", {})}
    assert {**written, "scope": scope} == {**written, **example, "scope": scope}


def test_nothing_is_an_empty_list() -> None:
    assert read_faults("[]") == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be a fault as JSON, or a list of them"),
        ("3", "faults[0]: must be an object"),
        ("{}", f"faults[0].fault: must be one of {', '.join(NAMES)}"),
        ('{"fault": "tired"}', "faults[0].fault: must be one of wrong-key, "),
        ('[{"fault":"hang"},{"fault":"hang","often":1}]', "faults[1].often: is no field of hang"),
        ('{"fault": "status"}', "faults[0].status: is missing; add it"),
        ('{"fault": "status", "status": 200}', "faults[0].status: must be 400, "),
        ('{"fault": "hang", "after": -1}', "faults[0].after: must be request, head or a number of tokens (0 or more)"),
        ('{"fault": "hang", "after": true}', "faults[0].after: must be request, head or"),
        ('{"fault": "error-event", "after": "head"}', "faults[0].after: must be a whole number, not 'head'"),
        ('{"fault": "slow", "factor": 0.5}', "faults[0].factor: must be 1 or more, not 0.5"),
        ('{"fault": "flap", "down_s": 0, "up_s": 1}', "faults[0].down_s: must be above 0"),
        ('{"fault": "trickle", "pause_s": "long"}', "faults[0].pause_s: must be a number, not 'long'"),
        ('{"fault": "garbage", "garbage": "art"}', "faults[0].garbage: must be 'not-json', 'broken-token-ids'"),
        ('{"fault": "hang", "scope": 3}', "faults[0].scope: must be an object"),
        ('{"fault": "hang", "scope": {"share": 2}}', "faults[0].scope.share: must be 1 or less, not 2"),
        ('{"fault": "hang", "scope": {"requests": 0}}', "faults[0].scope.requests: must be 1 or more, not 0"),
        ('{"fault": "hang", "scope": {"paths": ["metrics"]}}', "faults[0].scope.paths[0]: must be a path such as"),
        ('{"fault": "hang", "scope": {"legs": "left"}}', "faults[0].scope.legs: must be 'all', 'prefill' or 'decode'"),
        ('{"fault": "freeze", "scope": {}}', "faults[0].scope: is no field of freeze"),
    ],
)
def test_what_cannot_be_is_refused_by_field(text: str, message: str) -> None:
    """The place, and what to do."""
    with pytest.raises(FaultError) as caught:
        read_faults(text)
    assert message in str(caught.value)


def test_a_stopped_clock_owes_its_calls_the_rest_of_their_time() -> None:
    """Nothing is due while it stands; what was due in 4 s is due 4 s after it goes on. Cancelled calls never come."""
    real = VirtualClock()
    clock = StoppableClock(real)
    called: list[float] = []
    real.advance(10)
    clock.call_at(14, lambda: called.append(clock.time()))
    clock.call_at(15, lambda: called.append(-1)).cancel()
    clock.stop()
    clock.call_at(12, lambda: called.append(clock.time()))
    real.advance(110)
    assert (called, clock.time()) == ([], 10)
    clock.go_on()
    clock.go_on()
    real.advance(111)
    assert called == []
    real.advance(120)
    assert called == [12, 14]
    assert clock.time() == 20
