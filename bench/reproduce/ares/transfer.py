"""ARES's figure 11: the share of KV transfer in the gap between two tokens when a decode moves, by card and link.

The paper's model is DeepSeek-R1-Distill-Qwen-7B with 8-bit weights. Its RTX 4090D has a profile
(`bench/reproduce/ares/card.py`). Those of A100 and H800 are scaled here from the shipped profiles of Llama 3 8B, as in
`bench/reproduce/libra/profiles.py`: the floor by the bytes of weights that a step reads, arithmetic by the operations
of a token, of which 8 bits make twice as many a second. An H800 is an H100 but for its links.
"""

from __future__ import annotations

from dataclasses import replace

from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_sim.fitting.model_shapes import MEMORY_SHARE_RATIO, MODELS, RESERVED_BYTES_PER_GPU, ModelShape
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import LengthHints
from ballast_sim.simulation.policies.choice import parse_policies, with_parts
from bench.reproduce import scaled_profiles
from bench.reproduce.ares.card import CARD
from bench.reproduce.ares.transfer_runs import PAPERS_TOKENS, TRANSFER_FIGURES, moved
from bench.reproduce.form import STANDARD_FIGURES, Claim, Experiment, Finding, Plot, Row, Run, Setting
from bench.reproduce.plots import Whisker, Whiskers, colour
from bench.reproduce.results import Results
from bench.reproduce.scaled_profiles import QWEN_7B
from bench.reproduce.tasks import Called, simulated
from bench.reproduce.verdicts import judge_level

GPU_BYTES = 80 * 2**30
GBPS = (10.0, 25.0, 100.0)
RATE_RPS = 0.17
ARRIVALS_S = 700.0
PAPERS_PERCENT = 95.5
WITHIN = 0.03
"""A share cannot exceed 100 %: with the usual tenth a transfer of 6 steps would do for the paper's 21."""

SHARE = Claim(
    name="ares/transfer-share",
    short="share of transfer in TBT at 10 Gbit/s",
    number="95.5 %",
    where="6.3, figure 11",
    says="when a request moves over 10 Gbit/s on H800, the transfer of its KV takes 95.5 % of that token's time",
)


def scaled(name: str, hardware: str, base: HardwareProfile, base_model: ModelShape) -> HardwareProfile:
    """The paper's model on one GPU of 80 GB; layers in 8 bits, embedding and head in 16."""
    weights_read = QWEN_7B.layer_parameters + 2 * QWEN_7B.head_parameters
    held = weights_read + 2 * QWEN_7B.head_parameters
    room = MEMORY_SHARE_RATIO * GPU_BYTES - RESERVED_BYTES_PER_GPU - held
    wide = scaled_profiles.scaled(base, base_model, QWEN_7B)
    return replace(
        wide,
        name=name,
        hardware=hardware,
        a_ms=base.a_ms * weights_read / base_model.bytes_per_step,
        d_ms_per_token=wide.d_ms_per_token / 2,
        kv_tokens=int(room // QWEN_7B.kv_bytes_per_token),
        derivation=f"{base.name} scaled to Qwen2.5-7B with 8-bit weights",
    )


CARDS = {
    "RTX 4090D": CARD,
    "A100": scaled("a100-qwen-7b-w8a8", "A100 80 GB", SHIPPED_PROFILES["a100-llama3-8b"], MODELS["llama3-8b"]),
    "H800": scaled("h800-qwen-7b-w8a8", "H800 80 GB", SHIPPED_PROFILES["h100-llama3-8b"], MODELS["llama3-8b"]),
}


def transfer_run(card: HardwareProfile, gbps: float) -> Called:
    """ARES with exact lengths on one prefill and three decode cards, ShareGPT at the paper's highest rate."""
    profile = replace(card, link_gbps=gbps)
    run = simulated(
        f"1P3D@{profile.name}",
        with_parts(parse_policies("ils"), {"rescheduling": "ares"})[0],
        workload="sharegpt-32k",
        rate_rps=RATE_RPS,
        duration_s=ARRIVALS_S,
        fleet=FleetSettings(known_limits=False, length_hints=LengthHints.parse("oracle")),
        profiles=(profile,),
    )
    return Called(moved, {"run": run})


def _analyse(results: Results) -> Finding:
    rows, whiskers = [], []
    for number, name in enumerate(CARDS):
        for gbps in GBPS:
            run, at = f"{name}/{gbps:g}", f"{name}, {gbps:g} Gbit/s"
            claimed = name == "H800" and gbps == GBPS[0]
            for figure, what in (
                ("papers_share_percent", f"a request of {PAPERS_TOKENS:,} tokens"),
                ("moved_share_percent", "the requests that ARES moves"),
            ):
                ours = results.mean(run, figure)
                rows.append(
                    Row(
                        what=f"share of transfer in the gap, {at}, {what}",
                        ours=ours,
                        unit="%",
                        paper=f"{PAPERS_PERCENT:g} %" if claimed else "",
                        setting=Setting.THEIRS,
                        claim=SHARE.name if claimed else None,
                        verdict=judge_level(ours, PAPERS_PERCENT, within=WITHIN) if claimed else None,
                    )
                )
            whiskers.append(Whisker(at, results.mean(run, "papers_share_percent"), style=colour(number)))
            rows += [
                Row(what=f"{at}: {title}", ours=results.mean(run, figure, times), unit=unit, setting=setting)
                for title, figure, times, unit, setting in (
                    ("moves", "moves", 1.0, "", Setting.THEIRS),
                    ("KV tokens of a move", "moved_tokens_mean", 1.0, "", Setting.THEIRS),
                    ("step of its source", "moved_step_mean_s", 1e3, "ms", Setting.THEIRS),
                    ("transfer of its KV", "moved_transfer_mean_s", 1e3, "ms", Setting.THEIRS),
                    ("pause where the source decodes meanwhile", "moved_pause_mean_s", 1e3, "ms", Setting.BEYOND),
                )
            ]
    chart = Whiskers(f"Share of transfer in the gap, {PAPERS_TOKENS:,} tokens", "%", whiskers)
    return Finding(rows=rows, plots=[Plot(name="share", caption="cards and links of figure 11", charts=[chart])])


TRANSFER = Experiment(
    name="ares/figure-11",
    reduced_seeds=(),
    title="Transfer in the gap between two tokens when a decode moves (6.3)",
    text="One prefill and three decode cards, ShareGPT at 0.17 req/s for 700 s, ARES with exact lengths, links of 10 "
    "to 100 Gbit/s with 5 ms of set-up. The paper's request waits for all of its KV (5.4), so its gap is transfer plus "
    "step; the share is that of the simulated link in it, a mean over moves with the source's step at each of them. "
    "The paper gives neither load nor length of the request; it names 2,000 tokens as its average (5.3), so the share "
    "is shown for these and for the requests that ARES does move, which are longer. Here the source decodes while KV "
    "is copied: the pause that is left stands beside it. A100 and H800 are scaled from profiles of Llama 3 8B "
    "(`bench/reproduce/ares/transfer.py`).",
    runs=[
        Run(f"{name}/{gbps:g}", transfer_run(card, gbps), cost_s=3.0) for name, card in CARDS.items() for gbps in GBPS
    ],
    analyse=_analyse,
    figures=(*STANDARD_FIGURES, *TRANSFER_FIGURES),
)
