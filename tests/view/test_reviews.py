"""Verdicts: kept through a kill, never overwritten by another window, and read by audits."""

from __future__ import annotations

import itertools
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from tests.forked import Forked
from tests.view.sessions import client_of, read, session_of, write_cohort
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.errors import OutputError
from pams_mil.evaluate.prediction_layouts import read_predictions
from pams_mil.tables import read_table
from pams_mil.view.verdict_journal import Journal, ReviewError


def give(journal, slide, action="read", **content):
    return journal.give(slide, {"action": action, "seen": journal.last_event(slide), **content})


def test_agree_override_defer_and_undo(session):
    journal = session.journal  # calls: none, mild, severe
    assert give(journal, "s-1", **{"class": "none"}).verdict == "agree"
    assert give(journal, "s-1", **{"class": "severe"}, note="see  region\n2").verdict == "override"
    assert give(journal, "s-2", "defer").label == ""
    assert give(journal, "s-1", "undo").verdict == "agree"
    assert give(journal, "s-1", "undo") is None
    with pytest.raises(ReviewError, match="no verdict to undo"):
        give(journal, "s-1", "undo")
    assert [slide for slide, _ in journal.states()] == ["s-2"]
    assert len(journal.path.read_text().splitlines()) == 5  # nothing is ever taken out


@pytest.mark.parametrize(
    "content",
    [
        {"action": "burn"}, {"class": "other"}, {"class": 3}, {"note": "x" * 2001}, {"note": 1}, {"seconds": -1},
        {"seconds": float("nan")}, {"seconds": "1"}, {"seen": None}, {"seen": True},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(session, content):
    with pytest.raises(ReviewError):
        session.journal.give("s-1", {"action": "read", "class": "none", "seen": 0, **content})
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
    one, two = (session_of(cohort, reviews=tmp_path).journal for _ in range(2))

    def reads(journal, slide):
        for label in ("none", "mild", "severe") * 5:
            while True:
                journal.refresh()
                with suppress(ReviewError):  # the other was faster: look again
                    give(journal, slide, **{"class": label})
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(reads, (one, two, one, two), ("s-1", "s-1", "s-2", "s-3")))
    one.refresh()
    two.refresh()
    assert one.revision == two.revision == 60
    numbers = [json.loads(json.loads(line)["event"])["number"] for line in one.path.read_text().splitlines()]
    assert numbers == list(range(1, 61))
    assert dict(one.states()) == dict(two.states())


def test_a_download_at_one_server_keeps_the_verdicts_of_another(cohort, tmp_path):
    one, two = (session_of(cohort, reviews=tmp_path) for _ in range(2))
    give(one.journal, "s-1", **{"class": "mild"})
    client, _ = client_of(two)
    assert "s-1" in client.get("/export/reviews.csv").text
    assert read_table(one.journal.table)["slide_id"] == ["s-1"]


def test_a_torn_or_damaged_line_is_skipped_and_counted(cohort, tmp_path):
    journal = session_of(cohort, reviews=tmp_path).journal
    give(journal, "s-1", **{"class": "mild"})
    give(journal, "s-2", **{"class": "mild"})
    text = journal.path.read_text()
    first, second = text.splitlines()
    journal.path.write_text(first.replace("mild", "none") + "\n" + second + "\n" + first[:40])
    session = session_of(cohort, reviews=tmp_path)
    assert [slide for slide, _ in session.journal.states()] == ["s-2"]
    assert session.journal.skipped == 1  # the torn one may still be being written
    give(session.journal, "s-3", **{"class": "none"})
    again = session_of(cohort, reviews=tmp_path)
    assert [slide for slide, _ in again.journal.states()] == ["s-2", "s-3"]
    assert any("2 damaged lines" in note for note in again.notes)


@pytest.mark.parametrize("after", [1, 5, 14])
def test_a_kill_loses_at_most_the_verdict_in_the_making(cohort, tmp_path, after):
    hear, tell = os.pipe()

    def victim():
        journal = session_of(cohort, reviews=tmp_path).journal
        for number in itertools.count():
            slide, label = f"s-{number % 3 + 1}", ("none", "mild", "severe")[number // 3 % 3]
            give(journal, slide, **{"class": label})
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
    journal = session_of(cohort, reviews=tmp_path).journal
    assert told <= journal.revision <= told + 1
    give(journal, "s-1", **{"class": "none"})
    table = read_table(journal.table)
    assert table["reader_class"][table["slide_id"].index("s-1")] == "none"


def test_a_full_disk_is_said_and_nothing_changes(session, monkeypatch):
    give(session.journal, "s-1", **{"class": "mild"})
    before = session.journal.path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OutputError, match="No space left"):
        give(session.journal, "s-1", **{"class": "none"})
    monkeypatch.undo()
    assert session.journal.path.read_bytes() == before
    assert session.journal.state("s-1").label == "mild"


def test_verdicts_on_other_predictions_are_kept_but_not_shown(cohort, tmp_path):
    give(session_of(cohort, reviews=tmp_path).journal, "s-1", **{"class": "mild"})
    other = write_cohort(tmp_path / "other", slides=False, probabilities=False)
    session = session_of(other, reviews=tmp_path)
    assert not list(session.journal.states())
    assert any("other predictions" in note for note in session.notes)
    give(session.journal, "s-1", **{"class": "none"})
    assert len(session.journal.path.read_text().splitlines()) == 2


def test_readers_have_journals_of_their_own(cohort, tmp_path):
    give(session_of(cohort, reviews=tmp_path, reviewer="a/b").journal, "s-1", **{"class": "mild"})
    second = session_of(cohort, reviews=tmp_path, reviewer="b").journal
    assert not list(second.states())
    assert len([path for path in tmp_path.iterdir() if path.is_dir()]) == 2


# --- reviews.csv and the audit


def audit(*arguments):
    from pams_mil.cli.main import app

    done = CliRunner().invoke(app, ["audit", *map(str, arguments), "--resamples", "0"])
    assert done.exit_code == 0, done.output
    return " ".join(done.output.split())


def test_with_labels_the_reader_is_a_second_model(cohort, tmp_path):
    journal = session_of(cohort, reviews=tmp_path).journal
    for slide, label, seconds in (("s-1", "none", 10), ("s-2", "severe", 20), ("s-3", "none", 60)):
        give(journal, slide, seconds=seconds, **{"class": label})
    read_back = read_predictions(journal.table, ClassHierarchy.load(cohort / "classes.yaml"))
    assert (read_back.target.tolist(), read_back.predicted.tolist()) == ([0, 1, 2], [0, 2, 0])
    shown = audit(cohort / "predictions.csv", journal.table, "--classes", cohort / "classes.yaml")
    assert "kept 1 of 3 calls and overturned 2: 1 to a more urgent class" in shown
    assert "1 to a less urgent one (false alarms)" in shown
    assert "Median time per case 20 s" in shown


def test_without_labels_the_model_is_held_against_the_reader(tmp_path):
    folder = write_cohort(tmp_path / "cohort", slides=False, labels=False)
    journal = session_of(folder, reviews=tmp_path / "reviews").journal
    give(journal, "s-1", **{"class": "severe"})
    give(journal, "s-2", **{"class": "mild"})
    give(journal, "s-3", "defer")
    found = read_predictions(journal.table, ClassHierarchy.load(folder / "classes.yaml"))
    assert (found.target.tolist(), found.predicted.tolist()) == ([2, 1], [0, 1])  # reader, then model
    shown = audit(journal.table, "--classes", folder / "classes.yaml")
    assert "1 cases were put off" in shown


def test_ids_and_notes_that_spreadsheets_would_run_stay_inert(tmp_path):
    folder = write_cohort(tmp_path / "cohort", ids=("=cmd", "b", "c"), slides=False)
    journal = session_of(folder, reviews=tmp_path / "reviews").journal
    give(journal, "=cmd", note="=HYPERLINK(1)\nx", **{"class": "mild"})
    assert "\n=cmd" not in journal.table.read_text()
    assert read_table(journal.table)["note"] == ["=HYPERLINK(1) x"]
    assert read_table(journal.table)["slide_id"] == ["=cmd"]


# --- blind reading


def test_blind_readers_see_nothing_until_they_have_read(cohort, tmp_path):
    session = session_of(cohort, reviews=tmp_path, blind=True)
    client, _ = client_of(session)
    key = session.cases.keys[0]

    def visible():
        listed = client.get("/api/worklist").json()
        values = [listed["call"][0], listed["severity"][0], listed["uncertainty"][0], listed["at_least"][0][0],
                  listed["probabilities"][0][0]]  # fmt: skip
        heat = [client.get(path).status_code for path in (f"/heat/{key}", f"/patch/{key}/0")]
        plain, asked = (client.get(f"/thumbnail/{key}?heat={heat}").content for heat in (0, 1))
        measured = client.get(f"/export/{key}.geojson").json()["features"]
        assert listed["order"] == []  # the order itself would tell
        return values, heat, plain != asked, len(measured)

    assert visible() == ([None] * 5, [403, 404], False, 0)
    assert read(client, session, 0, "defer").status_code == 200
    assert visible() == ([None] * 5, [403, 404], False, 0)
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


def test_a_journal_that_cannot_be_made_is_an_error(cohort, tmp_path):
    (tmp_path / "file").write_text("")
    session = session_of(cohort, reviews=tmp_path / "reviews")
    with pytest.raises(OutputError):
        Journal(tmp_path / "file" / "x", session.cases, "reader")
