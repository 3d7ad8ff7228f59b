"""Every command that the documentation shows is run here, page by page, in order, as a newcomer would type it."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from jsonschema import Draft202012Validator
from tests.docs import newcomer
from tests.docs.console_blocks import PAGES, ROOT, commands, inline, misplaced
from tests.engine.here import Here
from typer.testing import CliRunner

from pams_mil.cli.main import app
from pams_mil.engine.grid import engines as local_processes

SMALLER: dict[str, tuple[str, ...]] = {
    "audit": ("--resamples", "20"),
    "evaluate": ("--resamples", "20"),
    "train": ("epochs=1", "lr=1e-2", "accelerator=cpu", "model.embedding_features=32"),
    "cv": ("--resamples", "20", "epochs=1", "accelerator=cpu"),
    "tune": ("--resamples", "20", "--seeds", "1", "--space", "my-space.yaml", "epochs=1", "accelerator=cpu"),
    "bench": ("--resamples", "20", "epochs=1", "seeds=[0]", "models=[{name: abmil, embedding_features: 8}]"),
    "heatmap": ("--picture-px", "200"),
    "cohort make digits": ("--set", "train=14", "--set", "val=7", "--set", "test=7"),
    "cohort make synthetic": ("--set", "scale=0.02", "--set", "largest=60"),
}
"""What is added to a command so that it takes a second; everything that the page says stays as it is."""
TRAIN_THEMSELVES = ("README.md", "training.md", "slides.md", "tutorial.md", "tune.md", "findings.md")
"""Pages whose commands make the runs that they use; the others start with trained ones."""
SCHEMAS = ROOT / "docs/reference/schemas"
ROOT_COMMAND: Any = typer.main.get_command(app)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Parts of a newcomer's folder, each made once when it is first asked for."""
    makers = {
        "tables": newcomer.make_tables_and_features, "slides": newcomer.make_slides, "digits": newcomer.make_digits,
        "clam": newcomer.make_clam_folder, "sets": newcomer.make_sets,
    }  # fmt: skip
    made: dict[str, Path] = {}

    def part(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            if name == "runs":
                shutil.copytree(part("tables"), made[name], dirs_exist_ok=True)
                newcomer.make_runs(made[name])
            else:
                makers[name](made[name])
        return made[name]

    return part


@pytest.fixture
def place(shelf: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Go into a folder with the named parts, cells of grids run in this process."""
    monkeypatch.setattr(local_processes, "LocalEngine", Here)

    def go(*parts: str) -> Path:
        for part in parts:
            shutil.copytree(shelf(part), tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        return tmp_path

    return go


def run(words: tuple[str, ...]) -> None:
    """Run a command to its end; any complaint fails the test."""
    given = [*words, *SMALLER.get(words[0], SMALLER.get(" ".join(words[:3]), ()))]
    if "./my_model.py:MyNet" in words:  # it has no such option
        given.remove("model.embedding_features=32")
    given += ["model.landmarks=8"] if "transmil" in words and words[0] == "train" else []
    if words[0] == "cv":  # a setting of the model would make a committee one model
        given += ["model.embedding_features=32"] if "--method" in words else []
        given += [] if "--method" in words or "--members" in words else ["--members", "2", "--reference", "1"]
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, given)
    assert done.exit_code == 0, f"pams {' '.join(given)}\n{done.output}\n{done.exception!r}"
    if "--json" in words:
        schema = json.loads((SCHEMAS / f"{words[0]}.schema.json").read_text("utf-8"))
        Draft202012Validator(schema).validate(json.loads(done.stdout))


def below(command: Any) -> dict[str, Any]:
    """The verbs of a group by name; none below a verb itself."""
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    return {name: command.get_command(None, name) for name in names}


def find(words: tuple[str, ...]) -> tuple[Any, list[str]]:
    """The verb that words lead to, and the words behind it."""
    verb, left = ROOT_COMMAND, list(words)
    while left and left[0] in below(verb):
        verb = below(verb)[left.pop(0)]
    return verb, left


def parse(words: tuple[str, ...]) -> None:
    """Parse a command as it would be parsed, without running it."""
    command, left = find(words)
    command.make_context(words[0], left)


def parts_for(page: Path, words: list[tuple[str, ...]]) -> list[str]:
    text = " ".join(" ".join(command) for command in words)
    parts = ["tables" if page.name in TRAIN_THEMSELVES else "runs"]
    parts += [part for part in ("slides", "digits", "clam", "sets") if f"{part}/" in text]
    return parts


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda page: page.name)
def test_commands_of_a_page_run_in_order(page: Path, place: Callable[..., Path]) -> None:
    to_run = [command.words for command in commands(page) if not command.reason]
    folder = place(*parts_for(page, to_run))
    if any(words[0] == "extract" and "features" in words for words in to_run):
        shutil.rmtree(folder / "features")  # the page makes its own
    if any("--calib-share" in words for words in to_run):
        shutil.copy(folder / "cohort/labels.csv", folder / "labels.csv")  # certificates take many patients
    for words in to_run:
        run(words)


NOT_RUN = [command for page in PAGES for command in commands(page) if command.reason]


def test_commands_that_are_not_run_parse_and_say_why(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(NOT_RUN) > 30
    for command in NOT_RUN:
        parse(command.words)
        assert len(command.reason) > 10, command


def test_no_command_hides_outside_of_a_console_block() -> None:
    assert {page.name: hidden for page in PAGES if (hidden := misplaced(page))} == {}


def test_verbs_and_options_in_the_text_exist() -> None:
    in_text = [command for page in PAGES for command in inline(page)]
    assert len(in_text) > 60
    for command in in_text:
        verb, left = find(command.words)
        if left and left[0] == "--version":
            continue
        assert verb is not ROOT_COMMAND or left == ["--help"], command
        known = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = {word.split("=")[0].rstrip(",.;") for word in left if word.startswith("--") and word != "--"}
        assert used - {"--help"} <= known, f"{command}: {used - known}"


def verbs(group: Any = ROOT_COMMAND, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every verb with its help."""
    for name, command in below(group).items():
        if below(command):
            yield from verbs(command, (*before, name))
        else:
            yield (*before, name), command.help or ""


VERBS = dict(verbs())
SERVES_OR_TAKES_MINUTES = {("view",): "a server that runs until Ctrl-C", ("demo",): "minutes; test_demo.py runs it"}
RUN_BY_A_PAGE = {command.words for page in PAGES for command in commands(page) if not command.reason}
FIRST = {  # what must have been typed before an example makes sense
    ("unpack",): [("pack", "labels.csv", "--features", "features", "--out", "cohort.pack")],
    ("train",): [("split", "labels.csv", "--classes", "bracs", "--folds", "5", "--out", "splits")],
    ("monitor",): [("certify", "model_a.csv", "--classes", "bracs", "--alpha", "0.5", "--out", ".")],
}  # fmt: skip


def example(text: str) -> tuple[str, ...]:
    """The words of the example in a verb's help."""
    shown = text.partition("Example: pams ")[2].partition("\n\n")[0]
    return tuple(shlex.split(" ".join(shown.split())))


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_the_example_in_the_help_of_every_verb_runs(verb: tuple[str, ...], place: Callable[..., Path]) -> None:
    words = example(VERBS[verb])
    assert words[: len(verb)] == verb, f"pams {' '.join(verb)} --help has no example of itself"
    text = " ".join(words)
    place("runs", *(part for part in ("slides", "digits") if f"{part}/" in text))
    if verb in SERVES_OR_TAKES_MINUTES or words in RUN_BY_A_PAGE:
        parse(words)
        return
    if "init" in verb:
        Path(words[len(verb)]).unlink(missing_ok=True)
    for before in FIRST.get(verb, ()):
        run(before)
    run(words)
