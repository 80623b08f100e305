"""LMetric: prefill tokens times batch size, lowest wins."""

from __future__ import annotations

from collections.abc import Mapping

from bench.reproduce.form import Paper
from bench.reproduce.lmetric.agent_coder import AGENT_CODER, OTHERS, RANGE
from bench.reproduce.lmetric.apart import DISAGGREGATED
from bench.reproduce.lmetric.end_to_end import CHATBOT, FIGURE_21, UNTUNED
from bench.reproduce.lmetric.hotspot import HOTSPOT, HOTSPOTS
from bench.reproduce.lmetric.indicators import BATCH, FIGURE_18, P_TOKEN
from bench.reproduce.lmetric.policies import FRESH, WEIGHTS
from bench.reproduce.lmetric.rates import SWEEP
from bench.reproduce.lmetric.traces import TOOLAGENT, TRACED
from bench.reproduce.results import Results


def _verdict(results: Mapping[str, Results]) -> str:
    ended, apart = results[FIGURE_21.name], results[DISAGGREGATED.name]
    blind = ended.change("half/lmetric", "half/vllm-jsq", "ttft_mean_s")
    fresh = ended.change(f"half/{FRESH}", "half/vllm-jsq", "ttft_mean_s")
    counted = ended.change("half/lmetric", "half/least-requests", "ttft_mean_s")
    tuned = [ended.change("half/lmetric", f"half/linear-kv {weight:g}", "ttft_mean_s") for weight in WEIGHTS]
    known = [each.value for each in tuned if each is not None]
    split = apart.change("half/lmetric/least-requests", "half/least-uncached-tokens/least-requests", "ttft_mean_s")
    if blind is None or fresh is None or counted is None or not known or split is None:
        return ""
    return (
        f"**In short.** Mean TTFT at half of the maximum rate is {blind.value:+.0f} % against vLLM's own balancer, "
        f"where "
        f"the paper has -92 %. Part of that is how old its counts are when they are read: scraped every 10 ms "
        f"instead of "
        f"200 ms, vLLM's balancer alone comes to {fresh.value:+.0f} %. Against counting requests at the gateway, "
        f"pending "
        f"ones included, LMetric's mean TTFT is {counted.value:+.0f} %; against the linear combination tuned for the "
        f"workload {max(known):+.0f} % (the paper has -52 %), against that of the worst weight {min(known):+.0f} %. "
        f"Where prefill and decode are apart it is {split.value:+.1f} % "
        "against the uncached tokens alone, without the multiplication."
    )


PAPER = Paper(
    name="lmetric",
    title="LMetric: prefill tokens times batch size",
    set_up=(
        "Theirs: 16 colocated H20 of 96 GB, Qwen3-30B MoE and Qwen2-7B, vLLM; ChatBot, Agent, Coder and ToolAgent "
        "traces; "
        "half of the highest rate that the testbed sustains. Ours: 16 colocated endpoints of Llama-3-8B on an H20 "
        "with the "
        "KV that 96 GB leave (between their two models in cost a token), vLLM's scheduler with prefix caches; "
        "conversations, Agent, Coder and hotspots from generators, public traces in the full set.\n\n"
        "Not given, and decided here: under which policy the highest rate was measured (least-requests, queue not "
        "growing); how an idle endpoint scores (batch size counts the request itself); when a hotspot's filter ends "
        "(when "
        "its share is one that its holders can take). Their production scheduler is taken for the linear combination "
        "that "
        "figure 6b says it is like, llm-d for the least predicted TTFT, with an exact predictor of a vLLM step."
    ),
    claims=(CHATBOT, UNTUNED, OTHERS, TOOLAGENT, RANGE, P_TOKEN, BATCH, HOTSPOT),
    experiments=(FIGURE_21, FIGURE_18, AGENT_CODER, SWEEP, HOTSPOTS, TRACED, DISAGGREGATED),
    verdict=_verdict,
)
