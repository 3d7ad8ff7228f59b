from __future__ import annotations

import numpy as np
import pytest

from pams_mil.errors import ConfigError
from pams_mil.wsi.encoders.encoder import create_encoder

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

TILES = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


def save(path, *, batch="b", side=None, raw=False, props=None, maps=False):
    """A network that averages each channel (of raw or normalized pixels)."""
    from onnx import TensorProto, helper

    kind = TensorProto.UINT8 if raw else TensorProto.FLOAT
    given = helper.make_tensor_value_info("x", kind, [batch, 3, side or "h", side or "w"])
    nodes = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)]
    if maps:
        nodes.append(helper.make_node("AveragePool", ["f"], ["y"], kernel_shape=[2, 2], strides=[2, 2]))
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3, "p", "q"])
    else:
        nodes.append(helper.make_node("GlobalAveragePool", ["f"], ["g"]))
        nodes.append(helper.make_node("Flatten", ["g"], ["y"]))
        made = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3])
    graph = helper.make_graph(nodes, "mean", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    if props:
        helper.set_model_props(model, props)
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("maps", [False, True])
@pytest.mark.parametrize("batch", ["b", 2])
def test_raw_pixels_go_in_as_they_are(tmp_path, batch, maps):
    encoder = create_encoder(f"onnx:{save(tmp_path / 'm.onnx', raw=True, batch=batch, maps=maps)}")
    np.testing.assert_allclose(encoder(TILES), TILES.mean((1, 2)), rtol=1e-4)
    assert encoder.name.startswith("onnx:m@")


def test_normalization_comes_from_the_file(tmp_path):
    path = save(tmp_path / "m.onnx", props={"mean": "0.5,0.4,0.3", "std": "0.2,0.25,0.5"})
    expected = (TILES.mean((1, 2)) / 255 - [0.5, 0.4, 0.3]) / [0.2, 0.25, 0.5]
    np.testing.assert_allclose(create_encoder(f"onnx:{path}")(TILES), expected, atol=1e-4)


def test_tiles_are_resized_to_a_fixed_input(tmp_path):
    encoder = create_encoder(f"onnx:{save(tmp_path / 'm.onnx', raw=True, side=16)}")
    np.testing.assert_allclose(encoder(np.full((3, 32, 32, 3), 77, np.uint8)), 77)


def test_an_unstated_normalization_is_never_guessed(tmp_path):
    with pytest.raises(ConfigError, match="'mean'"):
        create_encoder(f"onnx:{save(tmp_path / 'm.onnx')}")


def test_files_that_are_no_models_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no ONNX file"):
        create_encoder(f"onnx:{tmp_path / 'none.onnx'}")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ConfigError, match="cannot be opened"):
        create_encoder(f"onnx:{tmp_path / 'junk.onnx'}")
