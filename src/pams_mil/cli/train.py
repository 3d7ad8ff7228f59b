"""`pams train`: one run, from a config file or from options, in a folder that survives interruption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pams_mil.cli.console import errors, output

if TYPE_CHECKING:
    from pams_mil.engine.config.run_config import RunConfig


def train(
    arguments: list[str] | None = typer.Argument(
        None, metavar="[CONFIG.yaml] [KEY=VALUE]...", help="A config file ('pams init' writes one), and changes to it."
    ),
    manifest: Path | None = typer.Option(None, "--manifest", help="Cohort table; instead of a config file."),
    features: Path | None = typer.Option(None, "--features", help="Folder of feature files, or a pack."),
    classes: str | None = typer.Option(None, "--classes", help="A preset (see 'pams classes') or a YAML class file."),
    method: str | None = typer.Option(None, "--method", help="Training method, e.g. pams or ce."),
    model: str | None = typer.Option(None, "--model", help="Model, e.g. abmil, transmil or dtfd."),
    seed: int | None = typer.Option(None, "--seed", help="Seed of everything random."),
    out: Path | None = typer.Option(None, "--out", help="Run folder; default runs/<method>-<model>-seed<seed>."),
    resume: bool = typer.Option(False, "--resume", help="Continue the run in --out."),
) -> None:
    """Train a model; Ctrl-C saves and stops.

    Example: pams train --manifest cohort/manifest.csv --classes bracs --method pams --model transmil
    """
    from pams_mil.cli.train_progress import TrainBar
    from pams_mil.engine.training.loop import RunInterruptedError
    from pams_mil.engine.training.train import train as run_training

    options = {"manifest": manifest, "features": features, "classes": classes, "method": method, "model": model}
    config = read_settings(list(arguments or []), {**options, "seed": seed}, out=out, resume=resume)
    folder = out or Path("runs") / f"{config.method.name}-{config.model.name}-seed{config.seed}"
    try:
        with TrainBar(config.training.select) as bar:
            run = run_training(config, folder, resume=resume, watch=bar)
    except RunInterruptedError as error:
        errors.print(f"{error} Go on with: pams train --out {folder} --resume", highlight=False, markup=False)
        raise typer.Exit(130) from error
    status = run.status()
    output.print(
        f"Best {status['metric']} on validation: {status['best']:.4f} in epoch {status['best_epoch']} of "
        f"{status['epochs']}. Run folder: {folder}\nTest it with: pams evaluate {folder}",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip


def read_settings(arguments: list[str], options: dict[str, Any], *, out: Path | None, resume: bool) -> RunConfig:
    """Settings from a file, options and KEY=VALUE; a resumed run brings its own."""
    from pams_mil.engine.config.run_config import RunConfig, build, with_overrides
    from pams_mil.engine.config.yaml_file import read_yaml
    from pams_mil.engine.run.folder import RunFolder
    from pams_mil.errors import ConfigError

    files = [text for text in arguments if "=" not in text]
    changes = [text for text in arguments if "=" in text]
    if len(files) > 1:
        raise ConfigError(f"Expected one config file, found {', '.join(files)}. Changes are written KEY=VALUE.")
    given = {key: value for key, value in options.items() if value is not None}
    if resume and not files and "manifest" not in given:
        if out is None:
            raise ConfigError("Which run? Name it with --out FOLDER --resume.")
        content = RunFolder(out).config().to_json()
    else:
        content = read_yaml(files[0]) if files else {}
    if not content and "manifest" not in given:
        raise ConfigError("Nothing to train: give a config file, or --manifest and --classes. See 'pams init'.")
    for key, value in given.items():
        path = {"manifest": "data.manifest", "features": "data.features"}.get(key, key)
        content = with_overrides(content, [f"{path}={value}"])
    return build(RunConfig, with_overrides(content, changes), where=files[0] if files else "the settings")
