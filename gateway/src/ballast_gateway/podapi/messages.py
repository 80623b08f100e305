"""What passes on the pod API: the lines of `GET /ballast/v1/events`, and the bodies of the other routes.

A line is one JSON object with `kind` and a sequence number `seq` that grows by one from line to line, so a reader
notices a gap, and asks anew for the snapshot that begins each stream. A snapshot that would be a long line comes in
parts for readers that can take them (`Part`), with other lines between. Requests are named by their key, `BY/ID`: the
gateway that decided about it, and its id there. Fields that a later release adds are ignored; a line of an unknown kind
is refused (`BadMessage`), and its reader connects again. So is a value out of its bounds, which are such that the sums
over all requests of a fleet fit in 64 bits; who writes a line brings numbers of clients and engines within them
(`counted`, `measured`, `ranked`).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from ballast_api.addresses import is_address
from ballast_core.model.endpoints import Role
from ballast_gateway.podapi.plan import Place, key_of

STATE: Final = "/ballast/v1/state"
EVENTS: Final = "/ballast/v1/events"
PARTS: Final = "x-ballast-parts: 1"
"""A reader of events that sends this header takes a long snapshot in parts; others get it in one line."""
SHARE: Final = "/ballast/v1/share"
"""A gateway's share of the live page, and below it one of its requests."""
STORY: Final = f"{SHARE}/request"
MIGRATIONS: Final = "/ballast/v1/migrations"
LEAVE: Final = "/ballast/v1/leave"
CANCEL: Final = "/ballast/v1/cancel"
DRAIN: Final = "/ballast/v1/drain"
INVENTORY: Final = "/ballast/v1/inventory"

FOLD_S: Final = 0.05
"""Progress of all requests of a holder is folded into one line each so many seconds."""
BEAT_S: Final = 1.0
"""A holder with nothing to say sends a beat; a reader that hears nothing for three of them takes it for lost."""
MOST_LINE_BYTES: Final = 16 * 1024 * 1024
MOST_BLOCKS: Final = 4096
"""Of a prompt's blocks that are named to others: 256 Ki tokens of 64."""
MOST: Final = 2**31 - 1
"""Of anything that is counted of one request or engine."""
_MOST_MEASURED: Final = 1e9
_FURTHEST: Final = 10**18
"""A priority from 0: as far as the header `x-vllm-priority` goes."""
_MOST_EVER: Final = 2**48
_BLOCK_NAMES: Final = 2**64

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MOST)]
Rank: TypeAlias = Annotated[int, Meta(ge=-_FURTHEST, le=_FURTHEST)]
Measure: TypeAlias = Annotated[float, Meta(ge=0, le=_MOST_MEASURED)]
Since: TypeAlias = Annotated[float, Meta(ge=-_MOST_MEASURED, le=_MOST_MEASURED)]
"""Seconds; a little less than none where a clock stood still."""
Ever: TypeAlias = Annotated[int, Meta(ge=0, le=_MOST_EVER)]
Block: TypeAlias = Annotated[int, Meta(ge=0)]
"""Below 2**64; `decode` looks, since `Meta` knows no such bounds."""


class BadMessage(ValueError):
    """Bytes that are no message, and which field is wrong."""


class Row(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request that is held, or that a picker has dispatched."""

    id: str
    by: str
    phase: Literal["waiting", "prefilling", "decoding"]
    decode: str = ""
    """Id of the endpoint; empty while it waits."""
    prefill: str = ""
    """Id of the prefill endpoint; empty if the decode endpoint computes the prompt, or has the KV already."""
    prompt_tokens: Count = 0
    generated_tokens: Count = 0
    rate_tokens_per_s: Measure = 0.0
    """Output tokens a second since the first one."""
    predicted_remaining_tokens: Measure | None = None
    """None: the holder predicts nothing."""
    max_output_tokens: Count | None = None
    model: str = ""
    traffic_class: str = ""
    tenant: str = ""
    priority: Rank = 0
    movable: bool = False
    """Whether its state can be carried to another endpoint."""
    age_s: Measure = 0.0
    """Seconds since it arrived at who sends this row."""
    blocks: Annotated[tuple[Block, ...], Meta(max_length=MOST_BLOCKS)] = ()
    """Names of the prompt's leading blocks, where the sender knows them."""
    block_size: Count = 0
    """Tokens of each; 1 or more where there are any."""

    @property
    def key(self) -> str:
        """Names the request in the whole fleet."""
        return key_of(self.by, self.id)


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind"):
    """One line. `seq` is set by who sends it."""

    seq: int = 0


class Snapshot(_Message, frozen=True, tag="snapshot"):
    """The first line of each stream: all that is held now, or the first of it."""

    holder: str
    """Its name: the pod's."""
    incarnation: str
    """Another one after each start."""
    holds: Literal["agent", "gateway"]
    endpoint: str = ""
    """Id of the endpoint beside which an agent sits, as far as it knows."""
    draining: bool = False
    requests: tuple[Row, ...] = ()
    more: bool = False
    """The rest follows, in `Part`s."""


class Part(_Message, frozen=True, tag="part"):
    """More of a snapshot: requests as they are now, after all lines before this one. It is one reader's, so it takes no
    number of its own: `seq` is that of the line before."""

    number: Count
    """From 1 on."""
    requests: tuple[Row, ...] = ()
    more: bool = False
    """Without it, the snapshot is whole: what was in none of its lines, and was not opened meanwhile, has ended."""


class Opened(_Message, frozen=True, tag="opened"):
    """A request has come to this holder, or has been dispatched by this picker and no holder has confirmed it yet."""

    request: Row


class Prefilled(_Message, frozen=True, tag="prefilled"):
    """Its prompt has been computed; it is on its decode endpoint from now on."""

    key: str


class Began(_Message, frozen=True, tag="began"):
    """Its first token has come."""

    key: str


class Progressed(_Message, frozen=True, tag="progressed"):
    """Output tokens so far, of those that have got more; at most one such line each `FOLD_S`."""

    tokens: dict[str, Count]


class Redirected(_Message, frozen=True, tag="redirected"):
    """It was sent to other endpoints: a leg had failed."""

    key: str
    decode: str
    prefill: str = ""


class LegFailed(_Message, frozen=True, tag="failed"):
    """A leg failed. What becomes of the request is another line."""

    key: str
    stage: Literal["prefill", "decode"]
    endpoint: str
    fault: str
    """As `ballast_core.model.Fault`."""
    status: Count = 0


class Moved(_Message, frozen=True, tag="moved"):
    """It decodes on this endpoint now, as it was ordered."""

    key: str
    target: str


class MoveFailed(_Message, frozen=True, tag="move-failed"):
    """It stays where it is."""

    key: str
    target: str
    reason: str = ""


class Ended(_Message, frozen=True, tag="ended"):
    """It is over."""

    key: str
    outcome: Literal["completed", "failed", "cancelled"]
    output_tokens: Count = 0
    fault: str = ""
    """What its last engine did to it, where that is known."""
    status: Count = 0
    """The status that its client got; 0 if none."""


class Released(_Message, frozen=True, tag="released"):
    """A picker's: the request is not its any more, since a holder has it, or since nobody has confirmed it in time."""

    key: str


class Engine(_Message, frozen=True, tag="engine"):
    """Metrics of the engine beside an agent, when they have changed. Names as of `ballast_core.model.Observation`."""

    endpoint: str
    running: Count
    waiting: Count
    kv_usage_ratio: Measure = 0.0
    preemptions: Ever = 0


class Signs(_Message, frozen=True, tag="signs"):
    """Signs of life of the engines that owe this holder something: endpoint -> [legs, seconds since the last byte,
    seconds since something is due]; the second is null if none has come yet. Five times a second while any is due."""

    engines: dict[str, tuple[Count, Since | None, Since]]


class Draining(_Message, frozen=True, tag="draining"):
    """The holder takes no new requests."""

    on: bool = True


class Beat(_Message, frozen=True, tag="beat"):
    """Nothing has happened."""


Message: TypeAlias = (
    Snapshot
    | Part
    | Opened
    | Prefilled
    | Began
    | Progressed
    | Redirected
    | LegFailed
    | Moved
    | MoveFailed
    | Ended
    | Released
    | Engine
    | Signs
    | Draining
    | Beat
)


class MoveOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /ballast/v1/migrations`."""

    request_id: str
    target: str
    """Id of an endpoint of the inventory."""
    by: str = ""
    """Who decided about the request; needed only where two requests have the same id."""


class LeaveOrder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Body of `POST /ballast/v1/leave`: leave the request's leg on a silent engine, and go on elsewhere."""

    request_id: str
    endpoint: str
    reason: str = ""
    by: str = ""
    alone: bool = False
    """The engine serves others; a request whose answer comes whole, or whose client is slow, stays then."""


class CancelOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /ballast/v1/cancel`."""

    request_id: str
    by: str = ""


class DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /ballast/v1/drain`."""

    on: bool = True


class Listed(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One endpoint of an inventory."""

    id: str
    address: str
    role: Role
    usable: bool = True
    """Whether it takes new requests: ready, not draining, not ejected and not suspected."""
    revision: str = ""
    """Those of different ones exchange no KV blocks; empty if unknown."""

    @classmethod
    def of(cls, place: Place, *, usable: bool = True) -> Listed:
        """That of a place."""
        return cls(place.id, place.address, place.role, usable, place.revision)

    def place(self) -> Place:
        """Where it is."""
        return Place(self.id, self.address, self.role, self.revision)


class Inventory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of `PUT /ballast/v1/inventory`: a picker's whole list of endpoints; each one replaces the last."""

    endpoints: tuple[Listed, ...]


class State(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Answer of `GET /ballast/v1/state`."""

    holder: str
    incarnation: str
    holds: Literal["agent", "gateway"]
    endpoint: str = ""
    draining: bool = False
    requests: tuple[Row, ...] = ()


Body: TypeAlias = MoveOrder | LeaveOrder | CancelOrder | DrainOrder | Inventory

_ENCODER: Final = msgspec.json.Encoder()
_LINES: Final = msgspec.json.Decoder(Message)


def encode(message: Message, seq: int) -> bytes:
    """One line, its newline included."""
    return _ENCODER.encode(msgspec.structs.replace(message, seq=seq)) + b"\n"


def decode(line: bytes) -> Message:
    """One line. Raises `BadMessage`."""
    try:
        message: Message = _LINES.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    match message:
        case Opened(request=row):
            _check_blocks(row, "request")
        case Snapshot(requests=rows) | Part(requests=rows):
            for at, row in enumerate(rows):
                _check_blocks(row, f"requests[{at}]")
        case _:
            pass
    return message


def counted(number: int) -> int:
    """The `Count` next to it: it may be what a client or an engine says."""
    return min(max(number, 0), MOST)


def measured(number: float) -> float:
    """The `Measure` next to it; 0 for what is no number, which JSON cannot say."""
    return min(max(0.0, number), _MOST_MEASURED)  # in this order: no comparison holds for nan


def ranked(number: int) -> int:
    """The `Rank` next to it."""
    return min(max(number, -_FURTHEST), _FURTHEST)


def counted_ever(number: int) -> int:
    """The `Ever` next to it."""
    return min(max(number, 0), _MOST_EVER)


def _check_blocks(row: Row, where: str) -> None:
    if not row.blocks:
        return
    if row.block_size < 1:
        raise BadMessage(f"Expected `int` >= 1 where there are blocks - at `$.{where}.block_size`")
    if max(row.blocks) >= _BLOCK_NAMES:
        raise BadMessage(f"Expected `int` < 2**64 - at `$.{where}.blocks`")


def write(body: Body | State) -> bytes:
    """A body as JSON."""
    return _ENCODER.encode(body)


def read(body: bytes, kind: type[Body]) -> Body:
    """A body of this kind. Raises `BadMessage`, which names the field."""
    try:
        found: Body = msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessage(str(error)) from error
    if isinstance(found, Inventory):
        _check(found)
    return found


def _check(inventory: Inventory) -> None:
    """Raises `BadMessage`."""
    at: dict[str, int] = {}
    for number, listed in enumerate(inventory.endpoints):
        before = at.setdefault(listed.id, number)
        if before != number:
            raise BadMessage(f"endpoints[{number}].id: {listed.id[:200]!r} is that of endpoints[{before}], too")
        if not is_address(listed.address):
            raise BadMessage(f"endpoints[{number}].address: must be HOST:PORT, not {listed.address[:200]!r}")
