"""The card that goes with an exported model: what it is, what it was trained on, how it errs, what it must not do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pams_mil import __version__
from pams_mil.engine.prediction.predict import LoadedRun
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.engine.run.spec import RunSpec
from pams_mil.evaluate.certify.certificate import NOT_A_GUARANTEE, Certificate
from pams_mil.hierarchy import ClassHierarchy

_METRICS = (
    ("acc", "Accuracy"),
    ("auc", "AUC"),
    ("ascc", "AsCC"),
    ("asmc", "AsMC"),
    ("missed_rate", "Missed urgency"),
)


def model_card(run: LoadedRun, files: dict[str, str], certificates: Sequence[Certificate] = ()) -> str:
    """The card of a run."""
    spec, facts = run.spec, read_json(run.folder.path / "run.json")
    training = {
        "method": _options(spec.settings["method"]),
        "model": _options(spec.model_options),
        "training and validation bags": facts.get("bags", "unknown"),
        "seed": facts.get("seed", "unknown"),
        "run spec (digest)": spec.digest,
        "digest of the weights": run.weights,
        "made with": f"pams-mil {__version__}, torch {facts.get('packages', {}).get('torch', 'unknown')}",
    }
    limit = "" if _takes_the_last(run) else " Validation scores are optimistic, because they chose the checkpoint."
    return _card(
        f"{spec.settings['model']['name']} trained with {spec.settings['method']['name']}", "", spec,
        ["## Training\n", _list({**training, **_features(spec)})],
        ["## Validation scores of this checkpoint\n", _scores(run), _test_scores([run], run.folder)],
        files, certificates, limit,
    )  # fmt: skip


def mean_card(
    runs: Sequence[LoadedRun],
    names: Sequence[str],
    folder: RunFolder,
    files: dict[str, str],
    certificates: Sequence[Certificate] = (),
    fold: int | None = None,
) -> str:
    """The card of a cross-validation, a committee or a fold of one, whose answer is the mean of its networks."""
    scores = read_json(folder.path / "report" / "scores.json")
    members = {one["name"]: one["recipe"] for one in scores.get("committee", {}).get("members", [])}
    groups = {
        name.rpartition("/")[0].rpartition("/")[2]: f"{_options(run.spec.model_options)}, trained with "
        f"{_options(run.spec.settings['method'])}"
        for name, run in zip(names, runs, strict=True)
    }
    alone = groups.get("")
    title = "Cross-validation" if alone else f"Committee of {len(groups)}"
    title += "" if fold is None else f", fold {fold}"
    recipes = f"{alone}.\n" if alone else _list({group: members.get(group, words) for group, words in groups.items()})
    facts = {"networks": ", ".join(names), "made with": f"pams-mil {__version__}", **_features(runs[0].spec)}
    limit = (
        " Scores are out of fold: each slide was scored by the networks that did not train on its patient, which are "
        "fewer than the model averages."
    )
    return _card(
        f"{title}: the mean of {len(runs)} networks", ": the mean of those of all networks", runs[0].spec,
        ["## Networks\n", recipes, _list(facts)],
        [_out_of_fold(scores) if fold is None else _test_scores(runs, folder)],
        files, certificates, limit if fold is None else "",
    )  # fmt: skip


def _card(
    title: str, mean: str, spec: RunSpec, about: Sequence[str], scores: Sequence[str], files: dict[str, str],
    certificates: Sequence[Certificate], limit: str,
) -> str:  # fmt: skip
    """Markdown with the metadata header that model hubs read."""
    hierarchy = spec.hierarchy
    parts = [
        "---\nlibrary_name: pams-mil\ntags: [multiple-instance-learning, computational-pathology]\n---\n",
        f"# {title}\n",
        f"A bag classifier for the classes of `{_inline(hierarchy.name)}`, least urgent first: "
        f"{_inline(hierarchy.order())}. It takes the features [n, {spec.in_features}] of one slide's tiles and gives "
        f"class probabilities{mean}.{_findings(hierarchy)}\n",
        *about,
        *scores,
        _certified(certificates),
        "## Files\n",
        _list(files),
        "## Limits\n",
        "For research. The model was not validated for clinical use; its scores hold for slides like those it was "
        f"tested on, extracted with the same encoder, tile size and resolution.{limit}\n",
    ]
    return "\n".join(section for section in parts if section)


def _features(spec: RunSpec) -> dict[str, Any]:
    return {
        "encoder of the features": spec.encoder.get("encoder", "not stated by the files"),
        "tile size and resolution": {k: v for k, v in spec.encoder.items() if k != "encoder"} or "not stated",
        "digest of the classes": spec.hierarchy.digest,
    }


def _out_of_fold(scores: dict[str, Any]) -> str:
    """The model's scores in the report of its cross-validation, and how it compares."""
    if not scores.get("files"):
        return "## Out-of-fold scores\n\nNone; `pams cv` makes them.\n"
    sentences = scores.get("committee", {}).get("sentences", [])
    table = _score_table("Out-of-fold scores, with 95 % intervals", scores["files"][0])
    return "\n".join([table, *(f"- {_inline(sentence)}" for sentence in sentences), ""])


def _findings(hierarchy: ClassHierarchy) -> str:
    """That the model reports sets, where it does."""
    if hierarchy.findings == "one":
        return ""
    names = _inline(", ".join(hierarchy.classes[index] for index in hierarchy.finding_classes.tolist()))
    nothing = f" `{_inline(hierarchy.nothing)}` means that none was found." if hierarchy.nothing else ""
    return (
        f" It reports a set of findings for every slide: beside the most urgent one, which the class probabilities are "
        f"about, a probability for each of {names}, which need not sum to 1.{nothing} No finding of a set is more "
        "urgent than the call. An exported graph gives the class probabilities alone."
    )


def _scores(run: LoadedRun) -> str:
    row = run.state.get("row") or {}
    nothing = {"asmc": "no errors"} if row.get("val_acc") == 1 else {}
    shown = {label: (row.get(f"val_{key}"), nothing.get(key, "undefined")) for key, label in _METRICS}
    lines = [f"| {label} | {none if value is None else f'{value:.4f}'} |" for label, (value, none) in shown.items()]
    chosen = f"Chosen by {run.state.get('metric')} in epoch {run.state.get('epoch')}.\n"
    if _takes_the_last(run):
        chosen = f"Of the last epoch, {run.state.get('epoch')}, which is taken whatever its scores.\n"
    return "\n".join([chosen, "| metric | value |", "|---|---|", *lines, ""])


def _takes_the_last(run: LoadedRun) -> bool:
    return bool(run.state.get("metric") == "last")


def _test_scores(runs: Sequence[LoadedRun], folder: RunFolder) -> str:
    """The audits of these weights by `pams evaluate`: the split test, other tables, and what is not a test."""
    first, weights = runs[0].folder, sorted(run.weights for run in runs)
    own = first.config().data.manifest.name if first.exists() else None
    parts: dict[str, str] = {}
    for model in folder.scores():
        table = model.get("table") or {}
        # Reports may compare several models, or be of weights that were trained on since.
        if sorted(one.split("+")[0] for one in model.get("weights") or ()) == weights:
            title = _title(model, is_own_test=table.get("name") == own and table.get("split") == "test")
            parts.setdefault(title, _score_table(title, model))
    test = "Test scores"
    tested = any(title.startswith(test) for title in parts)
    sections = [] if tested else [f"## {test}\n\nNone yet; `pams evaluate` makes them.\n"]
    first_tests = sorted(parts, key=lambda title: not title.startswith(test))
    return "\n".join([*sections, *(parts[title] for title in first_tests)])


def _title(model: dict[str, Any], *, is_own_test: bool) -> str:
    table = model["table"]
    where = f"{table.get('name')}, {table.get('split') or 'all slides'}"
    calibrated = ", calibrated" if any("+" in weights for weights in model["weights"]) else ""
    if model.get("seen_patients"):
        return f"Not test scores: patients that the model has seen ({_inline(where)}{calibrated})"
    if is_own_test:
        return f"Test scores, with 95 % intervals{calibrated}"
    return f"Scores on {_inline(where)}{calibrated}, with 95 % intervals"


def _score_table(title: str, model: dict[str, Any]) -> str:
    rows = [f"## {title}\n", "| level | metric | value |", "|---|---|---|"]
    for level, scores in model.get("levels", {}).items():
        for key, label in _METRICS:
            value, ci = scores.get(key), scores.get("ci", {}).get(key)
            if value is not None:
                interval = f" ({ci[0]:.4f} to {ci[1]:.4f})" if ci and None not in ci else ""
                rows.append(f"| {_inline(level)} | {label} | {value:.4f}{interval} |")
    return "\n".join([*rows, ""])


def _certified(certificates: Sequence[Certificate]) -> str:
    lines = [] if certificates else ["## Certificate\n\nNone; `pams certify` makes one.\n"]
    for certificate in certificates:
        title = NOT_A_GUARANTEE if certificate.reservations else "a guarantee"
        lines += [f"## Certificate: {title}\n"]
        lines += [f"- {_inline(sentence)}" for sentence in certificate.sentences]
        lines += [f"- {NOT_A_GUARANTEE}: {_inline(reason)}" for reason in certificate.reservations]
        lines += [*(f"- {_inline(note)}" for note in certificate.notes), ""]
    return "\n".join(lines)


def _options(choice: dict[str, Any]) -> str:
    options = ", ".join(f"{key} = {value}" for key, value in choice.items() if key != "name")
    return f"{choice['name']} ({options})" if options else str(choice["name"])


def _list(items: dict[str, Any]) -> str:
    return "\n".join(f"- {key}: {_inline(str(value))}" for key, value in items.items()) + "\n"


def _inline(text: str) -> str:
    """Text of others inside Markdown: on one line, without HTML."""
    return " ".join(text.split()).replace("<", "&lt;").replace("|", "\\|")
