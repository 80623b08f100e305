"""Predicted lengths: errors of the size asked for, the same ones for the same seed, and told to policies."""

from __future__ import annotations

import statistics
from typing import ClassVar

import numpy as np
import pytest

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Request
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.view import View
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.length_hints import ARES_LIKE, NO_HINTS, LengthHints
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.workloads import WorkloadRequest


def errors(hints: LengthHints, output_tokens: int, generated_tokens: int, seed: int = 0) -> list[float]:
    found = [hints.output_tokens(seed, index, output_tokens, generated_tokens) for index in range(4000)]
    return [predicted - output_tokens for predicted in found if predicted is not None]


@pytest.mark.parametrize(
    ("text", "generated", "mae"),
    [
        ("oracle", 0, 0.0),
        ("noisy:100", 0, 100.0),
        ("noisy:100", 20_000, 100.0),
        ("noisy:sigma=100", 0, 79.8),
        ("noisy:10%", 0, 3100.0),
        ("noisy:10%", 21_000, 1000.0),
        ("ares", 8000, 2929.0),
    ],
)
def test_the_mean_error_is_what_was_asked_for(text: str, generated: int, mae: float) -> None:
    found = errors(LengthHints.parse(text), 31_000, generated)
    assert statistics.fmean(map(abs, found)) == pytest.approx(mae, rel=0.04)
    assert abs(statistics.fmean(found)) <= 0.05 * mae


def test_ares_first_figure_holds_before_predictions_are_cut_at_one_token() -> None:
    assert ARES_LIKE.mae_of(31_000, 0) == pytest.approx(18_256)
    assert ARES_LIKE.mae_of(23_000, 8_000) == pytest.approx(2_929, rel=0.001)
    assert min(errors(ARES_LIKE, 31_000, 0)) == 1 - 31_000


def test_an_error_keeps_its_sign_and_follows_the_seed() -> None:
    hints = LengthHints.parse("noisy:20%")
    early, late = errors(hints, 10_000, 0), errors(hints, 10_000, 5_000)
    assert all(one * other > 0 for one, other in zip(early, late, strict=True))
    assert early == errors(hints, 10_000, 0)
    assert early != errors(hints, 10_000, 0, seed=1)


@pytest.mark.parametrize("text", ["none", "oracle", "ares", "noisy:100", "noisy:60%"])
def test_a_setting_reads_as_it_is_written(text: str) -> None:
    assert str(LengthHints.parse(text)) == text
    assert LengthHints.parse(str(LengthHints.parse(text))) == LengthHints.parse(text)


@pytest.mark.parametrize("text", ["", "noisy", "noisy:", "noisy:-1", "noisy:inf", "noisy:sigma=3%", "exact", "nan"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="lengths: cannot read"):
        LengthHints.parse(text)


class Listening:
    """Places anywhere and keeps what it was told."""

    type: ClassVar[str] = "listening"
    needs: ClassVar[Belief] = Belief.NONE

    def __init__(self) -> None:
        self.heard: dict[str, float | None] = {}

    def costs(self, view: View, request: Request) -> FloatArray:
        self.heard[request.id] = request.expected_output_tokens
        return np.zeros(len(view.slots))


@pytest.mark.parametrize(("hints", "exact"), [(LengthHints(), True), (LengthHints(mae_tokens=5), False)])
def test_policies_hear_of_predicted_lengths(hints: LengthHints, exact: bool) -> None:
    decode = Listening()
    settings = DirectorSettings(prefill=build_placement("round-robin"), decode=decode, profiles=SHIPPED_PROFILES)
    fleet = Fleet(parse_shape("1P2D@a100-qwen3-32b"), settings, FleetSettings(length_hints=hints, known_limits=False))
    fleet.load([WorkloadRequest(arrival_s=float(n), input_tokens=10, output_tokens=20 + n) for n in range(5)])
    fleet.run()
    truth = {str(n): 20.0 + n for n in range(5)}
    assert (decode.heard == truth) is exact
    assert decode.heard.keys() == truth.keys()
    assert NO_HINTS.output_tokens(0, 0, 20) is None
