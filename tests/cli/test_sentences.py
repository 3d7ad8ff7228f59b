"""What the machine refuses (no GPU, a read-only folder, a file as --out) ends in a sentence, never in a traceback."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from tests.engine.cohort import make_cohort, run, settings
from tests.forked import in_child
from typer.testing import CliRunner

from pams_mil import atomic
from pams_mil.cli.main import app
from pams_mil.engine.run import checkpoint
from pams_mil.errors import OutputError
from pams_mil.wsi import extract as slides_for_run

NOBODY = 65534
runner = CliRunner()


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    home = tmp_path_factory.mktemp("home")
    run(settings(make_cohort(home / "cohort"), epochs=1), home / "run")
    (home / "predictions.csv").write_text("slide_id,target,prediction\ns1,N,N\ns2,IC,N\n")
    (home / "grid.yaml").write_text(
        f"data: {{manifest: {home}/cohort/manifest.csv, features: {home}/cohort/bags}}\n"
        f"classes: {home}/cohort/classes.yaml\nmethods: [ce]\nmodels: [mean_pool]\n"
    )
    return home


VERBS = {
    "audit": "audit {home}/predictions.csv --classes bracs",
    "demo": "demo",
    "split": "split {home}/cohort/manifest.csv --classes {home}/cohort/classes.yaml",
    "pack": "pack {home}/cohort/manifest.csv --features {home}/cohort/bags",
    "extract": "extract {home}/slide.svs",
    "heatmap": "heatmap {home}/run {home}/slide.svs",
    "train": "train --manifest {home}/cohort/manifest.csv --features {home}/cohort/bags "
    "--classes {home}/cohort/classes.yaml",
    "predict": "predict {home}/run {home}/cohort/manifest.csv --features {home}/cohort/bags",
    "evaluate": "evaluate {home}/run",
    "export": "export {home}/run",
    "bench": "bench {home}/grid.yaml",
}


def pams(home: Path, words: str, *more: object):
    return runner.invoke(app, [*words.format(home=home).split(), *map(str, more)])


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("below", ["", "inner/deep"])
def test_a_file_as_out_is_refused_before_any_work(home, tmp_path, verb, below):
    file = tmp_path / "taken"
    file.write_text("mine")
    result = pams(home, VERBS[verb], "--out", file / below)
    assert result.exit_code == 2
    assert f"{file} is a file, not a folder" in result.stderr
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("verb", VERBS)
def test_a_read_only_out_is_refused_before_any_work(home, tmp_path, monkeypatch, verb):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    result = pams(home, VERBS[verb], "--out", tmp_path / "new")
    assert result.exit_code == 2
    assert f"The folder {tmp_path} is read-only for you" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_folder_of_someone_else_is_refused_for_real(tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o755)

    def someone_else():
        if os.getuid() == 0:
            os.setuid(NOBODY)
            for parent in (tmp_path, *tmp_path.parents):
                if not os.access(parent, os.X_OK):
                    os._exit(77)
        else:
            (tmp_path / "theirs").chmod(0o555)
        with pytest.raises(OutputError, match="read-only for you"):
            atomic.require_folder(tmp_path / "theirs" / "new")
        with pytest.raises(OutputError, match="permission denied") as caught:
            atomic.write_text(tmp_path / "theirs" / "file.txt", "text")
        assert "disk" not in str(caught.value)

    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        if parent.stat().st_uid == os.getuid():
            parent.chmod(0o755)
    status = os.waitstatus_to_exitcode(in_child(someone_else))
    if status == 77:
        pytest.skip("nobody may enter the folder of temporary files")
    assert status == 0


def test_what_slips_through_is_a_sentence_too(home, tmp_path, monkeypatch):
    """A folder that became read-only after the first look, in code that writes without `atomic`."""

    def refuse(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    result = pams(home, VERBS["pack"], "--out", tmp_path / "pack")
    assert result.exit_code == 2
    assert "permission denied" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("accelerator", ["gpu", "cuda"])
def test_no_gpu_to_train_on(home, tmp_path, accelerator):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = pams(home, VERBS["train"], "--out", tmp_path / "run", f"compute.accelerator={accelerator}")
    assert result.exit_code == 2
    assert f"accelerator={accelerator}" in result.stderr
    assert "choose cpu" in result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "kuda"])
def test_no_gpu_to_predict_on(home, tmp_path, device):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    result = pams(home, VERBS["predict"], "--out", tmp_path, "--device", device)
    assert result.exit_code == 2
    assert f"The device '{device}' cannot be used here" in result.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"features": {"width": 10**12}},
        {"features": {"width": 10**30}},
        {"settings": {"model": {"name": "abmil", "embedding_features": 10**12}}},
        {"settings": {"model": {"name": "abmil", "attention_features": 60_000}}},
        {"settings": {"model": {"name": "abmil", "embedding_features": -3}}},
    ],
)
def test_a_checkpoint_that_describes_absurd_sizes_is_refused_and_claims_no_memory(home, tmp_path, change):
    import resource

    saved = checkpoint.load(home / "run" / "best.safetensors")
    spec = dict(saved.state["spec"])
    for key, value in change.items():
        spec[key] = {**spec[key], **value}
    file = tmp_path / "odd.safetensors"
    checkpoint.save(file, checkpoint.Checkpoint(saved.tensors, {**saved.state, "spec": spec}))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    words = VERBS["predict"].replace("{home}/run", str(file))
    result = pams(home, words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "Error:" in result.stderr
    assert not (tmp_path / "out").exists()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10  # in KiB


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_get_the_users_umask_whoever_wrote_them(home, tmp_path, mask):
    before = os.umask(mask)
    try:
        saved = checkpoint.load(home / "run" / "best.safetensors")
        checkpoint.save(tmp_path / "weights.safetensors", saved)
        atomic.write_text(tmp_path / "text.txt", "text")
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o666 & ~mask}


def test_the_device_is_also_that_of_the_encoder(home, tmp_path, monkeypatch):
    def bags_for_run(*_, options, **__):
        raise OutputError(f"asked for {options.device}")

    monkeypatch.setattr(slides_for_run, "bags_for_run", bags_for_run)
    (tmp_path / "a.tiff").touch()
    result = pams(home, "predict {home}/run --mpp 1 --device cpu", tmp_path / "a.tiff", "--out", tmp_path / "out")
    assert "asked for cpu" in result.stderr


def test_a_checkpoint_is_evaluated_beside_itself(home):
    words = "evaluate {home}/run/best.safetensors --manifest {home}/cohort/manifest.csv --features {home}/cohort/bags"
    result = pams(home, words, "--resamples", 0)
    assert result.exit_code == 0, result.output
    assert (home / "run" / "reports" / "manifest-test" / "report.html").is_file()
