"""Libra's machines beyond `profiles`: Qwen2.5-72B on four A100 80 GB, Qwen2.5-14B on one H100 80 GB.

Scaled in the same way from shipped profiles of models whose sizes are almost the same: Llama-3-70B (70.6 billion
parameters) for 72B (72.7 billion), Qwen3-14B for 14B.
"""

from __future__ import annotations

from collections.abc import Mapping

from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.fitting.model_shapes import MODELS, ModelShape
from bench.reproduce import scaled_profiles
from bench.reproduce.libra import profiles

CARD_BYTES = 80 * 2**30
"""Of an A100 and of an H100."""
QWEN_72B = ModelShape(layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=29_568, vocabulary=152_064)


def scaled(name: str, base: HardwareProfile, before: ModelShape, after: ModelShape) -> HardwareProfile:
    """The base with the sizes of another model, on the same GPUs of 80 GB."""
    return scaled_profiles.scaled(
        base,
        before,
        after,
        name=name,
        kv_tokens=after.kv_tokens(base.gpus, CARD_BYTES),
        derivation=f"{base.name} scaled to the sizes of {name}",
    )


PROFILES: Mapping[str, HardwareProfile] = {
    **profiles.PROFILES,
    "a100-qwen2.5-72b-tp4": scaled(
        "a100-qwen2.5-72b-tp4", SHIPPED_PROFILES["a100-llama3-70b-tp4"], MODELS["llama3-70b"], QWEN_72B
    ),
    "h100-qwen2.5-14b-tp1": scaled(
        "h100-qwen2.5-14b-tp1", SHIPPED_PROFILES["h100-qwen3-14b"], MODELS["qwen3-14b"], MODELS["qwen2.5-14b"]
    ),
}
"""By name, those of `profiles` among them."""
