"""Predictions of several networks as one sample: folds of a seed, seeds of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from pams_mil.data.exposure import Exposure, Role
from pams_mil.errors import PredictionsError, listing
from pams_mil.evaluate.predictions.predictions import ROW_FIELDS, Predictions


def join_predictions(name: str, samples: Sequence[Predictions]) -> Predictions:
    """Predictions one after the other as one; what not all of them know is not known. The rest is as in the first."""
    columns: dict[str, Any] = dict.fromkeys(ROW_FIELDS)
    for key in set.intersection(*(set(sample.columns) for sample in samples)):
        known = [sample.columns[key] for sample in samples]
        columns[key] = np.concatenate(known) if isinstance(known[0], np.ndarray) else list(chain(*known))
    return replace(
        samples[0],
        name=name,
        tags={
            tag: list(chain(*(sample.tags[tag] for sample in samples)))
            for tag in samples[0].tags
            if all(tag in sample.tags for sample in samples)
        },
        exposure_known=all(sample.exposure_known for sample in samples),
        exposure=Exposure.of_all(sample.exposure for sample in samples),
        weights=all_weights(samples),
        **columns,
    )


def mean_by_slide(sample: Predictions, slides: Sequence[str]) -> Predictions:
    """Each of these slides once, called by the mean of all answers; its folds and what they have seen are united.

    >>> from pams_mil.hierarchy import ClassHierarchy
    >>> two, p = ClassHierarchy.flat(["low", "high"]), np.array([[0.5, 0.5], [0.25, 0.75], [0.0, 1.0]])
    >>> folds = {"fold": ["0", "0", "1"]}
    >>> every = Predictions("m", two, ["1", "2", "1"], np.array([0, 1, 0]), p.argmax(1), p, tags=folds)
    >>> mean = mean_by_slide(every, ["2", "1"])
    >>> mean.probabilities.tolist(), mean.tags["fold"]
    ([[0.25, 0.75], [0.25, 0.75]], ['0', '0 1'])
    """
    rows: dict[str, list[int]] = {}
    for row, slide in enumerate(sample.slide_ids):
        rows.setdefault(slide, []).append(row)
    every = [rows[slide] for slide in slides]
    answers = {"probabilities": sample.probabilities, "finding_probabilities": sample.finding_probabilities}
    columns: dict[str, Any] = {
        name: np.stack([answer[own].mean(axis=0) for own in every])
        for name, answer in answers.items()
        if answer is not None
    }
    if sample.probabilities is not None:
        columns["predicted"] = columns["probabilities"].argmax(axis=1)
    if (roles := sample.roles) is not None:
        columns["roles"] = [frozenset[Role]().union(*(roles[row] for row in own)) for own in every]
    folds = [" ".join(dict.fromkeys(sample.tags["fold"][row] for row in own)) for own in every]
    first = sample.take(np.array([own[0] for own in every]))
    return replace(first, tags={**first.tags, "fold": folds}, **columns)


def all_weights(samples: Sequence[Predictions]) -> tuple[str, ...]:
    """The weights that all of these were predicted by; empty where some do not say."""
    return (
        tuple(dict.fromkeys(chain(*(sample.weights for sample in samples)))) if all(p.weights for p in samples) else ()
    )


def join_seeds(name: str, seeds: Mapping[str, Predictions]) -> Predictions:
    """Several seeds of one method as one sample: every slide once per seed, patients and folds as they are."""
    several = [one.name for one in seeds.values() if one.num_seeds > 1]
    if several:
        raise PredictionsError(
            f"{name}: {listing(several)} has several seeds in its column 'seed' and shares slides with other files. "
            "Give one file with all seeds, or one file per seed."
        )
    seeded = [
        replace(one, tags={**one.tags, "seed": [seed] * len(one)}, patient_ids=one.patients)
        for seed, one in seeds.items()
    ]
    seed_weights = {seed: one.weights for seed, one in seeds.items()}
    return replace(join_predictions(name, seeded), seed_weights=seed_weights)


def join_files(name: str, files: Sequence[Predictions]) -> Predictions:
    """The files of a method's networks as one sample: files that share slides are seeds, the others folds of a seed.

    >>> from pams_mil.hierarchy import ClassHierarchy
    >>> two = ClassHierarchy.flat(["low", "high"])
    >>> def file(*slides): return Predictions("m", two, slides, np.zeros(2, int), np.zeros(2, int))
    >>> joined = join_files("m", [file("1", "2"), file("3", "4"), file("1", "2"), file("3", "4")])
    >>> joined.num_seeds, joined.network.tolist()
    (2, [0, 0, 1, 1, 2, 2, 3, 3])
    """
    if len(files) == 1:
        return files[0]
    seeds: list[list[Predictions]] = []
    for file in files:
        slides = set(file.slide_ids)
        others = (seed for seed in seeds if all(slides.isdisjoint(fold.slide_ids) for fold in seed))
        if (seed := next(others, None)) is None:
            seeds.append(seed := [])
        seed.append(file)
    joined = {}
    for number, folds in enumerate(seeds):
        labelled = [
            one if len(folds) == 1 else replace(one, tags={**one.tags, "fold": [str(place)] * len(one)})
            for place, one in enumerate(folds)
        ]
        joined[str(number)] = join_predictions(name, labelled)
    return join_seeds(name, joined) if len(joined) > 1 else joined["0"]
