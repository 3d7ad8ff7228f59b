"""From files to a worklist: order, agreement, certificates, and what is refused in words."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.certify.models import model as certified_model
from tests.view.sessions import client_of, session_of, write_cohort
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.errors import ConfigError, PamsError, PredictionsError
from pams_mil.evaluate.certify import Certificate, apply_certificate, certify
from pams_mil.evaluate.decisions.reveal import reveal, reveal_reviews
from pams_mil.evaluate.predictions.predictions import Predictions, write_predictions
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.metrics.kappa_path import decision_path
from pams_mil.view.opening import Asked, open_session, reviewer_name
from pams_mil.view.worklist_cases import Cases

TREE = ClassHierarchy.flat(["none", "mild", "severe"])


def model(p, *, slides="abc", name="m", target=None):
    p = np.asarray(p, float)
    known = np.full(len(p), -1) if target is None else np.asarray(target)
    return Predictions(name, TREE, list(slides), known, p.argmax(1), p)


ONE = [[0.8, 0.1, 0.1], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]]


def test_runs_are_averaged_by_slide_and_their_agreement_is_counted():
    other = model([[0.1, 0.1, 0.8], [0.2, 0.7, 0.1], [0.7, 0.2, 0.1]], slides="bca")
    cases = Cases.combine([model(ONE), other])
    assert cases.probabilities.round(3).tolist() == [[0.75, 0.15, 0.1], [0.1, 0.15, 0.75], [0.15, 0.75, 0.1]]
    assert cases.predicted.tolist() == [0, 2, 1]
    assert cases.agreement.tolist() == [1.0, 1.0, 1.0]
    assert cases.order.tolist() == [1, 2, 0]
    split = Cases.combine([model(ONE), model([[0.0, 0.0, 1.0]] * 3)])
    assert split.agreement.tolist() == [0.5, 1.0, 0.5]


def test_calls_alone_are_ordered_by_rank_and_voted_on():
    calls = [Predictions("m", TREE, ["a", "b"], np.array([-1, -1]), np.array(c)) for c in ([0, 1], [2, 1], [1, 0])]
    cases = Cases.combine(calls)
    assert cases.predicted.tolist() == [2, 1]  # one vote each: the most urgent wins
    assert cases.probabilities is None
    assert cases.order.tolist() == [0, 1]


def test_what_cannot_share_a_worklist_is_refused():
    with pytest.raises(PredictionsError, match="different slides"):
        Cases.combine([model(ONE), model(ONE, slides="abd")])
    with pytest.raises(PredictionsError, match="different labels"):
        Cases.combine([model(ONE, target=[0, 1, 2]), model(ONE, target=[0, 1, 1])])


def test_keys_say_nothing_and_digests_tell_predictions_apart():
    cases = Cases.combine([model(ONE)])
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in cases.slides.keys)
    changed = Cases.combine([model([[0.7, 0.2, 0.1], *ONE[1:]])])
    assert changed.slides.keys == cases.slides.keys
    assert [changed.digests[slide] == cases.digests[slide] for slide in "abc"] == [False, True, True]


def test_a_certificate_orders_by_what_cannot_be_excluded(tmp_path):
    from pams_mil.evaluate.certify.apply import CertifiedCalls

    cases = Cases.combine([model(ONE)])
    high = np.array([[2, 1, 1]])
    certified = replace(cases, certified=CertifiedCalls(TREE, high, high))
    assert certified.order.tolist() == [0, 1, 2]
    assert certified.cannot_exclude == ("none; mild; severe", "none; mild", "none; mild")
    assert cases.cannot_exclude == ("", "", "")


def test_a_certificate_file_decides_and_orders_the_worklist(tmp_path):
    for name, many, seed in (("calibration.csv", 60, 0), ("new.csv", 12, 1)):
        write_predictions(tmp_path / name, certified_model(many, seed=seed))
    table, out = str(tmp_path / "calibration.csv"), str(tmp_path)
    made = CliRunner().invoke(app, ["certify", table, "--classes", "bracs", "--alpha", "0.2", "--out", out])
    assert made.exit_code == 0, made.output
    asked = Asked(
        [tmp_path / "new.csv"], classes=["bracs"], certificate=tmp_path / "certificate.json", reviewer="reader"
    )
    session = open_session(asked)
    certificate = Certificate.load(tmp_path / "certificate.json")
    _, cases = session.visible()
    expected = apply_certificate(certificate, certified_model(12, seed=1).probabilities, cases.patient_ids)
    assert cases.certified is not None
    assert cases.certified.call.tolist() == expected.call.tolist()
    ranks = ClassHierarchy.load("bracs").ranks()[expected.call[0, cases.order]]
    assert (np.diff(ranks) <= 0).all()  # the certified call comes first
    assert session.guarantee == " ".join(Certificate.load(tmp_path / "certificate.json").sentences)
    bare = tmp_path / "bare.csv"
    write_predictions(bare, replace(certified_model(12, seed=1), patient_ids=None, layout="PAMS"))
    with pytest.raises(PamsError, match="names no patients"):
        open_session(replace(asked, paths=[bare]))
    assert open_session(replace(asked, paths=[bare], patients_are_slides=True)).guarantee
    (tmp_path / "new_failed.csv").write_text("slide_id,reason\nx,truncated\n")
    with pytest.raises(PredictionsError, match="could not be predicted"):
        open_session(asked)
    assert open_session(replace(asked, certificate=None)).cases
    half = open_session(replace(asked, paths=[bare], certificate=None, reviews=tmp_path / "half"))._cases
    gone = half.with_certificate(certificate, incomplete=[half.patient_ids[0]])
    assert gone.listed["certified"][0] is None
    assert gone.cannot_exclude[0] == ""
    assert None not in gone.listed["certified"][1:]
    mine = open_session(replace(asked, paths=[tmp_path / "calibration.csv"], reviews=tmp_path / "again"))
    assert set(mine.worklist()["seen"]) == {"certificate"}
    assert any("cannot be determined from a table" in note for note in session.notes)


def test_slides_of_patients_that_the_model_has_seen_carry_a_badge(cohort, tmp_path):
    """Roles come from any of the models and from the certificate; where none are known, the page says so."""
    assert any("is not known" in note for note in session_of(cohort, reviews=tmp_path).notes)
    header, *rows = (cohort / "predictions.csv").read_text().splitlines()
    cells = zip(rows, ("train+tune", "none", "none"), strict=True)
    lines = [f"{header},exposure", *(f"{row},{roles}" for row, roles in cells)]
    (tmp_path / "p.csv").write_text("\n".join(lines) + "\n")
    session = session_of(cohort, paths=[tmp_path / "p.csv"], reviews=tmp_path, blind=True)
    assert session.worklist()["seen"] == ["training, choice of the recipe", "", ""]
    assert any("1 of 3 slides are of patients that the model has seen" in note for note in session.notes)
    both = Cases.combine([
        replace(model(ONE), roles=[frozenset(["train"]), frozenset(), frozenset()]),
        replace(model(ONE), roles=[frozenset(), frozenset(["select"]), frozenset()]),
    ])  # fmt: skip
    assert both.roles == (frozenset(["train"]), frozenset(["select"]), frozenset())


def test_the_order_is_worth_what_the_labels_say(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path)
    found = session.order_worth()
    assert found["basis"] == "labels"
    last = found["piles"][-1]
    assert (last["urgent"], last["worklist"]["last"], last["arrival"]["last"]) == (1, 1.0, 2.0)
    waits = np.array(found["waits"]["by_class"])
    assert (waits[2] <= waits[1]).all()


def test_verdicts_reveal_a_cost_ratio_or_say_why_not(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, ids=("s-1",))
    rng, names, lines = np.random.default_rng(0), ("none", "mild", "severe"), []
    p = rng.dirichlet(np.ones(3), 120)
    for number, row in enumerate(p):
        lines.append(",".join([f"s{number}", f"p{number}", "test", "", names[row.argmax()], *map(repr, row.tolist())]))
    head = "slide_id,patient_id,split,target,prediction,p_none,p_mild,p_severe"
    (folder / "predictions.csv").write_text("\n".join([head, *lines]) + "\n")
    session = session_of(folder, reviews=tmp_path / "r", features=None)
    assert session.order_worth()["revealed"] == ""
    rows = {slide: row for row, slide in enumerate(session.cases.slide_ids)}
    verdicts = []
    for number in range(120):  # a noisy reader to whom a miss costs four false alarms
        below = np.concatenate([[0], p[number].cumsum()[:-1]])
        costs = 4 * (1 - below - p[number]) + below
        chance = np.exp(-6 * costs)
        verdicts.append(int(rng.choice(3, p=chance / chance.sum())))
        handle = {"kappa": 3.0} if number % 2 else {}  # moved for every second case
        session.give(rows[f"s{number}"], {"action": "read", "class": names[verdicts[-1]], "seen": 0, **handle})
        if number == 19:
            assert "verdicts are informative" in session.order_worth()["revealed"]
    sentence = session.order_worth()["revealed"]
    kappas = [3.0 if number % 2 else 1.0 for number in range(120)]
    assert sentence == " ".join(reveal(p, verdicts, session.cases.hierarchy, kappa=kappas).sentences)
    assert "Set to that κ, the model would call" in sentence
    assert "the calls were made at κ = 1 to 3" in sentence
    read = reveal_reviews([session.journal.table], folder / "predictions.csv", session.cases.hierarchy)
    assert " ".join(read.sentences) == sentence
    assert sentence.startswith("The readers act as if a miss cost")
    assert client_of(session)[0].get("/api/order").json()["revealed"] == sentence


def test_without_labels_verdicts_count_then_probabilities(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, labels=False)
    session = session_of(folder, reviews=tmp_path / "r")
    found = session.order_worth()
    assert (found["basis"], found["piles"]) == ("probabilities", [])
    np.testing.assert_allclose(found["confusion"], [[0.7, 0.1, 0.2], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7]])
    session.give(2, {"action": "read", "class": "severe", "seen": 0})
    assert session.order_worth()["basis"] == "verdicts"
    client, _ = client_of(session)
    assert client.get("/api/order").json()["known"] == 1


def test_a_table_names_cases_for_groups(cohort, tmp_path):
    (tmp_path / "m.csv").write_text("slide_id,case_id,patient_id\ns-1,c1,p1\ns-2,c1,p1\ns-3,c2,p2\n")
    session = session_of(cohort, manifest=tmp_path / "m.csv", reviews=tmp_path / "r")
    assert session.cases.groups == ("c1", "c1", "c2")
    assert session.overview()["grouped"]


def test_boundaries_are_named_by_their_groups(session):
    shown = [(one["rank"], one["shown"], one["coarse"]) for one in session.boundaries]
    assert shown == [(1, "mild", False), (2, "Grave", True)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paths": []}, "Expected a run folder"),
        ({"classes": None}, "--classes"),
        ({"reviewer": " "}, "--reviewer is empty"),
    ],
)
def test_mistakes_are_explained(cohort, tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        session_of(cohort, reviews=tmp_path, **changes)


def test_missing_places_are_named(cohort, tmp_path):
    for changes in ({"paths": [tmp_path / "no.csv"]}, {"slides": tmp_path / "no"}, {"features": tmp_path / "no"}):
        with pytest.raises(PamsError, match="There is no"):
            session_of(cohort, reviews=tmp_path, **changes)


def test_the_account_names_the_reader(monkeypatch):
    monkeypatch.setattr("getpass.getuser", lambda: "anna")
    assert (reviewer_name(None), reviewer_name(" B. ")) == ("anna", "B.")


def test_the_command_refuses_the_network_and_unknown_files(cohort, tmp_path):
    from pams_mil.cli.main import app

    arguments = ["view", str(cohort / "predictions.csv"), "--classes", str(cohort / "classes.yaml"), "--no-browser"]
    done = CliRunner().invoke(app, [*arguments, "--reviews", str(tmp_path), "--host", "0.0.0.0"])
    assert done.exit_code == 2
    assert "no encryption" in " ".join(done.output.split())
    done = CliRunner().invoke(app, ["view", str(tmp_path / "no.csv")])
    assert (done.exit_code, "There is no run folder" in " ".join(done.output.split())) == (2, True)


def test_the_demonstration_finds_the_planted_lesion_under_the_hottest_tile(tmp_path, monkeypatch):
    """Drawn, extracted, trained and served: the strongest evidence for the call lies on the lesion."""
    from pams_mil.view import demo
    from pams_mil.view.opening import Asked, open_session

    monkeypatch.setattr(demo, "SEEDS", (0,))
    asked = Asked([])
    demo.make_demo(tmp_path / "demo", lambda what, share: None, train_each=4, shown_each=1)
    session = open_session(demo.demo_request(asked, lambda what, share: None, tmp_path / "demo"))
    assert len(session.cases) == 4
    row = int(np.flatnonzero(session.visible()[1].target == 3)[0])
    heat = session.heat_of(row)
    share = demo.scene("severe", 4).lesion_share(heat.coords_px0 * demo.FINE_MPP, heat.tile_px0 * demo.FINE_MPP)
    assert 0.01 < (share > 0.5).mean() < 0.3
    for name in ("attention finding", "evidence finding severe"):
        assert share[int(heat.layers[name][1].argmax())] > 0.9, name
    session.shelf.close()


def test_several_orders_show_what_each_of_them_calls_and_certifies(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, labels=False)
    (folder / "other.yaml").write_text("name: other\nclasses: [mild, none, severe]\n")
    both = [str(folder / "classes.yaml"), str(folder / "other.yaml")]
    session = session_of(folder, classes=both, reviews=tmp_path / "r")
    assert session.overview()["orders"] == [{"name": "other", "classes": [1, 0, 2]}]
    cases, tree = session.visible()[1], ClassHierarchy.load(both[1])
    reach = cases.listed["other_reach"]
    for row, p in enumerate(cases.probabilities):
        path = decision_path(p[[1, 0, 2]][None], tree)
        assert reach[row] == [[kappa if np.isfinite(kappa) else None for kappa in path.reach[0]]]
    # Ten patients, all right: κ = 0 meets the bound by both orders, and the answers are sets.
    names = ("none", "mild", "severe")
    target = np.arange(30) % 3
    p = np.eye(3)[target] * 0.4 + 0.2
    ids = [f"c{i}" for i in range(30)]
    calibration = Predictions("c", ClassHierarchy.load(both), ids, target, target, p, patient_ids=ids)
    certificate = certify(calibration, alpha=0.2)
    certificate.write(tmp_path / "certificate.json")
    certified = session_of(
        folder, classes=both, certificate=tmp_path / "certificate.json", features=None, reviews=tmp_path / "c"
    )
    shown = certified.visible()[1]
    expected = apply_certificate(certificate, shown.probabilities, shown.patient_ids)
    assert shown.listed["certified"] == [sorted(set(calls), reverse=True) for calls in expected.call.T.tolist()]
    assert list(shown.cannot_exclude) == expected.columns()["cannot_exclude"]
    assert certified.overview()["guarantee"] == " ".join(certificate.sentences)
    assert all(set(filter(None, cell.split("; "))) <= set(names) for cell in shown.cannot_exclude)
    # A blind reader's own cases alone are shown: of a patient with a slide left out, nothing is certified.
    assert shown.take(np.array([0])).listed["certified"] == [None]
