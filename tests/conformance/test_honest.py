"""The suite against a picker that keeps to the protocol."""

from __future__ import annotations

import pytest

from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import ask, ids
from tests.conformance.pickers import ENDPOINTS, Honest, running


@pytest.mark.rotating(3)
async def test_an_honest_picker_passes_every_case() -> None:
    """But for TLS, which it does not speak."""
    async with running(Honest) as picker:
        results = await ask(picker.port, ENDPOINTS)
    assert not ids(results, Verdict.FAIL), [result for result in results if result.verdict is Verdict.FAIL]
    assert ids(results, Verdict.SKIP) == {"framing.alpn"}
