"""The doctor finds every planted defect in one pass, and nothing in a sound cohort."""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from tests.data import writers
from tests.data.cohorts import TREE, feature_folder

from pams_mil.data import Bag, BagInfo, Manifest, SlideRecord, write_bag, write_pack
from pams_mil.data.bags.feature_origin import OriginCheck, feature_origin
from pams_mil.data.bags.store import FeatureFolder
from pams_mil.data.doctor import diagnose
from pams_mil.data.examine import examine_manifest, refuse_errors
from pams_mil.errors import BagError, ManifestError, MissingBagError
from pams_mil.hierarchy import ClassHierarchy


def _kinds(manifest: Manifest, features: Path | None) -> dict[str, tuple[str, ...]]:
    found = diagnose(manifest, TREE, features=features).problems
    return {problem.kind: problem.slides for problem in found}


def test_a_sound_cohort_has_no_errors(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    for features in (tmp_path / "h5_files", None):
        found = diagnose(manifest, TREE, features=features)
        assert found.errors == ()
        assert {problem.kind for problem in found.problems} == {"absent class"}
    assert found.counts["train"] == {"N": 1, "PB": 1, "UDH": 0, "FEA": 0, "ADH": 0, "DCIS": 0, "IC": 0}


def test_every_defect_of_the_bags_in_one_pass(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path, count=12)
    folder = tmp_path / "h5_files"
    (folder / "s0.h5").unlink()
    (folder / "s1.h5").write_bytes((folder / "s1.h5").read_bytes()[:3000])
    features, coords = writers.numbers(50)
    features[0, 0] = np.nan
    writers.clam(folder / "s2.h5", features, coords)
    (folder / "s3.h5.lock").touch()
    (folder / "s4.h5").write_bytes((folder / "s6.h5").read_bytes())
    features, coords = writers.numbers(50, width=9)
    writers.clam(folder / "s5.h5", features, coords)
    features, coords = writers.numbers(3)
    writers.clam(folder / "s7.h5", features, coords)
    found = diagnose(manifest, TREE, features=folder, workers=3)
    by_slide = {slide: problem for problem in found.problems for slide in problem.slides}
    assert by_slide["s0"].kind == "missing bag"
    assert "complete HDF5" in by_slide["s1"].message or "truncated" in by_slide["s1"].message
    assert "not finite" in by_slide["s2"].message
    assert "being written" in by_slide["s3"].message
    assert by_slide["s4"].kind == "duplicate features"
    assert set(by_slide["s4"].slides) == {"s4", "s6"}
    assert by_slide["s5"].kind == "mixed features"
    assert "feature widths" in by_slide["s5"].message
    assert by_slide["s7"].kind == "tiny bag"
    assert not by_slide["s7"].error
    assert set(by_slide) == {f"s{n}" for n in range(8)}
    assert len(found.bags) == 8


@pytest.mark.parametrize(
    ("encoder", "width", "rows", "words"),
    [
        ("uni", 512, 9, "'uni' (1024 features) is named, but there are 512, as of 'conch', 'conch_v1'"),
        ("MahmoodLab/UNI2-h", 1024, 9, "(1536 features) is named, but there are 1024"),
        ("virchow2", 1024, 9, "(1280 or 2560 features) is named"),
        ("titan", 512, 1, "'titan' (768 features) is named"),
        ("uni", 1024, 9, None),
        ("virchow2", 1280, 9, None),
        ("gigapath", 1536, 1, None),
        ("gigapath", 768, 1, None),
        ("of my own", 77, 9, None),
    ],
)
def test_an_encoder_beside_another_width_is_named(tmp_path: Path, encoder, width, rows, words) -> None:
    features = np.random.default_rng(0).standard_normal((rows, width)).astype(np.float32)
    write_bag(tmp_path / "s0.h5", Bag(features, info=BagInfo(encoder=encoder)))
    found = diagnose(Manifest((SlideRecord("s0", "p0", "N"),)), TREE, features=tmp_path).problems
    said = [problem for problem in found if problem.kind == "encoder and width"]
    assert [problem.error for problem in said] == ([] if words is None else [False])
    assert words is None or words in said[0].message


def test_an_encoder_that_only_the_table_states_counts_too(tmp_path: Path) -> None:
    features, coords = writers.numbers(9, width=512)
    writers.clam(tmp_path / "s0.h5", features, coords)
    manifest = Manifest((SlideRecord("s0", "p0", "N", extra={"encoder": "uni"}),))
    assert _kinds(manifest, tmp_path)["encoder and width"] == ("s0",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"encoder": "other"}, "encoders"),
        ({"tile_px": 512}, "tile sizes"),
        ({"mpp": 1.0}, "resolutions"),
        ({"magnification": 40.0}, "magnifications"),
    ],
)
def test_mixed_features_name_both_groups(tmp_path: Path, change: dict[str, object], words: str) -> None:
    usual = BagInfo(encoder="uni", tile_px=256, mpp=0.5, magnification=20.0)
    records = []
    for number in range(5):
        features, coords = writers.numbers(20, seed=number)
        info = replace(usual, **change) if number == 3 else usual
        write_bag(tmp_path / "f" / f"s{number}.h5", Bag(features, coords, info))
        records.append(SlideRecord(f"s{number}", f"p{number}", "N"))
    manifest = Manifest(tuple(records))
    problem = next(p for p in diagnose(manifest, TREE, features=tmp_path / "f").problems if p.kind == "mixed features")
    assert words in problem.message
    assert problem.slides == ("s3",)
    assert "4 slides" in problem.message
    write_pack(tmp_path / "p", manifest, tmp_path / "f")
    assert any(words in p.message for p in diagnose(manifest, TREE, features=tmp_path / "p").problems)


def test_every_defect_of_the_table_in_one_pass() -> None:
    rows = [
        ("a", "p1", "N", "train"),
        ("a", "p2", "PB", "train"),
        ("b", "p1", "IC", "test"),
        ("c", "p3", "dcis", "train"),
        ("d", "p4", "", "train"),
        ("e", "", "N", "val"),
        ("", "p5", "N", "val"),
        ("f", "p6", "N", "holdout"),
        ("g", "p7", "N ", "train"),
        ("h", "p8", "N", ""),
    ]
    records = [SlideRecord(*row) for row in rows]
    records.append(SlideRecord("i", "p9", "N", "train", path="x\\y.h5"))
    records.append(SlideRecord("j", "p9", "N", "train", path="z.h5"))
    records.append(SlideRecord("k", "p9", "N", "train", path="./z.h5"))
    problems = examine_manifest(Manifest(tuple(records)), TREE)
    found = {(problem.kind, problem.error) for problem in problems}
    assert found == {
        ("duplicate slide", True), ("no slide id", True), ("unknown label", True), ("no label", True),
        ("no patient", True), ("patient in two splits", True), ("unknown split", True), ("no split", False),
        ("backslash in path", True), ("shared feature file", True), ("absent class", False),
    }  # fmt: skip
    messages = " ".join(problem.message for problem in problems)
    assert "'dcis' (1, did you mean 'DCIS'?), 'N ' (1, did you mean 'N'?)" in messages
    with pytest.raises(ManifestError, match=r"cannot be used:(.|\n)*and \d+ more(.|\n)*pams check"):
        refuse_errors(problems, "m.csv")


def test_equal_features_are_a_leak_across_splits_only(tmp_path: Path) -> None:
    manifest = feature_folder(tmp_path)
    folder = tmp_path / "h5_files"
    (folder / "s1.h5").write_bytes((folder / "s0.h5").read_bytes())
    same_patient = next(p for p in diagnose(manifest, TREE, features=folder).problems if p.kind == "duplicate features")
    assert not same_patient.error
    (folder / "s2.h5").write_bytes((folder / "s0.h5").read_bytes())
    leak = next(p for p in diagnose(manifest, TREE, features=folder).problems if p.kind == "duplicate features")
    assert leak.error
    assert "in different splits" in leak.message


def test_an_empty_table_is_said() -> None:
    assert _kinds(Manifest(()), None) == {"no slides": ()}


def test_cric_is_clean_apart_from_small_bags(cric: Path) -> None:
    manifest = Manifest.read(cric / "labels.csv")
    found = diagnose(manifest, ClassHierarchy.load("bethesda"), features=cric / "h5_files")
    assert found.errors == ()
    assert [problem.kind for problem in found.problems] == ["tiny bag"]
    assert found.bag_summary()["instances"] == 11_534
    assert found.bag_summary()["layouts"] == {"clam": 400}


def test_a_missing_bag_is_told_from_an_unusable_one_by_its_kind(tmp_path: Path) -> None:
    """Also in a pack, and whatever the message says: a slide may be called 'has no feature file'."""
    odd = "has no feature file"
    (tmp_path / "f").mkdir()
    for slide in (odd, "s1"):
        writers.clam(tmp_path / "f" / f"{slide}.h5", *writers.numbers(12, seed=len(slide)))
    good = Manifest(tuple(SlideRecord(slide, slide, "N") for slide in (odd, "s1")))
    write_pack(tmp_path / "p", good, tmp_path / "f")
    manifest = Manifest((*good.records, SlideRecord("absent", "q", "N")))
    (tmp_path / "f" / f"{odd}.h5").write_bytes(b"truncated")
    found = {p.slides: p.kind for p in diagnose(manifest, TREE, features=tmp_path / "f").errors}
    assert found == {(odd,): "unusable bag", ("absent",): "missing bag"}
    found = {p.slides: p.kind for p in diagnose(manifest, TREE, features=tmp_path / "p").errors}
    assert found == {("absent",): "missing bag"}


def test_slide_vectors_are_told_from_tiny_bags(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "s0.h5", "w") as file:
        file["feats"] = np.ones(768, np.float16)
        file.attrs.update({"stamp_version": "2.5.0", "extractor": "titan", "feat_type": "slide"})
    found = {problem.kind: problem for problem in diagnose(
        Manifest((SlideRecord("s0", "p0", "N"),)), TREE, features=tmp_path).problems}  # fmt: skip
    assert "--model linear" in found["slide vectors"].message
    assert not found["slide vectors"].error
    assert "tiny bag" not in found


def test_a_copy_that_no_split_uses_is_no_leak(tmp_path: Path) -> None:
    features, coords = writers.numbers(20)
    for name in ("a", "b"):
        writers.clam(tmp_path / f"{name}.h5", features, coords)
    records = (SlideRecord("a", "p", "N", "train"), SlideRecord("b", "p", "N"))
    found = diagnose(Manifest(records), TREE, features=tmp_path)
    (problem,) = (problem for problem in found.problems if problem.kind == "duplicate features")
    assert not problem.error
    assert "different splits" not in problem.message


def test_the_median_of_two_bags_lies_between_them(tmp_path: Path) -> None:
    for name, rows in (("a", 10), ("b", 20)):
        writers.clam(tmp_path / f"{name}.h5", *writers.numbers(rows, seed=rows))
    records = tuple(SlideRecord(name, name, "N") for name in "ab")
    assert diagnose(Manifest(records), TREE, features=tmp_path).bag_summary()["median"] == 15


def _cohort_of(folder: Path, infos: list[BagInfo], *, width: int = 8) -> Manifest:
    for number, info in enumerate(infos):
        features, coords = writers.numbers(20, seed=number, width=width)
        write_bag(folder / f"s{number}.h5", Bag(features, coords, info))
    return Manifest(tuple(SlideRecord(f"s{number}", f"p{number}", "N") for number in range(len(infos))))


def test_resolutions_are_compared_relatively_and_not_by_rounding(tmp_path: Path) -> None:
    """0.2549 and 0.2551 round to 0.25 and 0.26 but are one scanner's; 0.2451 and 0.2549 round alike and are not."""
    for name, pair, mixed in (
        ("a", (0.2549, 0.2551), False),
        ("b", (0.2451, 0.2549), True),
        ("c", (0.0951, 0.1049), True),
    ):
        manifest = _cohort_of(tmp_path / name, [BagInfo(mpp=mpp) for mpp in pair])
        kinds = _kinds(manifest, tmp_path / name)
        assert ("mixed features" in kinds) == mixed, pair
        check = OriginCheck({"width": 8}, whose="the slide 's0'", slide_ids=["s0", "s1"])
        bags = [Bag(np.ones((2, 8), np.float32), info=BagInfo(mpp=mpp, encoder="uni")) for mpp in pair]
        origins = [feature_origin(bag) for bag in bags]
        check("s0", origins[0])
        if mixed:
            with pytest.raises(BagError, match="Bags of another resolution cannot be mixed"):
                check("s1", origins[1])
        else:
            check("s1", origins[1])
        with pytest.raises(BagError, match="another encoder"):
            check("s1", feature_origin(replace(bags[0], info=replace(bags[0].info, encoder="conch"))))


@pytest.mark.parametrize("odd", [0, 4])
def test_a_bag_of_another_width_is_listed_wherever_it_is(tmp_path: Path, odd: int) -> None:
    manifest = _cohort_of(tmp_path, [BagInfo()] * 5)
    writers.clam(tmp_path / f"s{odd}.h5", *writers.numbers(20, seed=9, width=9))
    assert _kinds(manifest, tmp_path)["mixed features"] == (f"s{odd}",)


def test_a_bag_of_zeros_draws_a_warning(tmp_path: Path) -> None:
    manifest = _cohort_of(tmp_path, [BagInfo()] * 2)
    write_bag(tmp_path / "s1.h5", Bag(np.zeros((20, 8), np.float32)))
    (problem,) = (p for p in diagnose(manifest, TREE, features=tmp_path).problems if p.kind == "blank bag")
    assert problem.slides == ("s1",)
    assert not problem.error


def test_missing_bags_are_counted_in_one_line(tmp_path: Path) -> None:
    manifest = _cohort_of(tmp_path, [BagInfo()] * 30)
    for number in range(2, 30):
        (tmp_path / f"s{number}.h5").unlink()
    problems = [p for p in diagnose(manifest, TREE, features=tmp_path).problems if p.kind == "missing bag"]
    assert len(problems) == 1
    assert "28 of 30 slides have no feature file: 's2', 's3'" in problems[0].message
    assert problems[0].slides == tuple(f"s{number}" for number in range(2, 30))


def test_hints_about_missing_files_are_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing every missing slide with every file took minutes for a cohort of thousands."""
    compared = []
    monkeypatch.setattr(difflib, "get_close_matches", lambda *words, **_: compared.append(words) or [])
    for name in ("Slide-7", "TCGA-AA-0001-01Z.4f2a", "other"):
        (tmp_path / f"{name}.h5").touch()
    folder = FeatureFolder(tmp_path)
    for slide, hint in (("slide_7.svs", "Slide-7"), ("TCGA-AA-0001", "TCGA-AA-0001-01Z.4f2a"), ("zebra", None)):
        with pytest.raises(MissingBagError) as caught:
            folder.find(SlideRecord(slide, "p", "N"))
        assert str(caught.value).endswith(f"Did you mean {hint!r}?" if hint else f"in {tmp_path}.")
    assert compared == []
