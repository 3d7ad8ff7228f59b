"""Predictions to audit, and what tests read off an audit's page."""

from __future__ import annotations

import json

import numpy as np
from typer.testing import CliRunner

from pams_mil import ClassHierarchy
from pams_mil.evaluate.predictions.predictions import Predictions

HOSTILE = "</script><img src=x onerror=document.title='owned'>"
HIERARCHY = ClassHierarchy.load("bracs")


def predictions(name, n=140, seed=0, sharpness=1.0, first=HOSTILE):
    random = np.random.default_rng(seed)
    target = np.arange(n) % 7
    away = np.abs(np.arange(7)[None] - target[:, None] - random.normal(0, 1.2, (n, 1)))
    logits = random.normal(0, 0.7, (n, 7)) - sharpness * away
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    slides = [first, *(f"slide {number}" for number in range(1, n))]
    patients = [f"patient {number // 2}" for number in range(n)]
    return Predictions(name, HIERARCHY, slides, target, p.argmax(1), p, patients, decided_by="argmax")


def matrix(page, order=0):
    table = f"#live-matrix-{order}" if order else "#live-matrix"
    return page.js(
        f"[...document.querySelectorAll('{table} tbody tr')].map(row => [...row.cells].slice(1)"
        ".map(cell => Number(cell.textContent)))"
    )


def models_table(page):
    return page.js(
        "[...document.querySelectorAll('#live-models tbody tr')].map(row => [...row.cells].map(c =>"
        " c.textContent.replaceAll('\u00a0', ' ')))"
    )


def run(*arguments):
    from pams_mil.cli.main import app

    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def finest(scores, number=0):
    return scores["files"][number]["levels"][HIERARCHY.level_names[-1]]


def set_kappa(page, kappa):
    page.choose("#kappa", "inf" if np.isinf(kappa) else repr(float(kappa)))


def confusion(model, calls):
    cells = np.zeros((7, 7), int)
    np.add.at(cells, (model.target, calls), 1)
    return cells.tolist()
