"""H20 profiles, from what SIBYL publishes: the data sheet (its Table 4) and a measured throughput curve (Figure 14).

Table 4: 148 TFLOP/s in bf16, 4.0 TB/s, 141 GB. Eq. 15 is the authors' fit to Figure 14, tokens a second of N decoding
requests on one H20: -0.423 N^2 + 44.766 N - 7.753. It peaks at N = 53; what lies beyond cannot be the law of a step
and is left out. The context of the requests is not printed.
"""

from __future__ import annotations

from dataclasses import replace

from ballast_core.profiles import H20_QWEN3_32B, HardwareProfile
from ballast_sim.fitting.derivation import MAX_NUM_SEQS, OVERHEAD_MS, Derived, rounded
from ballast_sim.fitting.law import COEFFICIENTS, FLOOR, LawFit, fit_undisturbed
from ballast_sim.fitting.model_shapes import MODELS
from ballast_sim.fitting.samples import Sample, Samples

H20_FLOP_PER_S = 148e12
H20_BYTES_PER_S = 4.0e12
H20_MEMORY_BYTES = 141 * 2**30
MATMUL_RATIO = 0.75  # of the peak, as in the pinned profile
ATTENTION_RATIO = 0.5

EQ15 = (-0.423, 44.766, -7.753)
EQ15_LARGEST_BATCH = 53
CONTEXTS_TOKENS = range(500, 6001, 100)

H20_MODELS = (("llama3-8b", 1), ("qwen3-14b", 1), ("llama3-70b", 2))


def h20_profiles() -> list[Derived]:
    """The measured one, then one for each model of `H20_MODELS` from the data sheet with its measured bandwidth."""
    measured = _measured_qwen3_32b()
    share = H20_QWEN3_32B.a_ms / measured.profile.a_ms
    return [measured, *(Derived(profile=_from_data_sheet(model, gpus, share)) for model, gpus in H20_MODELS)]


def throughput_tok_s(batch: int) -> float:
    """Eq. 15."""
    quadratic, linear, constant = EQ15
    return quadratic * batch**2 + linear * batch + constant


def _measured_qwen3_32b() -> Derived:
    """Floor by Eq. 15 at the context with the least error; the curve alone does not determine the rest."""
    fits = [(_fit_eq15(context), context) for context in CONTEXTS_TOKENS]
    fit, context_tokens = min(fits, key=lambda item: item[0].train.mean_ratio)
    profile = replace(
        rounded(fit.profile),
        name="h20-qwen3-32b-sibyl",
        derivation=(
            f"floor fitted to SIBYL's Eq. 15 (measured, N = 1 to {EQ15_LARGEST_BATCH}) at {context_tokens} tokens of "
            "context a request, which the paper leaves open and at which the other coefficients of h20-qwen3-32b fit "
            "best"
        ),
    )
    return Derived(profile=profile, train=fit.train, held_out=fit.held_out)


def _fit_eq15(context_tokens: int) -> LawFit:
    samples = Samples.of(
        Sample(
            duration_ms=1e3 * batch / throughput_tok_s(batch),
            parts=((1.0, float(batch)),),
            decode_context_tokens=batch * context_tokens,
            prefill_pairs=0.0,
            decodes=batch,
        )
        for batch in range(1, EQ15_LARGEST_BATCH + 1)
    )
    kept = {name: "Eq. 15 does not determine it" for name in COEFFICIENTS if name != FLOOR}
    return fit_undisturbed(samples, H20_QWEN3_32B, kept)


def _from_data_sheet(model: str, gpus: int, bandwidth_ratio: float) -> HardwareProfile:
    """`bandwidth_ratio`: share of the memory bandwidth that reading the weights reaches."""
    shape = MODELS[model]
    bytes_per_ms, flop_per_ms = gpus * H20_BYTES_PER_S / 1e3, gpus * H20_FLOP_PER_S / 1e3
    return rounded(
        HardwareProfile(
            name=f"h20-{model}" + (f"-tp{gpus}" if gpus > 1 else ""),
            hardware=f"{gpus} x H20 141 GB, tensor parallel" if gpus > 1 else "H20 141 GB",
            gpus=gpus,
            overhead_ms=OVERHEAD_MS,
            a_ms=shape.bytes_per_step / (bytes_per_ms * bandwidth_ratio),
            d_ms_per_token=shape.flop_per_token / (flop_per_ms * MATMUL_RATIO),
            k_ms_per_kv_token=shape.kv_bytes_per_token / bytes_per_ms,
            s_ms_per_pair=shape.flop_per_pair / (flop_per_ms * ATTENTION_RATIO),
            b_ms_per_seq=H20_QWEN3_32B.b_ms_per_seq,
            kv_tokens=shape.kv_tokens(gpus, H20_MEMORY_BYTES),
            kv_bytes_per_token=shape.kv_bytes_per_token,
            max_num_seqs=MAX_NUM_SEQS["h20"],
            derivation=(
                "SIBYL's Table 4 (148 TFLOP/s at 75 %, attention at 50 %; 4.0 TB/s, for weights at the "
                f"{bandwidth_ratio * 100:.0f} % that its Eq. 15 shows); all-reduces left out; overhead and b assumed"
            ),
        )
    )
