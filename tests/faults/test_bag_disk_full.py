"""A bag file on a full disk: an error with path and cause, nothing left behind, and the process lives on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.data import writers

from pams_mil.data import Bag, read_bag, write_bag

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")

PROGRAM = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from pams_mil.data import Bag, write_bag
from pams_mil.errors import OutputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out = Path(sys.argv[1])
for limit in (1, 900, 4_000, 90_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_bag(out / "s.h5", Bag(np.ones((900, 64), np.float32)))
    except OutputError as error:
        sys.stdout.write(f"{'leaves no room' in str(error) and 's.h5' in str(error)}\\n")
"""


RECORDED = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from pams_mil.data import Bag
from pams_mil.errors import OutputError
from pams_mil.wsi.slide_to_bag import CellCounts, ExtractionRecord, write_extracted
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out, bag = Path(sys.argv[1]), Bag(np.ones((900, 64), np.float32))
counts = CellCounts(1, 1, 0, 0)
made = ExtractionRecord("a.svs", "0", (9, 9), "openslide", 0.5, "metadata", "uni", "", 0.1, 0.1, 0.1, counts)
write_extracted(out / "s.h5", bag, made)
size = (out / "s.h5").stat().st_size
for limit in (1, size // 2, size - 3000, size - 1):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        write_extracted(out / "t.h5", bag, made)
    except OutputError as error:
        sys.stdout.write(f"{'leaves no room' in str(error) and 't.h5' in str(error)}\\n")
"""


PREDICTED = """
import resource, signal, sys
from pathlib import Path
import torch
from pams_mil.data.bags.dataset import BagSample
from pams_mil.engine.prediction.tiles import attention_writer, write_tiles
from pams_mil.errors import OutputError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
out, sample = Path(sys.argv[1]), BagSample(torch.ones(9000, 4), 0, "s", "p", torch.ones(9000, 2))
weights = torch.rand(9000, generator=torch.Generator().manual_seed(0))
for limit in (1, 900, 4_000, 30_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    for write in (lambda: attention_writer(out)(sample, [weights, weights]),
                  lambda: write_tiles(out / "tiles/s.parquet", sample, {"pams_attention_class": weights.numpy()})):
        try:
            write()
        except OutputError as error:
            sys.stdout.write(f"{'leaves no room' in str(error)}\\n")
"""


def test_a_full_disk_while_attention_and_tiles_are_written(tmp_path: Path) -> None:
    """HDF5 on a full disk ended in a segmentation fault or a traceback, at some sizes."""
    pytest.importorskip("pyarrow")
    done = subprocess.run(
        [sys.executable, "-c", PREDICTED, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.split() == ["True"] * 8, (done.returncode, done.stderr[-2000:])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_disk_while_an_extracted_bag_is_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORDED, str(tmp_path)], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.split() == ["True"] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["s.h5"]


@pytest.mark.parametrize("earlier", [False, True])
def test_full_disk(tmp_path: Path, earlier: bool) -> None:
    features, coords = writers.numbers(30)
    if earlier:
        write_bag(tmp_path / "s.h5", Bag(features, coords))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.split() == ["True"] * 4
    assert [path.name for path in tmp_path.iterdir()] == (["s.h5"] if earlier else [])
    if earlier:
        np.testing.assert_array_equal(read_bag(tmp_path / "s.h5").features, features)
