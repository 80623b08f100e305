"""ARES's figure 11: the share of a transfer is arithmetic on the link, over the moves that succeed."""

from dataclasses import replace

import pytest

from ballast_sim.simulation.world.links import Link
from bench.reproduce.ares.transfer import CARDS, GBPS, transfer_run
from bench.reproduce.ares.transfer_runs import Move, figures_of, moved, share_percent
from bench.reproduce.tasks import Simulated


def test_the_share_of_a_transfer_is_that_of_the_link_in_transfer_and_step() -> None:
    link = Link(setup_s=0.005, s_per_token=1e-5)
    assert share_percent(1500, 0.02, link) == pytest.approx(50)
    assert share_percent(1500, 0.005, link) == pytest.approx(80)


def test_figures_are_means_over_moves() -> None:
    found = figures_of([Move(1000, 0.01, 0.02), Move(3000, 0.03, 0.04)], CARDS["RTX 4090D"])
    assert found["moves"] == 2
    assert found["moved_tokens_mean"] == 2000
    assert found["moved_step_mean_s"] == pytest.approx(0.02)
    assert found["moved_pause_mean_s"] == pytest.approx(0.03)
    assert figures_of([], CARDS["RTX 4090D"]) == {"moves": 0}


@pytest.mark.parametrize("card", CARDS)
def test_a_faster_link_has_a_smaller_share_of_the_gap(card: str) -> None:
    shares = [
        figures_of([Move(2000, 0.01, 0.0)], replace(CARDS[card], link_gbps=gbps))["moved_share_percent"]
        for gbps in sorted(GBPS)
    ]
    assert shares == sorted(set(shares), reverse=True)


def test_every_move_that_succeeds_is_noted() -> None:
    run = transfer_run(CARDS["H800"], GBPS[0]).arguments["run"]
    assert isinstance(run, Simulated)
    setup = run.spec.setup
    short = replace(setup, source=replace(setup.source, duration_s=None, limit=25))
    found = moved(0, Simulated(replace(run.spec, setup=short)))
    assert found["moves"] == found["migrations"] > 0
    assert 0 < found["moved_step_mean_s"] < found["moved_pause_mean_s"] < found["moved_transfer_mean_s"]
