"""What gateways say that they have learned of engines, against what these really run and what is declared."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest

from ballast_api.hardware_profile import EngineProfile
from ballast_api.profile_report import PROFILES, LearnedProfile, ProfilesReport, read_profiles, together
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.model.events import EndpointObserved
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_gateway.learned_profiles import LEAST, profiles_report
from tests.support.core_builders import director, endpoint
from tests.support.gateway_kit import running_gateway
from tests.support.scripted_engine import decode_script, scripted_engine

DECLARED = SHIPPED_PROFILES["h20-qwen3-32b"]
REAL = replace(DECLARED, a_ms=DECLARED.a_ms * 1.6, k_ms_per_kv_token=DECLARED.k_ms_per_kv_token * 2.0)
"""What the engines run: their memory is slower than declared."""


UNKNOWN = EngineProfile(kv_tokens=DECLARED.kv_tokens, kv_bytes_per_token=DECLARED.kv_bytes_per_token)
"""A HardwareProfile that leaves its speed out."""


def told_of(observations: int, *, stragglers: float = 0.0, profile: str = "h20-qwen3-32b") -> LearnedProfile:
    """Two engines that run `REAL`, each seen so often, at loads that vary, with 5 % noise."""
    chance = random.Random(5)
    known = {"h20-qwen3-32b": DECLARED, "unknown": UNKNOWN.to_core("unknown")}
    settings = replace(director(()).settings, learn=Belief.STEP_TIMES, profiles=known)
    on = Director(settings)
    for name in ("d0", "d1"):
        on.on_event(EndpointObserved(replace(endpoint(name), profile=profile)), 0.0)
        slot = on.inventory.slot_of(endpoint(name).id)
        assert slot is not None
        for number in range(observations):
            decodes, context = chance.randint(1, 60), chance.randint(500, 3000)
            gap_s = REAL.step_s(decodes, decodes * context, 0, decodes) * chance.gauss(1.0, 0.05)
            gap_s *= 10.0 if chance.random() < stragglers else 1.0
            on.beliefs.step_times.observe(slot, gap_s, decodes, decodes * context, now_s=2.0 * number)
            on.beliefs.step_times.observe(slot, float("nan"), decodes, -1.0, now_s=2.0 * number)  # refused
    (found,) = read_profiles(profiles_report(on, now_s=1.0, unix_s=9.0)).profiles
    return found


def step_s(found: LearnedProfile, decodes: int, context: int) -> float:
    """By the law, with what was learned."""
    assert found.learned is not None
    law: HardwareProfile = replace(REAL, **msgspec.structs.asdict(found.learned))
    return law.step_s(decodes, decodes * context, 0, decodes)


@pytest.mark.parametrize("stragglers", [0.0, 0.1])
@pytest.mark.parametrize("profile", ["h20-qwen3-32b", "only-a-name", "unknown"])
def test_steps_are_learned_within_a_tenth_of_what_engines_run(profile: str, stragglers: float) -> None:
    """From a wrong profile and from none; a gap in ten that lasts ten times as long hardly counts."""
    found = told_of(300, stragglers=stragglers, profile=profile)
    assert (found.endpoints, found.observations) == (2, 600)
    for decodes, context in ((1, 500), (16, 1024), (60, 2000)):
        real_s = REAL.step_s(decodes, decodes * context, 0, decodes)
        assert step_s(found, decodes, context) == pytest.approx(real_s, rel=0.1)
    assert found.median_error_ratio < 0.1
    off = abs(REAL.step_s(16, 16 * 1024, 0, 16) / DECLARED.step_s(16, 16 * 1024, 0, 16) - 1)
    if profile == "only-a-name":
        assert (found.declared, found.declared_error_ratio) == (None, None)
    elif profile == "unknown":
        assert found.guessed
    else:
        assert not found.guessed
        assert found.declared is not None
        assert found.declared.a_ms == DECLARED.a_ms
        assert found.declared_s_ms_per_pair == DECLARED.s_ms_per_pair
        assert found.declared_error_ratio == pytest.approx(off, abs=0.1)


def test_too_few_observations_say_nothing() -> None:
    """Until then the prior would speak for itself."""
    found = told_of(LEAST - 1)
    assert (found.learned, found.endpoints, found.observations) == (None, 0, 0)
    assert found.declared is not None


@pytest.mark.parametrize("declared", [DECLARED, UNKNOWN.to_core("h20-qwen3-32b")], ids=["declared", "unknown"])
def test_prefills_are_told_by_their_ratio(declared: HardwareProfile) -> None:
    """Of those that ended, once they are enough: engines that take 1.8 times as long as declared."""
    settings = replace(director(()).settings, learn=Belief.PREFILL_TIMES, profiles={"h20-qwen3-32b": declared})
    on = Director(settings)
    on.on_event(EndpointObserved(replace(endpoint("p0"), profile="h20-qwen3-32b")), 0.0)
    slot = on.inventory.slot_of(endpoint("p0").id)
    assert slot is not None
    now_s, alone = 0.0, DECLARED.step_s(2000, 0, 2000.0**2 / 2, 0)
    believed = declared.step_s(2000, 0, 2000.0**2 / 2, 0)
    for number in range(3 * LEAST):
        on.beliefs.prefill_times.completed(
            slot, dispatched_s=now_s, uncached_tokens=2000, now_s=now_s + 1.8 * alone, predicted_s=alone
        )
        now_s += 10.0
        (found,) = read_profiles(profiles_report(on, now_s=1.0, unix_s=9.0)).profiles
        assert (found.prefill_ratio is not None) == (number + 1 >= LEAST)
    assert (found.prefills, found.prefill_endpoints, found.learned) == (3 * LEAST, 1, None)
    assert found.prefill_ratio == pytest.approx(1.8 * alone / believed, rel=0.1)
    assert found.guessed is not declared.speed_known


async def test_the_admin_api_tells_them(tmp_path: Path) -> None:
    """Each profile that an endpoint names."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {}, wait=False) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        one = {"name": "f0", "address": engine.address, "role": "flexible", "profile": "h20-qwen3-32b"}
        gateway.endpoints_file.write_text(json.dumps({"endpoints": [one]}))
        await gateway.ready_endpoints(1)
        (found,) = read_profiles((await admin.get(PROFILES)).content).profiles
    assert (found.name, found.learned) == ("h20-qwen3-32b", None)


def test_workers_tell_what_most_was_learned_from() -> None:
    """One report for the gateway, by profile."""
    few, many = (LearnedProfile(name="h20", observations=count) for count in (60, 600))
    reports = [ProfilesReport(unix_s=1.0, profiles=(few,)), ProfilesReport(unix_s=2.0, profiles=(many,))]
    assert read_profiles(together(reports)) == ProfilesReport(unix_s=2.0, profiles=(many,))
    with pytest.raises(ValueError, match="/ballast/v1/profiles"):
        read_profiles(msgspec.json.encode({"unix_s": "soon"}))
