"""A benchmark as parts of a section: tables for people, and the paper's own numbers beside."""

from __future__ import annotations

from collections.abc import Sequence

from pams_mil.experiments.arms import Arm
from pams_mil.experiments.printed import printed
from pams_mil.experiments.study import Section, Setting, Table
from pams_mil.metrics.metric import METRICS
from pams_mil.report import text_tables as tables
from pams_mil.report.bench import EXTRA, TABLE, Bench
from pams_mil.report.bench_page import write_tables

COLUMNS = (*TABLE, *EXTRA)


def bench_section(
    setting: Setting, name: str, title: str, bench: Bench, arms: Sequence[Arm], figures: tuple[tuple[str, str], ...]
) -> Section:
    """The section of a benchmark, with the paper's numbers for BRACS; its tables are also written as files."""
    tables = (*bench_tables(bench), *printed_table(name.replace("-", "_"), "bracs", arms))
    files = write_tables(bench, setting.folder(name))
    return Section(name, title, lines=verdict_lines(bench), tables=tables, figures=figures, files=files)


def bench_tables(bench: Bench) -> tuple[Table, ...]:
    """One table per level, finest first: mean ± sd, best bold, second underlined, p against the reference."""
    found = []
    for level in reversed(range(bench.hierarchy.num_levels)):
        rows: list[tuple[str, ...]] = []
        bold: set[tuple[int, int]] = set()
        underlined: set[tuple[int, int]] = set()
        for number, row in enumerate(bench.rows):
            cells = [tables.spread_text(row.spreads[level, key], key) for key in COLUMNS]
            for column, key in enumerate(COLUMNS):
                place = bench.place(row, level, key) if len(bench.of_model(row.model)) > 1 else 0
                if place in (1, 2):
                    (bold if place == 1 else underlined).add((number, column + 2))
            at_equal = tables.matched_text(bench, row, level)
            rows.append((row.model, row.method, *cells, _p(bench, number, level), at_equal))
        heads = [f"{METRICS[key].label} {'↑' if METRICS[key].higher_is_better else '↓'}" for key in COLUMNS]
        name = bench.hierarchy.level_names[level]
        caption = f"{name}. {tables.caption(bench)} p: missed urgency against {bench.reference}, Holm-corrected."
        head = ("model", "method", *heads, "p", tables.matched_head(bench))
        found.append(Table(caption, head, tuple(rows), frozenset(bold), frozenset(underlined)))
    return tuple(found)


def printed_table(name: str, dataset: str, arms: Sequence[Arm]) -> tuple[Table, ...]:
    """What the paper prints for the same rows, marked as the paper's; nothing where it prints none of them."""
    numbers = printed(name)
    models = dict.fromkeys(model for of, model, _, _ in numbers if of == dataset)
    metrics = dict.fromkeys(metric for of, _, _, metric in numbers if of == dataset)
    rows = []
    for model in models:
        for arm in arms:
            cells = [numbers.get((dataset, model, arm.printed, metric)) for metric in metrics]
            if any(cells):
                texts = ["–" if n is None else f"{n.mean:.2f}" + (f" ± {n.sd:.2f}" if n.sd else "") for n in cells]
                rows.append((model, arm.label, *texts))
    if not rows:
        return ()
    heads = [METRICS[metric].label for metric in metrics]
    caption = f"The paper's own numbers ({dataset.upper()}, finest level), printed here for orientation only."
    return (Table(caption, ("model", "method", *heads), tuple(rows)),)


def verdict_lines(bench: Bench) -> tuple[str, ...]:
    """The verdict of every comparison, model by model, and what failed."""
    compared = [row for row in bench.rows if row.comparison is not None]
    lines = [f"{row.model}: {sentence}" for row, sentence in zip(compared, bench.verdicts, strict=True)]
    if bench.missing:
        lines.append(f"{len(bench.missing)} runs failed and are left out: {', '.join(bench.missing)}.")
    return tuple(lines)


def _p(bench: Bench, number: int, level: int) -> str:
    comparison = bench.rows[number].comparison
    if comparison is None:
        return ""
    p = comparison.levels[bench.hierarchy.level_names[level]]["missed_rate"].p
    return "" if p is None else f"{p:.2g}"
