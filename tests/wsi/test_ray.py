"""Slides over a Ray cluster: the same bags, also when a node is lost on the way."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.wsi.plain_encoder import ColorEncoder
from tests.wsi.test_kill import bags, make

from pams_mil.wsi.encoders.encoder import EncoderOptions
from pams_mil.wsi.extract import extract
from pams_mil.wsi.slide_sources import find_slides
from pams_mil.wsi.tile_grid import TileSettings, WorkSettings

ENCODER = "tests.wsi.plain_encoder:ColorEncoder"
SETTINGS = TileSettings(mpp=4.0, tile_px=32)
WORK = WorkSettings(workers=1, batch=8)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("lose_a_node", [False, True])
def test_a_cluster_gives_the_same_bags_even_if_a_node_is_lost(tmp_path, monkeypatch, lose_a_node):
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from pams_mil.wsi.ray_slides import extract_on_cluster

    slides = make(tmp_path / "slides", 10)
    (slides / "truncated.tiff").write_bytes(b"II*\0")
    sources = find_slides([slides])
    extract(sources, tmp_path / "alone", ColorEncoder(), SETTINGS, WORK)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("PAMS_TEST_PAUSE", "0.15")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        out = tmp_path / "cluster"
        found = []
        options = EncoderOptions(device="cpu")
        work = threading.Thread(
            target=lambda: found.append(extract_on_cluster(sources, out, ENCODER, options, SETTINGS, WORK))
        )
        work.start()
        if lose_a_node:
            while len(list(out.glob("h5_files/*.h5"))) < 3 and work.is_alive():
                time.sleep(0.02)
            cluster.remove_node(second, allow_graceful=False)
        work.join(timeout=600)
        assert not work.is_alive()
        assert list(found[0].failed) == ["truncated"]
        assert bags(out) == bags(tmp_path / "alone")
        assert "truncated" in (out / "failures.csv").read_text()
    finally:
        ray.shutdown()
        cluster.shutdown()
