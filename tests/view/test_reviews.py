"""Verdicts: kept through a kill, never overwritten by another window, and read by audits."""

from __future__ import annotations

import itertools
import json
import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.forked import Forked
from tests.view.sessions import OWN, client_of, give, predictions, read, session_of, write_cohort
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.data.tables import read_table
from pams_mil.digests import sealed, unsealed
from pams_mil.errors import OutputError
from pams_mil.evaluate.predictions.prediction_layouts import read_predictions
from pams_mil.view.verdict_journal import FORMAT, VERSION, Journal, ReviewError


def test_agree_override_defer_and_undo(session):
    # calls: none, mild, severe
    assert give(session, "s-1", **{"class": "none"}).verdict == "agree"
    assert give(session, "s-1", **{"class": "severe"}, note="see  region\n2").verdict == "override"
    assert give(session, "s-2", "defer").label == ""
    assert give(session, "s-1", "undo").verdict == "agree"
    assert give(session, "s-1", "undo") is None
    with pytest.raises(ReviewError, match="no verdict to undo"):
        give(session, "s-1", "undo")
    assert [slide for slide, _ in session.journal.states()] == ["s-2"]
    assert len(session.journal.path.read_text().splitlines()) == 5  # nothing is ever taken out


@pytest.mark.parametrize(
    "content",
    [
        {"action": "burn"}, {"class": "other"}, {"class": 3}, {"note": "x" * 2001}, {"note": 1}, {"seconds": -1},
        {"seconds": float("nan")}, {"seconds": "1"}, {"seen": None}, {"seen": True},
        {"kappa": -1}, {"kappa": float("nan")}, {"kappa": "1"}, {"kappa": True},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(session, content):
    with pytest.raises(ReviewError):
        session.give(0, {"action": "read", "class": "none", "seen": 0, **content})
    assert not session.journal.path.exists()


def test_two_windows_do_not_overwrite_each_other(client, session):
    key = session.cases.keys[0]
    assert read(client, session, 0, **{"class": "mild"}).status_code == 200
    late = client.post(
        f"/api/verdict/{key}",
        json={"action": "read", "class": "severe", "seen": 0},
        headers={"x-pams-view": "1", "sec-fetch-site": "same-origin"},
    )
    assert late.status_code == 409
    assert late.json()["verdict"]["class"] == "mild"
    assert session.journal.state("s-1").label == "mild"


def test_two_servers_share_a_journal(cohort, tmp_path):
    one, two = (session_of(cohort, reviews=tmp_path) for _ in range(2))

    def reads(session, slide):
        for label in ("none", "mild", "severe") * 5:
            while True:
                session.journal.refresh()
                with suppress(ReviewError):  # the other was faster: look again
                    give(session, slide, **{"class": label})
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reads, (one, two, one, two), ("s-1", "s-1", "s-2", "s-3")))
    one, two = one.journal, two.journal
    one.refresh()
    two.refresh()
    assert one.revision == two.revision == 60
    numbers = [json.loads(line)["number"] for line in one.path.read_text().splitlines()]
    assert numbers == list(range(1, 61))
    assert dict(one.states()) == dict(two.states())


def test_a_download_at_one_server_keeps_the_verdicts_of_another(cohort, tmp_path):
    one, two = (session_of(cohort, reviews=tmp_path) for _ in range(2))
    give(one, "s-1", **{"class": "mild"})
    client, _ = client_of(two)
    assert "s-1" in client.get("/export/reviews.csv").text
    assert read_table(one.journal.table)["slide_id"] == ["s-1"]


def test_a_torn_or_damaged_line_is_skipped_and_counted(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path)
    give(session, "s-1", **{"class": "mild"})
    give(session, "s-2", **{"class": "mild"})
    journal = session.journal
    text = journal.path.read_text()
    first, second = text.splitlines()
    journal.path.write_text(first.replace("mild", "none") + "\n" + second + "\n" + first[:40])
    session = session_of(cohort, reviews=tmp_path)
    assert [slide for slide, _ in session.journal.states()] == ["s-2"]
    assert session.journal.skipped == 1  # the truncated one may still be being written
    give(session, "s-3", **{"class": "none"})
    again = session_of(cohort, reviews=tmp_path)
    assert [slide for slide, _ in again.journal.states()] == ["s-2", "s-3"]
    assert any("2 damaged lines" in note for note in again.notes)


@pytest.mark.parametrize("after", [1, 5, 14])
def test_a_kill_loses_at_most_the_verdict_in_the_making(cohort, tmp_path, after):
    hear, tell = os.pipe()

    def victim():
        session = session_of(cohort, reviews=tmp_path)
        for number in itertools.count():
            slide, label = f"s-{number % 3 + 1}", ("none", "mild", "severe")[number // 3 % 3]
            give(session, slide, **{"class": label})
            os.write(tell, b".")

    running = Forked(victim, tmp_path / "log.txt")
    os.close(tell)
    told = 0
    while told < after:
        told += len(os.read(hear, 1)) or pytest.fail(running.said())
    running.send(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    while rest := os.read(hear, 1000):
        told += len(rest)
    os.close(hear)
    session = session_of(cohort, reviews=tmp_path)
    journal = session.journal
    assert told <= journal.revision <= told + 1
    give(session, "s-1", **{"class": "none"})
    table = read_table(journal.table)
    assert table["reader_class"][table["slide_id"].index("s-1")] == "none"


def test_a_full_disk_is_said_and_nothing_changes(session, monkeypatch):
    give(session, "s-1", **{"class": "mild"})
    before = session.journal.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match="No space left"):
        give(session, "s-1", **{"class": "none"})
    monkeypatch.undo()
    assert session.journal.path.read_bytes() == before
    assert session.journal.state("s-1").label == "mild"


def test_verdicts_on_other_predictions_are_kept_but_not_shown(cohort, tmp_path):
    give(session_of(cohort, reviews=tmp_path), "s-1", **{"class": "mild"})
    other = write_cohort(tmp_path / "other", slides=False, probabilities=False)
    session = session_of(other, reviews=tmp_path)
    assert not list(session.journal.states())
    assert any("other predictions" in note for note in session.notes)
    give(session, "s-1", **{"class": "none"})
    assert len(session.journal.path.read_text().splitlines()) == 2


def test_readers_have_journals_of_their_own(cohort, tmp_path):
    give(session_of(cohort, reviews=tmp_path, reviewer="a/b"), "s-1", **{"class": "mild"})
    second = session_of(cohort, reviews=tmp_path, reviewer="b")
    assert not list(second.journal.states())
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


# --- reviews.csv and the audit


def audit(*arguments):
    from pams_mil.cli.main import app

    done = CliRunner().invoke(app, ["audit", *map(str, arguments), "--resamples", "0"])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_with_labels_the_reader_is_a_second_model(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path)
    for slide, label, seconds in (("s-1", "none", 10), ("s-2", "severe", 20), ("s-3", "none", 60)):
        give(session, slide, seconds=seconds, **{"class": label})
    read_back = read_predictions(session.journal.table, ClassHierarchy.load(cohort / "classes.yaml"))
    assert (read_back.target.tolist(), read_back.predicted.tolist()) == ([0, 1, 2], [0, 2, 0])
    shown = audit(cohort / "predictions.csv", session.journal.table, "--classes", cohort / "classes.yaml")
    assert "kept 1 of 3 calls and overturned 2: 1 to a more urgent class" in shown
    assert "1 to a less urgent one (false alarms)" in shown
    assert "Median time per case 20 s" in shown


def test_without_labels_the_model_is_held_against_the_reader(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, labels=False)
    session = session_of(folder, reviews=tmp_path / "reviews")
    give(session, "s-1", **{"class": "severe"})
    give(session, "s-2", **{"class": "mild"})
    give(session, "s-3", "defer")
    found = read_predictions(session.journal.table, ClassHierarchy.load(folder / "classes.yaml"))
    assert (found.target.tolist(), found.predicted.tolist()) == ([2, 1], [0, 1])  # reader, then model
    shown = audit(session.journal.table, "--classes", folder / "classes.yaml")
    assert "1 cases were deferred" in shown


def test_ids_and_notes_that_spreadsheets_would_run_stay_inert(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("=cmd", "b", "c"), slides=False)
    session = session_of(folder, reviews=tmp_path / "reviews")
    give(session, "=cmd", note="=HYPERLINK(1)\nx", **{"class": "mild"})
    assert "\n=cmd" not in session.journal.table.read_text()
    assert read_table(session.journal.table)["note"] == ["=HYPERLINK(1) x"]
    assert read_table(session.journal.table)["slide_id"] == ["=cmd"]


# --- what stays, whatever changes


def test_reviews_never_shrink(cohort, tmp_path):
    """Verdicts stay in the table when predictions grow or change; those on equal predictions stay in force."""
    session = session_of(cohort, reviews=tmp_path)
    for slide in ("s-1", "s-2"):
        give(session, slide, **{"class": "mild"})
    grown = tmp_path / "grown.csv"
    grown.write_text((cohort / "predictions.csv").read_text() + "s-4,p-9,test,mild,mild,0.1,0.8,0.1\n")
    session = session_of(cohort, paths=[grown], reviews=tmp_path)
    assert [slide for slide, _ in session.journal.states()] == ["s-1", "s-2"]
    give(session, "s-4", **{"class": "none"})
    assert read_table(session.journal.table)["slide_id"] == ["s-1", "s-2", "s-4"]
    changed = session_of(cohort, paths=[predictions(tmp_path / "m", (1, 1, 2))], reviews=tmp_path)
    assert [slide for slide, _ in changed.journal.states()] == ["s-2"]
    assert any("2 earlier reviews belong to other predictions" in note for note in changed.notes)
    give(changed, "s-3", **{"class": "none"})
    table = read_table(changed.journal.table)
    assert table["slide_id"] == ["s-1", "s-2", "s-3", "s-4"]
    assert (table["target"], table["model_call"]) == (
        ["none", "mild", "severe", "mild"],
        ["none", "mild", "severe", "mild"],
    )


def test_labels_that_come_later_reach_the_table(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, labels=False)
    give(session_of(folder, reviews=tmp_path), "s-1", **{"class": "mild"})
    write_cohort(folder, slides=False)
    session = session_of(folder, reviews=tmp_path)
    session.journal.write_table()
    assert read_table(session.journal.table)["target"] == ["none"]


def test_half_an_emoji_is_mended_and_a_journal_that_holds_one_still_works(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path)
    client, _ = client_of(session)
    body = b'{"action": "read", "class": "mild", "seen": 0, "note": "see \\ud83d here"}'
    answer = client.post(
        f"/api/verdict/{session.cases.keys[0]}", content=body, headers={**OWN, "content-type": "application/json"}
    )
    assert (answer.status_code, answer.json()["verdict"]["note"]) == (200, "see \ufffd here")
    line = session.journal.path.read_text().splitlines()[-1]
    event = unsealed(json.loads(line), FORMAT, VERSION)
    with session.journal.path.open("a") as file:  # as a version wrote it that did not look
        file.write(json.dumps(sealed({**event, "number": 9, "note": "\ud83d"}, FORMAT, VERSION)) + "\n")
    again = session_of(cohort, reviews=tmp_path)
    client, _ = client_of(again)
    assert client.get("/export/reviews.csv").status_code == 200
    assert read(client, again, 1, **{"class": "mild"}).status_code == 200


def test_numbers_that_no_browser_can_mean_are_refused_in_words(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path)
    client, _ = client_of(session)
    for number in ("1" + "0" * 400, "-" + "9" * 5000, "NaN", "Infinity"):
        answer = client.post(
            f"/api/verdict/{session.cases.keys[0]}",
            content=f'{{"action": "read", "class": "mild", "seen": {number}}}',
            headers={**OWN, "content-type": "application/json"},
        )
        assert (answer.status_code, "numbers of ordinary size" in answer.text) == (400, True), number[:9]


def test_the_table_is_its_readers_alone(session):
    give(session, "s-1", **{"class": "mild"})
    assert {stat.S_IMODE(path.stat().st_mode) for path in (session.journal.table, session.journal.path)} == {0o600}


def test_a_verdict_at_another_operating_point_is_about_the_call_there(session):
    """At κ = 9 the slide called none is called severe, and a reading agrees or not with that."""
    assert give(session, "s-1", kappa=9, **{"class": "severe"}).verdict == "agree"
    assert give(session, "s-1", **{"class": "severe"}).verdict == "override"
    give(session, "s-2", kappa=1, **{"class": "severe"})
    table = read_table(session.journal.table)
    assert (table["model_call"], table["kappa"]) == (["none", "mild"], ["", "1"])


def test_a_journal_that_cannot_be_made_is_an_error(cohort, tmp_path):
    (tmp_path / "file").write_text("")
    session = session_of(cohort, reviews=tmp_path / "reviews")
    with pytest.raises(OutputError):
        Journal(tmp_path / "file" / "x", "reader", session.cases.hierarchy, {}, {})
