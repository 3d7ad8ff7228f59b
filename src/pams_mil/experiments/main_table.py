"""The paper's main table on your cohort: every method, every model, same seeds and budget."""

from __future__ import annotations

from pams_mil.experiments.arms import main_arms
from pams_mil.experiments.bench_section import bench_section
from pams_mil.experiments.study import Section, Setting, compare_arms
from pams_mil.report.bench_page import write_pareto

DISCOVER = "run"
TITLE = "Main table: every method the paper compares"
NAME = "main-table"


def run(setting: Setting) -> Section:
    """Train all methods and write the table, the tests against PAMS and the picture of accuracy against mildness."""
    arms = main_arms(setting.hierarchy)
    bench = compare_arms(setting, arms, reference="PAMS")
    pictures = write_pareto(bench, setting.folder(NAME))
    figures = [
        (name, f"{model}: accuracy against AsMC, up and to the right is better.") for name, model in pictures.items()
    ]
    return bench_section(setting, NAME, TITLE, bench, arms, tuple(figures))
