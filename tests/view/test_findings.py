"""Several findings per slide in the viewer: the called set, and verdicts that name several."""

from __future__ import annotations

import numpy as np
import pytest
from tests.view.sessions import give, session_of, write_tiles

from pams_mil.data.tables import read_table
from pams_mil.evaluate.certify import Certificate, certify
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.view.verdict_journal import ReviewError

CLASSES = "name: breast\nclasses: [N, UDH, DCIS]\nfindings: several\nnothing: N\n"
ROWS = """slide_id,patient_id,target,prediction,p_N,p_UDH,p_DCIS,f_UDH,f_DCIS
s-1,p-1,UDH; DCIS,DCIS,0.1,0.2,0.7,0.6,0.8
s-2,p-2,UDH,UDH,0.2,0.7,0.1,0.4,0.55
s-3,p-3,N,N,0.9,0.05,0.05,0.1,0.05
"""


def write_certificate(folder):
    """Bounds the findings that 60 calibration patients miss; its κ is large enough to add findings to both slides."""
    draw = np.random.default_rng(0)
    lines = [ROWS.splitlines()[0]]
    for number in range(60):
        udh, dcis = draw.random(2) < 0.5
        label = "; ".join(name for name, here in (("UDH", udh), ("DCIS", dcis)) if here) or "N"
        top = label.split("; ")[-1]
        p = [0.8 if name == top else 0.1 for name in ("N", "UDH", "DCIS")]
        single = [0.25 + 0.5 * draw.random() * here for here in (udh, dcis)]
        lines.append(",".join(map(str, [f"c-{number}", f"q-{number}", label, top, *p, *single])))
    (folder / "calibration.csv").write_text("\n".join(lines))
    tree = ClassHierarchy.load(folder / "classes.yaml")
    certify(read_predictions(folder / "calibration.csv", tree), findings=0.05).write(folder / "certificate.json")
    return folder / "certificate.json"


@pytest.fixture
def cohort(tmp_path):
    (tmp_path / "classes.yaml").write_text(CLASSES)
    (tmp_path / "predictions.csv").write_text(ROWS)
    for slide in ("s-1", "s-2", "s-3"):
        write_tiles(tmp_path, slide)
    return tmp_path


def test_the_called_set_goes_with_the_operating_point(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path / "reviews")
    _, cases = session.visible()
    assert [cases.call_at(row, None) for row in range(3)] == ["UDH; DCIS", "UDH", "N"]  # never beyond the call
    assert cases.call_at(1, 20.0) == "UDH; DCIS"
    assert session.overview()["findings"] == [1, 2]
    shown = session.worklist()
    assert shown["findings"][0] == [0.6, 0.8]
    assert shown["finding_reach"][0] == pytest.approx([2 / 3, 0.25])


def test_a_verdict_names_several_findings(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path / "reviews")
    assert give(session, "s-1", **{"class": "DCIS; UDH"}).verdict == "agree"  # in whatever order
    assert give(session, "s-2", **{"class": "UDH; DCIS"}).verdict == "override"
    assert give(session, "s-3", **{"class": "N"}).verdict == "agree"
    for label, words in (("N; UDH", "together with a finding"), ("IC", "not a class"), (3, "one of the classes")):
        with pytest.raises(ReviewError, match=words):
            give(session, "s-3", **{"class": label})
    table = read_table(session.journal.table)
    assert table["reader_class"] == ["UDH; DCIS", "UDH; DCIS", "N"]
    assert table["model_call"] == ["UDH; DCIS", "UDH", "N"]
    assert table["target"] == ["UDH; DCIS", "UDH", "N"]  # all that was found, not the most urgent alone
    read = read_predictions(session.journal.table, ClassHierarchy.load(cohort / "classes.yaml"))
    assert read.predicted.tolist() == [2, 2, 0]  # a reader's set counts by its most urgent finding
    assert session.order_worth()


def test_the_certified_set_is_shown_and_not_its_most_urgent_finding_alone(cohort, tmp_path):
    session = session_of(cohort, certificate=write_certificate(cohort), reviews=tmp_path / "reviews")
    cases = session.visible()[1]
    assert Certificate.load(cohort / "certificate.json").kappa > 1
    assert cases.certified.columns()["certified_findings"] == ["UDH; DCIS", "UDH", "N"]
    assert cases.listed["certified"] == [[2, 1], [1], [0]]  # most urgent first; nothing found stands alone
    assert session.worklist()["certified"] == [[2, 1], [1], [0]]
    assert "At most 5 % of the findings of a patient are missed" in session.overview()["guarantee"]
