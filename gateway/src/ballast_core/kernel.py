"""Which arithmetic decides: the compiled kernel (`_kernel.c`) where it is installed, else the numpy code at each call.

Both follow the same formulas; numpy's is the reference, and the kernel is within 1e-11 of it. One choice holds for the
whole process, so a gateway and a simulation in it never mix the two.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from ballast_core.arrays import FloatArray, IntArray

_VERSION = 1
"""Of the functions below. An extension with another version was built from other sources: it counts as absent."""


class Kernel(Protocol):
    """The functions of the extension. Arrays are C-contiguous float64, int64 or bool; `out` takes the result.

    All raise TypeError, ValueError, IndexError or BufferError for arrays that do not fit together. The groups of
    arguments written as `*columns` are given by the properties of `View` and `SurvivalTables`.
    """

    VERSION: int

    def prefill_s(
        self,
        out: FloatArray,
        slots: IntArray,
        matched_tokens: IntArray | None,
        prompt_tokens: int,
        now_s: float,
        *prefill_columns: FloatArray | IntArray,
    ) -> None:
        """`View.prefill_s`."""

    def least_uncached_tokens(
        self,
        out: FloatArray,
        slots: IntArray,
        matched_tokens: IntArray | None,
        prompt_tokens: int,
        *prefill_columns: FloatArray | IntArray,
    ) -> None:
        """The costs of `LeastUncachedTokens`."""

    def ballast(self, out: FloatArray, slots: IntArray, *columns: object) -> None:
        """The costs of `Ballast` on decode."""

    def choose(self, costs: FloatArray, slots: IntArray, turns: IntArray, keep: int) -> int:
        """The index of the lowest cost, ties by `keep`, then by turn; -1 where none is finite."""

    def classify(self, rows: IntArray, cell: IntArray, group: IntArray, held: FloatArray, *columns: Any) -> int:
        """Set how rows are counted in the age histograms; the highest slot among them, -1 without rows."""

    def count_group(self, rows: IntArray, sign: int, wanted: int, *columns: Any) -> int:
        """Count rows of one group in or out; the next larger group among them, -1 if there is none."""


def _installed() -> Kernel | None:
    try:
        from ballast_core import _kernel  # type: ignore[attr-defined]
    except ImportError:
        return None
    return cast("Kernel", _kernel) if _kernel.VERSION == _VERSION else None


_INSTALLED = _installed()
_active = _INSTALLED


def active() -> Kernel | None:
    """The kernel that decides, None where the numpy code does."""
    return _active


def installed() -> bool:
    """Whether this installation has the compiled kernel."""
    return _INSTALLED is not None


def use(compiled: bool) -> None:
    """Choose for this process, between decisions. Raises LookupError if there is no compiled kernel to use."""
    global _active  # noqa: PLW0603
    if compiled and _INSTALLED is None:
        raise LookupError("this installation has no compiled kernel: it was made without a C compiler")
    _active = _INSTALLED if compiled else None


def name() -> str:
    """What decides, for logs and records."""
    return "numpy" if _active is None else f"kernel {_active.VERSION}"
