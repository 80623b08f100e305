"""ARES's card: DeepSeek-R1-Distill-Qwen-7B on an RTX 4090D, by arithmetic on public data sheets.

15.2 GB of bf16 weights and 57,344 B of KV a token (28 layers, 4 KV heads of 128) over 1,008 GB/s; 147 TFLOP/s of dense
bf16 at 60 %; 24,564 MiB at vLLM's 90 %, less weights and 1.2 GB of activations, leave 116,000 tokens of KV. The paper's
own figure, 18.23 ms a step with KV half full (5.2), comes out as 18.6. Moves go over PCIe 4.0 x16.
"""

from ballast_core.profiles import HardwareProfile

WEIGHTS_BYTES = 15.23e9
KV_BYTES_PER_TOKEN = 57_344
BANDWIDTH_BYTES_PER_S = 1.008e12
FLOP_PER_S = 0.6 * 147e12

CARD = HardwareProfile(
    name="rtx4090d-qwen-7b",
    hardware="RTX 4090D 24 GB",
    gpus=1,
    overhead_ms=0.0,
    a_ms=1e3 * WEIGHTS_BYTES / BANDWIDTH_BYTES_PER_S,
    d_ms_per_token=1e3 * 2 * 7.6e9 / FLOP_PER_S,
    k_ms_per_kv_token=1e3 * KV_BYTES_PER_TOKEN / BANDWIDTH_BYTES_PER_S,
    s_ms_per_pair=1e3 * 4 * 28 * 3584 / FLOP_PER_S,
    b_ms_per_seq=0.02,
    kv_tokens=116_000,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    link_gbps=200.0,
    link_setup_s=0.005,
    derivation="data sheets; see this module",
)
