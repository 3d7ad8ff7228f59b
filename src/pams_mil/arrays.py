"""Types of numpy arrays, each under one name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Pixels = npt.NDArray[np.uint8]
AnyArray = npt.NDArray[Any]
