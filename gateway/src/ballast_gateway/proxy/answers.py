"""Answers other than a stream on its way, and how a stream is broken off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ballast_core.model import RejectReason
from ballast_gateway import headers, paths
from ballast_gateway.errors import ApiError, deadline_exceeded
from ballast_gateway.http.client import Collect
from ballast_gateway.http.responses import Headers
from ballast_gateway.proxy.legs import Job, LegFailed
from ballast_gateway.proxy.named_events import output_tokens
from ballast_gateway.proxy.sse import completion_tokens
from ballast_gateway.records import RequestRecord

_MESSAGES: Final = paths.MESSAGES.encode()


def begin(job: Job, reply: Collect) -> None:
    """Send status and headers of a stream; for a whole answer they are kept."""
    if job.whole is None:
        job.record.status = reply.status
    job.client.start_stream(reply.status, _headers(reply.headers, job.record))


def end(job: Job, reply: Collect) -> None:
    """The stream is whole."""
    job.record.status = reply.status
    job.client.end()


def pass_on(job: Job, reply: Collect) -> bool:
    """Send a whole answer: the result, or a refusal that any endpoint would give. Returns whether it is a result."""
    record, body = job.record, reply.body
    record.status = reply.status
    tokens = output_tokens(body) if job.generation.passed else completion_tokens(body)
    record.output_tokens = min(tokens, job.generation.most_output_tokens)
    if reply.status >= 400:
        record.outcome = "rejected" if reply.status == 429 else "invalid"
        record.reason = f"upstream-{reply.status}"
    job.client.respond(reply.status, _headers(reply.headers, record), body)
    return reply.status < 400


def shared(reason: RejectReason, failed: Sequence[LegFailed]) -> Collect | None:
    """The answer of the engines that were asked, where it is the client's: a 4xx that all of them gave.

    Not where the retry budget kept the gateway from asking another one: nobody knows whose fault it is.
    """
    last = failed[-1] if failed else None
    if last is None or last.reply is None or not 400 <= last.status < 500 or reason is RejectReason.RETRY_BUDGET:
        return None
    return last.reply if all(leg.status == last.status for leg in failed) else None


def refuse(job: Job, error: ApiError) -> None:
    """Send an error of our own, in place of an answer."""
    record = job.record
    record.status, record.outcome, record.reason = error.status, "rejected", error.code
    record.detail = record.detail or error.for_log
    job.client.respond_error(error, ((headers.REQUEST_ID, record.id.encode()),))


def expire(job: Job, seconds: float, *, between_events: bool) -> None:
    """The deadline has passed: an error, or in a stream that has begun an error event and the end."""
    error, record, client = deadline_exceeded(seconds), job.record, job.client
    record.outcome, record.reason, record.detail = "failed", error.code, error.message
    if not client.head_sent:
        record.status = error.status
        client.respond_error(error, ((headers.REQUEST_ID, record.id.encode()),))
    elif between_events:
        client.write(_event(job, error))
        client.end()
    else:
        client.abort()


def break_off(job: Job, error: ApiError, *, between_events: bool) -> None:
    """Put an error event into the stream, where one fits, and cut the connection; it is too late for a status, unless
    the client waits for a whole answer.
    """
    record = job.record
    record.outcome, record.reason = "failed", error.code
    if job.whole is not None:
        record.status = error.status
        job.client.respond_error(error, ((headers.REQUEST_ID, record.id.encode()),))
        return
    if between_events:
        job.client.write(_event(job, error))
    job.client.abort()


def _event(job: Job, error: ApiError) -> bytes:
    """The error in a stream. Anthropic's clients pass over events without a name."""
    if job.path == _MESSAGES:
        return b'event: error\ndata: {"type": "error", %b\n\n' % error.body()[1:]
    return b"data: %b\n\n" % error.body()


def _headers(upstream: Headers, record: RequestRecord) -> Headers:
    """What the client sees of an engine's headers, and the id of its request."""
    return [*headers.to_client(upstream), (headers.REQUEST_ID, record.id.encode())]
