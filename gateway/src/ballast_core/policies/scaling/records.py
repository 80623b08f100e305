"""The stored record of a decision: plain values for JSON, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ballast_core.policies.scaling.protocol import Decision, Layout
from ballast_core.policies.scaling.telling import in_words


def record_of(decision: Decision, at_s: float) -> dict[str, Any]:
    """All that a decision went by and came to, as JSON values. `at_s`: when it was taken."""
    proposal, inputs = decision.proposal, decision.proposal.inputs
    traffic, demand = inputs.traffic, proposal.demand

    def layout(asked: Layout) -> dict[str, dict[str, int]]:
        return {
            pool.name: {"prefill": counts.prefill, "decode": counts.decode}
            for pool, counts in zip(inputs.pools, asked, strict=True)
        }

    tried = {each.candidate: each for each in decision.rehearsals}
    return {
        "at_s": at_s,
        "reason": decision.reason,
        "message": decision.message,
        "changes": decision.changes,
        "from": layout(inputs.wanted),
        "to": layout(decision.target),
        "predicted_attainment": decision.predicted_attainment,
        "inputs": {
            "measured_at_s": inputs.now_s,
            "arrivals": list(traffic.arrivals),
            "bin_s": traffic.bin_s,
            "prefix_hit_ratio": traffic.prefix_hit_ratio,
            "backlog_tokens": traffic.backlog_tokens,
            "oldest_wait_s": traffic.oldest_wait_s,
            "decoding": traffic.decoding,
            "attained": [
                {"class": each.name, "requests": each.counts.requests, "ratio": each.counts.share}
                for each in traffic.attained
            ],
            "pools": [
                {
                    "name": pool.name,
                    "profile": pool.profile.name,
                    "ready": {"prefill": pool.ready.prefill, "decode": pool.ready.decode},
                    "starting": pool.starting,
                    "draining": pool.draining,
                }
                for pool in inputs.pools
            ],
        },
        "demand": demand
        and {
            "rate_rps": demand.rate_rps,
            "forecast_rps": demand.forecast_rps,
            "input_tokens": demand.lengths.input_tokens,
            "output_tokens": demand.lengths.output_tokens,
            "prefill_rps": demand.prefill_rps,
            "decode_rps": demand.decode_rps,
        },
        "candidates": [
            {
                "name": in_words(inputs, candidate.layout),
                "origin": candidate.origin,
                "price": candidate.price,
                "cover_ratio": candidate.cover_ratio,
                "attainment": tried[k].attainment if k in tried else None,
                "requests": tried[k].requests if k in tried else None,
                "chosen": k == decision.chosen,
            }
            for k, candidate in enumerate(proposal.candidates)
        ],
    }


def explained(record: Mapping[str, Any]) -> list[str]:
    """A record in lines for people; of one that the operator keeps also `time`, `mode` and `outcome`, where they are.

    Raises KeyError naming what a record lacks.
    """
    demand, seen = record["demand"], record["inputs"]
    advice = " (advice)" if record.get("mode") == "Advisory" else ""
    when = record.get("time") or f"{record['at_s']:.0f} s"
    lines = [f"{record['reason']} at {when}{advice}", f"  {record['message']}"]
    rates = ", ".join(f"{count / seen['bin_s']:.3g}" for count in seen["arrivals"])
    lines.append(
        f"  seen: {rates or 'no'} requests/s by window, {seen['decoding']} decode, "
        f"{seen['backlog_tokens']:.0f} prompt tokens wait, oldest {seen['oldest_wait_s']:.1f} s"
    )
    lines += [
        f"  class {each['class']}: {each['ratio']:.1%} of {each['requests']} met the objective"
        for each in seen["attained"]
        if each["ratio"] is not None
    ]
    lines += [
        f"  pool {each['name']} ({each['profile']}): ready {each['ready']['prefill']}P {each['ready']['decode']}D, "
        f"{each['starting']} start, {each['draining']} drain"
        for each in seen["pools"]
    ]
    if demand:
        lines.append(
            f"  needed: prefill for {demand['prefill_rps']:.3g} and decode for {demand['decode_rps']:.3g} "
            f"requests/s, room included"
        )
    for each in record["candidates"]:
        tried = "not tried"
        if each["attainment"] is not None:
            tried = f"{each['attainment']:.1%} of {each.get('requests') or 'all'} met in rehearsal"
        mark = "*" if each["chosen"] else " "
        lines.append(
            f"  {mark} {each['name']} ({each['origin']}): price {each['price']:g}, "
            f"covers {each['cover_ratio']:.0%}, {tried}"
        )
    if "outcome" in record:
        lines.append(_came(record, record["outcome"]))
    return lines


def _came(record: Mapping[str, Any], outcome: Mapping[str, Any]) -> str:
    """What came of a decision: whether the forecast was right, and the objective met."""
    later_s = outcome["at_s"] - record["at_s"]
    parts = [f"{outcome['rate_rps']:.3g} requests/s came, {record['demand']['forecast_rps']:.3g} were forecast"]
    parts += [
        f"class {each['class']}: {each['ratio']:.1%} of {each['requests']} met the objective"
        for each in outcome["attained"]
        if each["ratio"] is not None
    ]
    if outcome["met"] is not None:
        parts.append("the objective was met" if outcome["met"] else "the objective was missed")
    return f"  {later_s:.0f} s later: {'; '.join(parts)}"
