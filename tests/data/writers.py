"""Feature files written the way each tool writes them, for reading back."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.numpy import save_file


def numbers(rows: int = 70, width: int = 12, dtype: str = "float32", seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features [n, d] and coordinates [n, 2]."""
    generator = np.random.default_rng(seed)
    features = generator.standard_normal((rows, width)).astype(dtype)
    return features, generator.integers(0, 50_000, (rows, 2)).astype(np.int32)


def append_batches(file: h5py.File, name: str, values: np.ndarray, chunk_rows: int) -> h5py.Dataset:
    """A dataset that grows batch by batch, as CLAM and TRIDENT write theirs."""
    first = values[:32]
    dataset = file.create_dataset(
        name,
        shape=first.shape,
        maxshape=(None, *values.shape[1:]),
        chunks=(chunk_rows, *values.shape[1:]),
        dtype=values.dtype,
    )
    dataset[:] = first
    for start in range(32, len(values), 32):
        batch = values[start : start + 32]
        dataset.resize(len(dataset) + len(batch), axis=0)
        dataset[-len(batch) :] = batch
    return dataset


def clam(path: Path, features: np.ndarray, coords: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        append_batches(file, "features", features, 32)
        append_batches(file, "coords", coords, 32)
    return path


def trident(path: Path, features: np.ndarray, coords: np.ndarray, **changes: object) -> Path:
    said = {
        "patch_size": 256, "patch_size_level0": 512.0, "level0_magnification": 20, "target_magnification": 10,
        "overlap": 0, "name": path.stem, "savetodir": "out", "level0_width": 60_000, "level0_height": "None", **changes,
    }  # fmt: skip
    with h5py.File(path, "w") as file:
        placed = append_batches(file, "features", features, 1)
        placed.attrs.update({"name": path.stem, "savetodir": "out", "encoder": "uni_v1"})
        append_batches(file, "coords", coords.astype(np.int64), 1).attrs.update(said)
    return path


def stamp(path: Path, features: np.ndarray, coords_um: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file["coords"] = coords_um
        file["feats"] = features
        file.attrs.update(
            {"stamp_version": "2.3.0", "extractor": "ctranspath", "unit": "um", "tile_size_um": 256.0,
             "tile_size_px": 224, "code_hash": "abc", "feat_type": "tile"}
        )  # fmt: skip
    return path


def stamp_embeddings(path: Path, features: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        file["patch_embeddings"] = features
    return path


def torch_tensor(path: Path, features: np.ndarray) -> Path:
    torch.save(torch.from_numpy(features), path)
    return path


def torch_dict(path: Path, features: np.ndarray, key: str) -> Path:
    torch.save({key: torch.from_numpy(features)}, path)
    return path


def torch_numpy(path: Path, features: np.ndarray) -> Path:
    torch.save(features, path)
    return path


def torchmil(root: Path, name: str, features: np.ndarray, coords: np.ndarray) -> Path:
    for folder, values in (("features", features), ("coords", coords)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        np.save(root / folder / f"{name}.npy", values)
    return root / "features" / f"{name}.npy"


def slideflow(root: Path, name: str, features: np.ndarray, coords: np.ndarray) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(features), root / f"{name}.pt")
    np.savez(root / f"{name}.index.npz", coords + 255 // 2)  # the centers of tiles of 255 level-0 pixels
    (root / "bags_config.json").write_text(
        json.dumps({"extractor": {"class": "slideflow.ctranspath"}, "tile_px": 299, "tile_um": 302})
    )
    return root / f"{name}.pt"


def safetensors(path: Path, features: np.ndarray, coords: np.ndarray) -> Path:
    save_file({"features": features, "coords": coords}, path, metadata={"encoder": "uni2"})
    return path
