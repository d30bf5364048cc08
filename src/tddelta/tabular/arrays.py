"""Types of arrays in the tabular laboratory: NumPy, 64 bits."""

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
"""Values, rewards, probabilities."""

IntArray = npt.NDArray[np.int64]
"""States, actions, counts."""

BoolArray = npt.NDArray[np.bool_]
"""Flags."""
