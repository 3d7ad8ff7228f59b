"""Anyone's torch module as a model: sizes by their names, bag by bag, attention where it gives one, refusals."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pams_mil.errors import ConfigError, ModelInputError
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models import BagBatch, HierarchicalModel, create_model


class Plain(nn.Module):
    """Logits [c] of a bag [n, d]."""

    def __init__(self, d: int, n_classes: int, activation: type[nn.Module] = nn.Tanh, dropout: float = 0.5) -> None:
        super().__init__()
        self.body = nn.Sequential(activation(), nn.Dropout(dropout), nn.Linear(d, n_classes))

    def forward(self, bag: Tensor) -> Tensor:
        return self.body(bag).mean(0)


class Batched(nn.Module):
    """Logits [1, c] of [1, n, d], and raw scores per class on request, as public code often does."""

    def __init__(self, in_dim: int, num_classes: int, embed_dim: int = 4) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(in_dim, embed_dim), nn.Linear(embed_dim, num_classes)

    def forward(self, bags: Tensor, return_attention: bool = False) -> object:
        batch, rows, _ = bags.shape
        scores = self.score(self.project(bags)).transpose(1, 2)
        logits = scores.reshape(batch, -1, rows).mean(2)
        return ({"logits": logits, "loss": None}, {"attention": scores if return_attention else None})


def test_a_plain_module_gives_the_same_logits_as_it_does_alone():
    for kind in (Plain, Batched):
        model = create_model(kind, in_features=5, num_classes=3).eval()
        bags = [torch.randn(rows, 5) for rows in (1, 3, 5, 9)]
        output = model(BagBatch.pack(bags), attention=True)
        for row, bag in zip(output.logits, bags, strict=True):
            alone = model.module(bag) if kind is Plain else model.module(bag[None])[0]["logits"][0]
            torch.testing.assert_close(row, alone)
    assert output.attention is not None
    assert [round(float(part.sum()), 5) for part in BagBatch.pack(bags).split(output.attention)] == [1.0] * 4


def test_attention_as_a_tuple_and_none_at_all():
    class Attending(Plain):
        def forward(self, bag: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(bag)[None], torch.arange(len(bag)).float()[:, None]

    output = create_model(Attending, in_features=2, num_classes=2)(torch.randn(5, 2), attention=True)
    assert output.attention is not None
    torch.testing.assert_close(output.attention, torch.arange(5) / 10)
    assert create_model(Plain, in_features=2, num_classes=2)(torch.randn(5, 2), attention=True).attention is None


def test_the_trial_leaves_modes_and_random_numbers_alone():
    model = create_model(Plain, in_features=4, num_classes=3).train()
    model.module.body[1].eval()
    torch.manual_seed(0)
    first = model(torch.randn(6, 4))
    torch.manual_seed(0)
    again = model(torch.randn(6, 4))
    torch.testing.assert_close(first.logits, again.logits)
    assert (model.module.training, model.module.body[1].training) == (True, False)


@pytest.mark.filterwarnings("ignore")
def test_a_module_of_padded_bags_is_traced():
    # A trial of [n, d] that failed inside of a trace ended the process.
    model = create_model(Batched, in_features=4, num_classes=3).eval().requires_grad_(False)
    traced = torch.jit.trace(lambda bag: model.trace(bag).vectors, torch.randn(6, 4))
    bag = torch.randn(9, 4)
    assert torch.allclose(traced(bag), model(bag).logits)


def test_gradients_reach_the_module_and_every_weight_is_its_own():
    model = create_model(Plain, in_features=4, num_classes=3)
    model(torch.randn(6, 4)).logits.sum().backward()
    assert all(weight.grad is not None for weight in model.parameters())
    assert all(name.startswith("module.") for name, _ in model.named_parameters())


def test_levels_and_findings():
    tree = ClassHierarchy.load("bracs")
    sizes = [tree.num_classes(level) for level in range(tree.num_levels)]
    for towers, count in (("per_level", len(sizes)), ("shared", 1), ("finest", 1)):
        model = HierarchicalModel(Plain, in_features=4, num_classes=sizes, towers=towers, hierarchy=tree).eval()
        assert len(model.towers) == count
        outputs = model(torch.randn(6, 4))
        assert [output.logits.shape[1] for output in outputs] == (sizes if towers != "finest" else sizes[-1:])
    several = ClassHierarchy.flat(["N", "UDH", "DCIS"], findings="several", nothing="N")
    model = HierarchicalModel(Plain, in_features=4, num_classes=[3], hierarchy=several)
    assert model(torch.randn(6, 4))[-1].findings.shape == (1, 2)


class ByTemplate(nn.Module):
    """The contract of MIL-Lab's models: `forward(h [B, M, D], loss_fn, label, ...)`, two dicts, scores [B, K, M]."""

    def __init__(self, in_dim: int = 1024, embed_dim: int = 6, num_classes: int = 2, num_heads: int = 2) -> None:
        super().__init__()
        self.embed, self.score = nn.Linear(in_dim, embed_dim), nn.Linear(embed_dim, num_heads)
        self.classifier = nn.Linear(embed_dim * num_heads, num_classes)

    def forward(
        self, h: Tensor, loss_fn: object = None, label: object = None, attn_mask: object = None,
        return_attention: bool = False, return_slide_feats: bool = False,
    ) -> tuple[dict, dict]:  # fmt: skip
        h = self.embed(h)
        scores = self.score(h).transpose(1, 2).exp()  # all above 0, and yet scores
        vector = torch.bmm(scores.softmax(-1), h).flatten(1)
        log = {"attention": scores if return_attention else None, "loss": -1}
        return {"logits": self.classifier(vector), "loss": None}, log


def test_the_contract_of_mil_lab():
    model, bag = create_model(ByTemplate, in_features=5, num_classes=3, embed_dim=4).eval(), torch.randn(7, 5)
    output = model(bag, attention=True)
    results, log = model.module(bag[None], return_attention=True)
    torch.testing.assert_close(output.logits, results["logits"])
    torch.testing.assert_close(output.attention, log["attention"][0].softmax(-1).mean(0).detach())
    assert model.module.classifier.in_features == 8  # an option of its own, by its name


class ByLabel(ByTemplate):
    """As MIL-Lab's CLAM and DTFD: no answer without a label and a loss, random groups, a loss of its own beside."""

    def __init__(self, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes=num_classes)
        self.instance = nn.Linear(in_dim, num_classes)

    def forward(self, h: Tensor, label: Tensor | None = None, loss_fn: object = None, **others: object) -> tuple:
        assert label is not None, "a label is required"
        rows = list(range(h.shape[1]))
        random.shuffle(rows)
        rows = np.random.permutation(rows).tolist()
        logits = super().forward(h[:, rows[: len(rows) // 2 + 1]] + torch.rand(()))[0]["logits"]
        own = nn.functional.cross_entropy(self.instance(h[0]).mean(0, keepdim=True), label)
        return {"logits": logits, "loss": 0.7 * loss_fn(logits, label) + 0.3 * own}, {"loss": own.item()}


def test_a_module_that_must_be_told_a_label_predicts_without_and_keeps_its_own_loss():
    model = create_model(ByLabel, in_features=5, num_classes=3)
    batch = BagBatch.pack([torch.randn(7, 5), torch.randn(4, 5)], keys=("s1", "s2"))
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    answers = [model.eval()(batch) for _ in range(2)]
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    torch.testing.assert_close(answers[0].logits, answers[1].logits, rtol=0, atol=0)  # what it draws, slide ids fix
    assert answers[0].auxiliary is None
    output = model.train()(batch.with_seeds([1, 2]))
    targets = torch.tensor([2, 0])
    terms = output.auxiliary(targets)
    expected = [
        0.3 * nn.functional.cross_entropy(model.module.instance(bag).mean(0), target)
        for bag, target in zip(batch.bags(), targets, strict=True)
    ]
    torch.testing.assert_close(terms["model"], torch.stack(expected))
    terms["model"].sum().backward()
    assert model.module.instance.weight.grad.abs().sum() > 0


def test_logits_that_depend_on_the_label_are_refused_and_failures_name_slide_and_line():
    class Leaks(ByTemplate):
        def forward(self, h: Tensor, label: Tensor | None = None, **others: object) -> tuple:
            return {"logits": super().forward(h)[0]["logits"] + label.float()}, {}

    with pytest.raises(ModelInputError, match="The logits of Leaks change with the label"):
        create_model(Leaks, in_features=5, num_classes=3)

    class Top(Plain):
        def forward(self, bag: Tensor) -> Tensor:
            return super().forward(bag[bag[:, 0].topk(3).indices])

    model = create_model(Top, in_features=5, num_classes=3)
    with pytest.raises(ModelInputError, match=r"Top fails on slide 's1', \[2, 5\]: .* \(test_adapter.py, line \d+\)"):
        model(BagBatch.single(torch.randn(2, 5), "s1"))


class OneLogit(nn.Module):
    """As torchmil's: `in_shape`, no number of classes, one logit [1] of [1, n, d], raw scores on request."""

    def __init__(self, in_shape: tuple[int, ...], att_dim: int = 3) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(in_shape[0], att_dim), nn.Linear(att_dim, 1)

    def forward(self, X: Tensor, return_att: bool = False) -> object:
        batch, _, _ = X.shape
        scores = self.last(self.hidden(X).tanh()).squeeze(-1) + 5.0
        logit = scores.mean(1).reshape(batch)
        return (logit, scores) if return_att else logit


def test_modules_of_one_logit_serve_any_number_of_classes():
    bag = torch.randn(6, 4)
    two = create_model(OneLogit, in_features=4, num_classes=2)
    output = two(bag, attention=True)
    alone, scores = two.module[0](bag[None], return_att=True)
    torch.testing.assert_close(output.logits.softmax(-1)[0, 1], alone.sigmoid()[0])
    # All scores are above 0, and yet no weights.
    torch.testing.assert_close(output.attention, scores[0].softmax(-1).detach())
    many = create_model(OneLogit, in_features=4, num_classes=5, att_dim=2)
    assert len(many.module) == 5
    torch.testing.assert_close(many(bag).logits[0], torch.cat([one(bag[None]) for one in many.module]))
    with pytest.raises(
        ModelInputError, match=r"found \[3\]. Its constructor has no parameter for the number of classes"
    ):
        create_model(lambda in_dim: nn.Sequential(nn.Linear(in_dim, 3), Mean()), in_features=4, num_classes=3)(bag)


class Mean(nn.Module):
    """The mean row."""

    def forward(self, bag: Tensor) -> Tensor:
        return bag.mean(0)


def test_options_are_known_by_name_and_what_settings_cannot_hold_stays_its_own():
    model = create_model(Plain, in_features=4, num_classes=3, dropout=0.1)
    assert model.module.body[1].p == 0.1
    with pytest.raises(ConfigError, match=r"'Plain' has no option 'drop'. Did you mean 'dropout'"):
        create_model(Plain, in_features=4, num_classes=3, drop=0.1)
    with pytest.raises(ConfigError, match="has no option 'activation'"):
        create_model(Plain, in_features=4, num_classes=3, activation=nn.ReLU)


def test_what_cannot_be_adapted_is_refused_in_a_sentence():
    class Needy(Plain):
        def __init__(self, d: int, out: int, width: int) -> None:
            super().__init__(d, out + width)

    class Other(Plain):
        def __init__(self, in_features: int, num_classes: int) -> None:
            super().__init__(in_features, num_classes + 1)

    cases = {
        "class of torch modules or a function": nn.Identity(),
        "no parameter for the width of the features; it has 'size', 'classes'": lambda size, classes: None,
        "must be or return a torch nn.Module, found str": lambda d, c: "text",
    }
    for message, kind in cases.items():
        with pytest.raises(ConfigError, match=message):
            create_model(kind, in_features=4, num_classes=3)
    with pytest.raises(ConfigError, match=r"needs the option 'width': set it with model.width=VALUE"):
        create_model(Needy, in_features=4, num_classes=3)
    with pytest.raises(ModelInputError, match=r"takes neither a bag \[n, d\] nor .* logits \[3\] .* found \[4\]"):
        create_model(Other, in_features=4, num_classes=3)(torch.randn(6, 4))
    with pytest.raises(ConfigError, match="no vector to put normalized heads on"):
        create_model(Plain, in_features=4, num_classes=3, head="normalized")
