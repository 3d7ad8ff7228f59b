"""The paper's main table on your cohort: every method, every model, same seeds and budget."""

from __future__ import annotations

from collections.abc import Sequence

from pams_mil.experiments.arms import Arm, main_arms
from pams_mil.experiments.bench_section import bench_files, bench_tables, printed_table, verdict_lines
from pams_mil.experiments.study import Section, Setting, compare_arms
from pams_mil.experiments.study_figures import drawing, look
from pams_mil.report.bench import Bench

DISCOVER = "run"
TITLE = "Main table: every method the paper compares"
NAME = "main-table"


def run(setting: Setting) -> Section:
    """Train all methods and write the table, the tests against PAMS and the picture of accuracy against mildness."""
    arms = main_arms(setting.hierarchy)
    bench = compare_arms(setting, arms, reference="PAMS")
    files = bench_files(bench, setting.folder(NAME))
    draw(bench, setting, arms)
    return Section(
        NAME,
        TITLE,
        lines=verdict_lines(bench),
        tables=(*bench_tables(bench), *printed_table("main_table", "bracs", arms)),
        figures=(("accuracy-and-mildness", "Accuracy against AsMC: up and to the right is better."),),
        files=files,
    )


def draw(bench: Bench, setting: Setting, arms: Sequence[Arm]) -> None:
    """One panel per model: accuracy against AsMC, PAMS emphasized."""
    finest = bench.hierarchy.num_levels - 1
    width = 3.5 * len(bench.models)
    with drawing(
        setting.folder(NAME), "accuracy-and-mildness", width=width, height=3.4, ncols=len(bench.models), squeeze=False
    ) as (_, axes):
        for ax, model in zip(axes[0], bench.models, strict=True):
            for number, row in enumerate(bench.of_model(model)):
                x, y = (100 * row.spreads[finest, key].mean for key in ("acc", "asmc"))
                if row.method == "PAMS":
                    ax.scatter(x, y, s=160, color="#D55E00", marker="*", edgecolor="black", zorder=3, label=row.method)
                else:
                    ax.scatter(x, y, s=30, label=row.method, **look(number))
            ax.set(title=model, xlabel="Accuracy (%)", ylabel="AsMC (%), milder mistakes ↑")
        axes[0][-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
