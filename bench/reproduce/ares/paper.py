"""ARES: running decodes move, by predicted load."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.ares.alpaca import ALPACA, ALPACA_TAIL
from bench.reproduce.ares.realistic import LINK_SPEEDS, PLACED, PLACEMENTS
from bench.reproduce.ares.short_of_memory import CARD_RATES, GOODPUT, SMALL, TAIL, THROUGHPUT
from bench.reproduce.ares.sizes import LARGE_SIZES, PREDICTOR_ERROR, SIZES, VARIANCE
from bench.reproduce.ares.transfer import SHARE, TRANSFER
from bench.reproduce.form import Paper
from bench.reproduce.results import Results, measured


def _verdict(results: Mapping[str, Results]) -> str:
    card, placed = results[SMALL.name], results[PLACED.name]
    base = f"{CARD_RATES[-1]:g}/ils"
    levels = [card.mean(f"{base}/{name}", "tpot_p99_s", 1e3) for name in ("vllm", "rescheduling", "ares-oracle")]
    moved, foreseen = (
        card.change(f"{base}/{name}", f"{base}/vllm", "tpot_p99_s") for name in ("rescheduling", "ares-oracle")
    )
    if moved is None or foreseen is None or any(each is None for each in levels):
        return ""
    after = {name: placed.change(f"{name}/ares-oracle", f"{name}/vllm", "tpot_p99_s") for name in PLACEMENTS}
    changes = ", ".join(f"{measured(change, '% change')} after `{name}`" for name, change in after.items() if change)
    shown = ", ".join(f"{each.value:.1f}" for each in levels if each is not None)
    return (
        f"**In short.** On the paper's card at {CARD_RATES[-1]:g} req/s P99 TPOT is {shown} ms without moving, with it "
        f"and with exact lengths (paper: 96.3, 28.3, 24.3 ms at 0.17): {measured(moved, '% change')} by moving, "
        f"{measured(foreseen, '% change')} with exact lengths. On four H20 under vLLM's scheduler, KV nearly full, "
        f"moving with exact lengths changes P99 TPOT by {changes}."
    )


PAPER = Paper(
    name="ares",
    title="ARES: running decodes move to where load will be low",
    set_up="vLLM 0.9.2 with NIXL, one prefill and three decode RTX 4090D, DeepSeek-R1-Distill-Qwen-7B with 32K, and a "
    "simulator with exact lengths. Not given: theta, weights and length of the horizon, the cost of a move, the "
    "memory limit, the thresholds of goodput. Ours: defaults of `ares` (`ballast policies`), and a profile of the card "
    "with 8-bit weights.",
    claims=(VARIANCE, TAIL, GOODPUT, THROUGHPUT, ALPACA_TAIL, SHARE),
    experiments=(SMALL, ALPACA, TRANSFER, SIZES, LARGE_SIZES, PREDICTOR_ERROR, PLACED, LINK_SPEEDS),
    verdict=_verdict,
)
