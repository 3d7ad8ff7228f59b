"""Every model is trained as a whole by the training loop itself, and the check refuses one that is not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.engine.cohort import make_cohort, run, settings
from tests.models.training import check_training_moves_everything
from tests.reference import pooling as reference

from pams_mil import discover
from pams_mil.data.tables import read_table
from pams_mil.engine.learner import joined_terms
from pams_mil.engine.prediction.predict import predict
from pams_mil.engine.run.spec import RunSpec
from pams_mil.errors import ConfigError, ParameterError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models import BagBatch, create_model
from pams_mil.models.abmil import ABMIL

MODELS = discover.available("models")
METHODS = discover.available("methods")
OWN_HEADS = [name for name in MODELS if discover.load("models", name).own_head]
TREE = ClassHierarchy.load("bracs")


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    return make_cohort(tmp_path_factory.mktemp("cohort"), sizes={"val": 4, "test": 4})


@pytest.mark.parametrize("method", ["pams", "haf", "chang", "hxe"])
@pytest.mark.parametrize("name", MODELS)
def test_training_moves_every_parameter(cohort, tmp_path, name, method):
    """One method per kind of towers and heads: one tower per level, shared and normalized, shared and split, finest."""
    if name in OWN_HEADS and method in ("haf", "chang"):
        with pytest.raises(ConfigError, match=f"{method}' does not fit the model '{name}'.*'abmil', or another method"):
            check_training_moves_everything(cohort, tmp_path / "run", name, method=method)
        assert not (tmp_path / "run").exists()
        return
    chosen = {"name": method, "remix": None} if name == "linear" else method  # it reads slide vectors: nothing to remix
    check_training_moves_everything(cohort, tmp_path / "run", name, method=chosen)


@pytest.mark.parametrize("pooling", ["smooth_max", "mean"])
def test_training_moves_every_parameter_of_every_pooling(cohort, tmp_path, pooling):
    check_training_moves_everything(cohort, tmp_path / "run", "priority", method="ce", pooling=pooling)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_the_model_of_urgency_or_says_why_not(cohort, tmp_path, method):
    out, model = tmp_path / "run", {"name": "priority", "embedding_features": 8, "attention_features": 4}
    if method in ("haf", "chang", "corn"):
        with pytest.raises(ConfigError, match="does not fit the model 'priority'"):
            run(settings(cohort, epochs=1, model=model, method=method), out)
        assert not out.exists()
        return
    found = predict([run(settings(cohort, epochs=1, model=model, method=method), out)], cohort / "manifest.csv")
    finest = found.probabilities[-1]
    assert finest[:, :2].sum(1) == pytest.approx(found.probabilities[0][:, 0])
    assert not found.disagreements()
    assert not (out / "predictions_group.csv").exists()


@pytest.mark.parametrize(("name", "own"), [("priority", (1,)), ("abmil", (0, 1))])
def test_levels_that_are_sums_follow_the_finest_also_when_it_is_calibrated(name, own):
    learner = RunSpec({"method": {"name": "ce"}, "model": {"name": name}}, TREE, {}, {"width": 4}, {}).build()
    assert learner.own_levels == own
    coarse, fine = np.array([[0.7, 0.2, 0.1]]), np.array([[0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.4]])
    expected = coarse if 0 in own else np.array([[0.3, 0.2, 0.5]])
    assert learner.at_level([coarse, fine], 0) == pytest.approx(expected)


def test_answers_of_a_chain_cannot_be_summed_over_classes(cohort, tmp_path):
    model = {"name": "clam_mb", "embedding_features": 8, "attention_features": 4}
    with pytest.raises(ConfigError, match="'corn' does not fit the model 'clam_mb'"):
        run(settings(cohort, model=model, method={"name": "corn", "towers": "shared"}), tmp_path / "run")


class Spectator(ABMIL):
    """Sabotage: owns a layer that its forward pass never uses."""

    def __init__(self, *, in_features, num_classes, embedding_features=16, head="linear"):
        super().__init__(
            in_features=in_features, num_classes=num_classes, embedding_features=embedding_features, head=head
        )
        self.unused = torch.nn.Linear(2, 2)


class Halted(ABMIL):
    """Sabotage: uses all its layers, but cuts the gradient of one."""

    def embed(self, batch, **options):
        for parameter in self.projection.parameters():
            parameter.requires_grad_(False)
        return super().embed(batch, **options)


@pytest.mark.parametrize("saboteur", ["Spectator", "Halted"])
def test_a_model_with_parameters_that_its_training_never_moves_is_refused(cohort, tmp_path, saboteur):
    with pytest.raises(AssertionError, match="training never moves"):
        check_training_moves_everything(cohort, tmp_path / "run", f"tests.models.test_training:{saboteur}")


@pytest.mark.parametrize(
    ("name", "method"), [*(("clam_sb", m) for m in METHODS), ("clam_mb", "ce"), ("clam_mb", "corn")]
)
def test_clam_trains_its_instance_heads_with_every_method(cohort, tmp_path, name, method):
    check_training_moves_everything(cohort, tmp_path / "run", name, method=method)
    terms = [float(value) for value in read_table(tmp_path / "run/metrics.csv")["instance"]]
    assert all(value > 0 for value in terms)


def test_without_weight_the_instance_loss_is_left_out(cohort, tmp_path):
    model = {"name": "clam_sb", "embedding_features": 8, "attention_features": 4, "instance_weight": 0.0}
    out = run(settings(cohort, epochs=1, model=model), tmp_path / "run")
    assert "instance" not in read_table(out / "metrics.csv")
    with pytest.raises(ParameterError, match="instance_weight must be"):
        create_model("clam_sb", in_features=2, num_classes=2, instance_weight=-1.0)


@pytest.mark.parametrize("name", ["clam_sb", "clam_mb"])
@pytest.mark.parametrize("subtyping", [False, True])
@pytest.mark.parametrize("towers", ["per_level", "shared", "finest"])
def test_the_learner_adds_the_instance_loss_of_the_loops(towers, subtyping, name):
    """Two bags, two labels with weights; every level of towers of their own, the finest of a shared tower."""
    model = {
        "name": name, "embedding_features": 6, "attention_features": 3, "dropout": 0.0,
        "instance_weight": 0.7, "instance_samples": 2, "subtyping": subtyping,
    }  # fmt: skip
    torch.manual_seed(0)
    settings = {"method": {"name": "ce", "towers": towers}, "model": model}
    learner = RunSpec(settings, TREE, {}, {"width": 4}, {}).build().double().train()
    bags = [torch.randn(5, 4).double(), torch.randn(3, 4).double()]
    targets, weights = torch.tensor([[6, 1], [2, 4]]), torch.tensor([[0.75, 1.0], [0.25, 0.0]]).double()
    terms = learner(torch.cat(bags), (5, 3), ("s", "t"), (0, 1), targets, weights)
    expected = 0.0
    levels = {"per_level": [0, 1], "shared": [1], "finest": [1]}[towers]
    for position, level in enumerate(levels):
        state = {key: value.detach().numpy() for key, value in learner.model.towers[position].state_dict().items()}
        for label in range(2):
            for bag in range(2):
                true = int(TREE.lift(int(targets[label, bag]), level))
                value = reference.clam_instance_loss(
                    bags[bag].numpy(),
                    state,
                    true,
                    samples=2,
                    classes=TREE.num_classes(level),
                    subtyping=subtyping,
                    several=name == "clam_mb",
                )
                expected += 0.7 * float(weights[label, bag]) * value / 2
    assert terms["instance"].item() == pytest.approx(expected, rel=1e-12)
    learner.eval()
    assert all(output.auxiliary is None for output in learner.model(BagBatch.pack(bags)))


def test_terms_of_method_and_model_must_not_hide_each_other():
    one = torch.ones(())
    assert set(joined_terms({"ce": one}, {"instance": one})) == {"ce", "instance"}
    with pytest.raises(ParameterError, match="both have a loss term called 'ce'"):
        joined_terms({"ce": one}, {"ce": one})
