"""The pod API's values: signatures, plans and lines, and what is refused of them."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_api.signatures import NotSigned, Recipients, Signed, mac, refusal_of, signature_of
from ballast_core.model import Role
from ballast_gateway.podapi import auth, messages
from ballast_gateway.podapi.auth import SKEW_S, FirstCall, Guard, TokenFile
from ballast_gateway.podapi.plan import LIFE_S, Part, Place, Plan, PlanRefused, sign, verify

TOKEN = b"0123456789abcdef-new"
OLD = b"0123456789abcdef-old"
HERE = "0" * 32
DECODE = Place("d0", "10.0.0.1:8000", Role.DECODE)
PREFILL = Place("p0", "10.0.0.2:8000", Role.PREFILL)
PLAN = Plan(id="r1", by="gateway-a", decode=DECODE, prefill=PREFILL, segments=(Part(PREFILL, 100), Part(DECODE, None)))


@dataclass
class Clock:
    unix_s: float = 1e9
    tokens: tuple[bytes, ...] = field(default=(TOKEN, OLD))

    def guard(self) -> Guard:
        guard = Guard(lambda: self.tokens, lambda: self.unix_s)
        guard.recipient = HERE
        return guard


def signed(token: bytes = TOKEN, at_s: float = 1e9, body: bytes = b"{}", to: str = HERE) -> Signed:
    return Signed(token, "POST", "/ballast/v1/drain", body, at_s, to=to)


@pytest.mark.parametrize("token", [TOKEN, OLD])
def test_either_token_of_a_rotation_is_taken_and_the_answer_proves_the_same_one(token: bytes) -> None:
    """Holders and gateways read a new Secret at different times."""
    call = signed(token)
    proof = Clock().guard().check(call.authorization, "POST", "/ballast/v1/drain", b"{}")
    assert call.is_proof(proof)
    assert not signed(token).is_proof(proof)


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("GET", "/ballast/v1/drain", b"{}"),
        ("POST", "/ballast/v1/cancel", b"{}"),
        ("POST", "/ballast/v1/drain", b'{"on":false}'),
    ],
)
def test_a_signature_is_for_one_call(method: str, target: str, body: bytes) -> None:
    """What is overheard serves for nothing else."""
    with pytest.raises(NotSigned, match="for this method, route and body"):
        Clock().guard().check(signed().authorization, method, target, body)


def test_a_call_is_taken_once() -> None:
    """Also after a long time, and by each listener for itself."""
    clock = Clock()
    guard, call = clock.guard(), signed()
    assert guard.check(call.authorization, "POST", "/ballast/v1/drain", b"{}")
    for later_s, why in ((0, "made before"), (SKEW_S - 1, "made before"), (2 * SKEW_S + 1, "241 s behind")):
        clock.unix_s = 1e9 + later_s
        with pytest.raises(NotSigned, match=why):
            guard.check(call.authorization, "POST", "/ballast/v1/drain", b"{}")


def test_a_signature_is_for_one_listener_as_long_as_it_runs() -> None:
    """A first call, another listener's or an earlier one's, and one of a version that named nobody: whose token is
    wrong is told nothing of it."""
    guard = Clock().guard()
    for to, why in (("", "not signed for this listener"), ("1" * 32, "not signed for this listener")):
        with pytest.raises(NotSigned, match=why) as refused:
            guard.check(signed(to=to).authorization, "POST", "/ballast/v1/drain", b"{}")
        assert refused.value.recipient == HERE
        assert isinstance(refused.value, FirstCall) == (not to)
        swapped = signed(to=to).authorization.replace(f"r={to}", f"r={HERE}")
        for authorization in (swapped, signed(b"another-token-of-16", to=to).authorization):
            with pytest.raises(NotSigned, match="needs a call signed with the fleet's token"):
                guard.check(authorization, "POST", "/ballast/v1/drain", b"{}")
    old = signature_of(TOKEN, ("POST", "/ballast/v1/drain", "1000000000", "a" * 32), b"{}")
    with pytest.raises(NotSigned, match="of an older version"):
        guard.check(f"Ballast t=1000000000,n={'a' * 32},s={old}", "POST", "/ballast/v1/drain", b"{}")
    assert Clock().guard().recipient == HERE != Guard(lambda: (TOKEN,), lambda: 0.0).recipient


def test_a_recipient_is_learned_from_a_401_alone() -> None:
    """And asks for another attempt only where it is news."""
    known, there = Recipients(), "10.0.0.1:9004"

    def signed() -> Signed:
        return Signed(TOKEN, "GET", "/ballast/v1/state", b"", 1e9, to=known.at(there))

    for status, name, learned in (
        (200, HERE, False),
        (401, "", False),
        (401, "0" * 33, False),
        (401, HERE, True),
        (401, HERE, False),
        (401, "1" * 32, True),
    ):
        assert known.learn(there, status, name, signed()) is learned
    assert (known.at("10.0.0.1:9004"), known.at("10.0.0.2:9004")) == ("1" * 32, "")


def test_calls_that_were_under_way_together_are_all_made_anew() -> None:
    """The first answer teaches the name; the others were signed for nobody all the same."""
    known = Recipients()
    calls = [Signed(TOKEN, "GET", "/ballast/v1/state", b"", 1e9) for _ in range(3)]
    assert [known.learn("10.0.0.1:9004", 401, HERE, call) for call in calls] == [True] * 3


@pytest.mark.parametrize(
    ("ahead_s", "why"), [(0, ""), (SKEW_S, ""), (SKEW_S + 1, "121 s ahead of"), (-SKEW_S - 1, "121 s behind")]
)
def test_clocks_may_differ_within_limits(ahead_s: int, why: str) -> None:
    """Two minutes; who has the token is told by how much more, and nobody else."""
    expectation = pytest.raises(NotSigned, match=f"some {why} this clock.*set the clocks") if why else nullcontext()
    with expectation:
        call = signed(at_s=1e9 + ahead_s)
        assert Clock().guard().check(call.authorization, "POST", "/ballast/v1/drain", b"{}")
    stranger = signed(b"another-token-of-16", at_s=1e9 + ahead_s)
    with pytest.raises(NotSigned, match="needs a call signed with the fleet's token"):
        Clock().guard().check(stranger.authorization, "POST", "/ballast/v1/drain", b"{}")


def test_a_clock_that_is_set_back_leaves_room_for_the_calls_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken before may come again once it is that late again; all else is forgotten in its time."""
    monkeypatch.setattr(auth, "_MOST_NONCES", 4)
    clock = Clock(unix_s=1e9 + 86_400)
    guard = clock.guard()
    early = signed(at_s=clock.unix_s)
    assert guard.check(early.authorization, "POST", "/ballast/v1/drain", b"{}")
    clock.unix_s = 1e9
    for _ in range(20):
        clock.unix_s += auth.SKEW_S
        assert guard.check(signed(at_s=clock.unix_s).authorization, "POST", "/ballast/v1/drain", b"{}")
    clock.unix_s = 1e9 + 86_400
    with pytest.raises(NotSigned, match="made before"):
        guard.check(early.authorization, "POST", "/ballast/v1/drain", b"{}")


@pytest.mark.parametrize(
    ("authorization", "taken"),
    [
        ("", False),
        ("Bearer ", False),
        ("Bearer 0123456789abcdef", False),
        (f"Bearer {TOKEN.decode()}", True),
        (f"bearer {OLD.decode()}", True),
        ("Ballast", False),
        ("Ballast t=,n=,s=", False),
        ("Ballast t=²,n=x,s=y", False),
        (f"Ballast t={'9' * 300},n={'a' * 32},s=00", False),
        (f"Ballast t=1000000000,n={'a' * 32},s=", False),
        (f"Ballast t=1000000000,n={'a' * 32},s={'é' * 64}", False),
    ],
)
def test_only_who_has_a_token_is_let_in(authorization: str, taken: bool) -> None:
    """Nothing of what clients may write raises."""
    with nullcontext() if taken else pytest.raises(NotSigned):
        assert Clock().guard().check(authorization, "GET", "/", b"") == ""


@given(st.text())
def test_no_header_raises(authorization: str) -> None:
    """Nor is any let in."""
    for text in (authorization, f"Ballast {authorization}", f"Bearer {authorization}"):
        with pytest.raises(NotSigned):
            Clock().guard().check(text, "GET", "/", b"")


def test_parts_of_a_mac_cannot_be_shifted() -> None:
    """Their borders are in it."""
    assert mac(TOKEN, b"ab", b"c") != mac(TOKEN, b"a", b"bc")


def test_tokens_are_read_again_and_a_broken_file_leaves_the_last_ones(tmp_path: Path) -> None:
    """A Secret's rotation needs no restart."""
    now = [0.0]
    path = tmp_path / "token"
    with pytest.raises(OSError, match="token"):
        TokenFile(path, lambda: now[0])
    path.write_text("short\n")
    with pytest.raises(ValueError, match="16 characters"):
        TokenFile(path, lambda: now[0])
    path.write_bytes(OLD + b"\n")
    file = TokenFile(path, lambda: now[0])
    path.write_bytes(TOKEN + b"\n" + OLD + b"\n")
    assert file.tokens() == (OLD,)
    now[0] = 1.0
    assert file.tokens() == (TOKEN, OLD)
    path.write_bytes(b"")
    now[0] = 2.0
    assert file.tokens() == (TOKEN, OLD)


def test_a_plan_comes_back_as_it_was() -> None:
    """All of its fields."""
    plan = verify(sign(PLAN, TOKEN, 1e9), (OLD, TOKEN), 1e9 + 5)
    assert (plan.key, plan.decode, plan.prefill, plan.segments) == ("gateway-a/r1", DECODE, PREFILL, PLAN.segments)
    assert plan.until_s == 1e9 + LIFE_S
    assert plan.decode.endpoint().address == DECODE.address
    assert Part.of(plan.segments[0].segment()) == plan.segments[0]


@pytest.mark.parametrize("at_s", [1e9 - 200, 1e9 + 200])
def test_a_plan_holds_for_a_while_only(at_s: float) -> None:
    """It cannot be kept for later."""
    with pytest.raises(PlanRefused, match="does not hold"):
        verify(sign(PLAN, TOKEN, 1e9), (TOKEN,), at_s)


def test_a_plan_that_was_changed_is_refused() -> None:
    """Each single character counts."""
    value = sign(PLAN, TOKEN, 1e9)
    for at in range(0, len(value), 7):
        other = value[:at] + ("A" if value[at] != "A" else "B") + value[at + 1 :]
        with pytest.raises(PlanRefused):
            verify(other, (TOKEN,), 1e9)
    with pytest.raises(PlanRefused, match="not signed"):
        verify(value, (OLD,), 1e9)


@pytest.mark.parametrize("value", ["", ".", "a.b", "ä.ö", "=.=", "." * 100, "A" * 20_000])
def test_what_is_no_plan_is_refused(value: str) -> None:
    """With a reason, whatever it is."""
    with pytest.raises(PlanRefused):
        verify(value, (TOKEN,), 1e9)


ROW = messages.Row(
    id="r1", by="g", phase="decoding", decode="d0", prompt_tokens=7, blocks=(1, 2**64 - 1), block_size=64
)
ALL = [
    messages.Snapshot(holder="d0", incarnation="x", holds="agent", endpoint="d0", requests=(ROW,)),
    messages.Part(number=2, requests=(ROW,), more=True),
    messages.Opened(request=ROW),
    messages.Prefilled(key=ROW.key),
    messages.Began(key=ROW.key),
    messages.Progressed(tokens={ROW.key: 3}),
    messages.Redirected(key=ROW.key, decode="d1"),
    messages.LegFailed(key=ROW.key, stage="decode", endpoint="d0", fault="broke"),
    messages.Moved(key=ROW.key, target="d1"),
    messages.MoveFailed(key=ROW.key, target="d1", reason="full"),
    messages.Ended(key=ROW.key, outcome="completed", output_tokens=9),
    messages.Released(key=ROW.key),
    messages.Engine(endpoint="d0", running=1, waiting=0),
    messages.Signs(engines={"d0": (1, None, 0.5)}),
    messages.Draining(),
    messages.Beat(),
]


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_line_comes_back_as_it_was(message: messages.Message) -> None:
    """With its number."""
    line = messages.encode(message, 12)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    back = messages.decode(line)
    assert back.seq == 12
    assert messages.encode(back, 12) == line


def test_every_kind_of_line_is_tried_above() -> None:
    """One that is added must be, too."""
    assert {type(each) for each in ALL} == set(messages.Message.__args__)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (b"", "truncated"),
        (b"{}", "kind"),
        (b'{"kind":"no-such"}', "no-such"),
        (b'{"kind":"moved","key":"k"}', "target"),
        (b'{"kind":"progressed","tokens":{"k":"1"}}', r"\$\.tokens"),
        (b'{"kind":"opened","request":{"id":"r","by":"g","phase":"lost"}}', r"\$\.request\.phase"),
        (b'{"kind":"progressed","tokens":{"k":2147483648}}', r"\$\.tokens"),
        (b'{"kind":"ended","key":"k","outcome":"failed","output_tokens":-1}', r"\$\.output_tokens"),
        (b'{"kind":"failed","key":"k","stage":"decode","endpoint":"d","fault":"","status":-3}', r"\$\.status"),
        (b'{"kind":"engine","endpoint":"d","running":4611686018427387904,"waiting":0}', r"\$\.running"),
        (b'{"kind":"engine","endpoint":"d","running":0,"waiting":0,"kv_usage_ratio":1e300}', r"\$\.kv_usage_ratio"),
        (b'{"kind":"signs","engines":{"d":[1,null,-1e308]}}', r"\$\.engines"),
        (b"[" * 100_000, "object"),
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes, named: str) -> None:
    """And the reason names the field."""
    with pytest.raises(messages.BadMessage, match=named):
        messages.decode(line)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((name, value) for name in ("prompt_tokens", "generated_tokens") for value in (-1, 2**31, 2**63, 10**40)),
        *(("max_output_tokens", value) for value in (-5, 2**63)),
        *(("priority", value) for value in (-(2**63), 2**63 - 1)),
        *((name, value) for name in ("age_s", "rate_tokens_per_s") for value in (-1.0, 1e300)),
        ("predicted_remaining_tokens", -1.0),
        *(("blocks", (3, value)) for value in (-1, 2**64, 10**40)),
        ("blocks", tuple(range(messages.MOST_BLOCKS + 1))),
        *(("block_size", value) for value in (-64, 0, 2**31)),
    ],
)
def test_a_number_out_of_its_bounds_is_refused_in_any_row(field: str, value: object) -> None:
    """No ledger could add it up."""
    fields = {"blocks": [1, 2], "block_size": 64, field: value}
    row = {"id": "r", "by": "g", "phase": "decoding", **fields}
    opened = msgspec.json.encode({"kind": "opened", "request": {**row, field: None}})
    number = str(list(value) if isinstance(value, tuple) else value).encode()
    line = opened.replace(b'"%b":null' % field.encode(), b'"%b":%b' % (field.encode(), number))
    with pytest.raises(messages.BadMessage, match=rf"\$\.request\.{field}"):
        messages.decode(line)
    for head in (b'"kind":"snapshot","holder":"h","incarnation":"1","holds":"agent"', b'"kind":"part","number":1'):
        with pytest.raises(messages.BadMessage, match=rf"\$\.requests\[0\]\.{field}"):
            messages.decode(b'{%b,"requests":[%b]}' % (head, line.partition(b'"request":')[2][:-1]))


@given(st.integers(), st.floats(allow_nan=False), st.integers())
def test_what_clients_and_engines_say_is_told_within_the_bounds(number: int, share: float, rank: int) -> None:
    """So no client can have a gateway's lines refused by the others."""
    tokens = messages.counted(number)
    row = msgspec.structs.replace(ROW, prompt_tokens=tokens, priority=messages.ranked(rank))
    engine = messages.Engine(
        endpoint="d0",
        running=tokens,
        waiting=tokens,
        kv_usage_ratio=messages.measured(share),
        preemptions=messages.counted_ever(number),
    )
    for message in (messages.Opened(request=row), messages.Progressed(tokens={"k": tokens}), engine):
        assert messages.decode(messages.encode(message, 0)) == message


@pytest.mark.parametrize(
    ("body", "kind", "named"),
    [
        (b'{"request_id":"r"}', messages.MoveOrder, "target"),
        (b'{"request_id":"r","target":"d","to":1}', messages.MoveOrder, "to"),
        (b'{"endpoints":[{"id":"d","address":"a:1","role":"boss"}]}', messages.Inventory, r"endpoints\[0\]\.role"),
    ],
)
def test_a_wrong_body_is_refused_by_field(body: bytes, kind: type[messages.Body], named: str) -> None:
    """So that its writer can mend it."""
    with pytest.raises(messages.BadMessage, match=named):
        messages.read(body, kind)


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (401, b'{"error": {"message": "set the clocks"}}', ": set the clocks"),
        (401, b'{"detail": "set the clocks"}', ": set the clocks"),
        (401, b'{"detail": "' + b"x" * 1000 + b'"}', ": " + "x" * 200),
        (403, b'{"detail": "no"}', ""),
        (401, b'{"detail": "two\\nlines"}', ""),
        (401, b'{"detail": 7}', ""),
        (401, b'{"error": "flat"}', ""),
        (401, b"[" * 100_000, ""),
        *((401, body, "") for body in (b"", b"\xff", b"7", b'"detail"', b"[]", b"{}", b"null")),
    ],
)
def test_why_a_call_was_refused_is_read_from_any_answer(status: int, body: bytes, said: str) -> None:
    """It comes from whoever answered: nothing of it raises, and no more than a line of it goes into a log."""
    assert refusal_of(status, body) == said


@pytest.mark.parametrize(
    ("number", "said"), [(float("nan"), 0.0), (float("inf"), 1e9), (-1.0, 0.0), (0.5, 0.5), (1e12, 1e9)]
)
def test_what_an_engine_measures_is_brought_within_bounds(number: float, said: float) -> None:
    """JSON has no nan: a line with one would end the connection of every reader."""
    line = messages.encode(
        messages.Engine(endpoint="d0", running=1, waiting=0, kv_usage_ratio=messages.measured(number)), 1
    )
    read = messages.decode(line.strip())
    assert isinstance(read, messages.Engine)
    assert read.kv_usage_ratio == said
