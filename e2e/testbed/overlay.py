"""Whether a folder's file system can carry overlay mounts."""

import shutil
import subprocess
from pathlib import Path

from testbed.packages import find_program

# In a mount namespace of its own, so that the probe leaves nothing even when it is killed.
_PROBE = ("--mount", "--propagation", "private", "sh", "-c", 'mount -t overlay overlay -o "$1" "$2"', "sh")


def supports_overlay(folder: Path) -> bool:
    """True when an overlay mount works below `folder`: not so on top of another overlay, as in most containers."""
    parts = [folder / f"overlay-{part}" for part in ("lower", "upper", "work", "merged")]
    for part in parts:
        part.mkdir(exist_ok=True)
    lower, upper, work, merged = parts
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    try:
        command = [find_program("unshare"), *_PROBE, options, str(merged)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    finally:
        for part in parts:
            shutil.rmtree(part, ignore_errors=True)
