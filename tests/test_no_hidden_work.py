"""Importing does nothing: no warnings, no torch where it is not needed, no network, no files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import pams_mil
from pams_mil.cli.main import VERBS

ROOT = Path(pams_mil.__file__).parent
TORCH_FREE = [
    "pams_mil",
    "pams_mil.hierarchy",
    "pams_mil.class_file",
    "pams_mil.severity",
    "pams_mil.data.tables",
    "pams_mil.atomic",
    "pams_mil.seeding",
    "pams_mil.discover",
    "pams_mil.metrics",
    "pams_mil.metrics.resampling",
    "pams_mil.evaluate.predictions.prediction_layouts",
    "pams_mil.evaluate.scores",
    "pams_mil.evaluate.certify",
    "pams_mil.evaluate.compare",
    "pams_mil.data.manifest.manifest",
    "pams_mil.engine.config.run_config",
    "pams_mil.cli.main",
]
HEAVY = {"torch", "matplotlib", "sklearn", "scipy.stats", "pyarrow", "openpyxl"}
NOT_FOR_HELP = sorted(HEAVY | {"numpy", "pydantic", "yaml", "h5py", "lightning_fabric", "ray"})
NOT_FOR_A_RUN = ["lightning_fabric", "torchmetrics", "matplotlib", "sklearn", "scipy.stats", "ray", "pams_mil.wsi"]
GUARD = """
import socket, sys
def refuse(*_, **__):
    raise OSError("no network at import")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
"""


def run(code: str, home: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **{key: value for key, value in os.environ.items() if key in ("PATH", "PYTHONPATH", "VIRTUAL_ENV")},
        "HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [sys.executable, *options, "-c", GUARD + code]
    return subprocess.run(command, capture_output=True, text=True, cwd=home, env=environment, timeout=600, check=False)


def test_torch_free_parts_import_no_torch_and_warn_of_nothing(tmp_path: Path):
    code = f"import importlib\nHEAVY = {HEAVY!r}\n" + "".join(
        f"importlib.import_module({name!r})\n"
        f"heavy = sorted(HEAVY & set(sys.modules))\n"
        f"if heavy: sys.exit({name!r} + ' imports ' + str(heavy))\n"
        for name in TORCH_FREE
    )
    done = run(code, tmp_path, "-W", "error")
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_help_of_a_verb_imports_that_verb_and_nothing_heavy(tmp_path: Path):
    verbs = [module if attribute == "app" else attribute for _, module, attribute in VERBS]
    code = (
        "from pams_mil.cli.main import app\n"
        f"for words in (['train', '--help'], ['--help'], *([verb, '-h'] for verb in {verbs!r})):\n"
        "    try:\n"
        "        app(words)\n"
        "    except SystemExit as end:\n"
        "        if end.code: sys.exit(f'{words}: {end.code}')\n"
        "    if words == ['train', '--help'] and 'pams_mil.cli.audit' in sys.modules: sys.exit('train imports audit')\n"
        f"    heavy = [name for name in {NOT_FOR_HELP!r} if name in sys.modules]\n"
        "    if heavy: sys.exit(f'{words} imports {heavy}')\n"
    )
    done = run(code, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == len(verbs) + 2
    assert list(tmp_path.iterdir()) == []


def test_every_module_imports_silently_and_a_run_needs_few(tmp_path: Path):
    names = sorted(
        ".".join(("pams_mil", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        for path in ROOT.rglob("*.py")
        if path.name != "__main__.py"
    )
    code = (
        "import importlib, numpy as np, torch\n"
        "np.random.seed(0); before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()\n"
        "import pams_mil.engine.grid.engines\n"
        f"heavy = [name for name in {NOT_FOR_A_RUN!r} if name in sys.modules]\n"
        "if heavy: sys.exit(f'a process of a benchmark imports {heavy}')\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        if (error.name or '').startswith('pams_mil'):\n"
        "            raise\n"
        "after = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()\n"
        "if after != before: sys.exit('importing consumed random numbers')\n"
    )
    done = run(code, tmp_path, "-W", "error::UserWarning:pams_mil", "-W", "error::DeprecationWarning:pams_mil")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    left = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if "matplotlib" not in str(path)]
    assert [path for path in left if path not in (".config", ".cache")] == []


@pytest.mark.parametrize("name", ["bracs", "cifar10"])
def test_loading_a_hierarchy_touches_nothing_else(tmp_path: Path, name: str):
    code = f"from pams_mil import ClassHierarchy; print(ClassHierarchy.load({name!r}).num_classes())"
    done = run(code, tmp_path, "-W", "error")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
