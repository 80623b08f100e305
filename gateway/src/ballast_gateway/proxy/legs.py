"""One leg of a generation: the request that an engine gets, and how a leg fails."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ballast_core.model import Endpoint, Fault, Stage
from ballast_core.values import value
from ballast_gateway import headers, openai_body
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.clients import Client
from ballast_gateway.proxy.events import is_aborted
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.whole_answers import WholeAnswer
from ballast_gateway.records import RequestRecord

_MOST_SAID_BYTES: Final = 500
_QUEUE_FULL: Final = b'"Service Unavailable"'
"""The type of vLLM's errors at `--max-num-queued-reqs` and `--max-num-queued-tokens`, which have no Retry-After."""
_FRAMING: Final = frozenset({b"content-type", b"content-length", b"transfer-encoding"})


class LegFailed(Exception):
    """A leg failed in a way that another endpoint may mend: before the client got a byte, or with its tokens held."""

    def __init__(
        self,
        stage: Stage,
        endpoint: Endpoint,
        problem: str,
        fault: Fault,
        reply: Collect | None = None,
        *,
        said: bytes = b"",
    ) -> None:
        """`reply`: the engine's answer, if it gave another one than a result. `said`: as of `UpstreamError`."""
        super().__init__(f"{stage} on {endpoint.id}: {problem}")
        self.stage = stage
        self.endpoint = endpoint
        self.fault = fault
        self.reply = reply
        self._said = said

    @property
    def said(self) -> str:
        """The engine's own words. They may hold what the client sent: for a debug log only."""
        said = self._said if self.reply is None else bytes(self.reply.body)
        return said[:_MOST_SAID_BYTES].decode(errors="replace")

    @property
    def status(self) -> int:
        """Of the engine's answer; 0 if it gave none."""
        return 0 if self.reply is None else self.reply.status


@value
class Job:
    """One generation on its way."""

    client: Client
    path: bytes
    forwarded: bytes
    """The header lines that engines see."""
    generation: Generation
    record: RequestRecord
    held: HeldStream | None = None
    """Its tokens, if another engine may go on with it."""
    whole: WholeAnswer | None = None
    """The client too, where that waits for a whole answer that comes as a stream."""
    hides_usage: bool = False
    """The usage at the end of the stream is asked for by the gateway: the client does not see it."""

    def as_asked(self) -> Job:
        """The same, with a whole answer from an engine."""
        assert self.whole is not None
        return replace(self, client=self.whole.connection, generation=self.whole.asked, held=None, whole=None)


def payload(job: Job, endpoint: Endpoint, body: bytes, priority: int | None) -> bytes:
    """The bytes of a leg's request."""
    turn = b"" if priority is None else b"%b: %d\r\n" % (headers.PRIORITY, priority)
    trace = b"" if job.record.trace is None else job.record.trace.header
    return b"POST %b HTTP/1.1\r\nhost: %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b%b%b\r\n%b" % (
        job.path,
        endpoint.address.encode(),
        len(body),
        turn,
        trace,
        job.forwarded,
        body,
    )


async def perform(pool: UpstreamPool, stage: Stage, endpoint: Endpoint, request: bytes, exchange: Collect) -> None:
    """Run one leg. Raises `LegFailed` where another endpoint may mend it; here a 4xx is an answer."""
    problem = None
    try:
        await pool.perform(endpoint.address, request, exchange)
    except UpstreamError as error:
        problem = error
    failure = failure_of(stage, endpoint, exchange, problem)
    if failure is not None and not 400 <= failure.status < 500:
        raise failure


def failure_of(
    stage: Stage, endpoint: Endpoint, reply: Collect, error: UpstreamError | None, *, passed: bool = False
) -> LegFailed | None:
    """How a leg that has ended failed, where another endpoint may mend it; of a stream only what its head says.

    `passed`: of a route whose answers may repeat JSON of the client.
    """
    if error is not None:
        return LegFailed(stage, endpoint, str(error), error.fault, said=error.said)
    if reply.status != 200:
        return refused(stage, endpoint, reply)
    if is_error(reply.body):
        return LegFailed(stage, endpoint, "answered 200 with an error", Fault.BROKE)
    if not passed and is_aborted(reply.body):
        return LegFailed(stage, endpoint, "aborted the request", Fault.BROKE)
    return None


def refused(stage: Stage, endpoint: Endpoint, reply: Collect) -> LegFailed:
    """The failure of a leg that was answered with another status than 200."""
    return LegFailed(stage, endpoint, f"answered {reply.status}", fault_of(reply), reply)


def fault_of(reply: Collect) -> Fault:
    """What an answer with another status than 200 says of its engine."""
    status = reply.status
    if status == 429:
        return Fault.BUSY
    if status == 503 and (_QUEUE_FULL in reply.body or any(name == b"retry-after" for name, _ in reply.headers)):
        return Fault.BUSY
    if 400 <= status < 500:
        return Fault.REFUSED
    return Fault.ERROR if status >= 500 else Fault.BROKE


def is_error(body: bytes) -> bool:
    """Whether a whole answer of status 200 is an error all the same."""
    if not body or b'"choices"' in body or b'"error"' not in body:
        return False
    try:
        document = openai_body.load(body)
    except (ValueError, RecursionError):
        return False
    if not isinstance(document, dict) or document.get("object") == "response":
        return False  # /v1/responses has the field, null or not, in each result
    return "error" in document or document.get("object") == "error"


def is_answer(reply: Collect, *, passed: bool = False) -> bool:
    """Whether it is a refusal, or a result that is whole: one without a length may have lost its end.

    `passed`: of a route whose results need not be an object, nor JSON.
    """
    if reply.status != 200:
        return True
    if passed:
        framing = {name: value for name, value in reply.headers if name in _FRAMING}
        if not framing.pop(b"content-type", b"").startswith(b"application/json"):
            return bool(framing)
    try:
        document = openai_body.load(reply.body)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, (dict, list) if passed else dict)


def handle_of(body: bytes) -> JsonObject | None:
    """The KV handle in a prefill's answer; None where the engine gave none (it then computes the prompt again)."""
    try:
        reply = openai_body.load(body)
    except (ValueError, RecursionError):
        return None
    handle = reply.get("kv_transfer_params") if isinstance(reply, dict) else None
    return handle if isinstance(handle, dict) and handle else None


def read_text(body: bytes) -> str | None:
    """The text in an answer of `/detokenize`; None where there is none."""
    try:
        reply = openai_body.load(body)
    except (ValueError, RecursionError):
        return None
    text = reply.get("prompt") if isinstance(reply, dict) else None
    return text if isinstance(text, str) else None
