"""Hostile ids: nothing is written outside the output folder, and no id overwrites another."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.data import writers
from tests.data.cohorts import TREE

from pams_mil.data import Bag, Manifest, Pack, SlideRecord, read_bag, write_bag, write_pack
from pams_mil.data.bags.filenames import FileNames
from pams_mil.data.bags.pack_writer import unpack
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.examine import examine_manifest
from pams_mil.errors import BagError

HOSTILE = [
    "../x", "..", ".", "a/b", "a\\b", "/etc/passwd", "%00", "%2Fx", "x" * 300, "é" * 200, "\u00e9", "e\u0301", "а",
    "a", "A",
    "a.svs", "a.SVS", "a.h5", "CON", "nul.txt", "~", "-rf", " lead", "trail ", "trail.", "a:b", "a*?", "line\nbreak",
    "=cmd()", "'=cmd()", "ß", "SS", "ﬁ", "fi", "\u202eevil", "a~b", ".hidden", ".part", "x.lock", "pack.json",
]  # fmt: skip


@settings(max_examples=60)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30), min_size=1, max_size=12, unique=True))
@example(HOSTILE)
def test_names_are_safe_and_all_different(ids: list[str]) -> None:
    together, one_by_one = FileNames(ids), FileNames()
    for names in (together, one_by_one):
        named = [names[slide_id] for slide_id in ids]
        assert len({unicodedata.normalize("NFKC", name).casefold() for name in named}) == len(ids)
        assert [names[slide_id] for slide_id in ids] == named
    for name in named:
        assert name not in ("", ".", "..")
        assert not set(name) & set('/\\:*?"<>|\0\n')
        assert name[0] not in ".~- "
        assert name[-1] not in ". "
        assert len(name.encode()) <= 200


def test_ordinary_ids_keep_their_names() -> None:
    ordinary = ["TCGA-A1-A0SB-01Z-00-DX1", "BRACS_1003658", "S 12 (2)", "22.1187", "Прeпарат"]
    assert [FileNames()[slide_id] for slide_id in ordinary] == ordinary


def test_unicode_forms_of_one_id_never_share_a_name_even_when_named_apart() -> None:
    forms = ["Jos\u00e9", "Jose\u0301", "\u212b", "\u00c5", "A\u030a", "ﬁ", "fi"]
    assert len({unicodedata.normalize("NFKC", FileNames()[form]).casefold() for form in forms}) == len(forms)


def test_hostile_ids_survive_pack_and_unpack(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    records, made = [], {}
    for number, slide_id in enumerate(HOSTILE):
        features, coords = writers.numbers(9, 5, seed=number)
        write_bag(inside / f"f{number}.h5", Bag(features, coords))
        records.append(SlideRecord(slide_id, f"p{number}", "N", path=f"f{number}.h5"))
        made[slide_id] = features
    out = tmp_path / "deep" / "out"
    write_pack(tmp_path / "p", Manifest(tuple(records)), inside)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    unpack(tmp_path / "p", out)
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - before
    assert all(path.is_relative_to(out) for path in written)
    assert len(written) == len(HOSTILE) + 1
    names = FileNames(HOSTILE)
    for slide_id, features in made.items():
        np.testing.assert_array_equal(Pack(tmp_path / "p").read(slide_id).features, features)
        np.testing.assert_array_equal(read_bag(out / "h5_files" / f"{names[slide_id]}.h5").features, features)


def test_ids_never_reach_outside_the_feature_folder(tmp_path: Path) -> None:
    features, coords = writers.numbers(9)
    writers.clam(tmp_path / "outside.h5", features, coords)
    (tmp_path / "in").mkdir()
    folder = FeatureFolder(tmp_path / "in")
    for slide_id in ("../outside", str(tmp_path / "outside"), "x/../../outside"):
        with pytest.raises(BagError, match="has no feature file"):
            folder.find(SlideRecord(slide_id, "p", "N"))


def test_the_feature_file_is_found_wherever_tools_put_it(tmp_path: Path) -> None:
    features, coords = writers.numbers(9)
    for folder in ("h5_files", "pt_files", "20x/features_uni", "coords", "patches"):
        (tmp_path / folder).mkdir(parents=True)
    writers.clam(tmp_path / "h5_files" / "a.b.h5", features, coords)
    writers.torch_tensor(tmp_path / "pt_files" / "a.b.pt", features)
    writers.clam(tmp_path / "20x/features_uni" / "t.h5", features, coords)
    writers.clam(tmp_path / "patches" / "t.h5", features, coords)
    folder = FeatureFolder(tmp_path)
    assert folder.find(SlideRecord("a.b", "p", "N")).suffix == ".h5"  # has coordinates, unlike the .pt
    assert folder.find(SlideRecord("a.b.svs", "p", "N")).name == "a.b.h5"
    assert folder.find(SlideRecord("20x/features_uni/t", "p", "N")).name == "t.h5"
    assert folder.find(SlideRecord("t", "p", "N")).parent.name == "features_uni"
    with pytest.raises(BagError, match=r"Did you mean 'a\.b'"):
        folder.find(SlideRecord("a_b", "p", "N"))
    with pytest.raises(BagError, match="forward slashes"):
        folder.find(SlideRecord("t", "p", "N", path="20x\\features_uni\\t.h5"))
    (tmp_path / "other").mkdir()
    writers.clam(tmp_path / "other" / "t.h5", features, coords)
    with pytest.raises(BagError, match="several feature files"):
        FeatureFolder(tmp_path).find(SlideRecord("t", "p", "N"))


@pytest.mark.parametrize("pair", [("a", "A"), ("a", "a.svs"), ("\u00e9", "e\u0301"), ("a.h5", "a.pt")])
def test_look_alikes_are_pointed_out(pair: tuple[str, str]) -> None:
    manifest = Manifest(tuple(SlideRecord(slide, f"p{n}", "N") for n, slide in enumerate(pair)))
    found = {problem.kind: problem for problem in examine_manifest(manifest, TREE)}
    assert set(found["look-alike ids"].slides) == set(pair)
    assert not found["look-alike ids"].error
