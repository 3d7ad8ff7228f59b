"""The share of tissue in every grid cell, by intersecting each cell with each mask pixel."""

from __future__ import annotations


def tissue_share(
    mask: list[list[bool]], scale: float, tile_px0: float, columns: int, rows: int
) -> list[list[float]]:  # fmt: skip
    shares = []
    for row in range(rows):
        line = []
        for column in range(columns):
            left, top = column * tile_px0, row * tile_px0
            area = 0.0
            for y, cells in enumerate(mask):
                for x, is_tissue in enumerate(cells):
                    if is_tissue:
                        across = min(left + tile_px0, (x + 1) * scale) - max(left, x * scale)
                        down = min(top + tile_px0, (y + 1) * scale) - max(top, y * scale)
                        area += max(0.0, across) * max(0.0, down)
            line.append(area / tile_px0**2)
        shares.append(line)
    return shares
