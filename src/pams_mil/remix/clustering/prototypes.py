"""Cosine prototype clustering, shared by SFR and PseudoMix.

    s_i = cos(p, z_i), p the mean of all rows;   first clusters = L bins of s   (see `cosine_bins`)
    T times: p_l = mean of cluster l; z_i goes to the cluster of argmax_l cos(p_l, z_i)   (see `lloyd`)

The printed algorithm says argmin, which sends an instance to the least similar prototype and is no clustering;
we use argmax as its source (PseMix) does. `init="kmeans"` starts from L random instances instead of bins, and uses
FAISS where it is installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor

from pams_mil.devices import plain_asked
from pams_mil.parameters import require_choice, require_count
from pams_mil.remix.clustering import lloyd
from pams_mil.remix.clustering.cosine_bins import bin_labels
from pams_mil.remix.strategy import widened

Init = Literal["quantile", "range", "uniform", "kmeans"]
INITS: tuple[Init, ...] = ("quantile", "range", "uniform", "kmeans")


@dataclass(frozen=True)
class Clusters:
    """Cluster of every row, over all bags in the order given."""

    labels: Tensor
    """[n] int64 in 0 .. L - 1; ids of empty clusters do not occur."""
    live: int
    """How many clusters are occupied."""


def check_clustering(*, clusters: int, iterations: int, init: str) -> None:
    """Refuse settings that cannot be meant."""
    require_count("clusters", clusters, at_least=1)
    require_count("iterations", iterations, at_least=0)
    require_choice("init", init, INITS)


def cluster(
    bags: Sequence[Tensor],
    *,
    clusters: int = 11,
    iterations: int = 6,
    init: Init = "quantile",
    generator: torch.Generator | None = None,
) -> Clusters:
    """Cluster the rows of all bags together; `generator` is used by `init="kmeans"` alone.

    >>> bag = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [0.1, 1.0]])
    >>> labels = cluster([bag], clusters=2, iterations=2).labels
    >>> bool(labels[0] == labels[1]), bool(labels[2] == labels[3]), bool(labels[0] == labels[2])
    (True, True, False)
    """
    with torch.inference_mode():  # less work per call, which counts for small bags
        values = torch.cat([widened(bag) for bag in bags])
        if init == "kmeans":
            labels = _kmeans(values, clusters, iterations, generator)
        else:
            norms = torch.linalg.vector_norm(values, dim=1).clamp_min(torch.finfo(values.dtype).tiny)
            cosine = torch.mv(values, lloyd.directions(values.sum(0)[None])[0]) / norms
            labels = _refine(values, bin_labels(cosine, init, clusters), clusters, iterations)
    labels = labels.clone()  # an ordinary tensor again
    return Clusters(labels, live=int(torch.bincount(labels, minlength=clusters).count_nonzero()))


def backend(init: Init = "quantile") -> str:
    """What clusters bags in main memory on this machine; selections can differ where rows are on the fence."""
    if init == "kmeans" and faiss_installed():
        return "faiss"
    return "torch" if compiled_lloyd() is None else "numba"


@cache
def compiled_lloyd() -> Any:
    """The compiled refinement; None where Numba is missing, does not work with this NumPy, or is not wanted."""
    if plain_asked():
        return None
    try:
        return importlib.import_module("pams_mil.remix.clustering.compiled_lloyd")
    except ImportError:
        return None


@cache
def faiss_installed() -> bool:
    """Whether the optional FAISS package can be imported."""
    return importlib.util.find_spec("faiss") is not None


def _refine(values: Tensor, labels: Tensor, clusters: int, iterations: int) -> Tensor:
    # Compiled code reads main memory.
    compiled = compiled_lloyd() if values.device.type == "cpu" else None
    refined: Tensor = (compiled or lloyd).refine(values, labels, clusters=clusters, iterations=iterations)
    return refined


def _kmeans(values: Tensor, clusters: int, iterations: int, generator: torch.Generator | None) -> Tensor:
    """Spherical k-means from random instances: with FAISS the same as without, unless a cluster runs empty.

    FAISS then splits a large cluster in two, the torch version drops the empty one.
    """
    device = generator.device if generator is not None else values.device
    # Drawn where the generator lives, so that a seed means the same rows whatever device the bag is on.
    order = torch.randperm(len(values), generator=generator, device=device).to(values.device)
    start = lloyd.directions(values[order[:clusters]])
    # FAISS wants more instances than clusters, works in float32 and is asked to use the processor only.
    fits = values.dtype == torch.float32 and values.device.type == "cpu" and len(values) > clusters
    if iterations and fits and faiss_installed():
        return _kmeans_faiss(values, start, iterations)
    return _refine(values, torch.mm(values, start.T).argmax(1), clusters, iterations)


def _kmeans_faiss(values: Tensor, start: Tensor, iterations: int) -> Tensor:
    faiss: Any = importlib.import_module("faiss")
    clusters, width = start.shape
    # Without these limits FAISS draws a subsample of 256 instances per cluster and warns about small bags.
    limits = {"max_points_per_centroid": len(values), "min_points_per_centroid": 1}
    model = faiss.Kmeans(width, clusters, niter=iterations, spherical=True, **limits)
    model.train(values.numpy(), init_centroids=start.contiguous().numpy())
    # FAISS ends with new centroids, the torch version with a new assignment to them.
    return torch.from_numpy(model.index.search(values.numpy(), 1)[1][:, 0]).clone()
