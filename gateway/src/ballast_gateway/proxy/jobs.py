"""How a generation is carried out: whether its tokens are held, and whether a whole answer comes as a stream."""

from __future__ import annotations

from ballast_gateway.http.server import ClientConnection
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.course import Resources
from ballast_gateway.proxy.fields import is_replayable
from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job
from ballast_gateway.proxy.whole_answers import WholeAnswer
from ballast_gateway.records import RequestRecord


def job_of(
    client: ClientConnection,
    path: bytes,
    forwarded: bytes,
    asked: Generation,
    record: RequestRecord,
    *,
    resources: Resources,
    holds: bool,
) -> Job:
    """`forwarded`: the header lines that engines see. `holds`: streams are moved, or go on where an engine fails."""
    if not (holds and is_replayable(asked)):
        if asked.stream and asked.choices == 1 and not (asked.passed or asked.wants_usage):
            return Job(client, path, forwarded, asked.with_usage(), record, hides_usage=True)
        return Job(client, path, forwarded, asked, record)
    if asked.stream:
        return Job(client, path, forwarded, asked, record, HeldStream(asked))
    if resources.unfit.holds(asked, resources.loop.time()):
        return Job(client, path, forwarded, asked, record)
    generation = asked.as_stream()
    held = HeldStream(generation, unseen=True)
    whole = WholeAnswer(client, asked, held)
    return Job(whole, path, forwarded, generation, record, held, whole)
