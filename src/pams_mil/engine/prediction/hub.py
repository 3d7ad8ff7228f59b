"""Models on a hub: `hf://owner/name`, or `hf://owner/name@revision`; weights, description and card, never code.

Files go through `huggingface_hub`, with its cache, its token and its settings (`HF_ENDPOINT`, `HF_HUB_CACHE`,
`HF_HUB_OFFLINE`). All files of a model are of one commit, and what was fetched once is read from the cache without a
network.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from pams_mil.engine.run.cv_folder import exported_runs
from pams_mil.engine.run.folder import CALIBRATION, CODE, read_json
from pams_mil.engine.run.spec import RunSpec
from pams_mil.errors import ConfigError, RunError, first_line, needs_extra

DESCRIPTION = "config.json"
NEEDED = (DESCRIPTION, "model.safetensors", "README.md")
FURTHER = (CALIBRATION, "certificate.json")
"""Taken along where they are there. Not the digests of patients: who knows an id could look it up."""
_ADDRESS = re.compile(r"hf:/{1,2}(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?")


def is_hub(path: Path | str) -> bool:
    """Whether a path is an address on the hub, also after `Path` took one of its slashes.

    >>> is_hub("hf://owner/name"), is_hub(Path("hf://owner/name@v1")), is_hub("runs/a")
    (True, True, False)
    """
    return str(path).startswith("hf:/")


def local_folder(path: Path | str) -> Path:
    """The folder of a run; of an address on the hub, the folder of its files in the cache.

    Raises:
        ConfigError: it is not an address.
        RunError: there is no such model, or no way to reach it and nothing in the cache.
    """
    if not is_hub(path):
        return Path(path)
    match = _ADDRESS.fullmatch(str(path))
    if match is None:
        raise ConfigError(
            f"{str(path)!r} is not a model on the hub; expected hf://owner/name or hf://owner/name@revision."
        )
    with needs_extra("Models on the hub", package="huggingface_hub", extra="hub"):
        from huggingface_hub import hf_hub_download  # noqa: PLC0415  optional
        from huggingface_hub.errors import EntryNotFoundError  # noqa: PLC0415
    options: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT"), "cache_dir": os.environ.get("HF_HUB_CACHE")}
    try:
        first = Path(hf_hub_download(match["name"], DESCRIPTION, revision=match["revision"], **options))
        # The name of the folder is the commit: no file is taken from a later one.
        commit = first.parent.name
        for file, needed in _files(first.parent).items():
            try:
                hf_hub_download(match["name"], file, revision=commit, **options)
            except EntryNotFoundError:
                if needed:
                    raise
    except Exception as error:  # the client and its transport have many kinds
        raise RunError(
            f"Could not get the model {match['name']!r} from the hub: {first_line(error)} Expected a model that "
            "'pams export --push' wrote. Is the name right, is there a network, and have you access (HF_TOKEN)?"
        ) from error
    return first.parent


def push(folder: Path, name: str) -> str:
    """Upload what `export` wrote to owner/name and return the address of the commit; a new repository is private.

    Raises:
        ConfigError: it is not a name, or the model is made of code of one's own, which no hub gets.
        RunError: it could not be uploaded.
    """
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) is None:
        raise ConfigError(f"{name!r} is not a name on the hub; expected owner/name.")
    files = [one / DESCRIPTION for one in exported_runs(folder) or [folder]]
    if any(RunSpec.from_json(read_json(file).get("spec"), file).code for file in files):
        raise ConfigError(
            f"The model is made of code of your own, and a hub gets none: hand on the folder with its {CODE!r} instead."
        )
    with needs_extra("Models on the hub", package="huggingface_hub", extra="hub"):
        from huggingface_hub import HfApi  # noqa: PLC0415  optional
    try:
        api = HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
        api.create_repo(name, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=name, folder_path=folder, allow_patterns=list(_files(folder)), commit_message="pams export"
        )
    except Exception as error:  # the client and its transport have many kinds
        raise RunError(
            f"Could not upload {folder} to {name!r}: {first_line(error).rstrip('.')}. Have you the right to write "
            f"there (HF_TOKEN)? To try again: {shlex.join(['pams', 'export', str(folder), '--push', name])}"
        ) from error
    return f"hf://{name}@{commit.oid}"


def exported_files(folder: Path) -> dict[str, str]:
    """What the description of an exported folder says about its files; empty for any other folder."""
    return dict(read_json(folder / DESCRIPTION).get("files", {}))


def _files(folder: Path) -> dict[str, bool]:
    """The files of an exported model on the hub, each with whether it must be there: of a mean, also its networks'."""
    below = [network.relative_to(folder) for network in exported_runs(folder)]
    mean = {DESCRIPTION: True, "README.md": True, "certificate.json": False} if below else {}
    files = {(place / file).as_posix(): file in NEEDED for place in below or [Path()] for file in (*NEEDED, *FURTHER)}
    return mean | files
