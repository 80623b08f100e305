"""The command line starts fast: what a sub-command needs is imported when it runs."""

import subprocess
import sys


def test_help_needs_no_heavy_import() -> None:
    heavy = {"numpy", "pydantic", "yaml", "httpx", "kubernetes", "grpc", "fastapi", "uvloop"}
    code = f"import sys, ballast_cli.main; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
