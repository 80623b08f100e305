"""`python -m vllm_golden FOLDER [CASE...]`: write the golden files of all cases, or of those named."""

import argparse
import os
import sys
import time
from pathlib import Path

# Read when vLLM is imported. A fixed hash seed gives block hashes, and so files, that are the same everywhere.
SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "PYTHONHASHSEED": "0",
}


def main() -> None:
    """Exit status 2 for a case that does not exist."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, "-m", "vllm_golden", *sys.argv[1:]], {**os.environ, **SETTINGS})
    parser = argparse.ArgumentParser(prog="vllm_golden", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE")
    options = parser.parse_args()

    from vllm_golden.cases import cases
    from vllm_golden.driver import record
    from vllm_golden.writing import summary, write

    known = {case.name: case for case in cases()}
    unknown = sorted(set(options.cases) - set(known))
    if unknown:
        parser.error(f"there is no case {', '.join(unknown)}; there are {', '.join(known)}")
    options.folder.mkdir(parents=True, exist_ok=True)
    for name in options.cases or known:
        began = time.monotonic()
        recording = record(known[name])
        path = options.folder / f"{name}.jsonl.gz"
        write(recording, path)
        told = summary(recording)
        totals = ("requests", "steps", "preemptions", "aborted", "expired_leases", "late_notifications")
        shown = ", ".join(f"{told[total]} {total.replace('_', ' ')}" for total in totals)
        print(f"{path}: {shown} ({path.stat().st_size} bytes, {time.monotonic() - began:.1f} s)", flush=True)
    os._exit(0)  # vLLM leaves threads behind that have nothing to do


if __name__ == "__main__":
    main()
