"""From the gateway's settings file to what its Director believes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ballast_api.hardware_profile import EngineProfile
from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, EndpointId, Role
from ballast_core.model.events import EndpointObserved
from ballast_core.policies.admission import ExpectedTtft, Open
from ballast_core.profiles import H20_QWEN3_32B
from ballast_gateway.app import Gateway
from ballast_gateway.settings import director_settings
from tests.support.gateway_kit import settings

SMALL_CACHE = EngineProfile.from_core(H20_QWEN3_32B).model_copy(update={"kv_tokens": 12_345})


def believed_kv_tokens(director: Director, profile: str) -> float:
    """KV tokens of an endpoint that names this profile."""
    endpoint = Endpoint(EndpointId("d0"), "10.0.0.1:8000", Role.DECODE, profile=profile)
    director.on_event(EndpointObserved(endpoint), 0.0)
    slot = director.inventory.slot_of(endpoint.id)
    assert slot is not None
    return float(director.beliefs.hardware.kv_tokens(np.array([slot]))[0])


@pytest.mark.parametrize("name", ["ours", "h20-qwen3-32b"], ids=["a new name", "an edited shipped name"])
async def test_a_profile_of_the_settings_is_what_the_gateways_director_believes(tmp_path: Path, name: str) -> None:
    """The Director that the gateway really runs; a shipped name that the file edits means the file's numbers."""
    file = tmp_path / "endpoints.yaml"
    file.write_text("endpoints: []")
    gateway = Gateway(settings(file, profiles={name: SMALL_CACHE.dump()}))
    try:
        assert believed_kv_tokens(gateway.driver.director, name) == 12_345
    finally:
        await gateway.close()


def test_shipped_profiles_need_not_be_in_the_file(tmp_path: Path) -> None:
    """Also not beside others; a name that neither has is learned from a guess."""
    made = director_settings(settings(tmp_path / "none", profiles={"ours": SMALL_CACHE.dump()}))
    assert believed_kv_tokens(Director(made), "h20-qwen3-32b") == H20_QWEN3_32B.kv_tokens
    assert believed_kv_tokens(Director(made), "unheard-of") not in (12_345, H20_QWEN3_32B.kv_tokens)


@pytest.mark.parametrize(
    ("more", "field", "expected"),
    [
        ({"limits": {"maxInFlight": 7}}, "max_in_flight", 7),
        ({"limits": {"maxRetries": 5}}, "max_retries", 5),
        ({"limits": {"holdS": 1.5}}, "hold_s", 1.5),
    ],
)
def test_limits_of_the_settings_bound_the_director(
    tmp_path: Path, more: dict[str, Any], field: str, expected: float
) -> None:
    """Those that are the Director's to keep."""
    assert getattr(director_settings(settings(tmp_path / "none", **more)), field) == expected


def test_by_default_a_gateway_admits_by_expected_time_and_trusts_no_client(tmp_path: Path) -> None:
    """Who wants engines to queue everything says so."""
    file = tmp_path / "endpoints.yaml"
    assert director_settings(settings(file)).admission == ExpectedTtft()
    assert director_settings(settings(file, policy={"admission": {"type": "open"}})).admission == Open()
    assert (settings(file).trust.priorities, settings(file).trust.tenant_header) == (False, None)
