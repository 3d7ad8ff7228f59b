"""`pams init`: a commented config to start from."""

from __future__ import annotations

from pathlib import Path
from shlex import quote

from typer import Argument, Option

from pams_mil.atomic import write_text
from pams_mil.cli.console import output
from pams_mil.cli.options import new_file

TEMPLATE = """\
# Settings of one training run. Check and train with: pams train {file}
# Any setting can be changed on the command line: pams train {file} method=ce training.epochs=20

data:
  manifest: cohort/manifest.csv   # slide_id, patient_id, label, split (train, val or test); 'pams split' makes splits
  features: cohort/h5_files       # folder of feature files (CLAM, TRIDENT, STAMP, ...) or a pack made by 'pams pack'
  # fold: 0                       # take the splits from the column fold_0 instead
  # patients_are_slides: true     # the table names no patients: every slide is one
  # merge_cases: true             # one bag per case instead of one per slide

classes: bracs                    # a preset ('pams classes' lists them) or your own class file

method: pams                      # {methods}
# method: {{name: pams, alpha: 1.6, remix: sfr}}     # with options; docs/methods.md lists them

model: abmil                      # {models}
# model: {{name: dtfd, pseudo_bags: 4}}
# model: {{name: clam_sb, init: s_0_checkpoint.pt}}   # start from published weights; docs/initial-weights.md

# pairing:                        # how often training bags are remixed, when the method remixes
#   probability: 0.5
#   mode: replace                 # or add
#   rule: urgent_label            # the more urgent label wins; left out: the drawn bag keeps its label

training:
  epochs: 50
  patience: 10                    # stop after this many epochs without a better score; null: never
  lr: 1e-4
  weight_decay: 1e-4
  batch: 1                        # bags per optimizer step, in one pass: 8 is much faster where bags are small
  # clip_norm: 1.0                # 0: none. Left out: the model's recipe (DTFD: 5 for every part)
  # schedule: cosine              # constant, step or cosine. Left out: the model's recipe (DTFD: step)
  select: ascc                    # the validation metric that chooses the checkpoint; last: the last epoch's
                                  # urgency_auc and refined_nll cannot be won by leaning toward urgency
  # average: 2                    # validate and predict with weights averaged over about two epochs
  # drop_attended: 0.1            # of the 10 % of a bag that the model attends to most, a step hides most
  # drop_instances: 0.5           # share of a bag's instances that a step does not see; more where many carry the label
  # max_instances: 20000          # of a training bag, chosen again every epoch

compute:
  accelerator: auto               # cpu, cuda, ...
  devices: 1
  precision: 32-true              # bf16-mixed on recent GPUs
  workers: 0                      # processes that read bags ahead; the result is the same with any number
  cache_mb: 1024                  # memory for bags that were read already
  loggers: [csv]                  # also tensorboard, mlflow, wandb

seed: 0
"""


def init(
    file: Path = Argument(Path("pams.yaml"), help="Where to write the config."),
    force: bool = Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Write a commented training config to fill in.

    Example: pams init my-run.yaml
    """
    write_text(new_file(file, force=force), template(quote(str(file))))
    output.print(f"Wrote {file}. Edit it, then: pams train {quote(str(file))}")


def template(file: str) -> str:
    """The commented config, with the methods and models that exist."""
    from pams_mil.discover import available

    methods, models = ", ".join(available("methods")), ", ".join(available("models"))
    return TEMPLATE.format(file=file, methods=methods, models=models)
