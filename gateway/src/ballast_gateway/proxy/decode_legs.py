"""A decode leg: the body that its engine gets, and what follows the answer. By the state of the generation."""

from __future__ import annotations

from ballast_gateway.proxy.course import Course, Resources
from ballast_gateway.proxy.hidden_usage import HiddenUsage
from ballast_gateway.proxy.legs import Job
from ballast_gateway.proxy.life import CROSSING, State
from ballast_gateway.proxy.named_events import meter_of
from ballast_gateway.proxy.relay import HeldRelay, Holder, Relay
from ballast_gateway.proxy.sse import TokenMeter


def decode_body(job: Job, course: Course, state: State) -> bytes:
    """The client's request, with the KV that is there; of a stream that has begun, the rest of it."""
    generation, held = job.generation, job.held
    if state is not State.OPENING:
        assert held is not None
        return held.continuation(course.handle)
    body = generation.decode_body(course.handle) if course.rest is None else course.rest.body
    return body if held is None else held.first_body(body)


def decode_leg(holder: Holder, job: Job, course: Course, resources: Resources, state: State) -> Relay:
    """What passes its answer on."""
    due_s = min(resources.loop.time() + resources.prefill_timeout_s, course.due_s)
    if course.rest is not None:
        due_s = min(due_s, course.rest.due_s)
    signs = resources.life_signs.of(course.endpoint.id)
    continues, idle_timeout_s = state is not State.OPENING, resources.idle_timeout_s
    if job.held is None:
        asked = job.generation
        most = asked.most_output_tokens
        return Relay(
            *(holder, job.client, resources.loop, signs),
            streams=asked.stream,
            continues=continues,
            due_s=due_s,
            idle_timeout_s=idle_timeout_s,
            meter=meter_of(job.path, most) if asked.passed else TokenMeter(most, choices=asked.choices),
            hidden=HiddenUsage() if job.hides_usage else None,
        )
    job.held.begin_leg()
    return HeldRelay(
        *(holder, job.client, resources.loop, signs, job.held),
        continues=continues,
        due_s=due_s,
        idle_timeout_s=idle_timeout_s,
        until_token=state in CROSSING,
    )
