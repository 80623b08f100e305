"""Whether a request can go on when its decode leg fails, and from where: by what was sent, and by the tokens held."""

from __future__ import annotations

from ballast_gateway.proxy.held_stream import HeldStream
from ballast_gateway.proxy.legs import Job
from ballast_gateway.proxy.life import Event
from ballast_gateway.proxy.relay import Relay
from ballast_gateway.proxy.whole_answers import WholeAnswer


def may_leave(job: Job, leg: Relay, *, rescue: bool) -> bool:
    """Whether another engine could go on, and whether that is wanted."""
    if job.whole is not None or not (leg.continues or leg.shows):
        return True
    held = job.held
    return rescue and held is not None and held.may_go_on and held.may_rewind


def kind_of_failure(job: Job, leg: Relay, *, rescue: bool) -> Event:
    """What the end of this leg means. The tokens held are taken back to where another engine can go on."""
    held, whole = job.held, job.whole
    if held is not None and held.unfit:
        return Event.UNFIT
    if not (leg.continues or leg.shows):
        return Event.ENGINE_FAILED
    if held is None:
        return Event.ENGINE_BROKE
    if whole is not None:
        return _kind_of_whole_failure(held, whole, rescue=rescue)
    if not held.may_go_on or not held.rewind():
        return Event.ENGINE_BROKE
    if rescue:
        return _from_tokens(held)
    return Event.ENGINE_BROKE if held.unsure else Event.ENGINE_FAILED_UNRESCUED


def _kind_of_whole_failure(held: HeldStream, whole: WholeAnswer, *, rescue: bool) -> Event:
    """There is always a way on: nothing has been sent."""
    if held.finished and not whole.spoiled:
        return Event.END  # it broke after its last token
    goes_on = rescue and not whole.spoiled and held.may_go_on and held.rewind()
    return _from_tokens(held) if goes_on else Event.ENGINE_FAILED_ANEW


def _from_tokens(held: HeldStream) -> Event:
    return Event.ENGINE_FAILED_UNSURE if held.unsure else Event.ENGINE_FAILED
