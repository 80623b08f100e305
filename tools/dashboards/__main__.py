"""`python -m dashboards [--check]`: writes dashboards and rules; with --check, lists those that differ."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dashboards.everything import generated_files


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m dashboards", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(), help="root of the repository (default: here)")
    parser.add_argument("--check", action="store_true", help="write nothing; list what differs")
    options = parser.parse_args()
    files = {options.out / path: text for path, text in generated_files().items()}
    known = {path for folder in {path.parent for path in files} for path in folder.glob("*")}
    different = [path for path, text in files.items() if path not in known or path.read_text() != text]
    different += sorted(known - files.keys())
    for path in different:
        if options.check:
            sys.stderr.write(f"out of date: {path} (run `make dashboards`)\n")
        elif path in files:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
        else:
            path.unlink()
    return 1 if options.check and different else 0


if __name__ == "__main__":
    sys.exit(main())
