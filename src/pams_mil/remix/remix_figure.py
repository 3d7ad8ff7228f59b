"""What each remix strategy selects, drawn: the two bags in a plane, and the one that gives the label on its tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pams_mil.arrays import AnyArray
from pams_mil.remix.clustering import cluster
from pams_mil.remix.strategy import SYNTHETIC, Mixed, create_remix

STRATEGIES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "ReMix": ("remix", {}),
    "PseudoMix": ("pseudomix", {"mix_probability": 1.0, "labels": "urgent"}),
    "RandomMix": ("randommix", {}),
    "SFR": ("sfr", {}),
}
_INK, _CHOSEN, _OTHER, _SYNTHETIC = "#334155", "#dc2626", "#94a3b8", "#0f766e"


@dataclass(frozen=True)
class BagView:
    """A bag to draw: its rows, its name, its label, and where its tiles lie, if known."""

    bag: Tensor
    name: str
    label: str
    coords_px0: AnyArray | None = None


def select_all(a: Tensor, b: Tensor, *, seed: int = 0) -> dict[str, Mixed]:
    """What every strategy makes of the pair."""
    return {
        title: create_remix(name, **options)(a, b, torch.Generator().manual_seed(seed))
        for title, (name, options) in STRATEGIES.items()
    }


def plane_of(rows: AnyArray) -> AnyArray:
    """[n, 2] first two principal components of the rows' directions, since all strategies compare by cosine.

    >>> plane_of(np.array([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0]])).shape
    (3, 2)
    """
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    centered = unit - unit.mean(0)
    _, _, directions = np.linalg.svd(centered, full_matrices=False)
    flat: AnyArray = centered @ directions[:2].T
    # Features of width 1, or a single row, have one direction only.
    return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))


def draw(a: BagView, b: BagView, mixed: Mapping[str, Mixed]) -> Any:
    """The figure: clusters of both bags, then one column per strategy; a second row where a has coordinates."""
    from matplotlib.figure import Figure  # noqa: PLC0415  slow to import; no global state this way

    synthetic = [rows.features[rows.origin_bag == SYNTHETIC].float() for rows in mixed.values()]
    # One plane for both bags and all synthetic rows, else their places could not be compared.
    flat = plane_of(torch.cat([a.bag.float(), b.bag.float(), *synthetic]).cpu().numpy())
    points_a, points_b = flat[: len(a.bag)], flat[len(a.bag) : len(a.bag) + len(b.bag)]
    points_synthetic = np.split(flat[len(a.bag) + len(b.bag) :], np.cumsum([len(rows) for rows in synthetic])[:-1])
    lines = 1 if a.coords_px0 is None else 2
    figure = Figure(figsize=(3.1 * (len(mixed) + 1), 3.4 * lines + 0.9), layout="constrained")
    axes = figure.subplots(lines, len(mixed) + 1, squeeze=False)
    labels = cluster((a.bag, b.bag)).labels.cpu().numpy()
    _draw_clusters(axes[0][0], points_a, points_b, labels)
    for panel, (title, rows), stars in zip(axes[0][1:], mixed.items(), points_synthetic, strict=True):
        _draw_plane(panel, points_a, points_b, stars, rows)
        panel.set_title(f"{title}\n{_caption(rows, len(a.bag))}", fontsize=10)
    if a.coords_px0 is not None:
        _draw_layouts(axes[1], a, labels, mixed)
    figure.suptitle(f"{a.name} ({a.label}), whose label stays, into {b.name} ({b.label})", fontsize=12)
    figure.legend(handles=_legend(), loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    return figure


def _caption(rows: Mixed, count: int) -> str:
    taken, synthetic = len(rows.rows_from(0)), int((rows.origin_bag == SYNTHETIC).sum())
    return f"{taken} of {count} rows" + (f", {synthetic} synthetic" if synthetic else "")


def _bare(panel: Any) -> None:
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set_color("#cbd5e1")


def _draw_clusters(panel: Any, points_a: AnyArray, points_b: AnyArray, labels: AnyArray) -> None:
    style = {"cmap": "tab20", "vmin": 0, "vmax": 19, "s": 20}
    panel.scatter(*points_b.T, c=labels[len(points_a) :], marker="s", alpha=0.45, **style)
    panel.scatter(*points_a.T, c=labels[: len(points_a)], marker="o", edgecolors=_INK, linewidths=0.6, **style)
    panel.set_title(f"SFR's clusters\n{len(np.unique(labels))} occupied", fontsize=10)
    _bare(panel)


def _draw_plane(panel: Any, points_a: AnyArray, points_b: AnyArray, stars: AnyArray, rows: Mixed) -> None:
    chosen = _chosen(rows, len(points_a))
    panel.scatter(*points_b.T, marker="s", s=14, color=_OTHER, alpha=0.5, linewidths=0)
    panel.scatter(*points_a[~chosen].T, s=20, facecolors="none", edgecolors=_INK, linewidths=0.7)
    panel.scatter(*points_a[chosen].T, s=22, color=_CHOSEN, edgecolors="white", linewidths=0.4)
    panel.scatter(*stars.T, marker="*", s=46, color=_SYNTHETIC)
    _bare(panel)


def _draw_layouts(panels: Sequence[Any], a: BagView, labels: AnyArray, mixed: Mapping[str, Mixed]) -> None:
    coords = np.asarray(a.coords_px0, dtype=float)
    side = {"marker": "s", "s": _marker_area(coords)}
    panels[0].scatter(*coords.T, c=labels[: len(coords)], cmap="tab20", vmin=0, vmax=19, **side)
    panels[0].set_xlabel(f"tiles of {a.name}", fontsize=9)
    for panel, rows in zip(panels[1:], mixed.values(), strict=True):
        chosen = _chosen(rows, len(coords))
        panel.scatter(*coords[~chosen].T, color="#e2e8f0", edgecolors=_OTHER, linewidths=0.3, **side)
        panel.scatter(*coords[chosen].T, facecolors="#fecaca", edgecolors=_CHOSEN, linewidths=1.0, **side)
    for panel in panels:
        panel.set_aspect("equal")
        panel.invert_yaxis()
        _bare(panel)


def _marker_area(coords: AnyArray) -> float:
    """Points² so that tiles nearly touch, whatever their number."""
    return float(np.clip(9000 / max(1, len(coords)), 3, 90))


def _chosen(rows: Mixed, count: int) -> AnyArray:
    chosen = np.zeros(count, dtype=bool)
    chosen[rows.rows_from(0).cpu().numpy()] = True
    return chosen


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D  # noqa: PLC0415  slow to import

    def mark(label: str, marker: str, **style: Any) -> Any:
        return Line2D([], [], linestyle="", marker=marker, label=label, **style)

    return [
        mark("b, the other bag", "s", color=_OTHER),
        mark("a, left out", "o", markerfacecolor="none", markeredgecolor=_INK),
        mark("a, chosen", "o", color=_CHOSEN),
        mark("synthetic", "*", color=_SYNTHETIC, markersize=9),
    ]


def selection_rows(mixed: Mapping[str, Mixed], slides: tuple[str, str]) -> list[tuple[str, str, int]]:
    """(strategy, slide, row) of everything taken, for a table; synthetic rows have no slide and the row -1."""
    origins = []
    for title, rows in mixed.items():
        for bag, row in zip(rows.origin_bag.tolist(), rows.origin_row.tolist(), strict=True):
            origins.append((title, "" if bag == SYNTHETIC else slides[bag], row))
    return origins
