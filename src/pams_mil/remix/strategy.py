"""What every remix strategy takes and returns.

    strategy(a, b, generator) -> Mixed

`a` is the bag whose label the result carries (the more urgent one where urgency decides the pair), `b` the other.
The inputs are never written to, the result is a function of the two bags and the generator alone, and every row
says where it came from. Bags may be plain tensors or, to save work over epochs, bags prepared once.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from pams_mil import discover
from pams_mil.errors import ConfigError, ParameterError, listing, nearest

PartnerRule = Literal["outranked", "same_class", "any"]
"""Which bags may be paired: strictly less or more urgent ones, those of the same class, or any other bag."""

FROM_A, FROM_B, SYNTHETIC = 0, 1, -1

_COPY_ALONE = 2**23
"""Up to so many values are copied by one thread. Torch's threads would be a little faster, but then go on spinning for
milliseconds, on cores that the next clustering wants."""
_NUMPY_TYPES = (torch.float16, torch.float32, torch.float64)


@dataclass(frozen=True)
class Mixed:
    """A remixed bag: its rows, where each came from, and how much of a's label it carries."""

    features: Tensor
    """[m, d], m >= 1."""
    origin_bag: Tensor
    """[m] int8: 0 = a, 1 = b, -1 = synthetic."""
    origin_row: Tensor
    """[m] int64: the row in its bag, -1 if synthetic."""
    weight_a: float = 1.0
    """Weight of a's label; b's label has the rest. 1 unless the strategy makes soft labels."""
    live_clusters: int | None = None
    """How many clusters were occupied, for strategies that cluster."""

    def rows_from(self, bag: int) -> Tensor:
        """Rows taken from a (0) or b (1), in the order they appear.

        >>> mixed = take(torch.zeros(3, 2), torch.ones(2, 2), torch.tensor([2, 0]))
        >>> mixed.rows_from(FROM_A).tolist(), mixed.rows_from(FROM_B).tolist()
        ([2, 0], [0, 1])
        """
        return self.origin_row[self.origin_bag == bag]


@dataclass(frozen=True)
class PreparedBag:
    """A bag with what clustering needs of it computed once: it can be kept and used again every epoch.

    Args:
        rows: [n, d] the features as given; rows of a remixed bag are copies of these.
        values: [n, d] the same in the precision of the arithmetic (half precision is widened once).
        inverse_norms: [n] 1 / |z_i|, 0 for a zero row.
        total: [d] the sum of the rows.
        evidence: [n] how much each row speaks for its slide's label (see `evidence`), or None when not scored.
    """

    rows: Tensor
    values: Tensor
    inverse_norms: Tensor
    total: Tensor
    evidence: Tensor | None = None

    def __len__(self) -> int:
        return self.rows.shape[0]


AnyBag = Tensor | PreparedBag


@runtime_checkable
class Remix(Protocol):
    """A remix strategy; hyper-parameters are the fields of a frozen dataclass."""

    @property
    def partner(self) -> PartnerRule:
        """Which bags this strategy may be given."""
        ...

    def __call__(self, a: AnyBag, b: AnyBag, generator: torch.Generator) -> Mixed:
        """The bag made of `a` and `b`."""
        ...


def rows_of(bag: AnyBag) -> Tensor:
    """The features of a bag, prepared or not."""
    return bag.rows if isinstance(bag, PreparedBag) else bag


def prepare(bag: AnyBag, *, evidence: Tensor | None = None) -> PreparedBag:
    """Compute norms and row sum of a bag; a bag that is prepared already is returned as it is.

    >>> bag = prepare(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    >>> bag.inverse_norms.tolist(), bag.total.tolist()
    ([0.20000000298023224, 0.0], [3.0, 4.0])
    """
    if isinstance(bag, PreparedBag):
        return bag if evidence is None else replace(bag, evidence=evidence)
    check_bag(bag, "the bag")
    if evidence is not None and evidence.shape != bag.shape[:1]:
        raise ParameterError(
            f"evidence must be one number per row, {list(bag.shape[:1])}, found shape {list(evidence.shape)}."
        )
    rows = bag.detach()
    values = (rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).contiguous()
    norms = torch.linalg.vector_norm(values, dim=1)
    total = values.sum(0)
    if not torch.isfinite(total).all():
        row = int((~torch.isfinite(values).all(1)).nonzero()[:1].sum())
        raise ParameterError(
            f"The bag has a value that is not finite in row {row} of {len(rows)} (or its rows overflow when summed). "
            "Expected finite features; check the feature file with 'pams check'."
        )
    inverse = torch.where(norms > 0, norms.clamp_min(torch.finfo(norms.dtype).tiny).reciprocal(), 0.0)
    return PreparedBag(rows=rows, values=values, inverse_norms=inverse, total=total, evidence=evidence)


def check_bag(bag: Tensor, name: str) -> None:
    """Refuse what cannot be a bag: not [n, d], no rows, no columns, not floating point."""
    if bag.ndim != 2 or bag.shape[0] < 1 or bag.shape[1] < 1 or not bag.is_floating_point():
        raise ParameterError(
            f"A remix needs bags of shape [n, d] with n >= 1 and d >= 1 in floating point; "
            f"found {name} with shape {list(bag.shape)} and type {bag.dtype}."
        )


def check_pair(a: AnyBag, b: AnyBag) -> tuple[Tensor, Tensor]:
    """The rows of two bags that can be joined, or an error that says why they cannot."""
    rows_a, rows_b = rows_of(a), rows_of(b)
    check_bag(rows_a, "the first bag")
    check_bag(rows_b, "the second bag")
    if rows_a.shape[1] != rows_b.shape[1]:
        raise ParameterError(
            f"The two bags have features of different width: {rows_a.shape[1]} and {rows_b.shape[1]}. "
            "A remix joins rows of both, so they must come from the same encoder."
        )
    return rows_a, rows_b


def take(a: AnyBag, b: AnyBag, chosen: Tensor, *, live_clusters: int | None = None) -> Mixed:
    """All rows of b followed by the `chosen` rows of a, labeled as a: what SFR and RandomMix return.

    >>> take(torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0]]), torch.tensor([1])).features.tolist()
    [[9.0], [2.0]]
    """
    rows_a, rows_b = check_pair(a, b)
    count = rows_b.shape[0]
    origin_bag = torch.full((count + len(chosen),), FROM_A, dtype=torch.int8, device=rows_b.device)
    origin_bag[:count] = FROM_B
    origin_row = torch.cat([torch.arange(count, device=rows_b.device), chosen])
    return Mixed(_join(rows_b.detach(), rows_a.detach(), chosen), origin_bag, origin_row, live_clusters=live_clusters)


def _join(rows_b: Tensor, rows_a: Tensor, chosen: Tensor) -> Tensor:
    """All rows of b, then those chosen of a; each is copied once."""
    count, total = len(rows_b), len(rows_b) + len(chosen)
    if rows_a.dtype != rows_b.dtype:
        return torch.cat([rows_b, rows_a.index_select(0, chosen)])
    joined = rows_b.new_empty(total, rows_b.shape[1])
    if joined.numel() <= _COPY_ALONE and joined.device.type == "cpu" and joined.dtype in _NUMPY_TYPES:
        into = joined.numpy()
        into[:count] = rows_b.numpy()
        np.take(rows_a.numpy(), chosen.numpy(), axis=0, out=into[count:], mode="clip")
    else:
        joined[:count] = rows_b
        torch.index_select(rows_a, 0, chosen, out=joined[count:])
    return joined


def check_option(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    """Refuse a choice that is not offered, naming those that are."""
    if value not in allowed:
        raise ParameterError(
            f"{name} must be one of {listing(allowed)}, found {value!r}.{nearest(str(value), allowed)}"
        )


def check_number(name: str, value: float, low: float, high: float = float("inf"), *, whole: bool = False) -> None:
    """Refuse a number outside [low, high], or a fraction where a count is needed."""
    number = isinstance(value, int) if whole else isinstance(value, (int, float))
    if not number or isinstance(value, bool) or not low <= value <= high:
        kind = "a whole number" if whole else "a number"
        limit = f"from {low} to {high}" if high != float("inf") else f"of at least {low}"
        raise ParameterError(f"{name} must be {kind} {limit}, found {value!r}.")


def create_remix(name: str | None, **options: Any) -> Remix:
    """A remix strategy by its name, with options by keyword; None is the strategy that changes nothing.

    >>> create_remix("randommix", tau=15).partner
    'outranked'
    """
    strategy = discover.load("remix", name or "none")
    known = inspect.signature(strategy).parameters
    for option in options:
        if option not in known:
            raise ConfigError(
                f"The remix {name!r} has no option {option!r}.{nearest(option, known)} Options: {listing(known)}."
            )
    remix: Remix = strategy(**options)
    return remix


PARTNER_RULES: tuple[str, ...] = get_args(PartnerRule)
