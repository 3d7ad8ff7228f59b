"""What a model sees in every tile: where it looks, what speaks for and against each class, how urgent a tile is.

For other tools it is written as HDF5 (attention), as parquet tables, and as columns of LazySlide's stores:

x, y                              corner of the tile in level-0 pixels, where it is known
pams_attention_<level>            where the model looked; sums to 1 over the slide
pams_evidence_<level>_<class>     what the tile says for (above 0) and against a class; see `evidence`
pams_finding_<level>_<class>      what it says for and against the presence of a finding, where slides have several
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pams_mil import atomic
from pams_mil.arrays import Array
from pams_mil.data.bags.dataset import BagSample
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.bags.layouts.lazyslide import read_parquet, store_of
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.manifest.manifest import SlideRecord
from pams_mil.data.tables import read_table
from pams_mil.engine.inference_loop import infer_batch
from pams_mil.engine.learner import Learner
from pams_mil.errors import BagError, needs_extra
from pams_mil.models.core.batch import BagBatch

Attend = Callable[[BagSample, list[Tensor]], None]
"""Given a bag and the attention [n] of every trained level, coarsest first, averaged over the runs."""
_CHUNK = 2048  # tiles scored at once, each as a bag of its own


def each_alone(learner: Learner, features: Tensor, slide_id: str) -> tuple[list[Array], Array | None]:
    """The probabilities of bags that hold one tile each: [n, c] per trained level, and [n, k] of single findings."""
    pieces = []
    for start in range(0, len(features), _CHUNK):
        rows = features[start : start + _CHUNK]
        pieces += infer_batch([learner], BagBatch(rows, (1,) * len(rows), (slide_id,) * len(rows)))
    levels = zip(*(piece.probabilities for piece in pieces), strict=True)
    findings = [piece.findings for piece in pieces if piece.findings is not None]
    return [torch.cat(level).numpy() for level in levels], torch.cat(findings).numpy() if findings else None


def evidence(alone: Array, attention: Array) -> Array:
    """What every tile says for and against every class, [n, c].

    With a_i the attention of tile i and p_i the probabilities of a bag that holds this tile alone,

        e_ic = a_i (log p_ic - mean over classes of log p_i)

    For attention pooling with a linear head these add up, over tiles, to the bag's own logits (centered).

    >>> evidence(np.array([[0.5, 0.5], [0.2, 0.8]]), np.array([0.5, 0.5])).round(3).tolist()
    [[0.0, 0.0], [-0.347, 0.347]]
    """
    # Some methods give probabilities of exactly 0, which have no logarithm.
    log_p = np.log(alone.clip(min=1e-300))
    centered: Array = attention[:, None] * (log_p - log_p.mean(1, keepdims=True))
    return centered


def finding_evidence(alone: Array, attention: Array) -> Array:
    """What every tile says for and against the presence of every finding, [n, k].

    With p_ik the probability of finding k in a bag that holds tile i alone, e_ik = a_i ln(p_ik / (1 − p_ik)). For
    attention pooling these add up, over tiles, to the bag's own log-odds.

    >>> finding_evidence(np.array([[0.5], [0.8]]), np.array([0.5, 0.5])).round(3).tolist()
    [[0.0], [0.693]]
    """
    p = alone.clip(1e-15, 1 - 1e-15)  # a sigmoid may be exactly 0 or 1
    weighted: Array = attention[:, None] * np.log(p / (1 - p))
    return weighted


def at_least(alone: Array, ranks: Sequence[int]) -> dict[int, Array]:
    """For every boundary of urgency, by the first class above it, the probability [n] of what is as urgent or more.

    >>> at_least(np.array([[0.5, 0.1, 0.1, 0.3]]), [0, 1, 1, 2])
    {1: array([0.5]), 3: array([0.3])}
    """
    firsts = [index for index in range(1, len(ranks)) if ranks[index] > ranks[index - 1]]
    return {first: alone[:, first:].sum(1) for first in firsts}


@dataclass(frozen=True)
class TileLayer:
    """One value per tile: the attention of a level, the evidence for or urgency of a class, or that for a finding.

    >>> layer = TileLayer("evidence", "WHO group", "low grade", np.zeros(2))
    >>> layer.name, layer.scale
    ('evidence WHO group low grade', 'sign')
    """

    kind: Literal["attention", "urgency", "evidence", "finding"]
    level: str
    label: str | None
    values: Array

    @property
    def key(self) -> tuple[str, str, str | None]:
        """What it shows, apart from its values."""
        return self.kind, self.level, self.label

    @property
    def name(self) -> str:
        """Its name in files and pages."""
        return " ".join(word for word in self.key if word is not None)

    @property
    def scale(self) -> Literal["rank", "probability", "sign"]:
        """How values are drawn: by rank, as probabilities, or by their sign and size."""
        scales: dict[str, Literal["rank", "probability", "sign"]] = {"attention": "rank", "urgency": "probability"}
        return scales.get(self.kind, "sign")


def measure(learner: Learner, features: Tensor, attention: list[Tensor], slide_id: str) -> list[TileLayer]:
    """The layers of a slide's tiles, coarsest level first.

    Where the model judges instances one by one, each has a probability of its own of being at least so urgent.
    """
    hierarchy, levels = learner.hierarchy, learner.levels[-len(attention) :]
    layers: list[TileLayer] = []
    alone, findings = each_alone(learner, features, slide_id)
    for level, weights, probabilities in zip(levels, attention, alone[-len(attention) :], strict=True):
        name, labels = hierarchy.level_names[level], hierarchy.names(level)
        shares = weights.double().numpy()
        layers.append(TileLayer("attention", name, None, shares))
        if learner.model.judges_instances:
            urgencies = at_least(probabilities, hierarchy.ranks(level).tolist())
            layers += [TileLayer("urgency", name, labels[first], values) for first, values in urgencies.items()]
        by_class = evidence(probabilities, shares).T
        layers += [TileLayer("evidence", name, label, v) for label, v in zip(labels, by_class, strict=True)]
    if findings is not None:
        by_finding = finding_evidence(findings, attention[-1].double().numpy()).T
        places = zip(hierarchy.finding_classes.tolist(), by_finding, strict=True)
        finest = hierarchy.level_names[-1]
        layers += [TileLayer("finding", finest, hierarchy.classes[index], values) for index, values in places]
    return layers


def mean_layers(layers: Sequence[Sequence[TileLayer]]) -> list[TileLayer]:
    """The mean over several models of the layers that all of them have: they may have trained different levels."""
    by_key = [{layer.key: layer for layer in one} for one in layers]
    return [
        replace(layer, values=np.mean([one[layer.key].values for one in by_key], axis=0))
        for layer in layers[0]
        if all(layer.key in one for one in by_key)
    ]


def write_tiles(path: Path, sample: BagSample, columns: Mapping[str, Array]) -> None:
    """One row per tile, in the order of the bag."""
    places: dict[str, npt.NDArray[np.generic]] = {}
    if sample.coords_px0 is not None:
        places |= {"x": sample.coords_px0[:, 0].numpy(), "y": sample.coords_px0[:, 1].numpy()}
    _write_parquet(path, _pyarrow().table({**places, **columns}))


def write_into_store(store: Path, sample: BagSample, columns: Mapping[str, Array]) -> None:
    """Add columns to the tiles of a LazySlide store, where `zs.pl.tiles` draws them; earlier ones are replaced.

    Tiles are found by their corner, never by their row. Tiles without features get an empty value. Only the table of
    tiles is rewritten; all else in the store stays as it is.
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
    pyarrow = _pyarrow()
    for name, values in columns.items():
        spread = np.full(len(places), np.nan)
        spread[known] = values
        # from_pandas: NaN becomes an empty value.
        column = pyarrow.array(spread, from_pandas=True)
        at = table.column_names.index(name) if name in table.column_names else -1
        table = table.append_column(name, column) if at < 0 else table.set_column(at, name, column)
    _write_parquet(file, table)


def csv_as_parquet(path: Path) -> Path:
    """A predictions file once more as parquet beside it: ids as text, probabilities as numbers."""
    columns = {name: _numbers(cells) if name.startswith("p_") else cells for name, cells in read_table(path).items()}
    _write_parquet(out := path.with_suffix(".parquet"), _pyarrow().table(columns))
    return out


def attention_writer(folder: Path) -> Attend:
    """Writes every bag's attention as `attention/<slide>.h5`: one dataset [n] per trained level, and coordinates."""
    names = FileNames()

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        # HDF5 can crash the process when a disk is full, so it writes to memory and plain code writes to disk.
        memory = io.BytesIO()
        with h5py.File(memory, "w") as file:
            file.attrs["slide_id"] = sample.slide_id
            file.create_dataset("attention", data=attention[-1].numpy(), fletcher32=True)
            for number, weights in enumerate(attention[:-1]):
                file.create_dataset(f"attention_level{number}", data=weights.numpy(), fletcher32=True)
            if sample.coords_px0 is not None:
                file.create_dataset("coords", data=sample.coords_px0.numpy(), fletcher32=True)
        with atomic.replacing(folder / "attention" / f"{names[sample.slide_id]}.h5") as temporary:
            temporary.write_bytes(memory.getbuffer())

    return write


def tile_writer(
    learners: Sequence[Learner], folder: Path | None, stores: Path | None, unwritten: dict[str, str]
) -> Attend:
    """Writes attention and evidence of every tile to `tiles/<slide>.parquet`, and into LazySlide's stores.

    A slide whose store cannot be written to is noted in `unwritten`, and does not stop the others.
    """
    files, names = None if stores is None else FeatureFolder(stores), FileNames()

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        layers = mean_layers([measure(learner, sample.features, attention, sample.slide_id) for learner in learners])
        columns = {f"pams_{layer.name.replace(' ', '_')}": layer.values for layer in layers}
        if folder is not None:
            write_tiles(folder / "tiles" / f"{names[sample.slide_id]}.parquet", sample, columns)
        if files is not None:
            try:
                path = files.find(SlideRecord(sample.slide_id, "", ""))
                store = store_of(path)
                if store is None:
                    raise BagError(f"{path} is not a LazySlide store; nothing was written to it.")
                write_into_store(store, sample, columns)
            except BagError as error:
                unwritten[sample.slide_id] = str(error)

    return write


def one_after_the_other(writers: Sequence[Attend]) -> Attend:
    """A writer that calls several."""

    def write(sample: BagSample, attention: list[Tensor]) -> None:
        for writer in writers:
            writer(sample, attention)

    return write


def _numbers(cells: Sequence[str]) -> Sequence[float] | Sequence[str]:
    """Probabilities as numbers; a column of the user's that is only called like one stays as it is."""
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return cells


def _write_parquet(path: Path, table: Any) -> None:
    with atomic.replacing(path) as temporary:
        _pyarrow().parquet.write_table(table, temporary)


def _pyarrow() -> Any:
    with needs_extra("Writing parquet tables", package="pyarrow", extra="tables"):
        import pyarrow.parquet  # noqa: PLC0415  optional
    return pyarrow
