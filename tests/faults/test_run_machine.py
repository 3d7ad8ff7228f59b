"""A run folder in the hands of fate: trained, killed, resumed, damaged and predicted with, in any order.

Whatever happens, a run that says it is finished has the weights of an uninterrupted one, a prediction is the right one,
and everything else is a message in words.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.cohort import make_cohort, run, same_weights
from tests.engine.cohort import settings as run_settings
from tests.forked import in_child

from pams_mil.engine import predict
from pams_mil.engine.run.folder import RunFolder
from pams_mil.engine.training import loop as fit
from pams_mil.errors import PamsError

EPOCHS = 2
_REFERENCE: dict[str, Path] = {}


def reference() -> dict[str, Path]:
    """A cohort and an uninterrupted run on it, made once."""
    if not _REFERENCE:
        place = Path(tempfile.mkdtemp())
        _REFERENCE["cohort"] = make_cohort(place / "cohort")
        _REFERENCE["run"] = run(run_settings(_REFERENCE["cohort"], epochs=EPOCHS), place / "run")
    return _REFERENCE


class RunMachine(RuleBasedStateMachine):
    """The folder and what may happen to it."""

    @initialize()
    def start(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        self.folder = RunFolder(self.place / "run")
        self.damaged = False
        self.config = run_settings(reference()["cohort"], epochs=EPOCHS)

    def teardown(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)

    @rule(step=st.integers(1, 24), resume=st.booleans())
    def killed(self, step: int, resume: bool) -> None:
        """Start or resume, and be killed at some step."""

        def victim() -> None:
            original, calls = fit.forward, []

            def patched(*args):
                calls.append(None)
                if len(calls) == step:
                    os.kill(os.getpid(), signal.SIGKILL)
                return original(*args)

            fit.forward = patched
            try:
                run(self.config, self.folder.path, resume=resume)
            except PamsError:
                os._exit(5)

        status = in_child(victim)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) in (0, 5)

    @rule()
    def resumed(self) -> None:
        """Resume to the end; only a damaged checkpoint may be in the way."""
        try:
            run(self.config, self.folder.path, resume=True)
        except PamsError:
            if not self.damaged:
                raise

    @rule()
    def started_again(self) -> None:
        """A fresh start on a folder that holds a run is refused."""
        existed = self.folder.exists() or (self.folder.path / "run.lock").exists()
        try:
            run(self.config, self.folder.path)
        except PamsError:
            if not existed and not self.damaged:
                raise
        else:
            assert not existed

    @precondition(lambda self: self.folder.last.exists())
    @rule(place=st.floats(0, 0.999), flip=st.integers(1, 255))
    def damaged_last(self, place: float, flip: int) -> None:
        content = bytearray(self.folder.last.read_bytes())
        content[int(place * len(content))] ^= flip
        self.folder.last.write_bytes(content)
        self.damaged = True

    @precondition(lambda self: self.folder.last.exists())
    @rule()
    def deleted_last(self) -> None:
        """Without its last checkpoint the run starts from the beginning."""
        self.folder.last.unlink()
        self.damaged = False

    @rule()
    def predicted(self) -> None:
        cohort = reference()["cohort"]
        try:
            found = predict([self.folder], cohort / "manifest.csv", split="test", features=cohort / "bags")
        except PamsError:
            return
        assert np.isfinite(found.probabilities[-1]).all()
        if self.folder.status().get("state") == "finished":
            right = predict([reference()["run"]], cohort / "manifest.csv", split="test", features=cohort / "bags")
            np.testing.assert_array_equal(found.probabilities[-1], right.probabilities[-1])

    @invariant()
    def finished_means_right(self) -> None:
        folder = getattr(self, "folder", None)
        if folder is None or folder.status().get("state") != "finished":
            return
        assert same_weights(folder.best, reference()["run"] / "best.safetensors")


RunMachine.TestCase.settings = settings(
    max_examples=6, stateful_step_count=8, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRunFolder = RunMachine.TestCase
