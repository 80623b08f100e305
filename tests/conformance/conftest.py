"""What all tests of the suite share."""

from __future__ import annotations

import pytest

from ballast_cli.demo.ports import free_port
from ballast_conformance import finding


@pytest.fixture(autouse=True)
def _nobody_else_at_the_usual_health_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test's picker may serve there for a moment."""
    monkeypatch.setattr(finding, "HEALTH_PORT", free_port())
