"""Array types of the core: counts and token numbers are 64-bit integers, times and costs 64-bit floats."""

from __future__ import annotations

from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
HashArray = NDArray[np.uint64]

# The memory of an array for reading and writing one entry at a time: in half of an array's time, as plain numbers.
IntCells: TypeAlias = "memoryview[int]"
FloatCells: TypeAlias = "memoryview[float]"
BoolCells: TypeAlias = "memoryview[bool]"


def int_cells(array: IntArray) -> IntCells:
    """The entries of this array, as long as the array is the same object."""
    return array.data


def float_cells(array: FloatArray) -> FloatCells:
    """As `int_cells`."""
    return cast("FloatCells", array.data)


def bool_cells(array: BoolArray) -> BoolCells:
    """As `int_cells`."""
    return cast("BoolCells", array.data)
