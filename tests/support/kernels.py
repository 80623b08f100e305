"""Tests that decide by the compiled kernel and by numpy in turn."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ballast_core import kernel

needs_kernel = pytest.mark.skipif(
    not kernel.installed() and os.environ.get("CI") != "true", reason="installed without a C compiler"
)
"""Skips on a machine that could not compile it; in CI these tests run, and fail."""


@contextmanager
def deciding_by(*, compiled: bool) -> Iterator[None]:
    """Decide by the kernel or by numpy inside the block."""
    before = kernel.active() is not None
    kernel.use(compiled)
    try:
        yield
    finally:
        kernel.use(before)
