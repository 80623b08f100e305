"""Profiles of models without a table of steps, scaled from one whose model is of almost the same size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ballast_core.profiles import HardwareProfile
from ballast_sim.fitting.model_shapes import ModelShape

QWEN_7B = ModelShape(layers=28, hidden=3584, heads=28, kv_heads=4, feed_forward=18944, vocabulary=152064)
"""Qwen2.5-7B."""


def scaled(base: HardwareProfile, before: ModelShape, after: ModelShape, **more: Any) -> HardwareProfile:
    """The base with another model: the floor by the bytes of weights that a step reads, the slope by the arithmetic of
    a token, attention by its own arithmetic, the KV term by bytes a token; host time stays. `more` are further fields.
    """
    made = replace(
        base,
        a_ms=base.a_ms * after.bytes_per_step / before.bytes_per_step,
        d_ms_per_token=base.d_ms_per_token * after.flop_per_token / before.flop_per_token,
        s_ms_per_pair=base.s_ms_per_pair * after.flop_per_pair / before.flop_per_pair,
        k_ms_per_kv_token=base.k_ms_per_kv_token * after.kv_bytes_per_token / before.kv_bytes_per_token,
        kv_bytes_per_token=after.kv_bytes_per_token,
    )
    return replace(made, **more)
