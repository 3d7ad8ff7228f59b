"""What a model saw in every tile, for other tools: parquet tables, and columns of LazySlide's stores.

x, y                              corner of the tile in level-0 pixels, where it is known
pams_attention_<level>            where the model looked; sums to 1 over the slide
pams_evidence_<level>_<class>     what the tile says for (above 0) and against a class; see `tile_evidence`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pams_mil import atomic
from pams_mil.arrays import Array
from pams_mil.data.bags.dataset import BagSample
from pams_mil.data.bags.layouts.lazyslide import read_parquet
from pams_mil.engine.learner import Learner
from pams_mil.engine.prediction.tile_evidence import measure
from pams_mil.errors import BagError, needs_extra
from pams_mil.tables import read_table


def tile_columns(learners: Sequence[Learner], sample: BagSample, attention: list[Tensor]) -> dict[str, Array]:
    """Named values [n] of every tile; the evidence is the mean over the learners."""
    said = [measure(learner, sample.features, attention, sample.slide_id) for learner in learners]
    names = [name for name in said[0] if all(name in one for one in said)]
    return {
        f"pams_{name.replace(' ', '_')}": np.mean([one[name][1] for one in said], axis=0) for name in names
    }  # fmt: skip


def write_tiles(path: Path, sample: BagSample, columns: Mapping[str, Array]) -> None:
    """One row per tile, in the order of the bag."""
    found: dict[str, npt.NDArray[np.generic]] = {}
    if sample.coords_px0 is not None:
        found |= {"x": sample.coords_px0[:, 0].numpy(), "y": sample.coords_px0[:, 1].numpy()}
    pyarrow, parquet = _pyarrow()
    table = pyarrow.table({**found, **columns})
    with atomic.replacing(path) as part:
        parquet.write_table(table, part)


def write_into_store(store: Path, sample: BagSample, columns: Mapping[str, Array]) -> None:
    """Add columns to the tiles of a LazySlide store, where `zs.pl.tiles` draws them; earlier ones are replaced.

    Tiles are found by their corner, never by their row. Tiles without features get an empty value. Only the table of
    tiles is written anew, whole; all else in the store stays as it is.
    """
    file = store / "shapes" / "tiles" / "shapes.parquet"
    table = read_parquet(file)
    if sample.coords_px0 is None:
        raise BagError(f"The bag of {sample.slide_id!r} has no places of tiles, so nothing can be written to {store}.")
    places = list(zip(table["x"].to_pylist(), table["y"].to_pylist(), strict=True))
    row_of = {place: row for row, place in enumerate(places)}
    rows = [row_of.get((x, y)) for x, y in sample.coords_px0.tolist()]
    known = [row for row in rows if row is not None]
    # Corners must be unique in the store, and every tile of the bag must have its own among them.
    if len(row_of) != len(places) or len(known) != len(rows) or len(set(known)) != len(known):
        raise BagError(f"The tiles of {sample.slide_id!r} are not those of {file}; nothing was written to it.")
    pyarrow, parquet = _pyarrow()
    for name, values in columns.items():
        spread = np.full(len(places), np.nan)
        spread[known] = values
        # from_pandas: NaN becomes an empty value.
        column = pyarrow.array(spread, from_pandas=True)
        at = table.column_names.index(name) if name in table.column_names else -1
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    with atomic.replacing(file) as part:
        parquet.write_table(table, part)


def csv_as_parquet(path: Path) -> Path:
    """A predictions file once more as parquet beside it: ids as text, probabilities as numbers."""
    columns = read_table(path)
    pyarrow, parquet = _pyarrow()
    table = pyarrow.table(
        {name: pyarrow.array(_numbers(cells) if name.startswith("p_") else cells) for name, cells in columns.items()}
    )
    out = path.with_suffix(".parquet")
    with atomic.replacing(out) as part:
        parquet.write_table(table, part)
    return out


def _numbers(cells: Sequence[str]) -> Sequence[float] | Sequence[str]:
    """Probabilities as numbers; a column of the user's that is only called like one stays as it is."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return cells


def _pyarrow() -> tuple[Any, Any]:
    with needs_extra("Writing parquet tables", package="pyarrow", extra="tables"):
        import pyarrow  # noqa: PLC0415  optional
        import pyarrow.parquet as parquet  # noqa: PLC0415
    return pyarrow, parquet
