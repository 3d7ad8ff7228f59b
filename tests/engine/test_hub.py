"""A model to a hub and back, against a server on loopback that speaks the endpoints the client uses."""

from __future__ import annotations

import base64
import hashlib
import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.test_cv import committee_command
from tests.docs.console_blocks import ROOT, files_of
from tests.engine.cohort import settings
from tests.engine.here import Here
from typer.testing import CliRunner

import pams_mil
from pams_mil.cli.main import app
from pams_mil.data.tables import read_table
from pams_mil.engine import train
from pams_mil.engine.grid import engines
from pams_mil.engine.prediction.hub import local_folder
from pams_mil.engine.prediction.predict import predict
from pams_mil.errors import ConfigError, RunError

pytest.importorskip("huggingface_hub")


class Hub(ThreadingHTTPServer):
    """Repositories as lists of commits, each {file: bytes}; what was asked for is kept."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.repos: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.private: dict[str, bool] = {}
        self.asked: list[str] = []

    def commit(self, name: str, files: dict[str, bytes]) -> str:
        before = self.repos[name][-1][1] if self.repos[name] else {}
        number = hashlib.sha1(f"{name} {len(self.repos[name])}".encode(), usedforsecurity=False).hexdigest()
        self.repos[name].append((number, {**before, **files}))
        return number


class Answers(BaseHTTPRequestHandler):
    """The endpoints of uploading regular files and of downloading any."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: Any) -> None:
        """Quiet."""

    def reply(self, content: Any, code: int = 200, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub, parts = self.server, self.path.strip("/").split("/")
        hub.asked.append(f"POST {self.path}")
        if self.headers.get("Authorization") != "Bearer hf_test":
            return self.reply({"error": "no token"}, 401)
        if self.path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            hub.repos.setdefault(name, [])
            hub.private.setdefault(name, wanted.get("private", wanted.get("visibility") == "private"))
            return self.reply({"url": f"http://{self.headers['Host']}/{name}", "id": name, "name": name})
        if self.path == "/api/validate-yaml":
            return self.reply({"errors": [], "warnings": []})
        name = "/".join(parts[2:4])
        if parts[4] == "preupload":
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            return self.reply({"files": modes})
        if parts[4] == "commit":
            lines = [json.loads(line) for line in body.splitlines()]
            values = [line["value"] for line in lines if line["key"] == "file"]
            oid = hub.commit(name, {value["path"]: base64.b64decode(value["content"]) for value in values})
            url = f"http://{self.headers['Host']}/{name}/commit/{oid}"
            return self.reply({"commitUrl": url, "commitOid": oid, "success": True})
        return self.reply({"error": "unknown"}, 404)

    def do_GET(self) -> None:
        hub, parts = self.server, self.path.partition("?")[0].strip("/").split("/")
        hub.asked.append(f"{self.command} {self.path}")
        if parts[0] == "api":
            return self.reply({}, 404)
        name, revision, file = "/".join(parts[:2]), parts[3], "/".join(parts[4:])
        commits = hub.repos.get(name, [])
        chosen = [one for one in commits if one[0] == revision] or (commits[-1:] if revision == "main" else [])
        if not chosen:
            return self.reply({}, 404, X_Error_Code="RepoNotFound" if not commits else "RevisionNotFound")
        oid, files = chosen[0]
        if file not in files:
            return self.reply({}, 404, X_Error_Code="EntryNotFound", X_Repo_Commit=oid)
        etag = hashlib.sha256(files[file]).hexdigest()
        return self.reply(files[file], X_Repo_Commit=oid, ETag=f'"{etag}"')

    do_HEAD = do_GET  # noqa: N815


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def pams(*words: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "400"}).invoke(app, [str(word) for word in words])
    assert done.exit_code == code, f"{done.output}\n{done.exception!r}"
    return done.output


def test_a_model_goes_to_a_hub_and_comes_back_the_same(hub: Hub, cohort: Path, tmp_path: Path):
    run = train(settings(cohort, epochs=2), tmp_path / "run").path
    printed = json.loads(pams("export", run, "--out", tmp_path / "out", "--no-onnx", "--push", "lab/model", "--json"))
    [(commit, files)] = hub.repos["lab/model"]
    assert printed["hub"] == f"hf://lab/model@{commit}"
    assert set(files) == {"model.safetensors", "config.json", "README.md"}
    assert hub.private["lab/model"] is True
    own = pams_mil.load(run)
    assert pams_mil.load("hf://lab/model").weights == own.weights
    words = (cohort / "manifest.csv", "--split", "test", "--features", cohort / "bags", "--out")
    pams("predict", "hf://lab/model", *words, tmp_path / "hub")
    pams("predict", run, *words, tmp_path / "own")
    one, two = (read_table(tmp_path / place / "predictions.csv") for place in ("hub", "own"))
    assert set(two) - set(one) == {"exposure"}  # whose patients it has seen is not published
    assert {key: two[key] for key in one} == one
    assert "--out" in pams("predict", "hf://lab/model", cohort / "manifest.csv", code=2)


def test_a_model_on_a_hub_is_scored_into_a_folder_of_its_own(
    hub: Hub, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pams("export", train(settings(cohort, epochs=1), tmp_path / "run").path, "--no-onnx", "--push", "lab/model")
    monkeypatch.chdir(tmp_path)
    words = ["evaluate", "hf://lab/model", "--manifest", cohort / "manifest.csv", "--features", cohort / "bags"]
    assert "say where with --out" in pams(*words, code=2)
    pams(*words, "--resamples", 0, "--out", "scored")
    assert (tmp_path / "scored/report.html").is_file()
    assert list((tmp_path / "scored/model/predictions").glob("manifest-*.csv"))
    assert not (tmp_path / "hf:").exists()


def test_a_revision_stays_what_it_was_and_the_cache_needs_no_network(hub: Hub, cohort: Path, tmp_path: Path):
    addresses, weights = [], []
    for seed in (0, 1):
        run = train(settings(cohort, epochs=1, seed=seed), tmp_path / f"run{seed}").path
        out = tmp_path / f"out{seed}"
        printed = pams("export", run, "--out", out, "--no-onnx", "--push", "lab/model", "--json")
        addresses.append(json.loads(printed)["hub"])
        weights.append(pams_mil.load(run).weights)
    assert weights[0] != weights[1]
    assert [pams_mil.load(address).weights for address in addresses] == weights
    assert pams_mil.load("hf://lab/model").weights == weights[1]
    hub.shutdown()
    hub.server_close()
    assert [pams_mil.load(address).weights for address in addresses] == weights


def test_a_committee_goes_to_a_hub_as_one_model(
    hub: Hub, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LocalEngine", Here)
    pams(*committee_command(cohort, tmp_path / "committee"))
    pams("export", tmp_path / "committee", "--out", tmp_path / "out", "--no-onnx", "--push", "lab/committee")
    [(_, files)] = hub.repos["lab/committee"]
    networks = json.loads(files["config.json"])["mean_of"]
    assert len(networks) > 3
    assert {f"{name}/model.safetensors" for name in networks} <= set(files)
    assert not [name for name in files if "exposure" in name]
    words = (cohort / "manifest.csv", "--split", "test", "--features", cohort / "bags", "--out")
    pams("predict", "hf://lab/committee", *words, tmp_path / "hub")
    pams("predict", tmp_path / "committee", *words, tmp_path / "own")
    one, two = (read_table(tmp_path / place / "predictions.csv") for place in ("hub", "own"))
    assert {key: two[key] for key in one} == one
    own, fetched = (predict([place], *words[:1], features=cohort / "bags", device="cpu")
                    for place in (tmp_path / "committee", "hf://lab/committee"))  # fmt: skip
    np.testing.assert_array_equal(own.probabilities[-1], fetched.probabilities[-1])
    description = {**json.loads(files["config.json"]), "mean_of": ["../../escape"]}
    hub.commit("lab/committee", {"config.json": json.dumps(description).encode()})
    with pytest.raises(RunError, match="is not a folder below"):
        local_folder("hf://lab/committee")


def test_what_cannot_be_had_or_given_is_said(hub: Hub, cohort: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(RunError, match=r"Could not get the model 'lab/none' from the hub"):
        local_folder("hf://lab/none")
    with pytest.raises(ConfigError, match=r"expected hf://owner/name"):
        local_folder("hf://only-one")
    for name, text in files_of(ROOT / "docs/bring-your-own.md").items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    run = train(settings(cohort, model="./my_model.py:MyNet", method="ce", epochs=1), tmp_path / "run").path
    refused = pams("export", run, "--push", "lab/model", "--trust-code", code=2)
    assert "code of your own, and a hub gets none" in refused
    assert hub.repos == {}
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    run = train(settings(cohort, epochs=1), tmp_path / "plain").path
    refused = pams("export", run, "--no-onnx", "--push", "lab/model", code=2)
    assert "Could not upload" in refused
    again = shlex.split(refused.partition("To try again: ")[2])
    assert again == ["pams", "export", str(run / "export"), "--push", "lab/model"]
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert "Uploaded weights" in pams(*again[1:])  # what was written is uploaded, not in the way
    assert len(hub.repos["lab/model"]) == 1
