"""Which arithmetic decides: the compiled kernel (`_kernel.c`) where it is installed, else the numpy code at each call.

Both follow the same formulas; numpy's is the reference, and the kernel is within 1e-11 of it. One choice holds for the
whole process, so a gateway and a simulation in it never mix the two.
"""

# ruff: noqa: PLR0917  (the extension takes its arguments by position)

from __future__ import annotations

from typing import NewType, Protocol, cast

from ballast_core.arrays import BoolArray, FloatArray, IntArray

_VERSION = 4
"""Of the functions below. An extension with another version was built from other sources: it counts as absent."""


Prepared = NewType("Prepared", object)
"""Arrays that the kernel has checked once for many calls, or what it keeps itself. Only the kernel can use it."""


class Kernel(Protocol):
    """The functions of the extension. Arrays are C-contiguous float64, int64 or bool; `out` takes the result.

    All raise TypeError, ValueError, IndexError or BufferError for arguments that do not fit together. `fleet`,
    `curves`, `census` and `growth` return what the others take under that name.
    """

    VERSION: int

    def fleet(
        self,
        prefill_profiles: FloatArray,
        prefill_factors: FloatArray,
        prefill_requests: IntArray,
        uncached_tokens: IntArray,
        uncached_pairs: FloatArray,
        prefilling_since_s: FloatArray,
        hardware: FloatArray,
        step_times: FloatArray,
        requests: IntArray,
        foreign: IntArray,
        tokens: IntArray,
    ) -> Prepared:
        """These arrays by slot (`StackedProfiles.columns`, `Ledger`). New values in them count; new arrays do not."""

    def prefill_s(
        self,
        out: FloatArray,
        slots: IntArray,
        matched_tokens: IntArray | None,
        prompt_tokens: int,
        now_s: float,
        fleet: Prepared,
    ) -> None:
        """`View.prefill_s`."""

    def least_uncached_tokens(
        self,
        out: FloatArray,
        slots: IntArray,
        matched_tokens: IntArray | None,
        prompt_tokens: int,
        fleet: Prepared,
    ) -> None:
        """The costs of `LeastUncachedTokens`."""

    def ballast(
        self,
        out: FloatArray,
        slots: IntArray,
        matched_tokens: IntArray | None,
        prompt_tokens: int,
        now_s: float,
        fleet: Prepared,
        handoff_s: float | None,
        class_slot: int,
        limit_tokens: int | None,
        curves: Prepared,
        census: Prepared,
        delay_of_row: FloatArray,
        risks: FloatArray,
        short_life_tokens: float,
    ) -> None:
        """The costs of `Ballast` on decode."""

    def choose(self, costs: FloatArray, slots: IntArray, turns: IntArray, keep: int) -> int:
        """The index of the lowest cost, ties by `keep`, then by turn; -1 where none is finite."""

    def all_have_room(
        self,
        slots: IntArray,
        requests: IntArray,
        most_requests: IntArray,
        tokens: IntArray | None,
        least_tokens: FloatArray | None,
    ) -> bool:
        """Whether each slot has fewer requests than its most, or fewer tokens than its least (`Capacity`)."""

    def tabulate(
        self,
        survival: FloatArray,
        drop: FloatArray,
        intercept: FloatArray,
        area: FloatArray,
        end: FloatArray,
        at_end: FloatArray,
        hazard: FloatArray,
        step_tokens: int,
        floor: float,
        longest_tail_tokens: float,
    ) -> None:
        """`SurvivalTables._build`: cleans the curves in `survival` and fills the other arrays."""

    def kaplan_meier(
        self, out: FloatArray, parent: FloatArray, at_risk: FloatArray, deaths: FloatArray, prior: float
    ) -> None:
        """`CensoringAwareSurvival.survival`."""

    def curves(
        self,
        survival: FloatArray,
        drop: FloatArray,
        intercept: FloatArray,
        area: FloatArray,
        end: FloatArray,
        at_end: FloatArray,
        hazard: FloatArray,
        step_tokens: int,
        count: int,
    ) -> Prepared:
        """The arrays of one `SurvivalTables`."""

    def census(self, bucket_of_age: IntArray, age_of_bucket: FloatArray) -> Prepared:
        """An empty census of the flights: decoding requests by group, slot and age, pending ones one by one."""

    def recount(
        self,
        census: Prepared,
        count: int,
        slot: IntArray,
        prompt_tokens: IntArray,
        limit_tokens: IntArray,
        generated_tokens: IntArray,
        class_slot: IntArray,
        decoding: BoolArray,
        handoff_at_s: FloatArray,
        first_token_at_s: FloatArray,
        progress_at_s: FloatArray,
        changed: BoolArray,
    ) -> None:
        """Bring a census up to date; the columns are `Flights.columns`. Clears `changed`."""

    def tallies(self, census: Prepared, group: int, counts: FloatArray, held: FloatArray, squares: FloatArray) -> int:
        """Add what is counted of one group to the matrices of an `AgeHistogram`; the number of its requests."""

    def growth(self) -> Prepared:
        """An empty `Growth`."""

    def regrow(
        self,
        growth: Prepared,
        curves: Prepared,
        all_rows: bool,
        count: int,
        slot: IntArray,
        prompt_tokens: IntArray,
        limit_tokens: IntArray,
        generated_tokens: IntArray,
        class_slot: IntArray,
        decoding: BoolArray,
        handoff_at_s: FloatArray,
        first_token_at_s: FloatArray,
        progress_at_s: FloatArray,
        changed: BoolArray,
    ) -> None:
        """`Growth.update`; the columns are `Flights.columns`. Clears `changed`."""

    def sibyl(
        self,
        out: FloatArray,
        slots: IntArray,
        capacity: int,
        now_s: float,
        handoff_s: float | FloatArray,
        start_tokens_per_s: float,
        growth: Prepared,
        curves: Prepared,
        prob_at_one: bool,
        without_type_one: bool,
        without_type_two: bool,
        without_type_three: bool,
    ) -> None:
        """The costs of `Sibyl` on decode."""


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
