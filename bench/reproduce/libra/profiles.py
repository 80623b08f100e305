"""Qwen2.5-14B and -32B on one, two and four A100 80 GB, Libra's models, for which no table of steps is public.

Scaled from the shipped profiles of Qwen3, whose sizes are almost the same (14.8 and 32.8 billion parameters):
the floor by the bytes of weights that a step reads, the slope by the arithmetic of a token, attention by its own
arithmetic, the KV term by bytes a token; host time stays. 14B on two and four GPUs has no table of Qwen3 either: it is
taken to gain what 32B gains. KV capacity is what memory leaves, as in all derived profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.fitting.model_shapes import MODELS
from bench.reproduce.scaled_profiles import scaled

A100_BYTES = 80 * 2**30


def _scaled(name: str, base: HardwareProfile, of: str, to: str, gpus: int) -> HardwareProfile:
    before, after = MODELS[of], MODELS[to]
    return scaled(
        base,
        before,
        after,
        name=name,
        hardware=f"{gpus} x A100 80 GB, tensor parallel" if gpus > 1 else "A100 80 GB",
        gpus=gpus,
        kv_tokens=after.kv_tokens(gpus, A100_BYTES),
        derivation=f"{base.name} scaled to the sizes of {to}",
    )


def _faster(base: HardwareProfile, one: HardwareProfile, more: HardwareProfile) -> HardwareProfile:
    """The base on as many GPUs as `more` has, gaining what `more` gains over `one`."""
    return replace(
        base,
        a_ms=base.a_ms * more.a_ms / one.a_ms,
        d_ms_per_token=base.d_ms_per_token * more.d_ms_per_token / one.d_ms_per_token,
        s_ms_per_pair=base.s_ms_per_pair * more.s_ms_per_pair / one.s_ms_per_pair,
        k_ms_per_kv_token=base.k_ms_per_kv_token * more.k_ms_per_kv_token / one.k_ms_per_kv_token,
        b_ms_per_seq=base.b_ms_per_seq * more.b_ms_per_seq / one.b_ms_per_seq,
    )


def _profiles() -> Mapping[str, HardwareProfile]:
    made: dict[str, HardwareProfile] = {}
    small, large = SHIPPED_PROFILES["a100-qwen3-14b"], SHIPPED_PROFILES["a100-qwen3-32b-tp1"]
    for gpus in (1, 2, 4):
        big = SHIPPED_PROFILES[f"a100-qwen3-32b-tp{gpus}"]
        for model, of, base in (("14b", "qwen3-14b", _faster(small, large, big)), ("32b", "qwen3-32b", big)):
            name = f"a100-qwen2.5-{model}-tp{gpus}"
            made[name] = _scaled(name, base, of, f"qwen2.5-{model}", gpus)
    return made


PROFILES = _profiles()
"""By name, such as `a100-qwen2.5-14b-tp1`."""
