"""One run from settings to the best checkpoint, in a folder of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from pams_mil import seeding
from pams_mil.data.bags.dataset import BagCache
from pams_mil.engine.config.complete_config import CompleteConfig, complete
from pams_mil.engine.config.run_config import RunConfig
from pams_mil.engine.learner import Learner
from pams_mil.engine.run.folder import RunFolder, read_json
from pams_mil.engine.run.lock import locked
from pams_mil.engine.run.spec import RunSpec, differences, refuse_to_continue, stored_spec
from pams_mil.engine.training.loop import LoopContext, fit
from pams_mil.engine.training.observers import Loggers, StopRequest, Watch, require_trackers
from pams_mil.engine.training.one_process import Processes, start_processes
from pams_mil.engine.training.optimize import check_precision
from pams_mil.engine.training.run_checkpoints import RunCheckpoints, RunProgress
from pams_mil.engine.training.run_cohort import Cohort, open_cohort
from pams_mil.engine.training.training_bags import TrainingBags, refuse_remix_of_vectors
from pams_mil.errors import ConfigError, RunError, RunInterruptedError, counted, refuse_unknown
from pams_mil.evaluate.cautions import FEW_PATIENTS
from pams_mil.hierarchy import ClassHierarchy
from pams_mil.methods.method import Method
from pams_mil.models.core.devices import torch_threads
from pams_mil.models.core.initial_weights import start_from
from pams_mil.remix.pairing import Pairing, rule_for
from pams_mil.remix.strategy import create_remix

Result = TypeVar("Result")
_PAIRING_OPTIONS = ("rule", "own_class", "probability", "mode")


def train(
    config: RunConfig,
    out: Path | str,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    owner: str = "",
    cache: BagCache | None = None,
) -> RunFolder:
    """Train a model and return its run folder.

    Args:
        config: The settings; see `pams_mil.engine.config.run_config`.
        out: The run folder; it must not hold another run.
        resume: Continue the run in `out` from its last checkpoint, or start it if there is none.
        watch: Told about progress.
        owner: On whose behalf the folder is locked; attempts of one owner may follow each other.
        cache: Bags that other runs of this process have read; None: a cache of its own of `compute.cache_mb`.
    """
    config = complete(config)
    check_precision(config.training, config.compute.precision)
    refuse_missing_init(config)
    require_trackers(config.compute.loggers)
    folder = RunFolder(Path(out))
    with torch_threads(config.compute.threads):
        fabric = start_processes(config.compute)
        launch: Any = fabric.launch
        launch(_train_in_process, config, folder, resume, watch or Watch(), owner, cache)
    return folder


def _train_in_process(
    fabric: Processes,
    config: CompleteConfig,
    folder: RunFolder,
    resume: bool,
    watch: Watch,
    owner: str,
    cache: BagCache | None,
) -> None:
    with ExitStack() as stack:
        # The lock comes first, so that nobody else can start or resume here while the cohort is read.
        _together(fabric, lambda: _enter(stack, folder, resume, watch, owner))
        cache = BagCache(config.compute.cache_mb << 20) if cache is None else cache
        cohort = open_cohort(config.data, ClassHierarchy.load(config.classes), cache=cache)
        spec = cohort.spec(config)
        # Against `run.json`, which is there before the first checkpoint; a checkpoint is compared once more when it is
        # read.
        extended = _together(fabric, lambda: _is_extended(folder, spec))
        checkpoints = RunCheckpoints(folder, spec)
        bags = training_bags(config, cohort, spec.method)
        learner, begun = initial_learner(spec, config)
        # Not earlier: until here there is nothing to save, and a signal may end the process at once.
        stop = stack.enter_context(StopRequest())
        started = time.monotonic()
        if fabric.is_global_zero:
            notes = list(cohort.manifest.notes)
            # Without a checkpoint the run starts over, so its own files are rewritten, too.
            if not folder.last.exists():
                notes += [begun] if begun else []
                facts = {**_facts(cohort, bags), "notes": notes, "spec": spec.to_json()}
                folder.start(config, facts, cohort.slides, cohort.fingerprints, cohort.held_out)
            elif extended:
                checkpoints.relabel_best()
                facts = {**read_json(folder.path / "run.json"), "spec": spec.to_json()}
                folder.start(config, facts, cohort.slides, cohort.fingerprints)
            folder.set_status("running")
            for note in notes:
                watch.noted(note)
        loggers = Loggers(config.compute.loggers if fabric.is_global_zero else (), folder.path, config.to_json())
        stack.callback(loggers.close)
        with _status(fabric, folder):
            progress = fit(fabric, learner, bags, cohort.val, LoopContext(config, checkpoints, watch, stop, loggers))
            metric = config.training.select
            if not progress.best_epoch:
                raise RunError(
                    f"No epoch had a finite validation {metric}, so there is no best checkpoint. Are all classes in "
                    "the val split? Choose another metric with training.select."
                )
            if fabric.is_global_zero:
                cautions = run_cautions(progress, cohort, metric)
                for caution in cautions:
                    watch.noted(f"Caution: {caution}")
                folder.set_status(
                    "finished", epochs=progress.epoch, best_epoch=progress.best_epoch, metric=metric,
                    best=progress.best, cautions=cautions, seconds=round(time.monotonic() - started, 3),
                )  # fmt: skip


def refuse_missing_init(config: RunConfig) -> None:
    """Stop before anything is read or written when `model.init` names no file."""
    init = config.model.init
    if init is not None and not init.is_file():
        raise ConfigError(
            f"model.init: there is no file {init}. Expected published weights of the model {config.model.name!r}; "
            "docs/initial-weights.md says where to get them."
        )


def initial_learner(spec: RunSpec, config: RunConfig) -> tuple[Learner, str]:
    """The learner and a sentence about its initial weights; an empty one when they are all from the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seeding.derive(config.seed, "weights"))
        learner = spec.build(trusted=True)
    learner.drop_attended = config.training.drop_attended
    init: Path | None = config.model.init
    return learner, "" if init is None else f"{init.name}: {start_from(learner.model, init)}"


def training_bags(config: RunConfig, cohort: Cohort, method: Method) -> TrainingBags:
    """The training set with the method's remix."""
    refuse_unknown("The pairing", config.pairing, list(_PAIRING_OPTIONS), error=ConfigError)
    remix = pairing = None
    if method.remix not in (None, "none"):
        refuse_remix_of_vectors(config, method.remix, cohort.train)
        remix = create_remix(method.remix, **method.remix_options)
        sources = cohort.train.sources
        options = {**config.pairing, "rule": rule_for(remix.partner, config.pairing.get("rule"))}
        pairing = Pairing(
            cohort.hierarchy,
            [source.name for source in sources],
            cohort.train.targets,
            seed=config.seed,
            patients=[source.patient_id for source in sources],
            **options,
        )
    return TrainingBags(
        cohort.train,
        seed=config.seed,
        remix=remix,
        pairing=pairing,
        max_instances=config.training.max_instances,
        drop_instances=config.training.drop_instances,
        unite=cohort.hierarchy.findings == "several",
    )


def _enter(stack: ExitStack, folder: RunFolder, resume: bool, watch: Watch, owner: str) -> None:
    again = folder.exists() and _failed_before_it_began(folder)
    if folder.exists() and not resume and not again:
        state = folder.status().get("state", "unfinished")
        raise RunError(
            f"{folder.path} already holds a run ({state}). Continue it with --resume, or choose another folder."
        )
    before = stack.enter_context(locked(folder.path, take_over=resume or again, owner=owner))
    if before is not None:
        watch.noted(f"Took over from {before}, which is no longer running.")
    if resume and not folder.last.exists():
        watch.noted("There is no checkpoint yet, so the run starts from the beginning.")


def _is_extended(folder: RunFolder, spec: RunSpec) -> bool:
    """Whether the run of the folder gets more epochs or patience; one that would become another run is refused."""
    if not folder.exists() or _failed_before_it_began(folder):
        return False
    stored = stored_spec(folder.path)
    refuse_to_continue(stored, spec, folder.path)
    return bool(differences(stored, spec))


def _failed_before_it_began(folder: RunFolder) -> bool:
    """Whether a run failed before its first checkpoint: nothing was learned, so the corrected command starts over."""
    return folder.status().get("state") == "failed" and not folder.last.exists()


def _facts(cohort: Cohort, bags: TrainingBags) -> dict[str, Any]:
    """What `run.json` says about the bags, beside the spec."""
    facts: dict[str, Any] = {"bags": {"train": len(cohort.train), "val": len(cohort.val)}}
    if bags.pairing is not None:
        counts = zip(("bags", "first_epoch"), bags.pairing.class_counts(epoch=0), strict=True)
        names = cohort.hierarchy.names()
        facts["class_drift_by_remix"] = {key: dict(zip(names, own.tolist(), strict=True)) for key, own in counts}
    return facts


def run_cautions(progress: RunProgress, cohort: Cohort, select: str) -> list[str]:
    """Cautions about the kept checkpoint, shown before its score: all calls alike, or chosen by few patients."""
    cautions = []
    row = progress.history[progress.best_epoch - 1]
    if row.get("val_collapsed"):
        label = cohort.hierarchy.names()[int(row["val_top_call"])]
        cautions.append(
            f"the epoch that is kept, {progress.best_epoch}, calls {100 * row['val_top_call_share']:.0f} % of the "
            f"validation slides {label!r}, which most of them are not: the model gives one answer. Train longer, "
            "change training.lr, or look at the labels."
        )
    patients = len({source.patient_id for source in cohort.val.sources})
    if patients < FEW_PATIENTS and select != "last":  # the last epoch is kept whatever its scores
        cautions.append(
            f"the validation split has only {counted(patients, 'patient')}, so the choice of the best epoch is noisy."
        )
    return cautions


@contextmanager
def _status(fabric: Processes, folder: RunFolder) -> Iterator[None]:
    """Say in `status.json` how the run ended, whatever happens."""
    try:
        yield
    except (RunInterruptedError, KeyboardInterrupt, SystemExit):
        if fabric.is_global_zero:
            folder.set_status("interrupted")
        raise
    except Exception as error:  # whatever ends the run belongs in its status; it is raised again
        if fabric.is_global_zero:
            folder.set_status("failed", error=f"{type(error).__name__}: {error}")
        raise


def _together(fabric: Processes, action: Callable[[], Result]) -> Result | None:
    """The result of the first process, in it alone; if it fails there, all processes fail instead of waiting for it."""
    result: Result | None = None
    error: Exception | None = None
    if fabric.is_global_zero:
        try:
            result = action()
        except Exception as caught:  # raised again below, in every process
            error = caught
    failure = fabric.broadcast(None if error is None else str(error))
    # The first process keeps the kind of its error; the others only know its message.
    if error is not None:
        raise error
    if failure is not None:
        raise RunError(failure)
    return result
