"""The account of the fleet: what sources say in any order, lose and repeat ends as what is true, and leaves nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Fault, RequestId, Stage
from ballast_core.model.events import EndpointLost, EndpointObserved, MigrationFailed, MoveOrdered, RequestArrived
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.ledger import Phase
from ballast_gateway.podapi import feed as feeds
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.feed import Feed
from ballast_gateway.podapi.messages import BadMessage, Message, Row, Snapshot, encode
from ballast_gateway.podapi.rows import Rows
from ballast_gateway.view import book as books
from ballast_gateway.view.book import Book
from ballast_gateway.view.lines import Lines
from tests.support.core_builders import endpoint, request
from tests.support.gateway_kit import until
from tests.support.recount import check_books

ENDPOINTS = ("p0", "d0", "d1")
AGENTS = {"d0": "a0", "d1": "a1"}
PICKERS = ("gw-b", "gw-c")


class Share:
    """What a tenant has of other gateways."""

    def __init__(self) -> None:
        self.now = self.tokens = 0

    def began_elsewhere(self, prompt_tokens: int) -> None:
        self.now += 1
        self.tokens += prompt_tokens

    def ended_elsewhere(self, output_tokens: int) -> None:
        self.now -= 1
        self.tokens += output_tokens


def observer(
    me: str = "gw-a", names: tuple[str, ...] = ENDPOINTS, share: books.Share | None = None
) -> tuple[Book, Director]:
    """`share`: of tenant `t`, the only one whose share is bounded."""
    least = LeastRequests()
    d = Director(DirectorSettings(prefill=least, decode=least, rescheduling=Ares(), profiles=SHIPPED_PROFILES))
    for name in names:
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    clock = [0.0]

    def feed(event: object) -> None:
        clock[0] += 1e-6
        d.on_event(event, clock[0])  # type: ignore[arg-type]
        check_books(d.ledger)

    return Book(me, d, feed, share_of=lambda tenant: share if tenant == "t" else None), d


def row(by: str, name: str, decode: str = "d0", *, prefill: str = "p0", **more: object) -> Row:
    fields: dict[str, object] = {"phase": "prefilling", "decode": decode, "prefill": prefill, "prompt_tokens": 100}
    return Row(id=name, by=by, **{**fields, **more})  # type: ignore[arg-type]


def snapshot(*rows: Row, holds: str = "agent", holder: str = "h") -> Snapshot:
    return Snapshot(holder=holder, incarnation="1", holds=holds, requests=rows)  # type: ignore[arg-type]


def booked(d: Director) -> dict[str, tuple[str, bool, int]]:
    """By id: where it decodes, whether it does yet, and its tokens."""
    found: dict[str, tuple[str, bool, int]] = {}
    for entry in d.ledger:
        assert entry.decode_slot is not None
        where = d.inventory.endpoint(entry.decode_slot).id
        found[str(entry.request.id)] = (where, entry.phase is Phase.DECODING, entry.generated_tokens)
    return found


def test_a_request_goes_from_its_picker_to_its_holder_and_is_booked_once() -> None:
    """Opened by the one, confirmed by the other, released, followed, ended."""
    book, d = observer()
    book.take("gw-b", snapshot(holds="gateway"), 0.0)
    book.take("a0", snapshot(), 0.0)
    book.take("gw-b", said.Opened(request=row("gw-b", "r")), 0.1)
    assert booked(d) == {"gw-b/r": ("d0", False, 0)}
    book.take("a0", said.Opened(request=row("gw-b", "r")), 0.2)
    book.take("gw-b", said.Released(key="gw-b/r"), 0.3)
    book.passes(9.0)
    assert len(d.ledger) == 1
    book.take("a0", said.Prefilled(key="gw-b/r"), 9.1)
    book.take("a0", said.Began(key="gw-b/r"), 9.2)
    book.take("a0", said.Progressed(tokens={"gw-b/r": 7, "gw-b/other": 3}), 9.3)
    assert booked(d) == {"gw-b/r": ("d0", True, 7)}
    book.take("a0", said.Moved(key="gw-b/r", target="d1"), 9.4)
    assert booked(d) == {"gw-b/r": ("d1", True, 7)}
    book.take("a0", said.Redirected(key="gw-b/r", decode="d0", prefill="p0"), 9.5)
    assert booked(d) == {"gw-b/r": ("d0", False, 0)}
    book.take("a0", said.Ended(key="gw-b/r", outcome="completed", output_tokens=9), 9.6)
    assert (len(d.ledger), len(book)) == (0, 0)


def test_a_release_that_overtakes_the_holder_leaves_no_gap() -> None:
    """The holder's word takes another connection: the request stays booked meanwhile, and leaves if it never comes."""
    book, d = observer()
    for name, holds in (("gw-b", "gateway"), ("a0", "agent")):
        book.take(name, snapshot(holds=holds), 0.0)
    for name in ("seen", "unseen"):
        book.take("gw-b", said.Opened(request=row("gw-b", name)), 0.1)
        book.take("gw-b", said.Released(key=f"gw-b/{name}"), 0.2)
    assert len(d.ledger) == 2
    book.take("a0", said.Opened(request=row("gw-b", "seen")), 0.3)
    book.passes(0.2 + books.HANDING_OVER_S)
    assert set(booked(d)) == {"gw-b/seen"}


def test_a_picker_that_speaks_after_the_end_opens_nothing() -> None:
    """A short request can be over at its agent before its picker's word has come."""
    book, d = observer()
    for name, holds in (("gw-b", "gateway"), ("a0", "agent")):
        book.take(name, snapshot(holds=holds), 0.0)
    book.take("a0", said.Opened(request=row("gw-b", "r")), 0.1)
    book.take("a0", said.Ended(key="gw-b/r", outcome="completed"), 0.2)
    book.take("gw-b", said.Opened(request=row("gw-b", "r")), 0.3)
    assert not len(d.ledger)
    book.passes(0.2 + books.HANDING_OVER_S)
    book.take("gw-b", said.Opened(request=row("gw-b", "r")), 2.0)
    assert len(d.ledger) == 1, "the same id again, later"


def test_a_gateway_that_holds_streams_opens_the_same_id_again() -> None:
    """A client may give all of its requests one id: each one's end is followed by the next one's beginning."""
    book, d = observer()
    book.take("gw-b", snapshot(holds="gateway"), 0.0)
    book.take("gw-c", snapshot(holds="gateway"), 0.0)
    for turn in range(3):
        book.take("gw-b", said.Opened(request=row("gw-b", "session")), 0.1 + turn / 10)
        assert set(booked(d)) == {"gw-b/session"}
        book.take("gw-b", said.Ended(key="gw-b/session", outcome="completed"), 0.15 + turn / 10)
        assert not len(d.ledger)
    book.take("gw-c", said.Opened(request=row("gw-b", "session")), 0.5)
    assert not len(d.ledger), "another source may speak of what is over"


def test_a_tenants_share_has_each_request_of_others_once_from_its_first_claim_to_its_end() -> None:
    """Its prompt, and its output as far as that was told, also where nobody says how it ended. Ours are not in it."""
    share = Share()
    book, d = observer(share=share)
    for name, holds in (("gw-b", "gateway"), ("a0", "agent")):
        book.take(name, snapshot(holds=holds), 0.0)
    for name in ("ended", "lost"):
        book.take("gw-b", said.Opened(request=row("gw-b", name, tenant="t")), 0.1)
        book.take("a0", said.Opened(request=row("gw-b", name, tenant="t")), 0.2)
        book.take("gw-b", said.Released(key=f"gw-b/{name}"), 0.3)
        book.take("a0", said.Progressed(tokens={f"gw-b/{name}": 7}), 0.4)
    book.take("gw-b", said.Opened(request=row("gw-b", "other", tenant="u")), 0.5)
    assert (share.now, share.tokens) == (2, 200)
    book.take("a0", said.Ended(key="gw-b/ended", outcome="completed", output_tokens=9), 1.0)
    assert (share.now, share.tokens) == (1, 209)
    book.lost("a0", 2.0)
    book.passes(2.0 + books.GONE_S)
    assert (share.now, share.tokens) == (0, 216)
    ours = request("ours", 100)
    d.on_event(RequestArrived(ours), 8.0)
    book.take("a0", snapshot(row("gw-a", "ours", tenant="t")), 8.1)
    assert share.now == 0


def two_agents() -> tuple[Book, Director]:
    """Envoy has tried a request at d0, and then at d1."""
    book, d = observer()
    for name in AGENTS.values():
        book.take(name, snapshot(), 0.0)
    book.take("a0", said.Opened(request=row("gw-b", "r")), 1.0)
    book.take("a0", said.Began(key="gw-b/r"), 1.5)
    book.take("a1", said.Opened(request=row("gw-b", "r", "d1")), 2.0)
    return book, d


def test_the_last_word_of_an_agent_that_was_left_ends_nothing() -> None:
    """The agent to which the request came last speaks for it alone, and ends it."""
    book, d = two_agents()
    assert booked(d) == {"gw-b/r": ("d1", False, 0)}
    for message in (
        said.Progressed(tokens={"gw-b/r": 30}),
        said.LegFailed(key="gw-b/r", stage="decode", endpoint="d1", fault="broke"),
        said.Redirected(key="gw-b/r", decode="d0"),
        said.Moved(key="gw-b/r", target="d0"),
        said.Ended(key="gw-b/r", outcome="failed", fault="broke"),
    ):
        book.take("a0", message, 2.1)
        assert booked(d) == {"gw-b/r": ("d1", False, 0)}
    book.take("a1", said.Began(key="gw-b/r"), 3.0)
    book.take("a1", said.Progressed(tokens={"gw-b/r": 50}), 3.1)
    book.passes(9.0)
    assert booked(d) == {"gw-b/r": ("d1", True, 50)}
    book.take("a1", said.Ended(key="gw-b/r", outcome="completed"), 9.1)
    assert (len(d.ledger), len(book), book.sources["a0"].keys) == (0, 0, set())


def test_an_agent_that_was_left_and_comes_back_holds_nothing_more() -> None:
    """Its snapshot has the request still, as one that came there before it came to the other."""
    book, d = two_agents()
    book.lost("a0", 2.5)
    book.take("a0", snapshot(row("gw-b", "r", phase="decoding", generated_tokens=9, age_s=2.0)), 3.0)
    assert booked(d) == {"gw-b/r": ("d1", False, 0)}
    book.take("a0", said.Ended(key="gw-b/r", outcome="failed"), 3.1)
    assert booked(d) == {"gw-b/r": ("d1", False, 0)}


def test_a_source_that_is_gone_is_believed_for_five_seconds() -> None:
    """Back within that time, its snapshot says what is left; else all that it claimed has ended."""
    book, d = observer()
    book.take("a0", snapshot(row("gw-b", "stays"), row("gw-b", "ends")), 0.0)
    book.lost("a0", 1.0)
    book.passes(5.9)
    assert len(d.ledger) == 2
    book.take("a0", snapshot(row("gw-b", "stays", phase="decoding", generated_tokens=5)), 5.95)
    book.passes(30.0)
    assert booked(d) == {"gw-b/stays": ("d0", True, 5)}
    book.lost("a0", 30.0)
    book.passes(30.0 + books.GONE_S)
    assert not len(d.ledger)


def test_an_endpoint_that_becomes_known_has_its_load_at_once() -> None:
    """A gateway that starts may hear of requests before it hears of the pods."""
    book, d = observer(names=("p0",))
    book.take("a0", snapshot(row("gw-b", "r", phase="decoding", generated_tokens=40)), 0.0)
    assert not len(d.ledger)
    d.on_event(EndpointObserved(endpoint("d0")), 1.0)
    book.endpoints_changed()
    assert booked(d) == {"gw-b/r": ("d0", True, 40)}
    book.take("a0", said.Ended(key="gw-b/r", outcome="completed"), 2.0)
    d.on_event(EndpointLost(EndpointId("d0")), 3.0)
    assert not len(d.ledger)


def test_nobody_speaks_of_what_another_claims() -> None:
    """Lines about requests that their sender has not opened change nothing."""
    book, d = observer()
    book.take("a0", snapshot(row("gw-b", "r")), 0.0)
    book.take("a1", snapshot(), 0.0)
    for message in (
        said.Ended(key="gw-b/r", outcome="failed"),
        said.Moved(key="gw-b/r", target="d1"),
        said.Progressed(tokens={"gw-b/r": 500}),
        said.Released(key="gw-b/r"),
        said.LegFailed(key="gw-b/r", stage="decode", endpoint="d0", fault="broke"),
    ):
        book.take("a1", message, 1.0)
    book.passes(60.0)
    assert booked(d) == {"gw-b/r": ("d0", False, 0)}


def test_a_flood_is_refused_and_nothing_of_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One source claims without end; another one's request stays."""
    monkeypatch.setattr(books, "MOST_ROWS", 50)
    book, d = observer()
    book.take("a0", snapshot(row("gw-b", "r")), 0.0)
    book.take("evil", snapshot(), 0.0)
    for k in range(50):
        book.take("evil", said.Opened(request=row("x", f"{k}")), 1.0)
    with pytest.raises(BadMessage):
        book.take("evil", said.Opened(request=row("x", "50")), 1.0)
    book.forget("evil")
    assert set(booked(d)) == {"gw-b/r"}
    for k in range(200):
        book.take("a0", said.Opened(request=row("gw-b", f"s{k}")), 2.0)
        book.take("a0", said.Ended(key=f"gw-b/s{k}", outcome="completed"), 2.0)
    assert len(book._over) <= 50


def test_failed_legs_of_others_eject_an_endpoint_here() -> None:
    """Five in a row, whoever held them."""
    book, d = observer(names=("p0", "d0", "d1", "d2"))
    book.take("a1", snapshot(), 0.0)
    for k in range(5):
        book.take("a1", said.Opened(request=row("gw-b", f"{k}")), 1.0)
        failed = said.LegFailed(key=f"gw-b/{k}", stage="decode", endpoint="d0", fault="broke")
        book.take("a1", failed, 1.0)
        book.take("a1", said.Redirected(key=f"gw-b/{k}", decode="d1"), 1.0)
    slot = d.inventory.slot_of(EndpointId("d0"))
    assert slot is not None
    assert d.health.is_ejected(slot)
    assert {where for where, _, _ in booked(d).values()} == {"d1"}


@dataclass
class Own:
    """A ticket's ears."""

    heard: list[object] = field(default_factory=list)

    def confirmed(self, source: str) -> None:
        self.heard.append(source)

    def prefilled(self) -> None:
        self.heard.append("prefilled")

    def began(self) -> None:
        self.heard.append("began")

    def leg_failed(self, fault: Fault) -> None:
        self.heard.append(fault)

    def redirected(self) -> None:
        self.heard.append("redirected")

    def placed(self, decode: EndpointId, prefill: EndpointId | None) -> None:
        self.heard.append((decode, prefill))

    def moved(self, target: EndpointId) -> None:
        self.heard.append(f"moved to {target}")

    def move_failed(self) -> None:
        self.heard.append("stays")

    def ended(self, end: said.Ended, fault: Fault | None) -> None:
        self.heard.append((end.outcome, end.output_tokens))


def test_requests_of_this_gateway_stay_under_their_own_ids() -> None:
    """The holder's word reaches the ticket, and the Director's books, without a second entry."""
    book, d = observer("gw-a")
    d.on_event(RequestArrived(request("r")), 0.0)
    own = book.own[RequestId("r")] = Own()
    where = booked(d)["r"][0]
    book.take(AGENTS[where], snapshot(row("gw-a", "r", where)), 0.1)
    book.take(AGENTS[where], said.Began(key="gw-a/r"), 0.2)
    book.take(AGENTS[where], said.Progressed(tokens={"gw-a/r": 12}), 0.3)
    assert booked(d) == {"r": (where, True, 12)}
    book.take(AGENTS[where], said.Ended(key="gw-a/r", outcome="completed", output_tokens=12), 0.4)
    assert own.heard == [AGENTS[where], "began", ("completed", 12)]


@pytest.mark.parametrize("own", [False, True])
def test_a_move_whose_end_was_said_while_nobody_listened_is_over(own: bool) -> None:
    """The holder's next snapshot has the request where it was: nothing stays booked on the target."""
    book, d = observer()
    name = "r" if own else "gw-b/r"
    if own:
        d.on_event(RequestArrived(request("r")), 0.0)
        book.own[RequestId("r")] = Own()
    where = booked(d)["r"][0] if own else "d0"
    there = row("gw-a" if own else "gw-b", "r", where, phase="decoding", generated_tokens=5)
    book.take(AGENTS[where], snapshot(there), 0.1)
    target = EndpointId("d1" if where == "d0" else "d0")
    slot = d.inventory.slot_of(target)
    d.on_event(MoveOrdered(RequestId(name), target), 1.0)
    assert d.ledger.requests[Stage.DECODE][slot] == 1
    book.lost(AGENTS[where], 2.0)
    book.take(AGENTS[where], snapshot(there), 3.0)
    assert d.ledger.requests[Stage.DECODE][slot] == 0
    assert booked(d) == {name: (where, True, 5)}
    book.take(AGENTS[where], said.Moved(key=there.key, target=target), 4.0)
    assert booked(d) == {name: (target, True, 5)}, "it was under way after all"


def test_a_request_of_this_gateway_that_it_has_forgotten_breaks_no_line() -> None:
    """Its ticket is closed: words about it are about nobody's."""
    book, d = observer()
    d.on_event(RequestArrived(request("r")), 0.0)
    book.own[RequestId("r")] = Own()
    where = booked(d)["r"][0]
    book.take("gw-b", snapshot(row("gw-a", "r", where), holds="gateway"), 0.1)
    del book.own[RequestId("r")]
    book.take(AGENTS[where], snapshot(row("gw-a", "r", where)), 0.2)
    book.take(AGENTS[where], said.Began(key="gw-a/r"), 0.3)
    book.take(AGENTS[where], said.Ended(key="gw-a/r", outcome="completed"), 0.4)
    assert len(book) == 0


def test_lines_come_in_any_pieces_and_gaps_are_noticed() -> None:
    """Whole lines only, a snapshot first, numbers without a hole."""
    stream: list[Message] = [snapshot(), said.Beat(), said.Opened(request=row("gw-b", "r"))]
    data = b"".join(encode(message, 40 + k) for k, message in enumerate(stream))
    for size in (1, 7, 1000):
        lines = Lines()
        read = [one for k in range(0, len(data), size) for one in lines.feed(data[k : k + size])]
        assert [type(one) for one in read] == [type(one) for one in stream]
    begun = msgspec.structs.replace(snapshot(), more=True)
    for wrong in (
        encode(said.Beat(), 1),
        encode(snapshot(), 1) + encode(said.Beat(), 3),
        encode(snapshot(), 1) + encode(said.Beat(), 1),
        b"{}\n",
        b'{"kind": "unheard-of"}\n',
        encode(snapshot(), 1) + b"\n",
        encode(said.Part(number=1), 1),
        encode(snapshot(), 1) + encode(said.Part(number=1), 1),
        encode(begun, 1) + encode(said.Part(number=2), 1),
        encode(begun, 1) + encode(said.Part(number=1), 2),
        encode(begun, 1) + encode(said.Part(number=1, more=True), 1) + encode(said.Part(number=1), 1),
        encode(begun, 1) + encode(said.Part(number=1), 1) + encode(said.Part(number=2), 1),
    ):
        with pytest.raises(BadMessage):
            Lines().feed(wrong)


def test_a_snapshot_in_parts_counts_once_it_is_whole() -> None:
    """What was claimed before stays booked until then; lines between the parts count at once."""
    book, d = observer()
    book.take("a0", snapshot(row("gw-b", "stays"), row("gw-b", "went"), row("gw-b", "ends")), 0.0)
    book.lost("a0", 1.0)
    begun = msgspec.structs.replace(snapshot(row("gw-b", "new")), more=True)
    book.take("a0", begun, 2.0)
    book.passes(9.0)
    assert set(booked(d)) == {"gw-b/stays", "gw-b/went", "gw-b/ends", "gw-b/new"}
    assert not book.sources["a0"].connected
    book.take("a0", said.Ended(key="gw-b/ends", outcome="completed"), 9.1)
    book.take("a0", said.Opened(request=row("gw-b", "newer")), 9.2)
    book.take("a0", said.Progressed(tokens={"gw-b/not-listed-yet": 5}), 9.3)
    book.take("a0", said.Part(number=1, requests=(row("gw-b", "not-listed-yet"),), more=True), 9.4)
    assert "gw-b/went" in booked(d)
    book.take("a0", said.Part(number=2, requests=(row("gw-b", "stays", phase="decoding"),)), 9.5)
    assert booked(d).keys() == {f"gw-b/{name}" for name in ("stays", "new", "newer", "not-listed-yet")}
    assert booked(d)["gw-b/stays"] == ("d0", True, 0)
    assert book.sources["a0"].connected


@pytest.mark.parametrize("seed", range(10))
async def test_a_reader_of_parts_ends_with_what_the_holder_has(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is told between them, also if the connection is begun anew in the middle."""
    monkeypatch.setattr(feeds, "PART_BYTES", 2000)
    rng = random.Random(seed)
    feed = Feed(asyncio.get_running_loop(), holder="h", incarnation="1", holds="agent")
    book, d = observer()
    for count in range(60):
        feed.say(said.Opened(request=row("gw-b", f"{count}")))
    heard: list[bytes] = []
    sink = Heard(heard)
    reader, lines = feed.listen(sink, parts=True), Lines()
    for count in range(60, 400):
        keys = [one.key for one in feed.rows.all(0.0)]
        key = rng.choice(keys)
        match rng.randrange(5):
            case 0:
                feed.say(said.Opened(request=row("gw-b", f"{count}", rng.choice(["d0", "d1"]))))
            case 1:
                feed.say(said.Ended(key=key, outcome="completed"))
            case 2:
                feed.say(said.Prefilled(key=key))
            case 3:
                feed.say(said.Redirected(key=key, decode=rng.choice(["d0", "d1"])))
            case _:
                await asyncio.sleep(0)
        for message in [one for data in heard for one in lines.feed(data)]:
            book.take("a0", message, count / 100)
        heard.clear()
        if count in (75, 200):
            assert reader is not None
            reader.client_gone()
            book.lost("a0", count / 100)
            reader, lines = feed.listen(sink, parts=True), Lines()
    assert reader is not None
    await until(lambda: not reader.left)
    await asyncio.sleep(0)  # what was told last leaves
    for message in [one for data in heard for one in lines.feed(data)]:
        book.take("a0", message, 5.0)
    truth = {one.key: (one.decode, one.phase == "decoding") for one in feed.rows.all(0.0)}
    assert {key: value[:2] for key, value in booked(d).items()} == truth
    assert book.sources["a0"].connected
    assert not sink.cut_off
    feed.close()


@dataclass
class Heard:
    """A connection that never pauses."""

    data: list[bytes]
    cut_off: bool = False

    def write(self, data: bytes) -> None:
        self.data.append(data)

    def abort(self) -> None:
        self.cut_off = True


# --- any interleaving -----------------------------------------------------------------------------------------------


class Speaker:
    """A source with its true rows, and the lines of its connection that have not been read."""

    def __init__(self, name: str, holds: str, clock: Callable[[], float]) -> None:
        self.name, self.holds, self.clock = name, holds, clock
        self.rows = Rows()
        self.unread: list[Message] = []
        self.connected = False

    def connect(self) -> None:
        self.connected = True
        self.unread = [snapshot(*self.rows.all(self.clock()), holds=self.holds, holder=self.name)]

    def say(self, message: Message) -> None:
        self.rows.take(message, self.clock())
        if self.connected:
            self.unread.append(message)


OPERATIONS = (
    "dispatch",
    "arrive",
    "release",
    "prefill",
    "begin",
    "progress",
    "move",
    "stay",
    "redirect",
    "end",
    "fail",
    "retry",
)
steps = st.lists(
    st.tuples(
        st.sampled_from([*OPERATIONS, "order", *["read"] * 8, "read all", "lose", "restart", "connect", "time"]),
        st.integers(0, 7),
        st.integers(0, 3),
    ),
    max_size=120,
)


class Fleet:
    """Two pickers and two holders, and a gateway that listens to them."""

    def __init__(self) -> None:
        self.share = Share()
        self.book, self.director = observer(share=self.share)
        self.now_s = 0.0
        self.speakers = [Speaker(name, "gateway", self.clock) for name in PICKERS]
        self.speakers += [Speaker(name, "agent", self.clock) for name in AGENTS.values()]
        self.by_name = {speaker.name: speaker for speaker in self.speakers}
        self.count = self.retries = 0
        self.sent: list[Row] = []
        self.latest: dict[str, Speaker] = {}
        """The agent to which a request came last."""
        self.under_way: dict[str, str] = {}
        """Where requests are to move, by this gateway's orders."""
        self.over: set[str] = set()
        """Requests whose holder has said that they have ended: their pickers hear it."""
        for speaker in self.speakers:
            speaker.connect()

    def clock(self) -> float:
        return self.now_s

    def step(self, what: str, pick: int, other: int) -> None:
        self.now_s += 0.01
        speaker = self.speakers[pick % 4]
        agents = self.speakers[2:]
        if what == "dispatch":
            self.count += 1
            decode, prefill = ("d0", "d1")[other % 2], ("p0", "")[other // 2]
            one = row(PICKERS[pick % 2], f"r{self.count}", decode, prefill=prefill, tenant="t")
            self.sent.append(one)
            self.by_name[one.by].say(said.Opened(request=one))
        elif what == "arrive" and self.sent:
            one = self.sent.pop(pick % len(self.sent))
            self.arrives(one, self.by_name[AGENTS[one.decode]])
        elif what == "retry":
            self.retry(agents[pick % 2], agents[1 - pick % 2], other)
        elif what == "release":
            for picker in self.speakers[:2]:
                for one in picker.rows.all(self.now_s):
                    if one.key in self.over or any(one.key in agent.rows for agent in agents):
                        picker.say(said.Released(key=one.key))
        elif what == "time":
            self.now_s += other
            self.book.passes(self.now_s)
        elif what == "order":
            self.order(pick)
        elif what in OPERATIONS:
            self.holder_says(what, agents[pick % 2], other)
        else:
            self.connection(what, speaker)

    def order(self, pick: int) -> None:
        """This gateway has a request moved; its holder takes the order, or refuses it at once."""
        director = self.director
        may = [entry for entry in director.ledger if entry.phase is Phase.DECODING and entry.reservation is None]
        if not may:
            return
        entry = may[pick % len(may)]
        assert entry.decode_slot is not None
        source = director.inventory.endpoint(entry.decode_slot).id
        target = EndpointId("d1" if source == "d0" else "d0")
        key = str(entry.request.id)
        self.now_s += 0.01
        director.on_event(MoveOrdered(entry.request.id, target), self.now_s)
        rows = {one.key: one for one in self.latest[key].rows.all(self.now_s)} if key in self.latest else {}
        one = rows.get(key)
        if one is None or one.phase != "decoding" or one.decode == target or key in self.under_way:
            director.on_event(MigrationFailed(entry.request.id, target), self.now_s)
        else:
            self.under_way[key] = target

    def arrives(self, one: Row, agent: Speaker) -> None:
        self.under_way.pop(one.key, None)
        self.latest[one.key] = agent
        agent.say(said.Opened(request=one))

    def retry(self, left: Speaker, agent: Speaker, other: int) -> None:
        """Envoy leaves the one agent and tries the other: later than what the first has said until then is read, so
        that there is one order. Its picker has released the request."""
        rows = [one for one in left.rows.all(self.now_s) if self.latest[one.key] is left and one.key not in agent.rows]
        if not rows or not (left.connected and agent.connected):
            return
        one = rows[other % len(rows)]
        self.released(one)
        self.read_all()
        where = next(name for name, of in AGENTS.items() if of == agent.name)
        again = {"decode": where, "phase": "prefilling", "generated_tokens": 0, "age_s": 0.0}
        self.now_s += 0.01
        self.retries += 1
        self.arrives(msgspec.structs.replace(one, **again), agent)

    def released(self, one: Row) -> None:
        """Its picker has heard the agent."""
        if one.key in self.by_name[one.by].rows:
            self.by_name[one.by].say(said.Released(key=one.key))

    def left(self, agent: Speaker) -> list[str]:
        """What it has, and what has gone to the other one since."""
        return [one.key for one in agent.rows.all(self.now_s) if self.latest[one.key] is not agent]

    def connection(self, what: str, speaker: Speaker) -> None:
        if what == "read" and speaker.unread:
            self.read(speaker)
        elif what == "read all":
            self.read_all()
        elif what == "connect" and not speaker.connected:
            speaker.connect()
            if speaker.holds == "agent" and self.left(speaker):
                self.read(speaker)  # ages are taken as of when they come
        elif what in ("lose", "restart"):
            speaker.connected, speaker.unread = False, []
            self.book.lost(speaker.name, self.now_s)
            if what == "restart":
                for one in speaker.rows.all(self.now_s) if speaker.holds == "agent" else ():
                    self.released(one)
                speaker.rows = Rows()
                self.sent = [one for one in self.sent if one.by != speaker.name]

    def holder_says(self, what: str, agent: Speaker, other: int) -> None:
        rows = agent.rows.all(self.now_s)
        if not rows:
            return
        one = rows[other % len(rows)]
        key, elsewhere = one.key, "d1" if one.decode == "d0" else "d0"
        decodes = one.phase == "decoding"
        match what:
            case "prefill" if not decodes:
                agent.say(said.Prefilled(key=key))
            case "begin" if decodes and not one.generated_tokens:
                agent.say(said.Began(key=key))
            case "progress" if one.generated_tokens:
                agent.say(said.Progressed(tokens={key: one.generated_tokens + 1 + other}))
            case "move" if one.generated_tokens and key not in self.under_way:
                agent.say(said.Moved(key=key, target=elsewhere))
            case "move" if key in self.under_way and self.latest[key] is agent:
                agent.say(said.Moved(key=key, target=self.under_way.pop(key)))
            case "stay" if key in self.under_way and self.latest[key] is agent:
                agent.say(said.MoveFailed(key=key, target=self.under_way.pop(key)))
            case "redirect" if not one.generated_tokens:
                if self.latest[key] is agent:
                    self.under_way.pop(key, None)
                agent.say(said.LegFailed(key=key, stage="decode", endpoint=one.decode, fault=str(Fault.UNREACHABLE)))
                agent.say(said.Redirected(key=key, decode=elsewhere, prefill=one.prefill))
            case "end" | "fail":
                outcome = "completed" if what == "end" else "failed"
                if self.latest[key] is agent:
                    self.over.add(key)
                    self.under_way.pop(key, None)
                agent.say(said.Ended(key=key, outcome=outcome, output_tokens=one.generated_tokens))  # type: ignore[arg-type]

    def read(self, speaker: Speaker) -> None:
        self.book.take(speaker.name, speaker.unread.pop(0), self.now_s)

    def read_all(self) -> None:
        for speaker in self.speakers:
            while speaker.unread:
                self.read(speaker)
        if all(speaker.connected for speaker in self.speakers):
            reserved = {str(entry.request.id) for entry in self.director.ledger if entry.reservation is not None}
            held = {key for key in reserved if key in self.latest[key].rows}
            assert held <= self.under_way.keys(), "booked for moves that are over"

    def truth(self) -> dict[str, tuple[str, bool]]:
        """Where each request is that somebody claims; a holder knows better than a picker."""
        rows = [one for speaker in self.speakers for one in speaker.rows.all(self.now_s)]
        return {one.key: (one.decode, one.phase == "decoding") for one in rows}


@given(steps)
def test_any_interleaving_ends_with_the_truth_and_nothing_left(script: list[tuple[str, int, int]]) -> None:
    """Lost connections, restarts and lines that overtake each other: when all is read, the ledger is what is true."""
    ends_with_the_truth(script)


@pytest.mark.parametrize("seed", range(40))
def test_long_interleavings_end_with_the_truth_and_nothing_left(seed: int) -> None:
    """The same with many requests at once, and some of them come to a second agent."""
    rng = random.Random(seed)
    rare = ["lose", "restart", *["connect"] * 6, "time", "read all"]
    often = [*OPERATIONS, *["dispatch", "arrive", "retry"] * 2, "begin", *["order", "stay"] * 3, *["read"] * 20]
    words = rng.choices(rare, k=50) + rng.choices(often, k=1300)
    rng.shuffle(words)
    assert ends_with_the_truth([(word, rng.randrange(8), rng.randrange(4)) for word in words]) > 5


def ends_with_the_truth(script: list[tuple[str, int, int]], fleet: Fleet | None = None) -> int:
    """How many requests came to a second agent."""
    fleet = fleet or Fleet()
    for step in script:
        fleet.step(*step)
    for speaker in fleet.speakers:
        if not speaker.connected:
            speaker.connect()
    fleet.read_all()
    for agent in fleet.speakers[2:]:
        for key in fleet.left(agent):
            agent.say(said.Ended(key=key, outcome="failed"))
    for agent in fleet.speakers[2:]:
        for one in agent.rows.all(fleet.now_s):
            if one.key in fleet.under_way:
                agent.say(said.MoveFailed(key=one.key, target=fleet.under_way[one.key]))
                del fleet.under_way[one.key]
    fleet.read_all()
    fleet.step("release", 0, 0)
    fleet.read_all()
    fleet.book.passes(fleet.now_s + 2 * books.HANDING_OVER_S)
    found = booked(fleet.director)
    assert {key: value[:2] for key, value in found.items()} == fleet.truth()
    assert fleet.share.now == len(found)
    for speaker in fleet.speakers:
        fleet.book.forget(speaker.name)
    assert (len(fleet.director.ledger), len(fleet.book), fleet.book._unclaimed) == (0, 0, set())
    assert fleet.share.now == 0
    assert not any(fleet.director.ledger.requests[stage].any() for stage in Stage)
    return fleet.retries
