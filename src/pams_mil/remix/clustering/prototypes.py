"""Cosine prototype clustering, shared by SFR and PseudoMix.

    s_i = cos(p, z_i), p the mean of all rows;   first clusters = L bins of s   (see `bins`)
    T times: p_l = mean of cluster l; z_i goes to the cluster of argmax_l cos(p_l, z_i)   (see `lloyd`)

The printed algorithm says argmin, which sends an instance to the least similar prototype and is no clustering;
we use argmax as its source (PseMix) does. `init="kmeans"` starts from L random instances instead of bins, and uses
FAISS where it is installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor

from pams_mil.remix.clustering import lloyd, lloyd_compiled
from pams_mil.remix.clustering.cosine_bins import Bins, bin_edges, bin_labels
from pams_mil.remix.strategy import PreparedBag, check_number, check_option

Init = Literal["quantile", "range", "uniform", "kmeans"]
INITS: tuple[Init, ...] = ("quantile", "range", "uniform", "kmeans")
_JOIN_VALUES = 2**21
"""Bags with fewer values in total are copied into one block: cheaper than visiting many small ones."""


@dataclass(frozen=True)
class Clusters:
    """Cluster of every row, over all bags in the order given."""

    labels: Tensor
    """[n] int64 in 0 .. L - 1; ids of empty clusters do not occur."""
    live: int
    """How many clusters are occupied."""


def check_clustering(*, clusters: int, iterations: int, init: str) -> None:
    """Refuse settings that cannot be meant."""
    check_number("clusters", clusters, 1, whole=True)
    check_number("iterations", iterations, 0, whole=True)
    check_option("init", init, INITS)


def cluster(
    bags: Sequence[PreparedBag],
    *,
    clusters: int = 11,
    iterations: int = 6,
    init: Init = "quantile",
    generator: torch.Generator | None = None,
) -> Clusters:
    """Cluster the rows of all bags together; `generator` is used by `init="kmeans"` alone.

    >>> from pams_mil.remix.strategy import prepare
    >>> bag = prepare(torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 3.0], [0.1, 1.0]]))
    >>> labels = cluster([bag], clusters=2, iterations=2).labels
    >>> bool(labels[0] == labels[1]), bool(labels[2] == labels[3]), bool(labels[0] == labels[2])
    (True, True, False)
    """
    if init != "kmeans" and lloyd_compiled.fits(bags):
        edges_of = partial(bin_edges, bins=init, count=clusters)
        labels = lloyd_compiled.cluster(bags, edges_of, clusters=clusters, iterations=iterations)
    else:
        with torch.inference_mode():  # less work per call, which counts for small bags
            if init == "kmeans":
                labels = _kmeans(bags, clusters, iterations, generator)
            else:
                labels = _from_bins(bags, init, clusters, iterations)
        labels = labels.clone()  # an ordinary tensor again
    return Clusters(labels, live=int(torch.bincount(labels, minlength=clusters).count_nonzero()))


def _from_bins(bags: Sequence[PreparedBag], init: Bins, clusters: int, iterations: int) -> Tensor:
    direction = lloyd.directions(torch.stack([bag.total for bag in bags]).sum(0)[None])[0]
    similarity = torch.cat([torch.mv(bag.values, direction) * bag.inverse_norms for bag in bags])
    labels = bin_labels(similarity, init, clusters)
    return lloyd.refine(_blocks(bags, labels, clusters), iterations=iterations)


def _blocks(bags: Sequence[PreparedBag], labels: Tensor, clusters: int) -> list[lloyd.Block]:
    if len(bags) > 1 and sum(bag.values.numel() for bag in bags) <= _JOIN_VALUES:
        return [lloyd.Block(torch.cat([bag.values for bag in bags]), labels, clusters)]
    height = max(256, lloyd.BLOCK_VALUES // bags[0].values.shape[1])
    pieces = [piece for bag in bags for piece in torch.split(bag.values, height)]
    owns = torch.split(labels, [len(piece) for piece in pieces])
    return [lloyd.Block(piece, own, clusters) for piece, own in zip(pieces, owns, strict=True)]


@cache
def faiss_installed() -> bool:
    """Whether the optional FAISS package can be imported."""
    return importlib.util.find_spec("faiss") is not None


def _kmeans(bags: Sequence[PreparedBag], clusters: int, iterations: int, generator: torch.Generator | None) -> Tensor:
    """Spherical k-means from random instances: with FAISS the same as without, unless a cluster runs empty.

    FAISS then splits a large cluster in two, the torch version drops the empty one.
    """
    values = torch.cat([bag.values for bag in bags])
    device = generator.device if generator is not None else values.device
    order = torch.randperm(len(values), generator=generator, device=device).to(values.device)
    start = lloyd.directions(values[order[:clusters]])
    # FAISS wants more instances than clusters, works in float32 and is asked to use the processor only.
    if faiss_installed() and values.dtype == torch.float32 and values.device.type == "cpu" and len(values) > clusters:
        return _kmeans_faiss(values, start, iterations)
    labels = torch.mm(values, start.T).argmax(1)
    return lloyd.refine([lloyd.Block(values, labels, clusters)], iterations=iterations)


def _kmeans_faiss(values: Tensor, start: Tensor, iterations: int) -> Tensor:
    faiss: Any = importlib.import_module("faiss")
    clusters, width = start.shape
    # Without these limits FAISS draws a subsample of 256 instances per cluster and warns about small bags.
    limits = {"max_points_per_centroid": len(values), "min_points_per_centroid": 1}
    model = faiss.Kmeans(width, clusters, niter=iterations, spherical=True, **limits)
    if iterations == 0:
        return torch.mm(values, start.T).argmax(1)
    model.train(values.numpy(), init_centroids=start.contiguous().numpy())
    return torch.from_numpy(model.index.search(values.numpy(), 1)[1][:, 0]).clone()
