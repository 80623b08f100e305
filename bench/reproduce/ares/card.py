"""ARES's card: DeepSeek-R1-Distill-Qwen-7B with 8-bit weights and activations (W8A8) on an RTX 4090D.

A step of decode costs what the project's physics of the paper says (`ballast_sim.physics.laws`): 9.7 ms and 0.073 us a
token of KV, so that a step with KV half full takes the paper's 18.23 ms; 24,564 MiB at vLLM's 90 %, less weights and
1 GB of activations, leave 234,924 tokens of KV. Prefill is arithmetic on the data sheet: 588 TOP/s of dense int8 for
the layers and 147 TFLOP/s of bf16 for attention, both at 60 %. Moves go over PCIe 4.0 x16.
"""

from ballast_core.profiles import HardwareProfile
from ballast_sim.physics.laws import ARES_KV_TOKENS, ARES_LINEAR

KV_BYTES_PER_TOKEN = 57_344
INT8_OP_PER_S, BF16_FLOP_PER_S = 0.6 * 588e12, 0.6 * 147e12

CARD = HardwareProfile(
    name="rtx4090d-qwen-7b-w8a8",
    hardware="RTX 4090D 24 GB",
    gpus=1,
    overhead_ms=0.0,
    a_ms=1e3 * ARES_LINEAR.step_s,
    d_ms_per_token=1e3 * 2 * 7.6e9 / INT8_OP_PER_S,
    k_ms_per_kv_token=1e3 * ARES_LINEAR.token_s,
    s_ms_per_pair=1e3 * 4 * 28 * 3584 / BF16_FLOP_PER_S,
    b_ms_per_seq=0.02,
    kv_tokens=ARES_KV_TOKENS,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    link_gbps=200.0,
    link_setup_s=0.005,
    derivation="data sheets and the paper's own step time; see this module",
)
