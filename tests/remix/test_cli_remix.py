"""`pams remix` as users meet it: the picture, the table, and what it says when two slides cannot be remixed."""

from __future__ import annotations

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.data.bags.bag import Bag, BagInfo
from pams_mil.data.bags.bag_file import write_bag
from pams_mil.remix.remix_figure import BagView, draw, select_all, selection_rows


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohort")
    random = np.random.default_rng(0)
    rows = ["slide_id,patient_id,label"]
    for number, label in enumerate(["N", "N", "FEA", "ADH", "IC", "IC"]):
        features = random.normal(size=(30, 8)).astype(np.float32) + number * 0.1
        coords = random.integers(0, 5000, size=(30, 2))
        write_bag(folder / "h5_files" / f"s{number}.h5", Bag(features, coords, BagInfo()))
        rows.append(f"s{number},p{number},{label}")
    (folder / "manifest.csv").write_text("\n".join(rows) + "\n")
    return folder


def run(cohort, *arguments):
    result = CliRunner().invoke(
        app, ["remix", *arguments, "--manifest", str(cohort / "manifest.csv"), "--classes", "bracs"]
    )
    return result, result.output


def test_draws_the_more_urgent_into_the_other_whatever_the_order(cohort, tmp_path):
    for pair in (["s0", "s4"], ["s4", "s0"]):
        result, text = run(cohort, *pair, "--out", str(tmp_path / "x.png"), "--table", str(tmp_path / "x.csv"))
        assert result.exit_code == 0, text
        assert "a, whose label stays: s4 (IC); b: s0 (N)" in text
        assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
        table = list(csv.DictReader((tmp_path / "x.csv").read_text().splitlines()))
        strategies = {row["strategy"] for row in table}
        assert strategies == {"ReMix", "PseudoMix", "RandomMix", "SFR"}
        sfr = [row for row in table if row["strategy"] == "SFR"]
        assert sum(row["slide_id"] == "s0" for row in sfr) == 30
        assert {row["slide_id"] for row in sfr} == {"s0", "s4"}


def test_of_two_slides_of_one_class_the_first_is_a(cohort, tmp_path):
    result, text = run(cohort, "s5", "s4", "--out", str(tmp_path / "x.png"))
    assert result.exit_code == 0, text
    assert "a, whose label stays: s5 (IC); b: s4" in text


def test_svg(cohort, tmp_path):
    result, text = run(cohort, "s1", "s5", "--out", str(tmp_path / "x.svg"))
    assert result.exit_code == 0, text
    assert "<svg" in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["s2", "s3"], "These slides never meet: 's2' is FEA and 's3' is ADH, of 2 patients"),
        (["s0", "s0"], "These slides never meet: 's0' is N and 's0' is N, of 1 patient"),
        (["s0", "s9"], "no slide 's9'"),
        (["s0", "s4", "--out", "x.gif"], "must end in .png"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(cohort, arguments, message):
    result, text = run(cohort, *arguments)
    assert result.exit_code == 2
    assert message in " ".join(text.split())


def test_figure_of_tiny_bags_without_coordinates():
    a, b = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    mixed = select_all(a, b)
    figure = draw(BagView(a, "a", "high"), BagView(b, "b", "low"), mixed)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[0].startswith("SFR's clusters")
    assert any(title.startswith("RandomMix\n1 of 1 rows") for title in titles)
    assert ("RandomMix", "a", 0) in selection_rows(mixed, ("a", "b"))
