"""What the operator's log holds."""

from __future__ import annotations

import subprocess
import sys

import pytest

SAY = """
import logging, sys
from ballast_operator.run import configure_logs
configure_logs(sys.argv[1], "text")
logging.getLogger("httpx").info("HTTP Request: GET http://gateway/ballast/v1/traffic?names=hidden")
logging.getLogger("ballast_operator.reconcile").info("applied a Deployment")
"""


@pytest.mark.rotating(3)
@pytest.mark.parametrize(("level", "questions"), [("info", 0), ("debug", 1)])
def test_questions_to_gateways_fill_no_log(level: str, questions: int) -> None:
    """They come every 15 s to each gateway, and name what names are hidden by; what is done is said."""
    run = subprocess.run([sys.executable, "-c", SAY, level], capture_output=True, text=True, timeout=60, check=True)
    assert run.stderr.count("applied a Deployment") == 1
    assert run.stderr.count("names=hidden") == questions
