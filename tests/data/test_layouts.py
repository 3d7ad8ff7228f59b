"""Every layout, written as its tool writes it, reads back bit-equal; everything unusable is refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.data import writers

from pams_mil.data import read_bag
from pams_mil.errors import BagError


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 3000])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mapped", [False, True])
def test_clam_reads_bit_equal(tmp_path: Path, rows: int, dtype: str, mapped: bool) -> None:
    features, coords = writers.numbers(rows, dtype=dtype)
    bag = read_bag(writers.clam(tmp_path / "a.h5", features, coords), mapped=mapped)
    assert bag.info.layout == "clam"
    assert bag.features.dtype == features.dtype
    np.testing.assert_array_equal(bag.features, features)
    np.testing.assert_array_equal(bag.coords_px0, coords)


def test_trident_reads_bit_equal_with_its_facts(tmp_path: Path) -> None:
    features, coords = writers.numbers(3000, dtype="float16")
    path = writers.trident(tmp_path / "a.h5", features, coords)
    bag = read_bag(path)
    np.testing.assert_array_equal(bag.features, features)
    np.testing.assert_array_equal(bag.coords_px0, coords)
    info = bag.info
    assert (info.layout, info.encoder, info.tile_px, info.tile_px0) == ("trident", "uni_v1", 256, 512.0)
    assert info.magnification == 10
    assert info.mpp is None  # a nominal magnification is no resolution
    assert read_bag(path, level0_mpp=0.46).info.mpp == pytest.approx(0.92)


def test_trident_attribute_none_is_nothing(tmp_path: Path) -> None:
    features, coords = writers.numbers(5)
    path = writers.trident(tmp_path / "a.h5", features, coords, patch_size_level0="None", target_magnification="None")
    assert (read_bag(path).info.tile_px0, read_bag(path).info.magnification) == (None, None)


def test_stamp_keeps_microns_until_the_scale_is_known(tmp_path: Path) -> None:
    features, coords = writers.numbers(40, dtype="float16")
    microns = coords * 0.25
    path = writers.stamp(tmp_path / "a.h5", features, microns)
    bag = read_bag(path)
    assert (bag.info.layout, bag.info.encoder, bag.info.tile_px) == ("stamp", "ctranspath", 224)
    assert bag.info.mpp == pytest.approx(256 / 224)
    assert bag.coords_px0 is None
    np.testing.assert_array_equal(bag.coords_um, microns)
    np.testing.assert_array_equal(bag.features, features)
    scaled = read_bag(path, level0_mpp=0.25)
    np.testing.assert_allclose(scaled.coords_px0, coords)
    assert scaled.info.tile_px0 == pytest.approx(1024)


def test_stamp_variants(tmp_path: Path) -> None:
    features, _ = writers.numbers(7, dtype="float16")
    bag = read_bag(writers.stamp_embeddings(tmp_path / "a.h5", features))
    np.testing.assert_array_equal(bag.features, features)
    assert bag.coords_px0 is None
    assert bag.coords_um is None
    with h5py.File(tmp_path / "patient.h5", "w") as file:
        file["feats"] = features[0]
        file.attrs["feat_type"] = "patient"
    np.testing.assert_array_equal(read_bag(tmp_path / "patient.h5").features, features[:1])


def test_corners_of_slideflow_are_left_open_where_its_centers_do_not_tell_the_side(tmp_path: Path) -> None:
    features, _ = writers.numbers(4)
    overlapping = np.array([[128, 128], [256, 128], [384, 128], [512, 256]])
    for number, centers in enumerate((overlapping, np.full((4, 2), 300))):
        path = writers.slideflow(tmp_path, f"s{number}", features, centers - 255 // 2)
        bag = read_bag(path)
        assert (bag.info.layout, bag.coords_px0, bag.info.tile_px0) == ("slideflow", None, None)


def test_coordinates_of_early_stamp_are_not_taken_for_pixels_of_the_slide(tmp_path: Path) -> None:
    features, _ = writers.numbers(3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["feats"], file["coords"], file["augmented"] = features, [[0, 0], [224, 0], [0, 448]], np.zeros(3, bool)
        file.attrs["extractor"] = "xiyuewang-ctranspath-7c998680"
    bag = read_bag(tmp_path / "a.h5")
    assert (bag.info.layout, bag.info.tile_px, bag.coords_px0) == ("stamp", 224, None)
    assert bag.info.mpp == pytest.approx(256 / 224)
    np.testing.assert_allclose(bag.coords_um, [[0, 0], [256, 0], [0, 512]])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["coords"][1] = (300, 0)
    bag = read_bag(tmp_path / "a.h5")
    assert (bag.coords_px0, bag.coords_um, bag.info.mpp) == (None, None, None)
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["feats"], file["coords"] = features, [[0, 0], [256, 0], [0, 512]]
        file.attrs.update({"stamp_version": "2.0.0", "tile_size_um": 256.0})
    assert read_bag(tmp_path / "b.h5").coords_px0 is None


@pytest.mark.parametrize("kind", ["float8", "sparse", "quantized", "meta", "safetensors", "longdouble"])
def test_numbers_that_numpy_or_torch_cannot_hold_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    values = torch.ones(4, 3)
    path = tmp_path / "a.pt"
    if kind == "safetensors":
        path = tmp_path / "a.safetensors"
        save_file({"features": values.to(torch.float8_e4m3fn)}, path)
    elif kind == "longdouble":
        path = tmp_path / "a.npy"
        np.save(path, values.numpy().astype(np.longdouble))
    elif kind == "quantized":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(torch.quantize_per_tensor(values, 0.1, 0, torch.qint8), path)
    else:
        made = {"float8": values.to(torch.float8_e4m3fn), "sparse": values.to_sparse(), "meta": values.to("meta")}
        torch.save(made[kind], path)
    with pytest.raises(BagError, match=r"a\.(pt|npy|safetensors)"):
        read_bag(path)


def test_any_byte_order_becomes_that_of_the_machine(tmp_path: Path) -> None:
    features, _ = writers.numbers(4)
    np.save(tmp_path / "a.npy", features.astype(">f4"))
    bag = read_bag(tmp_path / "a.npy")
    assert bag.features.dtype.isnative
    np.testing.assert_array_equal(torch.from_numpy(bag.features).numpy(), features)


def test_clam_attributes_give_the_tile_at_level_0(tmp_path: Path) -> None:
    features, coords = writers.numbers(5)
    path = writers.clam(tmp_path / "a.h5", features, coords)
    with h5py.File(path, "a") as file:
        file["coords"].attrs.update(
            {"patch_size": 256, "patch_level": 1, "downsample": (4.0, 4.0), "custom_downsample": 2}
        )
    assert read_bag(path).info.tile_px0 == 2048


def test_bare_arrays(tmp_path: Path) -> None:
    features, coords = writers.numbers(20)
    coords = coords // 255 * 255
    found = {
        "torch": read_bag(writers.torch_tensor(tmp_path / "a.pt", features)),
        "torch-dict": read_bag(writers.torch_dict(tmp_path / "b.pt", features, "feats")),
        "torchmil": read_bag(writers.torchmil(tmp_path / "mil", "c", features, coords)),
        "slideflow": read_bag(writers.slideflow(tmp_path / "sf", "d", features, coords)),
        "safetensors": read_bag(writers.safetensors(tmp_path / "e.safetensors", features, coords)),
    }
    for layout, bag in found.items():
        assert bag.info.layout == layout
        np.testing.assert_array_equal(bag.features, features)
        if layout in ("torchmil", "slideflow", "safetensors"):
            np.testing.assert_array_equal(bag.coords_px0, coords)
    assert found["slideflow"].info.mpp == pytest.approx(302 / 299)
    assert found["slideflow"].info.tile_px0 == 255
    assert found["safetensors"].info.encoder == "uni2"
    np.testing.assert_array_equal(read_bag(writers.torch_numpy(tmp_path / "f.pt", features)).features, features)


def test_bfloat16_becomes_float32_exactly(tmp_path: Path) -> None:
    tensor = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.save(tensor, tmp_path / "a.pt")
    np.testing.assert_array_equal(read_bag(tmp_path / "a.pt").features, tensor.float().numpy())


def test_no_code_runs_when_a_tensor_file_is_loaded(tmp_path: Path) -> None:
    marker = tmp_path / "marker"

    class Payload:
        def __reduce__(self):
            return (Path.touch, (marker,))

    torch.save({"features": Payload()}, tmp_path / "a.pt")
    with pytest.raises(BagError, match=r"could run code"):
        read_bag(tmp_path / "a.pt")
    assert not marker.exists()
    np.save(tmp_path / "b.npy", np.array([[Payload()]], dtype=object), allow_pickle=True)
    with pytest.raises(BagError, match=r"not a complete \.npy"):
        read_bag(tmp_path / "b.npy")
    assert not marker.exists()


def _broken(tmp_path: Path, kind: str) -> tuple[Path, str]:
    features, coords = writers.numbers(40)
    path = tmp_path / "slide-17.h5"
    if kind == "missing":
        return path, "There is no feature file"
    if kind == "kind":
        (tmp_path / "a.txt").write_text("x")
        return tmp_path / "a.txt", "not a known kind"
    if kind == "rows":
        writers.clam(path, features, coords[:-1])
        return path, r"\[n, 2\] with n = 40"
    if kind == "empty":
        writers.clam(path, features[:0], coords[:0])
        return path, "at least one tile"
    if kind == "keys":
        with h5py.File(path, "w") as file:
            file["coords"] = coords
        return path, "holds no features"
    if kind == "integers":
        writers.clam(path, features.astype(np.int32), coords)
        return path, "floating-point"
    writers.clam(path, features, coords)
    if kind == "locked":
        (tmp_path / "slide-17.h5.lock").touch()
        return path, "is being written"
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
        return path, "cut short|truncated or damaged"
    path.write_bytes(b"")
    return path, "0 bytes"


@pytest.mark.parametrize(
    "kind", ["missing", "kind", "rows", "empty", "keys", "integers", "locked", "truncated", "zero"]
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    path, message = _broken(tmp_path, kind)
    with pytest.raises(BagError, match=message) as caught:
        read_bag(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_that_are_not_finite_are_named(tmp_path: Path, value: float, dtype: str) -> None:
    features, coords = writers.numbers(40, dtype=dtype)
    features[17, 3] = value
    path = writers.clam(tmp_path / "s.h5", features, coords)
    with pytest.raises(BagError, match=r"row 17 at \[\d+, \d+\], column 3") as caught:
        read_bag(path)
    assert ("65504" in str(caught.value)) == (dtype == "float16" and np.isinf(value))


def test_big_endian_and_gzip_are_left_to_hdf5(tmp_path: Path) -> None:
    features, coords = writers.numbers(4000)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("features", data=features.astype(">f4"), chunks=(8, 12))
        file.create_dataset("coords", data=coords, chunks=(8, 2), compression="gzip")
    bag = read_bag(tmp_path / "a.h5")
    assert bag.features.dtype.isnative
    np.testing.assert_array_equal(bag.features, features)
    np.testing.assert_array_equal(bag.coords_px0, coords)


@pytest.mark.parametrize("chunks", [None, (32, 8)])
@pytest.mark.parametrize("mapped", [False, True])
def test_types_that_numpy_does_not_have_are_left_to_hdf5(tmp_path: Path, chunks, mapped: bool) -> None:
    features, coords = writers.numbers(3000, 8)
    kind = h5py.h5t.IEEE_F32LE.copy()  # bfloat16, as some tools define it
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks is not None:
            plan.set_chunk(chunks)
        stored = h5py.h5d.create(file.id, b"features", kind, h5py.h5s.create_simple(features.shape), plan)
        stored.write(h5py.h5s.ALL, h5py.h5s.ALL, features)
        file["coords"] = coords
        file["behind"] = np.zeros(100_000)  # what would be read instead
    bag = read_bag(tmp_path / "a.h5", mapped=mapped)
    np.testing.assert_allclose(bag.features, features, rtol=0.01)


def test_chunks_never_written_hold_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("features", shape=(20_000, 4), chunks=(8, 4), dtype="f4", fillvalue=7)
        dataset[:8] = 1
    expected = np.full((20_000, 4), 7, np.float32)
    expected[:8] = 1
    np.testing.assert_array_equal(read_bag(tmp_path / "a.h5").features, expected)


def test_a_read_only_folder_can_be_read(tmp_path: Path) -> None:
    features, coords = writers.numbers(9)
    path = writers.clam(tmp_path / "a.h5", features, coords)
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            np.testing.assert_array_equal(read_bag(path).features, features)
    finally:
        tmp_path.chmod(0o755)


@pytest.mark.parametrize(
    ("tool", "shape", "attributes", "layout"),
    [
        ("trident", (12,), {}, "trident slide"),
        ("stamp", (12,), {"feat_type": "slide"}, "stamp slide"),
        ("stamp", (1, 12), {"feat_type": "patient"}, "stamp patient"),
        ("stamp", (1, 12), {"feat_type": "tile"}, "stamp"),
    ],
)
def test_vectors_of_slide_encoders_are_bags_of_one_row(tmp_path: Path, tool, shape, attributes, layout) -> None:
    values = np.arange(12, dtype=np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        placed = file.create_dataset("features" if tool == "trident" else "feats", data=values.reshape(shape))
        if tool == "trident":  # beside the vector, the places of the tiles it was made from
            placed.attrs.update({"encoder": "titan", "savetodir": "out", "name": "a"})
            file["coords"] = np.zeros((1, 30, 2), np.int64)
        else:
            file.attrs.update({"stamp_version": "2.5.0", "extractor": "titan", **attributes})
    bag = read_bag(tmp_path / "a.h5")
    assert (bag.features.tolist(), bag.coords_px0, bag.info.layout) == ([values.tolist()], None, layout)
    assert bag.info.encoder == "titan"
