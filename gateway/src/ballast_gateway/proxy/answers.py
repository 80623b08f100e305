"""How a generation is answered when it is not a stream on its way, and how a stream is broken off."""

from __future__ import annotations

from ballast_core.model import Outcome
from ballast_gateway import headers
from ballast_gateway.driver import Ticket
from ballast_gateway.errors import ApiError, upstream_broke
from ballast_gateway.http.client import Collect
from ballast_gateway.proxy.decode_leg import Job, answer_headers
from ballast_gateway.proxy.sse import completion_tokens


def pass_on(job: Job, ticket: Ticket, reply: Collect) -> None:
    """A whole answer: the result, or a refusal that any endpoint would give."""
    record, body = job.record, reply.body
    record.status = reply.status
    record.output_tokens = completion_tokens(body)
    if reply.status >= 400:
        record.outcome, record.reason = "invalid", f"upstream-{reply.status}"
    job.client.respond(reply.status, answer_headers(reply.headers, record), body)
    ticket.end(Outcome.COMPLETED if reply.status < 400 else Outcome.FAILED, record.output_tokens)


def answer_error(job: Job, error: ApiError) -> None:
    """Nothing was sent yet: an answer of our own."""
    record = job.record
    record.status, record.outcome, record.reason = error.status, "rejected", error.code
    record.detail = record.detail or error.message
    job.client.respond_error(error, ((headers.REQUEST_ID, record.id.encode()),))


def break_stream(job: Job, failure: Exception, *, say_so: bool) -> None:
    """Too late for a status: say it in the stream, if that is between two events, and cut the connection."""
    error = upstream_broke("the engine failed in the middle of the answer")
    record = job.record
    record.outcome, record.reason, record.detail = "failed", error.code, str(failure)
    if say_so:
        job.client.write(b"data: %b\n\n" % error.body())
    job.client.abort()
