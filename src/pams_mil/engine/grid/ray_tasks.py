"""Cells as Ray tasks: on this machine, or on a cluster whose nodes share the output folder.

A task whose node dies is started again elsewhere by Ray and continues from the run's last checkpoint.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pams_mil.engine.config.grid_config import Cell
from pams_mil.engine.grid.benchmark_cell import CellResult, run_cell
from pams_mil.errors import first_line, needs_extra


@dataclass(frozen=True)
class RayEngine:
    """Runs cells on Ray.

    Attributes:
        address: Of an existing cluster, e.g. "auto" or "ray://head:10001"; None: a Ray of our own on this machine.
        cpus: Cores that a cell claims.
        gpus: GPUs that a cell claims; a fraction shares one.
        retries: How often a cell is started again when its node or process dies.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0
    retries: int = 5

    def run(self, pending: Sequence[Cell], out: Path, owner: str) -> Generator[CellResult | None, None, None]:
        """All results as they come."""
        ray = _import_ray()
        started_here = not ray.is_initialized()
        if started_here:
            ray.init(address=self.address, include_dashboard=False, log_to_driver=False, configure_logging=False)
        try:
            yield from self._run(ray, pending, out, owner)
        finally:
            if started_here:
                ray.shutdown()

    def _run(self, ray: Any, pending: Sequence[Cell], out: Path, owner: str) -> Iterator[CellResult | None]:
        task = ray.remote(run_cell).options(
            num_cpus=self.cpus, num_gpus=self.gpus, max_retries=self.retries, retry_exceptions=False
        )
        threads = max(1, int(self.cpus))
        references = {task.remote(cell, str(out.resolve()), owner, threads): cell for cell in pending}
        left = list(references)
        while left:
            done, left = ray.wait(left, timeout=0.5)
            if not done:
                yield None
            for reference in done:
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield CellResult(references[reference].key, f"Ray gave up on it: {first_line(error)}")


def _import_ray() -> Any:
    with needs_extra("The Ray engine", package="ray", extra="ray"):
        import ray  # noqa: PLC0415  optional and heavy
    return ray
