"""Measures that inputs are made of: lengths from requests that have not all ended, and shares with bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ballast_core.profiles.capacity import LengthStatistics

Z_95 = 1.96


@dataclass(frozen=True, slots=True)
class Seen:
    """What a gateway knows of one request: its prompt, and how far it has come."""

    input_tokens: int
    output_tokens: int
    """Generated so far."""
    ended: bool


def lengths_of(seen: Sequence[Seen]) -> LengthStatistics | None:
    """The lengths of requests that arrived in one window, in the end; None where none has generated anything.

    Waiting for the ends would see long outputs minutes late, and short ones first. The mean output is therefore the
    tokens of all over the number of those that have ended, which is the maximum-likelihood estimate for censored
    exponential lengths; a request that still runs is then expected to generate as much again as a new one.
    """
    begun = [each for each in seen if each.output_tokens]
    if not begun:
        return None
    ended = sum(each.ended for each in begun)
    mean_output = sum(each.output_tokens for each in begun) / max(1, ended)
    outputs = [each.output_tokens + (0.0 if each.ended else mean_output) for each in begun]
    return LengthStatistics(
        input_tokens=sum(each.input_tokens for each in seen) / len(seen),
        output_tokens=sum(outputs) / len(outputs),
        input_pairs=sum(each.input_tokens**2 / 2 for each in seen) / len(seen),
        context_tokens=sum(
            (each.input_tokens + output / 2) * output for each, output in zip(begun, outputs, strict=True)
        )
        / sum(outputs),
    )


def wilson(met: int, requests: int) -> tuple[float, float]:
    """The 95 % interval of a share: E. B. Wilson's score interval (1927). 0 to 1 without a request."""
    if not requests:
        return 0.0, 1.0
    share, spread = met / requests, Z_95**2 / requests
    middle = (share + spread / 2) / (1 + spread)
    reach = Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / requests + spread / (4 * requests))
    return max(0.0, middle - reach), min(1.0, middle + reach)
