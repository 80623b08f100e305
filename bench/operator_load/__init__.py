"""The operator with many ServingPools, killed, and with an API server that is killed; on a real API server."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "e2e"))  # the test bed's programs are the API server's
