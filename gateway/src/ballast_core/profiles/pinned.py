"""Three profiles whose names and numbers never change, so that figures stay comparable."""

from ballast_core.profiles.law import HardwareProfile

H20_QWEN3_32B = HardwareProfile(
    name="h20-qwen3-32b",
    hardware="H20 141 GB",
    gpus=1,
    overhead_ms=1.0,
    a_ms=16.0,
    d_ms_per_token=0.562,
    k_ms_per_kv_token=6.55e-5,
    s_ms_per_pair=2.9e-5,
    b_ms_per_seq=0.05,
    kv_tokens=190_000,
    kv_bytes_per_token=262_144,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    link_gbps=200,
    link_setup_s=0.005,
    derivation=(
        "decode: 64 GB of weights and 262,144 B a KV token over 4.0 TB/s; "
        "prefill: 62.4 GFLOP a token at 75 % of 148 TFLOP/s; "
        "attention 2.1 MFLOP a pair at 50 %; b assumed (sampling, host)"
    ),
)

A100_QWEN3_32B = HardwareProfile(
    name="a100-qwen3-32b",
    hardware="2 x A100 80 GB, tensor parallel",
    gpus=2,
    overhead_ms=1.0,
    a_ms=16.0,
    d_ms_per_token=0.167,
    k_ms_per_kv_token=6.55e-5,
    s_ms_per_pair=8.4e-6,
    b_ms_per_seq=0.05,
    kv_tokens=280_000,
    kv_bytes_per_token=262_144,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=256,
    link_gbps=200,
    link_setup_s=0.005,
    derivation=(
        "decode: 64 GB over 2 x 2.0 TB/s; prefill: 62.4 GFLOP a token at 60 % of 2 x 312 TFLOP/s; "
        "attention at 40 %; b assumed"
    ),
)

H200_LLAMA3_8B = HardwareProfile(
    name="h200-llama3-8b",
    hardware="H200 141 GB",
    gpus=1,
    overhead_ms=1.0,
    a_ms=4.771597,
    d_ms_per_token=0.01925584,
    k_ms_per_kv_token=2.934709e-05,
    s_ms_per_pair=8.387413e-07,
    b_ms_per_seq=0.004627547,
    kv_tokens=884_736,
    kv_bytes_per_token=131_072,
    block_size=16,
    max_num_batched_tokens=8192,
    max_num_seqs=1024,
    link_gbps=200,
    link_setup_s=0.005,
    derivation=(
        "fit to public kernel tables (decode and prefill steps; held-out error mean 1.4 %, max 6.8 %); overhead assumed"
    ),
)
