"""What every remix strategy takes and returns.

    strategy(a, b, generator) -> Mixed

`a` is the bag whose label the result carries (the more urgent one where urgency decides the pair), `b` the other.
The inputs are never written to, the result is a function of the two bags and the generator alone, and every row
says where it came from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from pams_mil import discover
from pams_mil.errors import ConfigError, ParameterError, refuse_unknown, require_choice, require_number
from pams_mil.ops import at_least_float32

PartnerRule = Literal["keep_label", "urgent_label", "same_class", "any"]
"""Which bags may be paired: strictly less or more urgent ones (the more urgent is a), less urgent ones and others of
its class (the drawn one is a), those of the same class, or any other bag."""

FROM_A, FROM_B, SYNTHETIC = 0, 1, -1


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


@runtime_checkable
class Remix(Protocol):
    """A remix strategy; hyper-parameters are the fields of a frozen dataclass."""

    @property
    def partner(self) -> PartnerRule:
        """Which bags this strategy may be given."""
        ...

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """The bag made of `a` and `b`; strategies that need evidence take it by keyword."""
        ...


def widened(bag: Tensor) -> Tensor:
    """The rows in the precision of the arithmetic: half precision becomes float32; refused where not finite.

    >>> widened(torch.ones(2, 3, dtype=torch.float16)).dtype
    torch.float32
    """
    check_bag(bag, "the bag")
    values = at_least_float32(bag.detach()).contiguous()
    # One pass over the rows where all is well, as nearly always; the row is looked for only after that.
    if not torch.isfinite(values.sum()):
        row = int((~torch.isfinite(values).all(1)).nonzero()[:1].sum())
        raise ParameterError(
            f"The bag has a value that is not finite in row {row} of {len(bag)} (or its rows overflow when summed). "
            "Expected finite features; check the feature file with 'pams check'."
        )
    return values


def check_bag(bag: Tensor, name: str) -> None:
    """Refuse what cannot be a bag: not [n, d], no rows, no columns, not floating point."""
    if bag.ndim != 2 or bag.shape[0] < 1 or bag.shape[1] < 1 or not bag.is_floating_point():
        raise ParameterError(
            f"A remix needs bags of shape [n, d] with n >= 1 and d >= 1 in floating point; "
            f"found {name} with shape {list(bag.shape)} and type {bag.dtype}."
        )


def check_pair(a: Tensor, b: Tensor) -> None:
    """Refuse two bags that cannot be joined, and say why."""
    check_bag(a, "the first bag")
    check_bag(b, "the second bag")
    if a.shape[1] != b.shape[1]:
        raise ParameterError(
            f"The two bags have features of different width: {a.shape[1]} and {b.shape[1]}. "
            "A remix joins rows of both, so they must come from the same encoder."
        )


def shuffled(count: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """0 to count - 1 in random order, on the device of `like`, drawn where the generator lives."""
    return torch.randperm(count, generator=generator, device=generator.device).to(like.device)


def uniform(generator: torch.Generator, *shape: int) -> Tensor:
    """Numbers from [0, 1) in double precision, where the generator lives."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


def take(a: Tensor, b: Tensor, chosen: Tensor, *, live_clusters: int | None = None) -> Mixed:
    """All rows of b followed by the `chosen` rows of a, labeled as a: what SFR and RandomMix return.

    >>> take(torch.tensor([[1.0], [2.0]]), torch.tensor([[9.0]]), torch.tensor([1])).features.tolist()
    [[9.0], [2.0]]
    """
    origin_bag = torch.full((len(b) + len(chosen),), FROM_A, dtype=torch.int8, device=b.device)
    origin_bag[: len(b)] = FROM_B
    origin_row = torch.cat([torch.arange(len(b), device=b.device), chosen])
    features = torch.cat([b.detach(), a.detach().index_select(0, chosen)])
    return Mixed(features, origin_bag, origin_row, live_clusters=live_clusters)


def create_remix(name: str | None, **options: Any) -> Remix:
    """A remix strategy by its name, with options by keyword; None is the strategy that changes nothing.

    >>> create_remix("randommix", tau=15).partner
    'keep_label'
    """
    strategy = discover.load("remix", name or "none")
    plain = inspect.isfunction(strategy)
    # The first two parameters of a function are the bags.
    known = list(inspect.signature(strategy).parameters)[2 if plain else 0 :]
    refuse_unknown(f"The remix {name!r}", options, known, error=ConfigError)
    remix: Remix = FunctionRemix(strategy, options) if plain else strategy(**options)
    require_choice(f"{name}.partner", remix.partner, get_args(PartnerRule))
    return remix


@dataclass(frozen=True)
class FunctionRemix:
    """A plain function of two bags as a strategy: it returns rows [m, d], rows and a's weight, or a `Mixed`."""

    function: Callable[..., Any]
    options: Mapping[str, Any]

    @property
    def partner(self) -> PartnerRule:
        """What the function's attribute `partner` says."""
        rule: PartnerRule = getattr(self.function, "partner", "keep_label")
        return rule

    def __call__(self, a: Tensor, b: Tensor, generator: torch.Generator) -> Mixed:
        """What the function makes of the bags; torch's global generator is seeded from this one meanwhile."""
        check_pair(a, b)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=generator, device=generator.device)))
            bag = self.function(a.detach().clone(), b.detach().clone(), **self.options)
        if isinstance(bag, Mixed):
            return bag
        rows, weight = bag if isinstance(bag, tuple) and len(bag) == 2 else (bag, 1.0)
        if not isinstance(rows, Tensor):
            raise ParameterError(f"A remix must return rows [m, d] as a tensor, found {type(rows).__name__}.")
        check_bag(rows, "what the remix returned")
        require_number("the weight of the first bag's label", weight, at_least=0, at_most=1)
        if rows.shape[1] != a.shape[1]:
            raise ParameterError(f"A remix must return rows of width {a.shape[1]}, found {rows.shape[1]}.")
        unknown = torch.full((len(rows),), SYNTHETIC, device=rows.device)
        return Mixed(rows.detach(), unknown.to(torch.int8), unknown, float(weight))
