"""419 classes from a table of groups and ranks: trained, audited, certified, and a page that stays readable."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.data import Bag, BagInfo, write_bag
from pams_mil.data.manifest.manifest import Manifest, SlideRecord
from pams_mil.engine import configure, train
from pams_mil.engine.prediction.predict import load_runs, predict
from pams_mil.errors import HierarchyError
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.certify import certify
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.report import live
from pams_mil.report.audit_html import audit_page
from pams_mil.report.certificate_page import certificate_page
from pams_mil.report.page import short_order

SIZE = 419


def class_table(folder):
    rows = [f"c{i},g{i // 42},{100 * (i // 42) + i % 42 // 3}" for i in range(SIZE)]
    path = folder / "many.csv"
    path.write_text("\n".join(["class,group,rank", *rows[::-1]]) + "\n")
    return path


def test_a_table_gives_groups_ranks_and_ties(tmp_path):
    tree = ClassHierarchy.load(class_table(tmp_path))
    assert (tree.name, len(tree), tree.num_levels, tree.distance_by) == ("many", SIZE, 2, "rank")
    assert tree.names(0) == tuple(f"g{i}" for i in range(10))
    for i in range(0, SIZE, 7):
        for j in range(0, SIZE, 11):
            a, b = ((100 * (k // 42) + k % 42 // 3) for k in (i, j))
            assert tree.outranks()[tree.index(f"c{i}"), tree.index(f"c{j}")] == (a > b)
    assert short_order(tree) == f"419 classes, in groups {tree.order(0)}"
    flat = tmp_path / "flat.csv"
    flat.write_text("class;rank;display\nhigh;2;High grade\nlow;0;\nother;0;\n")
    assert ClassHierarchy.load(flat).order() == "low ≡ other ≺ high"
    assert ClassHierarchy.load(flat).display("high") == "High grade"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "class,group,rank\na,x,0\nb,y,2\nc,x,3\n",
            "groups 'x' and 'y' .* contradict the ranks: 'c' of 'x' has rank 3",
        ),
        ("class,group,rank\na,x,0\nb,y,0\n", "contradict the ranks"),
        ("class,group,rank\na,x,0\nb,,2\n", "names no group for 'b'"),
        ("class,rank\na,0\nb,high\n", "Row 3 .* a whole number .* found 'b' and 'high'"),
        ("class,rank\na,0\na,1\n", "has the class 'a' twice, again in row 3"),
        ("class,urgency\na,0\n", "must have the columns 'class' and 'rank'.* found 'class', 'urgency'"),
        ("class,rank\n", "found no rows"),
        ("class,rank\na,0,9\n", "columns 'class' and 'rank'"),
    ],
)
def test_a_bad_table_is_refused_in_words(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(HierarchyError, match=message):
        ClassHierarchy.load(path)


def test_hundreds_of_classes_are_audited_and_certified(tmp_path):
    tree, n = ClassHierarchy.load(class_table(tmp_path)), SIZE
    rng = np.random.default_rng(0)
    target = np.arange(n)
    p = np.exp(-0.2 * np.abs(np.arange(SIZE) - target[:, None]) + rng.gumbel(size=(n, SIZE)))
    p /= p.sum(1, keepdims=True)
    model = Predictions("many", tree, [f"s{i}" for i in range(n)], target, p.argmax(1), p)
    result = audit([model], resamples=10)
    assert certify(model, alpha=0.2).n == n
    page = audit_page(result)
    assert len(page) < 600_000
    assert page.count("<td") < 20_000  # no matrix of 419 x 419
    groups = re.search(r'id="live-matrix".*?</table>', page, re.S)[0]
    assert groups.count("<tr") == 1 + tree.num_classes(0)  # groups, which follow the handle
    assert 'id="live-matrix"' not in certificate_page(certify(model, alpha=0.2), model)
    assert "419 classes are too many for one matrix" in page
    assert "g3: 42 classes" in page
    ranks = tree.ranks()
    for number in (0, 100, 418):
        row = re.search(rf"<tr><td[^>]*>{tree.classes[number]}</td>(.*?)</tr>", page, re.S)
        assert row is not None
        cells = re.findall(r"<td[^>]*>([^<]*)</td>", row[1])
        call = p[number].argmax()
        counts = [1, call == number, ranks[number] > ranks[call], ranks[number] < ranks[call]]
        assert cells[:4] == [str(int(one)) for one in counts]


def test_a_large_page_of_hundreds_of_classes_has_no_matrix_per_operating_point(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_EMBEDDED", 100)
    tree, rng = ClassHierarchy.load(class_table(tmp_path)), np.random.default_rng(0)
    p = rng.dirichlet(np.full(SIZE, 0.1), 150) + 1e-6
    model = Predictions("many", tree, [f"s{i}" for i in range(150)], np.arange(150), p.argmax(1), p / p.sum(1)[:, None])
    data = live.live_data([live.ScreenModel.of(model)])
    assert len(live.embedded_json(data)) < 5_000_000
    own, groups, size = data["models"][0], tree.groups(0), tree.num_classes(0)
    kappas = np.frombuffer(base64.b64decode(own["stops"]))
    rows = np.frombuffer(base64.b64decode(own["counts"]), dtype="<u4").reshape(len(kappas) + 1, -1)
    for kappa, row in [(1.0, rows[0]), *list(zip(kappas, rows[1:], strict=True))[::37]]:
        calls, ranks = model.path.calls(kappa), tree.ranks()
        missed, matrix = [0] * SIZE, np.zeros((size, size), int)
        for t, r in zip(model.target, calls, strict=True):
            missed[t] += int(ranks[t] > ranks[r])
            matrix[groups[t], groups[r]] += 1
        alarms, right = int((ranks[calls] > ranks[model.target]).sum()), int((calls == model.target).sum())
        assert row.tolist() == [alarms, right, *missed, *matrix.ravel().tolist()]


def test_hundreds_of_classes_train(tmp_path):
    classes, rng = class_table(tmp_path), np.random.default_rng(0)
    origin, records = BagInfo(encoder="tiny", tile_px=256, tile_px0=256, mpp=1.0), []
    for number in range(30):
        split = ("train", "val", "test")[number % 3]
        records.append(SlideRecord(f"s{number}", f"p{number}", f"c{number * 13}", split))
        features = rng.standard_normal((4, 8)).astype(np.float32)
        write_bag(tmp_path / f"features/s{number}.h5", Bag(features, None, origin))
    Manifest(tuple(records)).write(tmp_path / "manifest.csv")
    config = configure(
        tmp_path / "manifest.csv", classes=str(classes), method={"name": "msce", "distance": "rank"},
        features=tmp_path / "features", model={"name": "abmil", "embedding_features": 8, "attention_features": 4},
        epochs=1, compute={"accelerator": "cpu", "threads": 1},
    )  # fmt: skip
    train(config, tmp_path / "run")
    predictions = predict(load_runs([tmp_path / "run"]), tmp_path / "manifest.csv", split="test").labeled("run")
    assert predictions.probabilities is not None
    assert predictions.probabilities.shape == (10, SIZE)
    assert audit([predictions], resamples=0).models[0].finest.n == 10


def test_many_classes_from_the_table_to_the_guarantee_by_command(tmp_path, monkeypatch):
    """Every table that is printed goes by group, and every verb ends."""
    monkeypatch.chdir(tmp_path)
    size, draw = 60, np.random.default_rng(0)
    rows = [f"c{i},g{i // 20},{i}" for i in range(size)]
    Path("many.csv").write_text("\n".join(["class,group,rank", *rows]) + "\n")
    labels = ["slide_id,patient_id,label"]
    for i in range(size):
        for k in range(5):
            features = draw.standard_normal((3, 8)).astype(np.float32) + 2 * np.cos(i * np.arange(8))
            write_bag(Path(f"features/s{i}_{k}.h5"), Bag(features.astype(np.float32), None, BagInfo(encoder="tiny")))
            labels.append(f"s{i}_{k},p{i}_{k},c{i}")
    Path("labels.csv").write_text("\n".join(labels) + "\n")

    def pams(*words: str) -> str:
        done = CliRunner(env={"COLUMNS": "120"}).invoke(app, list(words))
        assert done.exit_code == 0, done.output
        assert len(done.output.splitlines()) < (100 if words[0] == "classes" else 60), done.output
        return done.output

    assert "g0 ≺ g1 ≺ g2" in pams("classes", "show", "many.csv")
    pams("check", "labels.csv", "--features", "features", "--classes", "many.csv")
    assert "c17" not in pams("split", "labels.csv", "--classes", "many.csv", "--out", "split", "--calib-share", "0.2")
    small = ["model.embedding_features=8", "model.attention_features=4", "compute.threads=1", "accelerator=cpu"]
    data = ["--manifest", "split/manifest.csv", "--features", "features", "--classes", "many.csv", "--epochs", "1"]
    for method in ("pams", "ce"):
        pams("train", *data, "--method", method, "--out", method, *small)
    assert "60 classes, in groups" in pams("evaluate", "pams", "ce", "--resamples", "50", "--out", "report")
    assert "g2" in pams("certify", "pams", "--alpha", "0.3")
    new = [line for line in Path("split/manifest.csv").read_text().splitlines() if line.endswith(("split", "test"))]
    Path("new.csv").write_text("\n".join(line.rsplit(",", 1)[0] for line in new) + "\n")
    told = pams("predict", "pams", "new.csv", "--features", "features", "--certificate", "pams/certificate.json",
                "--out", "predicted")  # fmt: skip
    assert "least urgent first: g0 " in told
    pams("monitor", "pams/certificate.json", "predicted/predictions.csv")
    pams("audit", "predicted/predictions.csv", "--classes", "many.csv", "--resamples", "50", "--out", "report-new")
