"""`pams train`: one run, from a config file or from options, in a folder that survives interruption."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from typer import Argument, Exit, Option

from pams_mil.cli.console import print_json, print_note, print_result, trust_option
from pams_mil.cli.options import CLASSES_HELP, out_folder
from pams_mil.errors import RunInterruptedError


def train(
    arguments: list[str] | None = Argument(
        None, metavar="[CONFIG.yaml] [KEY=VALUE]...", help="A config file ('pams init' writes one), and changes to it."
    ),
    manifest: Path | None = Option(None, help="Cohort table; instead of a config file."),
    features: Path | None = Option(None, help="Folder of feature files, or a pack."),
    classes: list[str] | None = Option(None, help=CLASSES_HELP),
    method: str | None = Option(None, help="Training method, e.g. pams or ce, or your loss: ./file.py:loss."),
    model: str | None = Option(None, help="Model, e.g. abmil, transmil or dtfd, or yours: ./file.py:Net."),
    encoder: str | None = Option(None, help="Encoder of features whose files do not name it."),
    mpp: float | None = Option(None, help="Their microns per pixel, if the files do not say."),
    tile_px: int | None = Option(None, help="Their tiles' side in pixels, if the files do not say."),
    fold: int | None = Option(
        None, min=0, help="Take the splits from the column fold_<k>, or hold out the numbered fold."
    ),
    epochs: int | None = Option(None, min=1, help="Passes over the training slides; default 50."),
    lr: float | None = Option(None, help="Learning rate; default 1e-4."),
    seed: int | None = Option(None, help="Seed of everything random; default 0."),
    log: list[str] | None = Option(
        None, metavar="TRACKER", help="Also log epochs to tensorboard, mlflow or wandb; may be repeated."
    ),
    kappa_from: Path | None = Option(
        None, help="A file of 'pams reveal': missed urgency costs in the loss what it costs its readers."
    ),
    out: Path | None = Option(
        None, callback=out_folder, help="Run folder; default runs/<method>-<model>-seed<seed>[-fold<k>]."
    ),
    resume: bool = Option(False, "--resume", help="Continue the run in --out."),
    json: bool = Option(False, "--json", help="Print how the run ended as JSON."),
) -> None:
    """Train a model; Ctrl-C saves and stops.

    Every setting of the config file can be changed by KEY=VALUE, e.g. patience=5 or method.alpha=2.

    Example: pams train --manifest splits/manifest.csv --fold 0 --features features --classes bracs --epochs 20
    """
    from pams_mil.cli.train_progress import TrainBar
    from pams_mil.engine.config.complete_config import with_revealed_costs
    from pams_mil.engine.config.run_config import short_name
    from pams_mil.engine.run.folder import read_settings
    from pams_mil.engine.training.train import train as run_training

    options = {
        "data.manifest": manifest, "data.features": features, "data.fold": fold, "classes": classes or None,
        "method": method, "data.encoder": encoder, "data.mpp": mpp, "data.tile_px": tile_px,
        "model": model, "training.epochs": epochs, "training.lr": lr, "seed": seed,
        "compute.loggers": ["csv", *log] if log else None,
    }  # fmt: skip
    config = read_settings(list(arguments or []), options, out=out, resume=resume)
    if kappa_from is not None:
        config = with_revealed_costs(config, kappa_from)
    names = short_name(config.method.name), short_name(config.model.name), f"seed{config.seed}"
    fold_name = () if config.data.fold is None else (f"fold{config.data.fold}",)
    folder = out or Path("runs") / "-".join((*names, *fold_name))
    try:
        with TrainBar() as bar:
            run = run_training(config, folder, resume=resume, watch=bar)
    except RunInterruptedError as error:
        print_note(f"{error} Go on with: pams train --out {quote(str(folder))} --resume")
        raise Exit(error.exit_code) from error
    status = run.status()
    if json:
        print_json({"run": str(folder), **status})
        return
    metric, epochs = status["metric"], status["epochs"]
    best = "no errors" if status["best"] is None else f"{status['best']:.4f}"
    chosen = f"Best {metric} on validation: {best} in epoch {status['best_epoch']} of {epochs}."
    if metric == "last":
        chosen = f"The weights of the last epoch, {epochs}, are kept."
    print_result(f"{chosen} Run folder: {folder}")
    print_result(f"Test it with: pams evaluate {quote(str(folder))}{trust_option(folder)}")
