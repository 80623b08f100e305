"""Measures that inputs are made of: lengths from requests that have not all ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ballast_core.profiles.capacity import LengthStatistics


@dataclass(frozen=True, slots=True)
class Seen:
    """What a gateway knows of one request: its prompt, and how far it has come."""

    input_tokens: int
    output_tokens: int
    """Generated so far."""
    ended: bool


_FEW = 20


def lengths_of(arrived: Sequence[Seen], ended: Sequence[Seen] = ()) -> LengthStatistics | None:
    """The lengths that requests which arrived in one window will have; None where nothing has generated anything.

    Waiting for the ends would see long outputs minutes late, and short ones first. The mean output is therefore the
    tokens of all over the number of those that have ended, which is the maximum-likelihood estimate for censored
    exponential lengths; a request that still runs is then expected to generate as much again as a new one.
    Where hardly any has begun, as behind a long queue, outputs are also those of `ended`: what ended in the window.
    """
    begun = [each for each in arrived if each.output_tokens]
    if len(begun) < _FEW:
        begun = [*begun, *(each for each in ended if each.output_tokens)]
    if not begun or not arrived:
        return None
    ends = sum(each.ended for each in begun)
    mean_output = sum(each.output_tokens for each in begun) / max(1, ends)
    outputs = [each.output_tokens + (0.0 if each.ended else mean_output) for each in begun]
    return LengthStatistics(
        input_tokens=sum(each.input_tokens for each in arrived) / len(arrived),
        output_tokens=sum(outputs) / len(outputs),
        input_pairs=sum(each.input_tokens**2 / 2 for each in arrived) / len(arrived),
        context_tokens=sum(
            (each.input_tokens + output / 2) * output for each, output in zip(begun, outputs, strict=True)
        )
        / sum(outputs),
    )
