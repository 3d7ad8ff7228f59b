"""Values per tile for the browser: attention, evidence for and against each class, and where tissue was analysed.

The browser gets numbers, not pictures: it paints one pixel per tile and changes colors, threshold and opacity at once.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import matplotlib
import numpy as np

from pams_mil.arrays import AnyArray
from pams_mil.data import Bag
from pams_mil.data.bags.feature_origin import OriginCheck, feature_origin
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.bags.layouts import at_scale
from pams_mil.data.bags.store import open_store
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.errors import BagError
from pams_mil.wsi.heatmap import Heatmap, ranked, symmetric

if TYPE_CHECKING:
    from pams_mil.engine.prediction.predict import LoadedRun

MOST_BYTES = 256 << 20
"""Memory for layers that are kept: those of some hundred slides, far more than rows fit on a screen."""
MOST_CELLS = 4096
"""The longest side of a canvas with one pixel per tile; finer grids are painted as rectangles."""
TISSUE = "tissue"


@dataclass(frozen=True)
class Heat(Heatmap):
    """Tiles of a slide with named values, {name: (kind, values [n])}."""

    layers: Mapping[str, tuple[str, AnyArray]]
    evidence: Mapping[int, str] = field(default_factory=dict)
    """The layer that speaks for and against each class, by its index."""
    notes: tuple[str, ...] = ()

    @property
    def extent(self) -> tuple[int, int]:
        """The least size of the slide, in level-0 pixels."""
        right, bottom = self.coords_px0.max(0) + self.tile_px0
        return int(np.ceil(right)), int(np.ceil(bottom))

    def grid(self) -> dict[str, float] | None:
        """Corner and size of the grid if the tiles lie on one without overlap, else None."""
        left, top = self.coords_px0.min(0).astype(np.float64).tolist()
        # Column and row of every tile, if they lie on a grid; `off` is how far any of them does not, in pixels.
        cells = np.rint((self.coords_px0 - [left, top]) / self.tile_px0).astype(np.int64)
        off = np.abs(cells * self.tile_px0 + [left, top] - self.coords_px0).max()
        columns, rows = (cells.max(0) + 1).tolist()
        # Two tiles in one cell overlap; one pixel per tile could not show both.
        alone = len(np.unique(cells, axis=0)) == len(cells)
        if off > 1.0 or not alone or max(columns, rows) > MOST_CELLS:
            return None
        return {"x": left, "y": top, "columns": columns, "rows": rows}

    def packed(self) -> bytes:
        """Length of a JSON header, the header, then float32: x [n], y [n] and every layer [n], little-endian."""
        header = {
            "n": len(self.coords_px0),
            "tile_px0": self.tile_px0,
            "grid": self.grid(),
            "layers": [{"name": name, "kind": kind} for name, (kind, _) in self.layers.items()],
            "evidence": {str(index): name for index, name in self.evidence.items()},
            "notes": list(self.notes),
        }
        text = json.dumps(header, ensure_ascii=False).encode()
        text += b" " * (-len(text) % 4)  # numbers start on a multiple of four bytes
        columns = [self.coords_px0[:, 0], self.coords_px0[:, 1], *(values for _, values in self.layers.values())]
        numbers = np.stack([np.asarray(column, "<f4") for column in columns])
        return struct.pack("<I", len(text)) + text + numbers.tobytes()

    def shades(self, call: int | None) -> tuple[str, AnyArray]:
        """Colors and shades [n] for a small picture: evidence for and against the call, else attention by rank."""
        if call is not None and call in self.evidence:
            values = self.layers[self.evidence[call]][1]
            # What says next to nothing stays clear, so that the tissue shows.
            strong = np.abs(values) >= 0.1 * np.abs(values).max()
            return "coolwarm", np.where(strong, symmetric(values), np.nan)
        name = next((name for name in reversed(list(self.layers)) if name.startswith("attention")), TISSUE)
        return "inferno", ranked(self.layers[name][1])

    @property
    def nbytes(self) -> int:
        """Memory of the values."""
        return int(self.coords_px0.nbytes + sum(values.nbytes for _, values in self.layers.values()))


def class_color(index: int, classes: int) -> tuple[int, int, int]:
    """A color from calm (least urgent) to alarming.

    >>> class_color(0, 3) != class_color(2, 3)
    True
    """
    red, green, blue, _ = matplotlib.colormaps["plasma"](0.1 + 0.75 * index / max(1, classes - 1))
    return round(255 * red), round(255 * green), round(255 * blue)


@dataclass
class HeatMaker:
    """Makes the layers of a slide from its features, the runs and stored attention; keeps the last few."""

    features: Path | None = None
    runs: Sequence[LoadedRun] = ()
    attention: Path | None = None
    records: Mapping[str, SlideRecord] = field(default_factory=dict)
    reads_cases: bool = False
    mpp_of: Callable[[str], float | None] = lambda slide_id: None
    """Microns per level-0 pixel of a slide, where its file says: some tools store the places of tiles in microns."""

    def __post_init__(self) -> None:
        self._kept: dict[str, Heat] = {}  # the one used last comes last
        self._guard = threading.Lock()
        self._making = threading.Lock()
        self._store = None if self.features is None else open_store(self.features, Manifest(()))
        self._names = FileNames()

    def of(self, slide_id: str) -> Heat:
        """The layers of a slide; a BagError says what is missing."""
        if (heat := self.ready(slide_id)) is not None:
            return heat
        with self._making:  # one at a time: a model may need much memory
            # Whoever was before us may have computed this very slide.
            return self.ready(slide_id) or self.keep(slide_id, self._computed(slide_id))

    def ready(self, slide_id: str) -> Heat | None:
        """The layers of a slide, if they need not be computed."""
        with self._guard:
            if slide_id in self._kept:
                self._kept[slide_id] = self._kept.pop(slide_id)
            return self._kept.get(slide_id)

    def keep(self, slide_id: str, heat: Heat) -> Heat:
        """The layers, kept as long as there is room."""
        with self._guard:
            self._kept[slide_id] = heat
            while len(self._kept) > 1 and sum(one.nbytes for one in self._kept.values()) > MOST_BYTES:
                del self._kept[next(iter(self._kept))]
        return heat

    def _computed(self, slide_id: str) -> Heat:
        if self.reads_cases:
            raise BagError("This run reads all slides of a case as one, so there is no heatmap of one slide.")
        if self._store is None:
            raise BagError("No folder of feature files was given (--features), so there are no tiles to show.")
        record = self.records.get(slide_id) or SlideRecord(slide_id=slide_id, patient_id=slide_id, label="")
        try:
            bag = self._store.read(record)
        except BagError as error:
            raise BagError(str(error).replace(str(self.features), "the feature folder")) from error
        if bag.coords_um is not None and (mpp := self.mpp_of(slide_id)) is not None:
            bag = at_scale(bag, mpp)
        if bag.coords_um is not None:
            raise BagError(
                "The feature file gives the places of its tiles in microns, and there is no slide that states its "
                "resolution, so there is no heatmap."
            )
        if bag.coords_px0 is None:
            raise BagError("The feature file does not say where its tiles lie, so there is no heatmap.")
        side, notes = _tile_side(bag)
        layers = {**self._measured(bag, slide_id, notes), TISSUE: ("flat", np.ones(bag.num_instances, np.float32))}
        tree = self.runs[0].spec.hierarchy if self.runs else None
        named = [] if tree is None else [f"evidence {tree.level_names[-1]} {label}" for label in tree.names()]
        evidence = {index: name for index, name in enumerate(named) if name in layers}
        return Heat(np.asarray(bag.coords_px0, np.float64), side, layers, evidence, tuple(notes))

    def _measured(self, bag: Bag, slide_id: str, notes: list[str]) -> dict[str, tuple[str, AnyArray]]:
        if not self.runs:
            return self._stored(bag, slide_id)
        import torch  # noqa: PLC0415  a worklist without a run needs no torch

        from pams_mil.engine.inference_loop import infer_batch  # noqa: PLC0415
        from pams_mil.engine.prediction.tiles import TileLayer, mean_layers, measure  # noqa: PLC0415
        from pams_mil.models.core.batch import BagBatch  # noqa: PLC0415

        features = torch.from_numpy(np.array(bag.features, np.float32))
        for run in self.runs:
            OriginCheck(run.spec.origin, whose=f"the run {run.path.name}")(slide_id, feature_origin(bag))
        layers: list[list[TileLayer]] = []
        learners = [run.learner for run in self.runs]
        predictions = infer_batch(learners, BagBatch.single(features, slide_id), attention=True)
        for learner, prediction in zip(learners, predictions, strict=True):
            levels = prediction.attention or []
            present = [weights for weights in levels if weights is not None]
            # None stands for a level whose model has no attention.
            if len(present) < len(levels) or not levels:
                notes.append("The model has no attention to show.")
                return {}
            layers.append(measure(learner, features, present, slide_id))
        return {layer.name: (layer.scale, layer.values) for layer in mean_layers(layers)}

    def _stored(self, bag: Bag, slide_id: str) -> dict[str, tuple[str, AnyArray]]:
        """Attention written by `pams predict --attention`, where no run is at hand."""
        path = None if self.attention is None else self.attention / f"{self._names[slide_id]}.h5"
        if path is None or not path.is_file():
            return {}
        try:
            with h5py.File(path, "r", locking=False) as file:
                values = np.asarray(file["attention"][()], np.float64)
        except (OSError, KeyError) as error:
            raise BagError(f"The stored attention of {slide_id!r} cannot be read: {error}.") from error
        if values.shape != (bag.num_instances,) or not np.isfinite(values).all():
            raise BagError(f"The stored attention of {slide_id!r} does not belong to its feature file.")
        return {"attention": ("rank", values)}


def _tile_side(bag: Bag) -> tuple[float, list[str]]:
    """The side of a tile in level-0 pixels: as stated, else the spacing of the tiles, with a note."""
    if bag.info.tile_px0 is not None and bag.info.tile_px0 > 0:
        return float(bag.info.tile_px0), []
    coords = np.asarray(bag.coords_px0)
    # Where tissue is patchy some gaps span several tiles; the median is of neighbors.
    gaps = np.concatenate([np.diff(np.unique(coords[:, axis])) for axis in (0, 1)])
    if not gaps.size:
        raise BagError("The feature file does not state the size of its tiles, so there is no heatmap.")
    side = float(np.median(gaps))
    return side, [f"The feature file does not state the size of its tiles; their spacing, {side:g} pixels, is used."]
