"""Mutated answers of engines, a small sample: `python -m bench.reliability fuzz-engines` tries a million of them."""

from __future__ import annotations

import pytest

from bench.reliability.experiments.fuzz_engines import fuzz


@pytest.mark.rotating(4)
def test_nothing_that_an_engine_says_escapes_or_loses_a_token() -> None:
    """`bench.reliability.fuzzing.world` says what must hold."""
    found = fuzz(seed=7, first=0, inputs=2500)
    assert found.inputs >= 2500
    assert not found.kinds, "\n\n".join(found.examples)
