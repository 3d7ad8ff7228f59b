"""Evidence by its equations: weighted means and covariances as sums over rows, in float64 numpy loops over slides."""

from __future__ import annotations

import math

import numpy as np


def moments(rows_by_slide):
    """Mean and covariance with every slide weighing the same."""
    slides = len(rows_by_slide)
    mean = sum(rows.mean(0) for rows in rows_by_slide) / slides
    covariance = np.zeros((len(mean), len(mean)))
    for rows in rows_by_slide:
        for row in rows:
            covariance += np.outer(row - mean, row - mean) / (len(rows) * slides)
    return mean, covariance


def line(positive, negative, ridge):
    mean_p, cov_p = moments(positive)
    mean_n, cov_n = moments(negative)
    sigma = (cov_p + cov_n) / 2
    sigma += ridge * np.trace(sigma) / len(sigma) * np.eye(len(sigma))
    return np.linalg.inv(sigma) @ (mean_p - mean_n)


def evidence(slide, bags, ranks, folds, *, ridge, rounds, keep):
    """Evidence of the rows of one slide; bags are numpy arrays."""
    others = [i for i in range(len(bags)) if folds[i] != folds[slide]]
    negative = [bags[i] for i in others if ranks[i] < ranks[slide]]
    candidate = [bags[i] for i in others if ranks[i] >= ranks[slide]]
    w = line(candidate, negative, ridge)
    for _ in range(rounds):
        kept = []
        for rows in candidate:
            order = np.argsort(-(rows @ w), kind="stable")
            kept.append(rows[order[: max(1, math.ceil(keep * len(rows)))]])
        w = line(kept, negative, ridge)
    result = []
    for row in bags[slide]:
        result.append(sum(float(np.mean(rows @ w < row @ w)) for rows in negative) / len(negative))
    return np.array(result)
