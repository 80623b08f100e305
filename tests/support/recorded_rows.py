"""Rows of recorded traffic, as gateways give them."""

from __future__ import annotations

import json


def rows(
    until_s: float, rate_rps: float, *, prompt: int = 1200, output: int = 300, seconds: float = 120.0
) -> list[bytes]:
    """Steady traffic of the last seconds; what came in the last ten still runs. Times are seconds since 1970."""
    count = round(seconds * rate_rps)
    arrivals = [until_s - seconds + (k + 0.5) / rate_rps for k in range(count)]
    return [
        json.dumps(
            {
                "arrival_s": arrival_s,
                "input_tokens": prompt,
                "output_tokens": output if arrival_s < until_s - 10 else output // 4,
                "class": 0,
                "outcome": "completed" if arrival_s < until_s - 10 else "running",
            }
        ).encode()
        for arrival_s in arrivals
    ]
