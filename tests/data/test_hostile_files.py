"""Feature files and tables that lead elsewhere or are not what they say: refused by name, and nothing else is read."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pams_mil import ClassHierarchy
from pams_mil.data import Manifest, SlideRecord, read_bag
from pams_mil.data.bags.store import FeatureFolder, open_store
from pams_mil.data.doctor import diagnose
from pams_mil.data.tables import read_table
from pams_mil.errors import BagError, HierarchyError, TableError

ROWS = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
TREE = ClassHierarchy.load("bracs")


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A file that no feature file may lead to."""
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["features"] = ROWS
    (tmp_path / "secret").write_bytes(ROWS.tobytes())
    return tmp_path / "other.h5"


@pytest.mark.parametrize("name", ["features", "coords"])
@pytest.mark.parametrize("kind", ["link", "link behind a soft link", "storage", "virtual", "group", "4 TB"])
def test_features_must_lie_in_the_file_itself(tmp_path: Path, other: Path, name: str, kind: str) -> None:
    path = tmp_path / "s.h5"
    with h5py.File(path, "w") as file:
        if name == "coords":
            file["features"] = ROWS
        if kind == "link":
            file[name] = h5py.ExternalLink(str(other), "features")
        elif kind == "link behind a soft link":
            file["elsewhere"] = h5py.ExternalLink(str(other), "features")
            file[name] = h5py.SoftLink("/elsewhere")
        elif kind == "storage":
            size = ROWS.nbytes
            file.create_dataset(name, ROWS.shape, "f4", external=[(str(tmp_path / "secret"), 0, size)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout(ROWS.shape, "f4")
            layout[:] = h5py.VirtualSource(str(other), "features", ROWS.shape)
            file.create_virtual_dataset(name, layout)
        elif kind == "group":
            file.create_group(name)["x"] = ROWS
        else:
            file.create_dataset(name, (1 << 30, 1024), "f4", chunks=(1024, 1024))
    words = {"group": "has a group called", "4 TB": "no data are packed so densely"}.get(kind, "not followed")
    with pytest.raises(BagError, match=words) as caught:
        read_bag(path)
    assert str(path) in str(caught.value)
    assert name in str(caught.value)


def test_links_within_a_file_and_compressed_files_are_fine(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file.create_dataset("real", data=np.zeros((1 << 12, 64), np.float32), compression="gzip", compression_opts=9)
        file["features"] = h5py.SoftLink("/real")
    assert read_bag(tmp_path / "s.h5").num_instances == 1 << 12


@pytest.mark.parametrize("unit", ["px", "um"])
def test_coordinates_that_are_not_finite_are_named(tmp_path: Path, unit: str) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["features"] = ROWS
        coords = np.arange(18, dtype=np.float64).reshape(9, 2)
        coords[5, 1] = np.nan
        file["coords"] = coords
        if unit == "um":
            file.attrs["unit"] = "um"
    with pytest.raises(
        BagError, match=r"s\.h5 has coords_\w+ that are not finite numbers, first \[10\.0, nan\] in row 5"
    ):
        read_bag(tmp_path / "s.h5")


def _folder(tmp_path: Path) -> Path:
    (tmp_path / "cohort/features").mkdir(parents=True)
    with h5py.File(tmp_path / "cohort/features/inside.h5", "w") as file:
        file["features"] = ROWS
    return tmp_path / "cohort/features"


@pytest.mark.parametrize("how", ["absolute", "dots", "dots through a folder"])
def test_a_path_of_the_manifest_may_not_lead_outside(tmp_path: Path, other: Path, how: str) -> None:
    folder = _folder(tmp_path)
    path = {"absolute": str(other), "dots": "../../other.h5", "dots through a folder": "x/../../../other.h5"}[how]
    (folder / "x").mkdir()
    (tmp_path / "cohort/m.csv").write_text(f"slide_id,patient_id,label,path\ns,p,N,{path}\n")
    manifest = Manifest.read(tmp_path / "cohort/m.csv")
    with pytest.raises(BagError, match=r"Slide 's' has the path .* which leads outside of"):
        open_store(folder, manifest).read(manifest.records[0])
    (problem,) = diagnose(manifest, TREE, features=folder).errors
    assert "leads outside" in problem.message


def test_paths_inside_are_found_however_they_are_written(tmp_path: Path, other: Path) -> None:
    folder = _folder(tmp_path)
    (folder / "link.h5").symlink_to(other)
    (tmp_path / "alias").symlink_to(folder)
    find = FeatureFolder(folder, manifest_folder=tmp_path / "cohort").find
    for path in ("inside.h5", "features/inside.h5", "./x/../inside.h5", str(folder / "inside.h5"), "link.h5"):
        (folder / "x").mkdir(exist_ok=True)
        assert find(SlideRecord("s", "p", "N", path=path)).name == Path(path).name
    through = FeatureFolder(tmp_path / "alias").find(SlideRecord("s", "p", "N", path=str(folder / "inside.h5")))
    assert through.name == "inside.h5"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"PK\x03\x04rest", "a zip archive"),
        (b"PAR1rest", r"Give it the ending \.parquet"),
    ],
)
def test_packed_tables_are_called_what_they_are(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(TableError, match=words):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("sign", ["\u202e", "\u200b", "\ufeff", "\u2066"])
def test_class_names_have_no_invisible_characters(sign: str) -> None:
    with pytest.raises(HierarchyError, match=r"invisible character '\\u.*write it as 'High'"):
        ClassHierarchy.flat(["Low", f"Hi{sign}gh"])
    assert ClassHierarchy.flat(["Low", "می\u200cشود"]).num_classes() == 2


def test_damaged_npy_files_end_in_words(tmp_path: Path) -> None:
    """Headers that numpy's parser rejects in many ways: bad syntax, bad text, huge shapes, other kinds of file."""
    np.save(tmp_path / "s.npy", ROWS)
    content = (tmp_path / "s.npy").read_bytes()
    damages = [
        content.replace(b"{'descr'", b"{'des\xffr'"),
        content.replace(b"(9, 4)", b"(9, *)"),
        content.replace(b"(9, 4), }", b"(9" + b"0" * 3 + b", 4)}"),
        content.replace(b"'<f4'", b"'|O4'"),
        content.replace(b"'<f4'", b"'<f7'"),
        content[:30],
        content[:-1],
        b"PK\x03\x04" + content,
        b"\x80\x04" + content,
    ]
    assert content not in damages
    for damage in damages:
        (tmp_path / "s.npy").write_bytes(damage)
        with pytest.raises(BagError, match=r"s\.npy"):
            read_bag(tmp_path / "s.npy")
    np.savez(tmp_path / "archive.npz", ROWS)
    (tmp_path / "s.npy").write_bytes((tmp_path / "archive.npz").read_bytes())
    with pytest.raises(BagError, match="an archive of arrays"):
        read_bag(tmp_path / "s.npy")


def test_a_damaged_index_of_slideflow_is_named(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(ROWS), tmp_path / "s.pt")
    (tmp_path / "s.index.npz").write_bytes(b"PK\x03\x04torn")
    with pytest.raises(BagError, match=r"s\.index\.npz is not the archive of tile locations"):
        read_bag(tmp_path / "s.pt")


def test_a_path_that_no_file_can_have_is_one_missing_bag(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["features"] = ROWS
    records = (SlideRecord("a", "p", "N"), SlideRecord("b", "q", "N", path="x" * 5000))
    found = diagnose(Manifest(records), TREE, features=tmp_path)
    assert [problem.slides for problem in found.problems if problem.kind == "missing bag"] == [("b",)]
    assert len(found.bags) == 1


def test_coordinates_that_are_no_numbers_are_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["features"], file["coords"] = ROWS, np.full((9, 2), b"x")
    with pytest.raises(BagError, match=r"s\.h5 cannot be used: coords_px0 must be numbers, found \|S1"):
        read_bag(tmp_path / "s.h5")


@pytest.mark.parametrize("downsample", ["x", np.nan, (4.0, 4.0)])
def test_a_downsample_that_is_no_number_says_nothing(tmp_path: Path, downsample) -> None:
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["features"], file["coords"] = ROWS, np.zeros((9, 2), np.int64)
        file["coords"].attrs.update({"patch_size": 256, "downsample": downsample})
    assert read_bag(tmp_path / "s.h5").info.tile_px0 == (1024 if isinstance(downsample, tuple) else None)


def test_odd_settings_of_slideflow_say_nothing_and_stop_nothing(tmp_path: Path) -> None:
    torch.save(torch.from_numpy(ROWS), tmp_path / "s.pt")
    config = tmp_path / "bags_config.json"
    manifest = Manifest((SlideRecord("s", "p", "N"),))
    for said in ('{"extractor": ["x"], "tile_px": 0, "tile_um": "40x"}', '{"tile_px": 299, "tile_um": NaN}'):
        config.write_text(said)
        (bag,) = diagnose(manifest, TREE, features=tmp_path).bags
        assert (bag.info.encoder, bag.info.mpp) == (None, None)
    config.write_text("[" * 100_000)
    with pytest.raises(BagError, match=r"bags_config\.json is not the JSON"):
        read_bag(tmp_path / "s.pt")
