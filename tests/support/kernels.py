"""Tests that decide by the compiled kernel and by numpy in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ballast_core import kernel

needs_kernel = pytest.mark.skipif(not kernel.installed(), reason="installed without a C compiler")


@contextmanager
def deciding_by(*, compiled: bool) -> Iterator[None]:
    """Decide by the kernel or by numpy inside the block."""
    before = kernel.active() is not None
    kernel.use(compiled)
    try:
        yield
    finally:
        kernel.use(before)
