"""The order in which tied classes are listed changes scores by default; that is said, and `distance: rank` ends it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pams_mil.cli.main import app

BENIGN, MALIGNANT = ["b1", "b2", "b3", "b4"], ["m1", "m2", "m3", "m4"]
NOTE = "The order in which b1 ≡ b2 ≡ b3 ≡ b4, m1 ≡ m2 ≡ m3 ≡ m4 are listed changes AsCC, AsMC and the loss"


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


@pytest.fixture
def files(tmp_path):
    """The same predictions, and class files with the tied classes listed forwards and backwards, by index and rank."""
    random = np.random.default_rng(0)
    names = [*BENIGN, *MALIGNANT]
    rows = [f"s{row},p{row},{random.choice(names)},{random.choice(names)}" for row in range(80)]
    (tmp_path / "p.csv").write_text("\n".join(["slide_id,patient_id,target,prediction", *rows]) + "\n")
    (tmp_path / "labels.csv").write_text(
        "\n".join(["slide_id,patient_id,label", *(row.rsplit(",", 1)[0] for row in rows)]) + "\n"
    )
    for order, step in (("forwards", 1), ("backwards", -1)):
        benign, malignant = ", ".join(BENIGN[::step]), ", ".join(MALIGNANT[::step])
        text = f"name: tied\nclasses: [[{benign}], [{malignant}]]\n"
        (tmp_path / f"index-{order}.yaml").write_text(text)
        (tmp_path / f"rank-{order}.yaml").write_text(f"{text}distance: rank\n")
    return tmp_path


def scores(files, classes):
    said = run("audit", files / "p.csv", "--classes", files / f"{classes}.yaml", "--resamples", "0", "--json")
    finest = json.loads(said)["files"][0]["levels"]["class"]
    return {key: finest[key] for key in ("ascc", "asmc", "risk", "acc", "missed_rate", "false_alarm_rate")}


def test_the_listed_order_changes_scores_by_index_and_not_by_rank(files):
    forwards, backwards = scores(files, "index-forwards"), scores(files, "index-backwards")
    assert abs(forwards["ascc"] - backwards["ascc"]) > 0.002
    assert forwards["acc"] == backwards["acc"]
    assert scores(files, "rank-forwards") == pytest.approx(scores(files, "rank-backwards"))


@pytest.mark.parametrize(
    "command",
    [
        ("classes", "show", "{classes}"),
        ("check", "{folder}/labels.csv", "--classes", "{classes}", "--no-features"),
        ("audit", "{folder}/p.csv", "--classes", "{classes}", "--resamples", "0"),
    ],
    ids=lambda command: command[0],
)
def test_it_is_said_where_it_matters_and_only_there(files, command):
    for kind, said in (("index", True), ("rank", False)):
        words = [word.format(classes=files / f"{kind}-forwards.yaml", folder=files) for word in command]
        assert (NOTE in run(*words)) is said
    if command[0] != "classes":
        found = json.loads(
            run(*[w.format(classes=files / "index-forwards.yaml", folder=files) for w in command], "--json")
        )
        notes = found["notes"] if command[0] == "check" else found["hierarchy"]["notes"]
        assert any(note.startswith(NOTE) for note in notes)


def test_the_page_says_what_distances_count(files):
    for kind, words in (("index", "classes in the order above. " + NOTE), ("rank", "steps of urgency, 1 between")):
        run(
            "audit",
            files / "p.csv",
            "--classes",
            files / f"{kind}-forwards.yaml",
            "--resamples",
            "0",
            "--out",
            files / kind,
        )
        assert words in (files / kind / "report.html").read_text("utf-8")


def test_classes_show_says_how_distances_are_counted(files):
    assert "distance classes as listed" in run("classes", "show", "bethesda")
    assert "distance steps of urgency" in run("classes", "show", files / "rank-forwards.yaml")
