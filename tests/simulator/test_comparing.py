"""The sentence of a comparison: who is ahead by how much, and no victory where there is none."""

from collections.abc import Mapping, Sequence

import pytest

from ballast_sim.comparing import attained, waited


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (
            {"round-robin": [0.712], "least-requests": [0.952], "ballast": [0.992]},
            "ballast: 99.2% of requests within the SLO instead of 95.2% (least-requests) and 71.2% (round-robin).",
        ),
        ({"a": [0.991], "b": [0.993]}, "No difference: 99.1% to 99.3% of requests within the SLO under b and a."),
        ({"a": [1.0], "b": [1.0]}, "No difference: 100.0% of requests within the SLO under a and b."),
        (  # a difference that is smaller than what another seed makes
            {"a": [0.90, 0.96], "b": [0.91, 0.92]},
            "No difference: 91.5% to 93.0% of requests within the SLO under a and b.",
        ),
        (
            {"a": [0.99], "b": [0.991], "c": [0.5]},
            "b and a: 99.1% and 99.0% of requests within the SLO instead of 50.0% (c).",
        ),
        ({"a": [0.5]}, "a: 50.0% of requests within the SLO."),
    ],
)
def test_attainment(shares: Mapping[str, Sequence[float]], words: str) -> None:
    assert attained(shares) == words


def test_times() -> None:
    assert waited({"a": 11.6, "b": 1.9}, "P99 TTFT") == "P99 TTFT: 1.9 s (b) and 12 s (a)."
    assert waited({"a": 0.500, "b": 0.501}, "P99 TTFT") == "P99 TTFT does not differ: 500 ms to 501 ms."
