"""Every method trains on a toy problem, with one bag per step and with several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pams_mil import discover
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.models import BagBatch, HierarchicalModel

TREE = ClassHierarchy.load("bracs")
FEATURES = 12


def toy_bags():
    """Three bags per class; a class shows as a direction in some of its instances."""
    generator = torch.Generator().manual_seed(0)
    bags, labels = [], []
    for label in list(range(TREE.num_classes())) * 3:
        bag = 0.3 * torch.randn(6, FEATURES, generator=generator)
        bag[:3, label] += 2.0
        bags.append(bag)
        labels.append(label)
    return bags, np.asarray(labels)


def train(name, batch_size, steps):
    """(loss per epoch, accuracy at the finest level after training)."""
    torch.manual_seed(0)
    bags, labels = toy_bags()
    method = discover.load("methods", name)()
    levels = method.trained_levels(TREE)
    counts = [TREE.num_classes(level) for level in range(TREE.num_levels)]
    model = HierarchicalModel(
        "abmil", in_features=FEATURES, num_classes=counts, towers=method.towers, heads=method.heads,
        embedding_features=64, attention_features=16,
    )  # fmt: skip
    objective = method.objective(TREE)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    history = []
    for _ in range(steps):
        total = 0.0
        for start in range(0, len(bags), batch_size):
            chosen = slice(start, start + batch_size)
            targets = [torch.tensor(TREE.lift(labels[chosen], level)) for level in levels]
            terms = objective(model(BagBatch.pack(bags[chosen])), targets)
            loss = torch.stack(list(terms.values())).sum()
            assert loss.item() == pytest.approx(sum(term.item() for term in terms.values()), abs=1e-5)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        history.append(total)
    with torch.no_grad():
        probabilities = objective.probabilities(model.eval()(BagBatch.pack(bags)))[-1]
    return history, float((probabilities.argmax(-1).numpy() == labels).mean())


@pytest.mark.parametrize("name", discover.available("methods"))
@pytest.mark.parametrize(("batch_size", "epochs"), [(1, 5), (7, 14)])
def test_trains(name, batch_size, epochs):
    history, accuracy = train(name, batch_size, epochs)
    if name == "haf":  # its margin grows while the memory fills: compare after the first epoch
        history = history[1:]
    assert history[-1] < history[0]
    assert accuracy > 0.5  # chance is 1/7


@pytest.mark.parametrize("hierarchy", [TREE, ClassHierarchy.flat(["a", "b", "c"])], ids=["bracs", "flat"])
@pytest.mark.parametrize("model_name", ["dtfd", "transmil"])
@pytest.mark.parametrize("name", discover.available("methods"))
def test_one_step_with_every_architecture(name, model_name, hierarchy):
    torch.manual_seed(0)
    method = discover.load("methods", name)()
    counts = [hierarchy.num_classes(level) for level in range(hierarchy.num_levels)]
    small = {"embedding_features": 16, "landmarks": 4} if model_name == "transmil" else {}
    model = HierarchicalModel(
        model_name, in_features=FEATURES, num_classes=counts, towers=method.towers, heads=method.heads, **small
    )
    outputs = model(BagBatch.pack([torch.randn(9, FEATURES), torch.randn(5, FEATURES)]))
    targets = [
        torch.tensor(hierarchy.lift([0, hierarchy.num_classes() - 1], level))
        for level in method.trained_levels(hierarchy)
    ]
    terms = method.objective(hierarchy)(outputs, targets)
    torch.stack(list(terms.values())).sum().backward()
    untouched = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert not untouched
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
