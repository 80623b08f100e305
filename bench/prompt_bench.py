"""What reading a prompt for prefix-aware policies costs: naming its blocks, beside parsing the same body.

One process, no network. Each row takes the best of several rounds, because other processes only ever add time. Prints a
table; `--json FILE` writes the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ballast_core.beliefs.kinds import Belief
from ballast_gateway import openai_body
from ballast_gateway.prompts import PromptReader

WORDS = "All happy families are alike; each unhappy family is unhappy in its own way. "


def text(tokens: int) -> str:
    return (WORDS * (4 * tokens // len(WORDS) + 1))[: 4 * tokens]


def bodies() -> dict[str, dict[str, Any]]:
    """Usual ones, and the worst that fit a body of 16 MiB."""
    image = {"type": "image_url", "image_url": {"url": "A" * 12_000_000}}
    return {
        **{f"text of {tokens:,} tokens": {"prompt": text(tokens)} for tokens in (300, 3_000, 30_000, 300_000)},
        **{f"{tokens:,} token ids": {"prompt": list(range(tokens))} for tokens in (300, 3_000, 30_000, 300_000)},
        "40 messages of 250 tokens": {"messages": [{"role": "user", "content": text(250)}] * 40},
        "300,000 empty messages": {"messages": [{"role": "user", "content": ""}] * 300_000},
        "a part of a million numbers": {"messages": [{"role": "user", "content": [[0] * 1_000_000]}]},
        "an image of 12 MB": {"messages": [{"role": "user", "content": [image]}]},
        "a million tools": {"messages": [{"role": "user", "content": text(300)}], "tools": [{}] * 1_000_000},
    }


def best_us(work: Callable[[], object], rounds: int) -> float:
    took = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        took.append(time.perf_counter() - start)
    return 1e6 * min(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    reader, rows = PromptReader(Belief.PREFIXES | Belief.LENGTHS), []
    sys.stdout.write(f"{'':30}{'body bytes':>12}{'blocks':>8}{'parse us':>12}{'count us':>12}{'name blocks us':>16}\n")
    for name, document in bodies().items():
        raw = json.dumps({"model": "m", **document}).encode()
        parsed = openai_body.parse_object(raw)
        rounds = arguments.rounds if len(raw) < 1_000_000 else 3
        row = {
            "body": name,
            "body_bytes": len(raw),
            "blocks": len(reader.read(parsed, model="m").block_hashes),
            "parse_us": best_us(lambda raw=raw: openai_body.parse_object(raw), rounds),  # type: ignore[misc]
            "count_us": best_us(lambda parsed=parsed: openai_body.prompt_tokens(parsed), rounds),  # type: ignore[misc]
            "name_us": best_us(lambda parsed=parsed: reader.read(parsed, model="m"), rounds),  # type: ignore[misc]
        }
        rows.append(row)
        sys.stdout.write(
            f"{name:30}{len(raw):12,}{row['blocks']:8}{row['parse_us']:12,.1f}{row['count_us']:12,.1f}{row['name_us']:16,.1f}\n"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
