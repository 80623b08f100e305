"""Libra: requests cut at any token over endpoints that do both stages, and steps sized by the time between tokens."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import Paper
from bench.reproduce.libra import loads
from bench.reproduce.libra.capacities import CAPACITY, FIGURE_9, GOODPUT, WORKLOADS, best_chunk
from bench.reproduce.libra.cuts import CHUNKED_TRANSFER, ERRORS, FIGURE_5, SPLIT, TABLE_5, TABLE_7, THREE, TRANSFER
from bench.reproduce.libra.rigidity import RIGIDITY, TABLE_1, TABLE_6, UNLIKE
from bench.reproduce.results import Results


def _verdict(results: Mapping[str, Results]) -> str:
    served = results[FIGURE_9.name]

    def over(other: str, name: str = "libra") -> list[float]:
        changes = [served.change(f"{setting}/{name}", f"{setting}/{other}", "capacity_rps") for setting in WORKLOADS]
        return [each.value for each in changes if each is not None]

    def over_tuned(figure: str) -> list[float]:
        changes = [
            served.change(f"{setting}/libra", best_chunk(served, setting, figure), figure) for setting in WORKLOADS
        ]
        return [each.value for each in changes if each is not None]

    apart, prompts = over("disaggregated"), over("libra-prompt-cuts", "libra-profile")
    tuned, good = over_tuned("capacity_rps"), over_tuned("goodput_most_tok_s")
    if not (apart and prompts and tuned and good):
        return ""
    return (
        f"**In short.** Cutting serves {min(apart):+.0f} to {max(apart):+.0f} % against prefill and decode apart (the "
        f"paper has +37 % on average), and {min(tuned):+.0f} to {max(tuned):+.0f} % against colocation with the best "
        "of four chunks (the paper has +137 % against its colocation; the effect of the chunk is described below); "
        f"its highest goodput is {min(good):+.0f} to {max(good):+.0f} % against the same. "
        f"Cuts anywhere are {min(prompts):+.0f} to {max(prompts):+.0f} % against cuts within prompts only, which "
        "are all that stock vLLM can stream."
    )


PAPER = Paper(
    name="libra",
    title="Libra: requests cut at any token",
    set_up="Qwen2.5-14B on two A100 80 GB, 100 ms between tokens, Poisson arrivals; profiles scaled from Qwen3's, for "
    "which tables are public. Colocation, disaggregation and Libra run on the same engines and links. Not given and "
    "decided: which endpoint takes the first part (the better one by prediction), the load that names the pair "
    "(predicted completion), the think part's time between tokens (200 ms). What this needs of vLLM: cuts within the "
    "prompt work on stock vLLM; a cut in the output of a client that streams needs a small connector plug-in. "
    "Left out: figure 11, which replays 42 minutes of BurstGPT's arrivals that are not at hand; figures 3 and 6 "
    "(lengths, kernels).",
    claims=(CAPACITY, GOODPUT, RIGIDITY, ERRORS, UNLIKE, THREE, SPLIT, TRANSFER, *loads.CLAIMS),
    experiments=(
        FIGURE_9,
        TABLE_1,
        TABLE_5,
        TABLE_6,
        TABLE_7,
        FIGURE_5,
        CHUNKED_TRANSFER,
        *loads.EXPERIMENTS,
    ),
    verdict=_verdict,
)
