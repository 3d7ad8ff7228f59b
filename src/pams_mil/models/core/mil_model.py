"""What every model shares: bags in, one `LevelOutput` out, checked input, a head that can be replaced.

A model is two parts. `embed` turns each bag into a vector (for DTFD also one vector per pseudo-bag), and
a head turns vectors into logits (`score`). Towers that serve several levels call `embed` once and own many heads. A
model that looks at a bag once per class or question has a head of its own, and coarser levels are sums of its classes.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Required, TypedDict

from torch import Tensor, nn

from pams_mil.errors import Count
from pams_mil.models.core.batch import BagBatch
from pams_mil.models.core.heads import Head, Scored, make_head
from pams_mil.models.core.inputs import as_batch

Auxiliary = Callable[[Tensor], Mapping[str, Tensor]]
"""Classes [b] of the bags -> named values [b], already weighted, that are added to the loss of a training step."""


@dataclass(frozen=True)
class LevelOutput:
    """What a level's objective, prediction and heat map need.

    Attributes:
        logits: [b, c]
        embedding: [b, e], what the head saw.
        attention: [sum n_i], sums to 1 within each bag; only on request.
        weight: [c, e], the rows of the head's weight as used; None where no rows belong to the classes.
        tier1_logits: [g, c] of DTFD's pseudo-bags.
        tier1_bag: [g], the bag each pseudo-bag belongs to.
        auxiliary: what the model itself adds to its training loss; None for nothing, and in evaluation.
        findings: [b, k], one logit per finding, where slides have several; of the finest level only.
    """

    logits: Tensor
    embedding: Tensor
    attention: Tensor | None = None
    weight: Tensor | None = None
    tier1_logits: Tensor | None = None
    tier1_bag: Tensor | None = None
    auxiliary: Auxiliary | None = None
    findings: Tensor | None = None


@dataclass(frozen=True)
class Embedded:
    """Bags as vectors, before any head.

    Attributes:
        vectors: [r * b, e]; r > 1 when a model looks at every bag several times (DTFD's splits). A model with a head of
            its own may put several vectors, or what they score, side by side.
        attention: [sum n_i] or None.
        tier1_vectors: [g, e] of pseudo-bags, or None.
        tier1_bag: [g], or None.
        repeats: r.
        auxiliary: as in `LevelOutput`, for classes of the finest level that the model serves.
    """

    vectors: Tensor
    attention: Tensor | None = None
    tier1_vectors: Tensor | None = None
    tier1_bag: Tensor | None = None
    repeats: int = 1
    auxiliary: Auxiliary | None = None


class Widths(TypedDict, total=False):
    """What every model takes, see `MILModel`: a subclass hands it on as `**widths`."""

    in_features: Required[int]
    num_classes: Required[int]
    embedding_features: int
    head: str


class MILModel(nn.Module, ABC):
    """A bag classifier: `model(bags) -> LevelOutput`, without a label, for bags of one instance or more.

    Args:
        in_features: feature width d.
        num_classes: c.
        embedding_features: width e of the vectors that `embed` returns, 512.
        head: "linear" or "normalized" (see `heads`).
    """

    own_head: ClassVar[bool] = False
    """Whether only the model itself can read its vectors; for coarser levels a shared tower sums its classes."""
    one_tower: ClassVar[bool] = False
    """Whether one tower serves all levels, also where a method would train one per level."""
    of_classes: ClassVar[tuple[str, ...]] = ("head.", "tier1_head.", "instance_heads.")
    """How the names of weights begin that another number of classes would give another shape."""
    packs: ClassVar[bool] = False
    """Whether several bags may go through one pass with the outcome of a pass each.

    Not where the model draws from torch's generator (dropout), which is seeded for every bag, and not where it
    would gain nothing.
    """
    ranks_instances: bool = False
    """Whether `embed` needs a tier-1 head."""
    judges_instances: bool = False
    """Whether a bag's answer is composed of answers of its instances, so that each has one of its own."""
    graph_refusal: str = ""
    """Why no graph of this model can be written, as the end of a sentence; empty when one can."""
    graph_partitions: int = 0
    """How many partitions into pseudo-bags a graph of this model takes besides the features."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Show the parameters of this class in the signature of a subclass that takes them as `**widths`."""
        super().__init_subclass__(**options)
        if "__init__" not in cls.__dict__:
            return
        own = inspect.signature(cls.__init__).parameters
        shown = [parameter for name, parameter in own.items() if name not in ("self", "widths")]
        if "widths" in own:
            _, *first, head = inspect.signature(MILModel.__init__).parameters.values()
            shown = [*first, *shown, head]
        # Also without **widths: else a subclass of a subclass would show what its parent takes.
        cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]

    def __init__(
        self, *, in_features: Count, num_classes: Count, embedding_features: Count = 512, head: str = "linear"
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.num_classes = num_classes
        self.embedding_features = embedding_features
        # Of what `embed` returns for a bag; more where several vectors stand side by side.
        self.vector_features = embedding_features
        self.head: Head = make_head(head, embedding_features, num_classes)
        self.tier1_head: Head | None = None

    def trace(self, features: Tensor, groups: Tensor | None = None) -> Embedded:
        """Vectors of one bag [n, d] while a graph is traced, in operations that hold for every n.

        Args:
            features: [n, d]
            groups: [graph_partitions, n], the pseudo-bag of every instance.
        """
        return self.embed(BagBatch(features, (features.shape[0],), ("",)))

    @abstractmethod
    def embed(self, batch: BagBatch, *, attention: bool = False, tier1_head: Head | None = None) -> Embedded:
        """Vectors of checked bags; the head is what a two-tier model ranks instances with."""

    def forward(self, bags: BagBatch | Tensor, *, mask: Tensor | None = None, attention: bool = False) -> LevelOutput:
        """Logits of every bag.

        Args:
            bags: packed bags, one bag [n, d], or padded bags [b, n, d].
            mask: [b, n], true where a row of padded bags is an instance; without one every row counts, and bags that
                end in rows of zeros are refused.
            attention: also return the attention of every instance.
        """
        batch = as_batch(bags, mask=mask, in_features=self.in_features)
        embedded = self.embed(batch, attention=attention, tier1_head=self.tier1_head)
        tier1 = None
        if self.tier1_head is not None and embedded.tier1_vectors is not None:
            tier1 = self.tier1_head(embedded.tier1_vectors)
        return level_output(embedded, self.score(embedded), tier1)

    def score(self, embedded: Embedded) -> Scored:
        """What the model's own head makes of its vectors."""
        return Scored(self.head(embedded.vectors), embedded.vectors, self.head.rows())


def level_output(embedded: Embedded, scored: Scored, tier1_logits: Tensor | None = None) -> LevelOutput:
    """A level's output; repeated looks at a bag are averaged as probabilities, in log space."""
    logits, vectors, rows = scored
    if embedded.repeats > 1:
        # Right for a softmax alone. Runs of a method that reads logits in another way (CORN) refuse several splits.
        log_p = logits.reshape(embedded.repeats, -1, logits.shape[-1]).log_softmax(-1)
        logits = log_p.logsumexp(0) - math.log(embedded.repeats)
        vectors = vectors.reshape(embedded.repeats, -1, vectors.shape[-1]).mean(0)
    return LevelOutput(logits, vectors, embedded.attention, rows, tier1_logits, embedded.tier1_bag, embedded.auxiliary)
