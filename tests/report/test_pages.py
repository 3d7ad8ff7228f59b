"""Pages and charts as text: what stands where, and that nothing overlaps."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.evaluate.certify.models import model

from pams_mil import ClassHierarchy
from pams_mil.evaluate.audit import audit
from pams_mil.evaluate.certify import certify
from pams_mil.evaluate.predictions.join import join_seeds
from pams_mil.evaluate.predictions.predictions import Predictions
from pams_mil.report.certificate_page import certificate_page, shown_limits
from pams_mil.report.charts import expected_class
from pams_mil.report.first_screen import curve_series


def test_labels_on_a_certificates_chart_do_not_overlap():
    """The bound beside the numbers of the axes."""
    for seed in range(4):
        patients = model(40 + 30 * seed, seed=seed, skill=1.0 + seed)
        page = certificate_page(certify(patients, alpha=0.1), patients)
        texts = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="([^"]*)">([^<]*)</text>', page)
        boxes = []
        for x, y, css, content in texts:
            width = 6.0 * len(content)
            left = float(x) - {"end": width, "mid": width / 2}.get(css.split(" ")[0], 0.0)
            boxes.append((left, float(y) - 10, left + width, float(y) + 2, content))
        assert any("α = 10 %" in box[4] for box in boxes)
        for number, one in enumerate(boxes):
            for other in boxes[number + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (one, other)


def test_headings_of_a_certificate_say_what_stands_below_them():
    """Under "The smallest bounds possible" stands what can be certified at each boundary, not what could not."""
    patients = model(60, skill=2.0)
    page = certificate_page(certify(patients, alpha=0.2), patients)
    titles = re.findall(r"<h[12][^>]*>([^<]*)</h[12]>", page)
    assert {"What it costs", "The bounds", "The smallest bounds possible", "When it holds"} <= set(titles)
    assert not [title for title in titles if re.search("could not|cannot|promise", title, re.IGNORECASE)]
    below = page.split("The smallest bounds possible</h2>")[1].split("<h2>")[0]
    assert "No smaller bound can be certified" in below
    assert all(f"{100 * limit.smallest_alpha:.3g} %" in below for limit in shown_limits(certify(patients, alpha=0.2)))


def test_a_mean_between_equally_urgent_classes_is_drawn_as_such():
    names, ranks, slides = ["a", "b", "c"], [0, 0, 1], [4, 4, 4]
    assert 'class="tied"' in expected_class(names, [2.0, float("nan"), float("nan")], ranks, slides)
    assert 'class="tied"' in expected_class(names, [float("nan"), 1.2, float("nan")], ranks, slides)
    assert 'class="severe"' in expected_class(names, [float("nan"), float("nan"), 2.1], ranks, slides)
    assert 'class="over"' in expected_class(names, [2.9, float("nan"), float("nan")], ranks, slides)


@pytest.mark.parametrize("seeds", [1, 2])
def test_curves_of_every_level_go_through_the_numbers_of_the_tables(seeds):
    """A slide has one answer at all levels; several networks are averaged at equal false alarms."""
    tree, slides = ClassHierarchy.load("bracs"), [f"s{row}" for row in range(90)]

    def network(seed):
        random = np.random.default_rng(seed)
        p = random.dirichlet(np.full(7, 0.5), 90)
        target = np.array([random.choice(7, p=row) for row in np.random.default_rng(9).dirichlet(np.ones(7), 90)])
        return Predictions("m", tree, slides, target, p.argmax(1), p)

    one = network(0) if seeds == 1 else join_seeds("m", {str(seed): network(seed) for seed in range(seeds)})
    result = audit([one], resamples=0).models[0]
    for level, scores in enumerate(result.levels):
        (drawn,) = curve_series([one], [result.points[level]], level)
        for rate in (5, 10, 20, 30):
            close = pytest.approx(scores.values[f"missed_at_{rate}"], abs=1e-9 if seeds == 1 else 0.02)
            assert drawn.curve.missed_at(rate / 100) == close
            if seeds == 1:
                assert curve_series([one], level=level)[0].curve.missed_at(rate / 100) == close
