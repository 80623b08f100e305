"""Traffic classes: what clients write decides them, and cannot exhaust them."""

from __future__ import annotations

from ballast_core.beliefs.survival_book import SurvivalSettings
from ballast_gateway.traffic_classes import LEAST_REQUESTS, MOST_CANDIDATES, MOST_CHARS, MOST_CLASSES, TrafficClasses


def test_a_model_is_a_class_at_once_and_an_objective_once_it_has_come_often() -> None:
    classes = TrafficClasses()
    assert classes.name("m", "") == "m"
    found = [classes.name("m", "batch") for _ in range(LEAST_REQUESTS + 1)]
    assert found == ["m"] * (LEAST_REQUESTS - 1) + ["m|batch"] * 2
    assert classes.name("other", "batch") == "other"


def test_names_without_end_get_no_class_and_no_memory() -> None:
    """A real objective among them, one request in a hundred, still gets its own."""
    classes = TrafficClasses()
    found = {classes.name("m", f"made-up-{at}" if at % 100 else "real") for at in range(50_000)}
    assert found == {"m", "m|real"}
    assert len(classes._seen) <= MOST_CANDIDATES


def test_classes_of_objectives_are_bounded_and_leave_room_for_models() -> None:
    classes = TrafficClasses()
    found = {classes.name("m", f"o{at // LEAST_REQUESTS}") for at in range(100 * LEAST_REQUESTS)}
    assert len(found) == MOST_CLASSES + 1 < SurvivalSettings().max_classes


def test_long_names_are_cut() -> None:
    classes = TrafficClasses()
    for _ in range(LEAST_REQUESTS):
        name = classes.name("m" * 10_000, "o" * 10_000)
    assert len(name) == 2 * MOST_CHARS + 1
