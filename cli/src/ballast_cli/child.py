"""`python -m ballast_cli.child PARENT ARGUMENTS...`: `ballast ARGUMENTS...`, which ends with the demo.

A demo that is killed (SIGKILL, out of memory) can end nobody any more: Linux does it then. Elsewhere its processes
stay.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from ballast_cli.start import run

_PR_SET_PDEATHSIG: Final = 1
"""linux/prctl.h."""


def end_with(parent: int) -> None:
    """Have this process get SIGTERM when its parent, of this id, has ended; end it if that is over."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)


if __name__ == "__main__":
    end_with(int(sys.argv.pop(1)))
    run()
