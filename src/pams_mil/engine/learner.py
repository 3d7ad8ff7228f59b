"""Model and objective as one module: bags and labels in, named loss terms out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pams_mil import seeding
from pams_mil.errors import ConfigError, NotFiniteError, ParameterError, listing
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.findings_loss import FindingsTerm
from pams_mil.methods.objective import Objective, auxiliary_terms
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.factory import untouched
from pams_mil.models.core.hierarchical import HierarchicalModel
from pams_mil.models.core.mil_model import LevelOutput

HIDDEN = 0.6
"""The chance that an instance among the most attended ones is hidden from a training step."""


def kept_beside_attended(attention: Tensor, share: float, seed: int) -> Tensor:
    """Which rows of a bag a training step sees, as flags [n], when most of the most attended ones are hidden.

    Of the ⌈share · n⌉ rows with the most attention, at most n − 1, each is hidden with the probability `HIDDEN`.

    >>> kept_beside_attended(torch.tensor([0.1, 0.6, 0.2, 0.1]), 0.25, seed=1)[[0, 2, 3]].tolist()
    [True, True, True]
    """
    count = min(len(attention) - 1, math.ceil(share * len(attention)))
    top = attention.argsort(descending=True, stable=True)[:count]
    hidden = torch.rand(count, generator=seeding.generator(seed, "attended")) < HIDDEN
    kept = torch.ones(len(attention), dtype=torch.bool, device=attention.device)
    kept[top[hidden.to(top.device)]] = False
    return kept


class Learner(nn.Module):
    """What is trained. The loss is computed inside `forward`, so that data-parallel wrappers see all of it.

    `levels` are those that are trained, coarsest first, each an output of the model; `findings` is the loss of several
    findings per slide, None where a slide has one.
    """

    ancestors: Tensor
    drop_attended: float | None = None
    """Share of the most attended instances of which training steps hide most, see `kept_beside_attended`."""

    def __init__(
        self,
        model: HierarchicalModel,
        objective: Objective,
        hierarchy: ClassHierarchy,
        levels: Sequence[int],
        findings: FindingsTerm | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.objective = objective
        self.hierarchy = hierarchy
        self.levels = tuple(levels)
        self.findings = findings
        ancestors = torch.stack([torch.from_numpy(hierarchy.groups(level)) for level in self.levels])
        # [levels, classes]; made of the hierarchy, so it is not part of a checkpoint.
        self.register_buffer("ancestors", ancestors, persistent=False)

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return self.ancestors.device

    @property
    def packs(self) -> bool:
        """Whether several bags may go through one pass with the outcome of a pass each.

        An objective with a state remembers bags, so that the next one must come after it.
        """
        return self.model.packs and not self.objective.state_dict()

    def forward(
        self,
        features: Tensor,
        sizes: tuple[int, ...],
        keys: tuple[str, ...],
        seeds: tuple[int, ...],
        targets: Tensor,
        weights: Tensor | None,
        origins: Tensor | None = None,
        findings: tuple[tuple[int, ...], ...] = (),
    ) -> dict[str, Tensor]:
        """Weighted terms, averaged over the bags, whose sum is the loss: the method's, and what the model adds.

        Plain arguments, since what Fabric wraps around the learner converts tensors and refuses frozen dataclasses.

        Args:
            features: [sum n_i, d]
            sizes: n_i of every bag.
            keys: Slide ids.
            seeds: Of the model's random choices.
            targets: [k, b] finest classes; k > 1 when a bag carries several labels.
            weights: [k, b] how much each label counts; None: all 1.
            origins: [sum n_i] which of two remixed bags each row is from; None: no bag is a remix.
            findings: What was found in each bag, where slides have several findings.
        """
        batch = BagBatch(features, sizes, keys, seeds, origins)
        outputs = self.model(self.without_attended(batch) if self.training and self.drop_attended else batch)
        total: dict[str, Tensor] = {}
        # One round per label that a bag carries (a mixed bag has two): the outputs are computed once, the terms add up.
        for number, target in enumerate(targets):
            weight = None if weights is None else weights[number]
            lifted = self.lift(target)
            terms = joined_terms(self.objective(outputs, lifted, weight), auxiliary_terms(outputs, lifted, weight))
            total = {name: total[name] + value for name, value in terms.items()} if total else terms
        return joined_terms(total, self.finding_terms(outputs, findings))

    def without_attended(self, batch: BagBatch) -> BagBatch:
        """The bags without most of what the model attends to most at the finest level."""
        with untouched(self.model):
            attention = self.model(batch, attention=True)[-1].attention
        if attention is None:
            raise ConfigError("training.drop_attended needs a model with attention, and this one has none.")
        share = self.drop_attended or 0.0
        pairs = zip(batch.split(attention), batch.seeds, strict=True)
        kept = [kept_beside_attended(bag, share, seed) for bag, seed in pairs]
        rows = torch.cat(kept)
        sizes = tuple(int(flags.sum()) for flags in kept)
        origins = None if batch.origins is None else batch.origins[rows]
        return BagBatch(batch.features[rows], sizes, batch.keys, batch.seeds, origins)

    def finding_terms(self, outputs: Sequence[LevelOutput], findings: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        """The loss of several findings, averaged over the bags; empty where a slide has one."""
        logits = outputs[-1].findings
        if self.findings is None or logits is None:
            return {}
        present = torch.zeros_like(logits)
        for row, members in enumerate(findings):
            present[row, list(members)] = 1.0
        terms = self.findings(outputs[-1].logits, logits, present)
        return {name: value.mean() for name, value in terms.items()}

    def lift(self, target: Tensor) -> list[Tensor]:
        """Finest classes [b] as the classes of every trained level."""
        return list(self.ancestors[:, target])

    def at_level(self, trained: Sequence[npt.NDArray[np.float64]], level: int) -> npt.NDArray[np.float64]:
        """Probabilities [n, c] of any level, of its own output or summed, from those of the trained ones in order."""
        own = level in self.own_levels
        return trained[self.levels.index(level)] if own else self.hierarchy.summed(trained[-1], level)

    @torch.inference_mode()
    def predict(
        self,
        batch: BagBatch,
        *,
        attention: bool = False,
        targets: Tensor | None = None,
        findings: Sequence[Sequence[int]] = (),
    ) -> Prediction:
        """Probabilities of every trained level; the module must be in evaluation mode.

        With targets [b], the finest classes, also the loss; `findings` are what was found in each bag, if several.

        Raises:
            NotFiniteError: where a bag has a logit, probability or attention that is not a finite number.
        """
        outputs = self.model(batch, attention=attention)
        weights = None
        if attention:
            weights = [None if output.attention is None else output.attention.float().cpu() for output in outputs]
        probabilities = [level.cpu().double() for level in self.objective.probabilities(outputs)]
        refuse_non_finite(batch, outputs, probabilities)
        logits = outputs[-1].findings
        loss = None
        if targets is not None:
            terms = joined_terms(self.objective(outputs, self.lift(targets)), self.finding_terms(outputs, findings))
            loss = float(torch.stack(list(terms.values())).sum())
        return Prediction(probabilities, weights, loss, None if logits is None else logits.sigmoid().cpu().double())

    @property
    def own_levels(self) -> tuple[int, ...]:
        """Trained levels with an output of their own; the finest alone where the model sums its classes for others."""
        return self.levels[-1:] if self.model.coarse_sizes else self.levels

    def parts(self) -> list[nn.Module]:
        """The separately clipped parts: every child of every tower, and heads beside towers."""
        model = self.model
        modules = [child for tower in model.towers for child in tower.children()]
        modules += [heads for heads in (model.heads, model.tier1_heads, model.findings) if heads is not None]
        return [module for module in modules if any(True for _ in module.parameters())]


def joined_terms(method: dict[str, Tensor], model: dict[str, Tensor]) -> dict[str, Tensor]:
    """The terms of a method and of a model; a name that both use would hide one of them."""
    both = method.keys() & model.keys()
    if both:
        raise ParameterError(f"Method and model both have a loss term called {listing(both)}; rename one of them.")
    return {**method, **model}


@dataclass(frozen=True)
class Prediction:
    """Probabilities [b, c] per trained level, coarsest first; on request attention [sum n_i] per level and the loss.

    `findings` [b, k] are the probabilities of single findings, where slides have several.
    """

    probabilities: list[Tensor]
    attention: list[Tensor | None] | None = None
    loss: float | None = None
    """The mean over the bags of the pass."""
    findings: Tensor | None = None

    def apart(self, batch: BagBatch) -> list[Prediction]:
        """The same, bag by bag."""
        if len(batch) == 1:
            return [self]
        maps = [None if level is None else batch.split(level) for level in self.attention or []]
        return [
            Prediction(
                [level[bag : bag + 1] for level in self.probabilities],
                None if self.attention is None else [None if level is None else level[bag] for level in maps],
                self.loss,
                None if self.findings is None else self.findings[bag : bag + 1],
            )
            for bag in range(len(batch))
        ]


def refuse_non_finite(batch: BagBatch, outputs: Sequence[LevelOutput], probabilities: Sequence[Tensor]) -> None:
    """Raise an error that names the first bag with a logit, probability or attention that is NaN or infinite."""
    for output, level in zip(outputs, probabilities, strict=True):
        outcome = {
            "logits": output.logits, "probabilities": level, "attention": output.attention, "findings": output.findings
        }  # fmt: skip
        for what, values in outcome.items():
            if values is None or all_finite(values):
                continue
            each = batch.split(values) if what == "attention" else list(values)
            index = next(number for number, bag in enumerate(each) if not all_finite(bag))
            raise NotFiniteError(
                f"Slide {batch.key(index) or index!r} has no prediction: the model's {what} for its "
                f"{batch.sizes[index]} instances are not finite numbers. Look at its features with 'pams check'; if "
                "other slides fail too, the fault is in the model."
            )


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite.

    >>> all_finite(torch.tensor([1.0])), all_finite(torch.tensor([1.0, float("nan")]))
    (True, False)
    """
    return bool(torch.isfinite(values).all())
