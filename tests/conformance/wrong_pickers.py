"""Pickers that are wrong in one thing each, and the cases that must find them."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from tests.conformance.pickers import DESTINATION, ENDPOINTS, SUBSET, Broken, Honest

FINDS: Final[dict[type[Honest], set[str]]] = {}
"""By picker, the cases that fail."""


def found_by(*cases: str) -> Any:
    """Enter a picker with the cases that find it, each `part.name` or `part: name name ...`."""
    ids = set()
    for entry in cases:
        part, _, names = entry.partition(": ")
        ids |= {f"{part}.{name}" for name in names.split()} if names else {part}

    def enter(kind: type[Honest]) -> type[Honest]:
        FINDS[kind] = ids
        return kind

    return enter


# --- destination ----------------------------------------------------------------------------------------------------


@found_by("destination: header overwrites-client without-body")
class NoHeader(Honest):
    def headers(self, destination: str) -> dict[str, str]:
        return {"x-another": destination}


@found_by("destination: metadata without-body")
class NoMetadata(Honest):
    def in_metadata(self, destination: str) -> str | None:
        return None


@found_by("destination: agreement without-body")
class Disagrees(Honest):
    def in_metadata(self, destination: str) -> str | None:
        return ",".join(reversed(destination.split(","))) + ",10.0.0.9:8000"


@found_by("destination: format members", "subset.some")
class Semicolons(Honest):
    def named(self, endpoints: list[str]) -> str:
        return ";".join(endpoints)


@found_by("destination.members")
class Strangers(Honest):
    def candidates(self, *, has_body: bool) -> list[str]:
        return ["10.9.9.9:8000"] if self.hint is None else super().candidates(has_body=has_body)


@found_by("destination.fallbacks")
class SameTwice(Honest):
    def named(self, endpoints: list[str]) -> str:
        return super().named([endpoints[0]] * len(endpoints))


@found_by("destination.overwrites-client")
class AddsIfAbsent(Honest):
    def append_action(self) -> Any:
        return base_pb2.HeaderValueOption.HeaderAppendAction.ADD_IF_ABSENT


@found_by("destination.overwrites-client")
class ObeysClients(Honest):
    def named(self, endpoints: list[str]) -> str:
        return (self.head or {}).get(DESTINATION) or super().named(endpoints)


@found_by("destination: without-body", "subset: without-body without-body-empty")
class NoWayWithoutBody(Honest):
    def candidates(self, *, has_body: bool) -> list[str]:
        if not has_body:
            raise Broken("a request without a body")
        return super().candidates(has_body=has_body)


@found_by("destination.without-body-unanswered")
class AnswersNoBody(Honest):
    def route(self, *, has_body: bool, kind: str = "request_headers") -> list[Any]:
        replies = super().route(has_body=has_body, kind=kind)
        return replies if has_body else [*replies, self.chunk("request_body", b"", end=True)]


@found_by("destination.client-control-headers")
class LeavesControlHeaders(Honest):
    def removed(self) -> list[str]:
        return []


@found_by("destination.request-id")
class NewIds(Honest):
    def headers(self, destination: str) -> dict[str, str]:
        return super().headers(destination) | {"x-request-id": "the-pickers-own"}


# --- subset ---------------------------------------------------------------------------------------------------------


@found_by(
    "subset: one some partly-unknown unknown empty port without-body without-body-empty string first-message",
)
class IgnoresHints(Honest):
    def read_hint(self, message: Any) -> None:
        pass


@found_by("subset: empty without-body-empty")
class EmptyIsNoHint(Honest):
    def read_hint(self, message: Any) -> None:
        self.hint = self.hint or self.hint_of(message) or None


@found_by("subset: unknown empty port without-body-empty")
class SaysNotFound(Honest):
    def refuse(self, status: int) -> list[Any]:
        return super().refuse(404 if status == 503 else status)


@found_by("subset: unknown empty port without-body-empty")
class BreaksInsteadOf503(Honest):
    """As GIE's light picker, v1.6.0."""

    def refuse(self, status: int) -> list[Any]:
        if status == 503:
            raise Broken("no endpoints available")
        return super().refuse(status)


@found_by("subset.port")
class AddressesOnly(Honest):
    """As GIE's picker, v1.5.0."""

    def candidates(self, *, has_body: bool) -> list[str]:
        hosts = None if self.hint is None else {entry.rpartition(":")[0] for entry in self.hint}
        return [each for each in ENDPOINTS if hosts is None or each.rpartition(":")[0] in hosts]


@found_by("subset: without-body without-body-empty")
class HintsNeedBodies(Honest):
    """As GIE's picker, v1.5.0."""

    def candidates(self, *, has_body: bool) -> list[str]:
        return super().candidates(has_body=has_body) if has_body else list(ENDPOINTS)


@found_by("subset.string")
class ListsOnly(Honest):
    def entries(self, value: Any) -> list[str] | None:
        return super().entries(value) if value.WhichOneof("kind") == "list_value" else None


@found_by("subset.first-message")
class LastHintCounts(Honest):
    """As GIE's picker, v1.5.0."""

    def read_hint(self, message: Any) -> None:
        self.hint = self.hint_of(message)


@found_by("subset.some")
class OneOfHintIsEnough(Honest):
    """The fall-back comes from anywhere."""

    def named(self, endpoints: list[str]) -> str:
        if self.hint is not None and len(endpoints) > 1:
            endpoints = [endpoints[0], next(each for each in ENDPOINTS if each not in self.hint)]
        return super().named(endpoints)


@found_by("subset: partly-unknown unknown port")
class TrustsHints(Honest):
    def candidates(self, *, has_body: bool) -> list[str]:
        return super().candidates(has_body=has_body) if self.hint is None else self.hint[:1]


@found_by("subset.not-from-headers")
class HintsFromClients(Honest):
    def candidates(self, *, has_body: bool) -> list[str]:
        named = (self.head or {}).get(SUBSET)
        return super().candidates(has_body=has_body) if named is None else [named]


@found_by("subset.other-metadata")
class AnyNamespace(Honest):
    def hint_of(self, message: Any) -> list[str] | None:
        for content in message.metadata_context.filter_metadata.values():
            if SUBSET in content.fields:
                return self.entries(content.fields[SUBSET])
        return None


# --- bodies of requests ---------------------------------------------------------------------------------------------

_ALL_BODIES = (
    "body: whole bytes content-length chunks empty-chunks large trailers without-length early-body-flag",
    "modes.not-told",
    "streams: sequence concurrent slow half-close-answered",
    "framing: split joined last-frame window-opens",
)


@found_by(*_ALL_BODIES)
class CutsBodies(Honest):
    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        return super().chunks(kind, body[:-1] if kind == "request_body" else body, end=end)


class _Rewrites(Honest):
    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        again = json.dumps(json.loads(body)).encode() if kind == "request_body" else body
        return super().chunks(kind, again, end=end)


@found_by("body: bytes content-length")
class RewritesBlindly(_Rewrites):
    pass


@found_by("body: bytes")
class Rewrites(_Rewrites):
    """As GIE's picker, v1.5.0."""

    def headers(self, destination: str) -> dict[str, str]:
        if not self.body:
            return super().headers(destination)
        return super().headers(destination) | {"content-length": str(len(json.dumps(json.loads(self.body))))}


@found_by("body: streamed-response")
class ClassicReplies(Honest):
    """Of one chunk; the end is told by a streamed one."""

    def answer(self, *, trailers: bool = False) -> list[Any]:
        replies = super().answer(trailers=trailers)
        if not self.routed:
            return replies
        classic = pb.ProcessingResponse()
        classic.request_body.SetInParent()
        return [replies[0], classic, *replies[1:]]


@found_by("body: empty-chunks without-length")
class LosesEmptyEnds(Honest):
    """An empty last chunk ends nothing."""

    def on_request_body(self, message: Any) -> list[Any]:
        replies = super().on_request_body(message)
        for reply in replies if not message.request_body.body and self.routed else []:
            reply.request_body.response.body_mutation.streamed_response.end_of_stream = False
        return replies


@found_by("body: end-of-stream nothing-after-end")
class EndsTwice(Honest):
    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        more = [self.chunk(kind, b"", end=True)] if end and kind == "request_body" else []
        return [*super().chunks(kind, body, end=end), *more]


@found_by("body: order trailers")
class BodyFirst(Honest):
    def answer(self, *, trailers: bool = False) -> list[Any]:
        first, *rest = super().answer(trailers=trailers)
        return [*rest[:1], first, *rest[1:]]


@found_by("body.one-headers-reply")
class HeadersTwice(Honest):
    def answer(self, *, trailers: bool = False) -> list[Any]:
        replies = super().answer(trailers=trailers)
        return [replies[0], *replies] if self.routed else replies


@found_by("body.chunk-size")
class LargeChunks(Honest):
    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        return [self.chunk(kind, body, end=end)]


@found_by("body: early")
class EndsEarly(Honest):
    """Says the end as soon as it has seen something of a body that is not yet over."""

    def on_request_body(self, message: Any) -> list[Any]:
        replies = super().on_request_body(message)
        length = int((self.head or {}).get("content-length", "0"))
        if replies or self.modes[0] != 4 or len(self.body) != 30 or length <= 30:
            return replies
        return [self.chunk("request_body", b"", end=True)]


@found_by("body: trailers trailers-end")
class IgnoresTrailers(Honest):
    """As GIE's picker, v1.5.0."""

    def on_request_trailers(self, message: Any) -> list[Any]:
        return []


@found_by("body: trailers-end")
class EndsBeforeTrailers(Honest):
    def chunks(self, kind: str, body: bytes, *, end: bool) -> list[Any]:
        return super().chunks(kind, body, end=end or kind == "request_body")


@found_by("body: without-length")
class NeedsLength(Honest):
    def answer(self, *, trailers: bool = False) -> list[Any]:
        if self.head is not None and "content-length" not in self.head:
            return self.refuse(411)
        return super().answer(trailers=trailers)


# --- responses ------------------------------------------------------------------------------------------------------


@found_by(
    "response: headers headers-untouched headers-alone body stream live chunks-streamed trailers trailers-end error "
    "served served-elsewhere",
    "modes.response-buffered",
)
class IgnoresResponses(Honest):
    def on_response_headers(self, message: Any) -> list[Any]:
        return []

    on_response_body = on_response_headers
    on_response_trailers = on_response_headers


@found_by("response.headers-untouched")
class EditsHeaders(Honest):
    def on_response_headers(self, message: Any) -> list[Any]:
        [reply] = super().on_response_headers(message)
        reply.response_headers.response.header_mutation.remove_headers.append("content-type")
        return [reply]


@found_by("response.headers-alone")
class AnswersNoResponse(Honest):
    def on_response_headers(self, message: Any) -> list[Any]:
        replies = super().on_response_headers(message)
        alone = message.response_headers.end_of_stream
        return [*replies, self.chunk("response_body", b"", end=True)] if alone else replies


class _HoldsBack(Honest):
    def __init__(self, shared: Any) -> None:
        super().__init__(shared)
        self.held = b""

    def on_response_body(self, message: Any) -> list[Any]:
        part = message.response_body
        if self.modes[1] != 4:
            return super().on_response_body(message)
        self.held += part.body
        return self.chunks("response_body", self.held, end=True) if part.end_of_stream else []


@found_by("response: live")
class HoldsBack(_HoldsBack):
    def on_response_trailers(self, message: Any) -> list[Any]:
        return [*self.chunks("response_body", self.held, end=False), self.neutral("response_trailers")]


@found_by("response: live trailers")
class LosesBodyBeforeTrailers(_HoldsBack):
    pass


@found_by("response: body stream live chunks-streamed trailers error")
class ClassicResponses(Honest):
    """As GIE's light picker, v1.6.0."""

    def on_response_body(self, message: Any) -> list[Any]:
        return [self.neutral("response_body")]


@found_by("response: trailers")
class IgnoresResponseTrailers(Honest):
    def on_response_trailers(self, message: Any) -> list[Any]:
        return []


@found_by("response: trailers-end")
class EndsBeforeResponseTrailers(Honest):
    def on_response_trailers(self, message: Any) -> list[Any]:
        return [self.chunk("response_body", b"", end=True), *super().on_response_trailers(message)]


@found_by("response: error")
class HidesErrors(Honest):
    def on_response_headers(self, message: Any) -> list[Any]:
        values = {each.key: each.raw_value for each in message.response_headers.headers.headers}
        return self.refuse(502) if values[":status"] == b"500" else super().on_response_headers(message)


@found_by("response: served-elsewhere")
class RefusesStrangers(Honest):
    def on_response_headers(self, message: Any) -> list[Any]:
        served = message.metadata_context.filter_metadata["envoy.lb"].fields
        name = f"{DESTINATION}-served"
        if name in served and served[name].string_value not in ENDPOINTS:
            raise Broken("served by a stranger")
        return super().on_response_headers(message)


@found_by("response: not-shown", "modes.observability")
class NeedsResponses(Honest):
    """Half-closed without one, a stream fails."""

    answered = False

    def on_response_headers(self, message: Any) -> list[Any]:
        self.answered = True
        return super().on_response_headers(message)

    async def on_half_close(self) -> None:
        if not self.answered:
            raise Broken("no response")


# --- modes, headers, errors -----------------------------------------------------------------------------------------


@found_by("modes: not-told")
class NeedsConfig(Honest):
    def on_request_headers(self, message: Any) -> list[Any]:
        if not message.HasField("protocol_config"):
            raise Broken("no protocol_config")
        return super().on_request_headers(message)


@found_by("modes: buffered streamed none response-buffered")
class DuplexOnly(Honest):
    """As GIE's picker, v1.5.0."""

    def take(self, message: Any) -> list[Any]:
        message.ClearField("protocol_config")
        return super().take(message)


@found_by("modes: observability")
class NotToBeWatched(Honest):
    def take(self, message: Any) -> list[Any]:
        if message.observability_mode:
            raise Broken("observability_mode")
        return super().take(message)


def _refusing(header: str) -> type[Honest]:
    class Refuses(Honest):
        def on_request_headers(self, message: Any) -> list[Any]:
            if any(each.key.endswith(header) for each in message.request_headers.headers.headers):
                raise Broken(header)
            return super().on_request_headers(message)

    Refuses.__name__ = Refuses.__qualname__ = f"Refuses_{header}"
    return Refuses


FINDS[_refusing("inference-objective")] = {"headers.objective"}
FINDS[_refusing("inference-fairness-id")] = {"headers.fairness"}
FINDS[_refusing("x-noise-99")] = {"headers.many"}


@found_by("headers: binary")
class TextOnly(Honest):
    def on_request_headers(self, message: Any) -> list[Any]:
        for each in message.request_headers.headers.headers:
            try:
                each.raw_value.decode()
            except UnicodeDecodeError:
                raise Broken(each.key) from None
        return super().on_request_headers(message)


@found_by("headers: unknown-attributes")
class NoAttributes(Honest):
    def take(self, message: Any) -> list[Any]:
        if message.attributes:
            raise Broken("attributes")
        return super().take(message)


@found_by("headers: unknown-metadata", "subset.other-metadata")
class NoOtherMetadata(Honest):
    def take(self, message: Any) -> list[Any]:
        if "of.another.filter" in message.metadata_context.filter_metadata:
            raise Broken("metadata")
        return super().take(message)


@found_by("headers: unknown-fields")
class NothingNew(Honest):
    def take(self, message: Any) -> list[Any]:
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() < size:
            raise Broken("an unknown field")
        return super().take(message)


@found_by("headers: repeated-config")
class ConfigOnce(Honest):
    def on_request_body(self, message: Any) -> list[Any]:
        if message.HasField("protocol_config"):
            raise Broken("protocol_config again")
        return super().on_request_body(message)


@found_by("errors: malformed-4xx")
class BreaksOnMalformed(Honest):
    def malformed(self) -> list[Any]:
        raise Broken("malformed")


@found_by("errors: malformed-answered malformed-4xx")
class HangsOnMalformed(Honest):
    def malformed(self) -> list[Any]:
        return []


@found_by("errors: malformed-next out-of-order")
class IllAfterMalformed(Honest):
    """The next request is refused, once."""

    def malformed(self) -> list[Any]:
        self.shared.ill = True
        return super().malformed()

    def route(self, *, has_body: bool, kind: str = "request_headers") -> list[Any]:
        ill, self.shared.ill = self.shared.ill, False
        return self.refuse(500) if ill else super().route(has_body=has_body, kind=kind)


@found_by("errors: immediate-alone")
class SaysMore(Honest):
    def refuse(self, status: int) -> list[Any]:
        more = [self.neutral("request_headers")] if status == 503 else []
        return [*super().refuse(status), *more]


@found_by("errors: shed")
class ShedsAs503(Honest):
    def shed(self) -> list[Any]:
        return self.refuse(503)


@found_by("errors: out-of-order")
class TrippedByOrder(Honest):
    """A response without a request breaks the next request."""

    def on_response_headers(self, message: Any) -> list[Any]:
        self.shared.ill = self.head is None
        return super().on_response_headers(message)

    def route(self, *, has_body: bool, kind: str = "request_headers") -> list[Any]:
        ill, self.shared.ill = self.shared.ill, False
        return self.refuse(500) if ill else super().route(has_body=has_body, kind=kind)


@found_by("errors: empty-message")
class TrippedByNothing(TrippedByOrder):
    def take(self, message: Any) -> list[Any]:
        if message.WhichOneof("request") is None:
            self.shared.ill = True
            return []
        return super().take(message)

    def on_response_headers(self, message: Any) -> list[Any]:
        return Honest.on_response_headers(self, message)


# --- streams --------------------------------------------------------------------------------------------------------


@found_by("streams: concurrent slow")
class MixesStreams(Honest):
    """All open streams share what was last begun."""

    def on_request_body(self, message: Any) -> list[Any]:
        if not self.body:
            self.shared.bodies.append(b"")
        self.shared.bodies[-1] += message.request_body.body
        return super().on_request_body(message)

    def answer(self, *, trailers: bool = False) -> list[Any]:
        if self.shared.bodies and self.well_formed():
            self.body = self.shared.bodies[-1]
        return super().answer(trailers=trailers)


@found_by("streams: concurrent slow connections", "errors.shed")
class OneAtATime(Honest):
    async def on_open(self) -> None:
        """On a busy machine it hears late that the stream before this one has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                while self.shared.open > 1:  # noqa: ASYNC110 - streams end by themselves
                    await asyncio.sleep(0.005)

    def on_request_headers(self, message: Any) -> list[Any]:
        return self.refuse(503) if self.shared.open > 1 else super().on_request_headers(message)


@found_by("streams: half-close-early", "errors.out-of-order")
class NeverGivesUp(Honest):
    """A stream that is half-closed in the middle of a body stays open."""

    async def on_half_close(self) -> None:
        if self.body and not self.routed:
            await asyncio.Event().wait()


@found_by("streams: half-close-at-once", "errors.out-of-order", "modes.observability")
class WaitsForHeaders(Honest):
    """A stream that is half-closed without a request stays open."""

    async def on_half_close(self) -> None:
        if self.head is None:
            await asyncio.Event().wait()


@found_by("streams: half-close", "response: served served-elsewhere")
class FailsAtEnd(Honest):
    """A stream whose response was shown ends with an error."""

    shown = False

    def on_response_headers(self, message: Any) -> list[Any]:
        self.shown = True
        return super().on_response_headers(message)

    async def on_half_close(self) -> None:
        if self.shown:
            raise Broken("the end")


# --- health ---------------------------------------------------------------------------------------------------------


@found_by("health: liveness")
class NoLiveness(Honest):
    services = ("", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


@found_by("health: readiness ext-proc")
class LivenessOnly(Honest):
    services = ("", "liveness")


@found_by("health: overall")
class NoWhole(Honest):
    services = ("liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor")


class _Everything(tuple[str, ...]):
    def __contains__(self, service: object) -> bool:
        return True


@found_by("health: unknown")
class KnowsEverything(Honest):
    """As GIE's picker, v1.5.0."""

    services = _Everything()


@found_by("health: watch")
class NoWatch(Honest):
    """As GIE's picker, v1.5.0."""

    watches = False
