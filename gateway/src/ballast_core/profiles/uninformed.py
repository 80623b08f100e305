"""The profile of an engine of which nothing is known."""

from ballast_core.profiles.law import HardwareProfile

UNINFORMED_PROFILE = HardwareProfile(
    name="uninformed",
    hardware="unknown",
    overhead_ms=1.0,
    a_ms=12.0,
    d_ms_per_token=0.1,
    k_ms_per_kv_token=4e-5,
    s_ms_per_pair=5e-6,
    b_ms_per_seq=0.02,
    kv_tokens=200_000,
    kv_bytes_per_token=131_072,
    derivation="a guess between the shipped profiles, for endpoints without a known profile; learning starts from it",
    speed_known=False,
)
