"""Certificates as files and values: unchanged on disk, refused for others, ordered by what they guarantee."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.evaluate.certify.models import FLAT, TREE, model, unseen

from pams_mil import ClassHierarchy
from pams_mil.errors import CertificateError
from pams_mil.evaluate.certify import Certificate, certify


def test_a_certificate_survives_the_file_and_a_changed_one_is_refused(tmp_path):
    path = tmp_path / "certificate.json"
    for options in ({}, {"guarantee": 0.9, "at": {"Malignant": 0.3}}, {"unit": "slide"}):
        made = certify(unseen(model(150), "w1"), **{"alpha": 0.2, **options})
        made.write(path)
        again = Certificate.load(path)
        assert again.to_json() == made.to_json()
        assert again.hierarchy.digest == TREE.digest
    content = json.loads(path.read_text())
    for key, value in (("kappa", 1.0), ("weights", ["other"]), ("reservations", []), ("alpha", 0.01)):
        path.write_text(json.dumps({**content, key: value if content[key] != value else ["x"]}))
        with pytest.raises(CertificateError, match="was changed after it was written"):
            Certificate.load(path)
    path.write_text(json.dumps(content, indent=7))  # only laid out differently
    assert Certificate.load(path).digest == content["digest"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "pams-certificate", "version": 9}', "\0"])
def test_what_is_no_certificate(tmp_path, text):
    (tmp_path / "c.json").write_text(text)
    with pytest.raises(CertificateError):
        Certificate.load(tmp_path / "c.json")
    with pytest.raises(CertificateError, match="cannot be used as a certificate"):
        Certificate.load(tmp_path / "absent.json")


def test_other_weights_and_other_classes_are_refused():
    made = certify(unseen(model(50), "b", "a"), alpha=0.1)
    made.refuse_other_weights(("a", "b"))
    with pytest.raises(CertificateError, match="Other weights make other mistakes"):
        made.refuse_other_weights(("a",))
    with pytest.raises(CertificateError, match="made from a predictions file"):
        certify(model(50), alpha=0.1).refuse_other_weights(("a",))
    with pytest.raises(CertificateError, match="Names, groups and ranks"):
        made.refuse_other_classes(FLAT, "the table")


def test_certificates_are_ordered_by_what_they_guarantee():
    found = model(200)
    plain, small, more = (
        certify(found, **options)
        for options in ({"alpha": 0.2}, {"alpha": 0.1}, {"alpha": 0.2, "at": {"Malignant": 0.2}})
    )
    for strict, lax in ((small, plain), (more, plain)):
        assert strict.is_stricter_than(lax)
        assert not lax.is_stricter_than(strict)
        assert strict.covers(lax)
        assert not lax.covers(strict)
    assert not small.is_stricter_than(more)  # one bounds all patients by less, the other a boundary as well
    assert not more.is_stricter_than(small)
    assert plain.covers(plain)
    assert not plain.is_stricter_than(plain)
    sure, surer = (certify(found, alpha=0.2, guarantee=level) for level in (0.8, 0.95))
    assert surer.is_stricter_than(sure)
    assert not surer.covers(plain)  # with confidence 95 % says nothing about the average, which the rest may raise
    assert not plain.covers(surer)
    doubtful = replace(certify(found, alpha=0.1), reservations=("seen",))
    assert not doubtful.covers(plain)
    assert small.is_stricter_than(doubtful)
    assert not certify(unseen(found, "other"), alpha=0.1).covers(plain)
    assert not certify(found, alpha=0.1, unit="slide").covers(plain)
    assert certify(found, at={"DCIS": 0.1}).is_stricter_than(certify(found, at={"Malignant": 0.2}))  # one boundary


def test_a_certificate_shows_itself():
    made = certify(model(60, hierarchy=ClassHierarchy.flat(["a", "<b>"])), at={"<b>": 0.2})
    made = replace(made, reservations=("x < y",))
    assert "\n" not in repr(made)
    assert len(repr(made)) < 150
    assert "patients at or above <b> <= 20 %, on average, n = 60, not a guarantee" in repr(made)
    shown = made._repr_html_()
    assert "&lt;b&gt;" in shown
    assert "<b>Not a guarantee: x &lt; y</b>" in shown
    assert "At most 20 % of patients at or above &lt;b&gt;" in shown
    assert "<table>" in shown
