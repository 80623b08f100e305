"""Inputs of scaling policies, and a cluster that does at once what they ask for."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.attainment import Objective
from ballast_core.model import Role
from ballast_core.policies.scaling.protocol import (
    Clamps,
    Counts,
    Decision,
    Inputs,
    Pool,
    Scaling,
    Traffic,
)
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics

H200 = SHIPPED_PROFILES["h200-qwen3-32b"]
CHAT = LengthStatistics(1200.0, 300.0, 1200.0**2 / 2, 1350.0)
REASONING = LengthStatistics(1000.0, 2800.0, 1000.0**2 / 2, 2400.0)
SLO = Objective("default", ttft_s=5.0, tpot_s=0.05, target=0.95)


def pool(role: Role, *, prefill: int = 0, decode: int = 0, least: int = 1, most: int = 16, name: str = "") -> Pool:
    """A pool whose instances are all ready."""
    counts = Counts(prefill, decode)
    return Pool(name=name or role.value, role=role, profile=H200, least=least, most=most, wanted=counts, ready=counts)


def flexible(prefill: int, decode: int, *, least: int = 2, most: int = 16) -> tuple[Pool, ...]:
    """One flexible pool."""
    return (pool(Role.FLEXIBLE, prefill=prefill, decode=decode, least=least, most=most),)


def split(prefill: int, decode: int, *, most: int = 16) -> tuple[Pool, ...]:
    """A prefill pool and a decode pool."""
    return (pool(Role.PREFILL, prefill=prefill, most=most), pool(Role.DECODE, decode=decode, most=most))


def traffic(rate_rps: float, lengths: LengthStatistics | None = CHAT, *, bins: int = 8, decoding: int = 0) -> Traffic:
    """Steady arrivals in windows of 15 s."""
    held = decoding * (lengths.context_tokens if lengths else 0.0)
    arrivals = (round(15 * rate_rps),) * bins
    return Traffic(bin_s=15.0, arrivals=arrivals, lengths=lengths, decoding=decoding, decoding_tokens=held)


def inputs(
    pools: tuple[Pool, ...], traffic: Traffic, *, budget: int | None = None, clamps: Clamps | None = None
) -> Inputs:
    """At time 0, with an empty memory."""
    return Inputs(
        now_s=0.0,
        pools=pools,
        traffic=traffic,
        objectives=(SLO,),
        clamps=clamps or Clamps(gpu_budget=budget),
        startup_s=60.0,
    )


def decided(policy: Scaling, given: Inputs) -> Decision:
    """One round without rehearsals."""
    return policy.decide(policy.propose(given))


def carried_out(given: Inputs, decision: Decision, *, after_s: float = 15.0) -> Inputs:
    """The next round's inputs, where everything asked for is there already."""
    pools = tuple(
        replace(each, wanted=counts, ready=counts, starting=0, draining=0)
        for each, counts in zip(given.pools, decision.target, strict=True)
    )
    return replace(given, now_s=given.now_s + after_s, pools=pools, memory=decision.memory)
