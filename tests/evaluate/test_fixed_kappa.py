"""κ fixed on validation slides, against every κ tried in turn."""

from __future__ import annotations

import numpy as np
import pytest
from tests.engine.cohort import make_cohort, run, settings
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.cli.main import app
from pams_mil.errors import PredictionsError
from pams_mil.evaluate.decisions.decide import at_fixed_kappa, matching_kappa, redecide
from pams_mil.evaluate.predictions.predictions import Predictions

TREE = ClassHierarchy.flat(["a", ["b", "c"], "d"])


def _model(rng, n, name="model"):
    p = rng.dirichlet(np.ones(4), n)
    ids = tuple(f"s{row}" for row in range(n))
    return Predictions(name, TREE, ids, rng.integers(0, 4, n), p.argmax(1), p, ids)


def _false_alarms(parts):
    ranks, raised, slides = TREE.ranks(), 0, 0
    for part in parts:
        for true, called in zip(part.target, part.predicted, strict=True):
            raised += bool(ranks[called] > ranks[true])
            slides += 1
    return raised / slides


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 20))])
def test_no_larger_kappa_raises_as_few_false_alarms(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, 3)
    reference, candidate = ([_model(rng, n) for n in sizes] for _ in range(2))
    allowed, kappa = _false_alarms(reference), matching_kappa(reference, candidate)

    def raised(other):
        return _false_alarms([redecide(part, f"kappa={float(other)!r}") for part in candidate])

    if kappa > 0:
        assert raised(kappa) <= allowed
    for other in (*np.geomspace(1e-3, 1e3, 60), np.inf):
        if other > kappa:
            assert raised(other) >= raised(kappa)
    larger = [other for other in np.geomspace(max(kappa, 1e-4), 1e5, 120)[1:] if raised(other) <= allowed]
    assert not larger or raised(max(larger)) == raised(kappa)


def test_what_has_no_probabilities_has_no_operating_point():
    rng = np.random.default_rng(0)
    one = _model(rng, 3)
    bare = Predictions("bare", TREE, one.slide_ids, one.target, one.predicted)
    with pytest.raises(PredictionsError, match="bare has no probabilities"):
        matching_kappa([one], [bare])
    assert matching_kappa([bare], [one]) >= 0
    named = at_fixed_kappa(one, 0.5, reference="CE", split="val")
    assert named.name == "model, κ = 0.5 from val"
    assert "no part in it" in named.notes[-1]


def test_runs_are_scored_as_decided_and_with_kappa_from_validation(tmp_path):
    cohort = make_cohort(tmp_path / "cohort")
    runs = [str(run(settings(cohort, epochs=1, method=method), tmp_path / method)) for method in ("ce", "pams")]
    command = ["evaluate", *runs, "--resamples", "20", "--out", str(tmp_path / "report")]
    done = CliRunner().invoke(app, [*command, "--match-on", "val"])
    assert done.exit_code == 0, done.output
    assert "from val" in " ".join((tmp_path / "report" / "report.html").read_text().split())
    for extra, words in ((["--match-on", "test"], "other slides than those that are scored"),):
        refused = CliRunner().invoke(app, [*command, *extra])
        assert refused.exit_code == 2
        assert words in " ".join(refused.output.split())
    alone = CliRunner().invoke(app, ["evaluate", runs[0], "--match-on", "val"])
    assert "at least two" in " ".join(alone.output.split())
