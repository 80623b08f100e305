"""Qwen2.5-7B and Llama3-8B on an A100 40 GB, of SIBYL's appendix G, for which no table of steps is public.

Scaled from the shipped profile of Llama3-8B on an A100 80 GB, which has the same arithmetic: what reads memory (the
floor and the KV term) by table 4's 1.89 TB/s to the 2.04 TB/s of the larger card, Qwen2.5-7B also by its sizes. KV is
what the command of F.3 leaves a decode endpoint: 80 % of memory, less weights and the reserve of all derived profiles.
"""

from __future__ import annotations

from dataclasses import replace

from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.fitting.model_shapes import BYTES_PER_PARAMETER, MODELS, RESERVED_BYTES_PER_GPU, ModelShape
from bench.reproduce.scaled_profiles import QWEN_7B, scaled

BASE = SHIPPED_PROFILES["a100-llama3-8b"]
BASE_TB_PER_S, TB_PER_S = 2.039, 1.89
MEMORY_BYTES = 40 * 2**30
MEMORY_SHARE_RATIO = 0.8
BATCHED_TOKENS = 32_768

SHAPES = {
    "qwen2.5-7b": QWEN_7B,
    "llama3-8b": MODELS["llama3-8b"],
}


def kv_tokens(shape: ModelShape) -> int:
    """KV tokens that fit beside the weights."""
    weights = BYTES_PER_PARAMETER * (shape.layer_parameters + 2 * shape.head_parameters)
    return int((MEMORY_SHARE_RATIO * MEMORY_BYTES - RESERVED_BYTES_PER_GPU - weights) // shape.kv_bytes_per_token)


def _decode(model: str, shape: ModelShape) -> HardwareProfile:
    slower = BASE_TB_PER_S / TB_PER_S
    return scaled(
        replace(BASE, a_ms=slower * BASE.a_ms, k_ms_per_kv_token=slower * BASE.k_ms_per_kv_token),
        MODELS["llama3-8b"],
        shape,
        name=f"a100-40gb-{model}",
        hardware="A100 40 GB",
        kv_tokens=kv_tokens(shape),
        max_num_batched_tokens=BATCHED_TOKENS,
        derivation=f"{BASE.name} scaled to the bandwidth of SIBYL's table 4 and the sizes of {model}",
    )


DECODE = {model: _decode(model, shape) for model, shape in SHAPES.items()}
"""By model."""
PREFILL = {model: replace(profile, name=f"{profile.name}-prefill", max_num_seqs=1) for model, profile in DECODE.items()}
"""The same with one request at a time, as F.3 sets for prefill."""
