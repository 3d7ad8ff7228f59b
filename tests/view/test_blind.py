"""Blind reading: nothing about a case leaves the server before it is read, and what was shown is never read blind."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
from tests.view.sessions import client_of, give, predictions, read, session_of

from pams_mil.data.tables import read_table
from pams_mil.evaluate.certify.apply import CertifiedCalls
from pams_mil.view.app import Viewer


def test_blind_readers_see_nothing_until_they_have_read(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path, blind=True)
    client, _ = client_of(session)
    key = session.cases.keys[0]

    def visible():
        listed = client.get("/api/worklist").json()
        values = [listed[name][0] for name in ("call", "severity", "uncertainty", "at_least", "probabilities", "reach")]
        heat = [client.get(path).status_code for path in (f"/heat/{key}", f"/patch/{key}/0")]
        plain, asked = (client.get(f"/thumbnail/{key}?heat={heat}").content for heat in (0, 1))
        measured = client.get(f"/export/{key}.geojson").json()["features"]
        assert listed["order"] == []  # the order itself would tell
        return values, heat, plain != asked, len(measured)

    assert visible() == ([None] * 6, [403, 403], False, 0)
    assert read(client, session, 0, "defer").status_code == 200
    assert visible() == ([None] * 6, [403, 403], False, 0)
    answer = read(client, session, 0, **{"class": "severe"}).json()
    assert answer["verdict"]["verdict"] == "override"
    assert answer["revealed"]["call"] == 0
    values, heat, warm, measured = visible()
    assert None not in values
    assert (heat, warm, measured) == ([200, 200], True, 64)
    read(client, session, 1, **{"class": "mild"})
    read(client, session, 1, "undo")
    read(client, session, 1, **{"class": "severe"})  # by now the call is known
    table = read_table(session.journal.table)
    assert dict(zip(table["slide_id"], table["blind"], strict=True)) == {"s-1": "yes", "s-2": "no"}


def test_no_route_tells_a_blind_reader_what_was_not_read(cohort, tmp_path, monkeypatch):
    """Two servers whose models, labels and certificates differ on the unread slides answer alike, byte for byte."""
    monkeypatch.setattr("pams_mil.view.verdict_journal.time.strftime", lambda form: "now")
    answers = []
    for number, (order, labels) in enumerate((((0, 1, 2), (0, 1, 2)), ((0, 2, 0), (0, 2, 1)))):
        table = predictions(tmp_path / f"m{number}", order, labels=labels)
        session = session_of(cohort, paths=[table], reviews=tmp_path / f"r{number}", blind=True)
        high = np.array([[2, 2, number]])  # slides 1 and 2 are one patient's: the certified call of 1 may tell about 2
        session._cases = replace(
            session._cases,
            certified=CertifiedCalls(session.cases.hierarchy, high, high),
            notes=(f"On slide s-2: {number}.",),
        )
        client, _ = client_of(session)
        read(client, session, 0, **{"class": "mild"})
        read(client, session, 1, "defer", note="later")
        keys = session.cases.keys
        shapes = [route.path for route in Viewer(session).routes() if "POST" not in route.methods]
        paths = [
            shape.format(key=key, level=10, column=0, row=0, index=0, name="main.js") + query
            for shape in shapes for key in keys[1:] for query in ("", "?heat=1")
        ]  # fmt: skip
        seen = {path: client.get(path) for path in paths}
        later = read(client, session, 1, "undo").json()
        assert "revealed" not in later
        # The table names what each verdict was about by a digest, which tells nothing.
        texts = {path: re.sub(rb"[0-9a-f]{32}", b"-", answer.content) for path, answer in seen.items()}
        answers.append(({path: answer.status_code for path, answer in seen.items()}, texts, later))
    assert answers[0] == answers[1]
    assert {200, 403} <= set(answers[0][0].values())
    table = answers[0][1]["/export/reviews.csv"].decode().splitlines()
    assert table[1].startswith("s-1,p-0,none,none,,,mild,override")
    assert table[2].startswith("s-2,p-0,,,,,,defer")


def test_what_was_once_shown_is_never_read_blind(cohort, tmp_path):
    """A session that shows calls, and a reading under other calls or another certificate, both end blindness."""
    open_one = session_of(cohort, reviews=tmp_path)
    client, _ = client_of(open_one)
    assert client.get("/api/worklist").status_code == 200
    later = session_of(cohort, reviews=tmp_path, blind=True)
    assert later.hides(0)
    assert any("3 of these slides were shown to reader before" in note for note in later.notes)
    assert not give(later, "s-1", **{"class": "mild"}).blind

    other = tmp_path / "other"
    assert give(session_of(cohort, reviews=other, blind=True), "s-1", **{"class": "mild"}).blind
    changed = session_of(cohort, paths=[predictions(tmp_path / "m", (1, 1, 2))], reviews=other, blind=True)
    assert changed.hides(0)
    assert not give(changed, "s-1", **{"class": "none"}).blind
    assert give(changed, "s-2", **{"class": "none"}).blind


def test_a_second_window_without_blind_ends_blindness_at_once(cohort, tmp_path):
    blind, beside = (session_of(cohort, reviews=tmp_path, blind=blind) for blind in (True, False))
    beside.heat_of(1)
    assert not give(blind, "s-2", **{"class": "mild"}).blind
    assert give(blind, "s-1", **{"class": "mild"}).blind
