"""What gateways and engines get of a HardwareProfile.

Gateways have the numbers in their settings. engine-sims read them from a mounted ConfigMap when they start; a real
engine gets those that vLLM has options for. So an edit of a speed is in no pod template, and restarts no engine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from ballast_api import names
from ballast_api.hardware_profile import EngineProfile, HardwareProfileSpec
from ballast_operator.kinds import CONFIG_MAP, Manifest
from ballast_operator.specs.meta import Owner, child

_DIR: Final = "/etc/ballast-profile"
PROFILE_FILE: Final = f"{_DIR}/profile.json"
"""Path in an engine's container."""
_VOLUME: Final = "profile"


def numbers_of(profile: HardwareProfileSpec) -> EngineProfile:
    """The numbers alone: an edit of prices or descriptions must not restart anything."""
    return profile.engine_profile().model_copy(update={"hardware": "", "derivation": ""})


def profiles_config_map(
    owner: Owner, profiles: Mapping[str, HardwareProfileSpec], others: Mapping[str, str]
) -> Manifest:
    """The numbers of each profile as JSON, by its name. `others`: further texts that engine pods mount, by key."""
    data = {
        name: json.dumps(numbers_of(profile).dump(), separators=(",", ":"))
        for name, profile in sorted(profiles.items())
    }
    return child(CONFIG_MAP, owner, names.profiles_name(owner.name), "engine", data={**data, **others})


def profile_volume(serving_pool: str, hardware: str) -> Manifest:
    """The one profile of a pool."""
    items = [{"key": hardware, "path": "profile.json"}]
    return {"name": _VOLUME, "configMap": {"name": names.profiles_name(serving_pool), "items": items}}


def profile_mount() -> Manifest:
    """Where the engine finds it."""
    return {"name": _VOLUME, "mountPath": _DIR, "readOnly": True}


def engine_limits(profile: HardwareProfileSpec) -> list[str]:
    """The numbers that vLLM has options for: an engine does what gateways expect of it."""
    return [
        *("--block-size", str(profile.block_size)),
        *("--max-num-seqs", str(profile.max_num_seqs)),
        *("--max-num-batched-tokens", str(profile.max_num_batched_tokens)),
    ]
