"""Hugging Face backbones, with small random configurations saved to a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gfss.common.errors import GfssError
from gfss.models.encoders import build_encoder, huggingface
from gfss.models.encoders.base import fused

transformers = pytest.importorskip("transformers")

VIT = {"hidden_size": 24, "num_hidden_layers": 6, "num_attention_heads": 2}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
SWIN = {"embed_dim": 8, "depths": [1, 1, 2, 1], "num_heads": [1, 1, 2, 2], "window_size": 4, "image_size": 64}
FAMILIES = {  # kind of configuration, its options, expected channels, expected stride, whether any size fits
    "dinov2": ("Dinov2Config", {**VIT, "patch_size": 14, "image_size": 56}, [24, 24, 24], 14, False),
    "convnext": ("ConvNextConfig", STAGES, [16, 24, 32], 32, False),
    "swin": ("SwinConfig", SWIN, [16, 32, 64], 32, True),
    "resnet": ("ResNetConfig", {**STAGES, "embedding_size": 8}, [16, 24, 32], 32, True),
}


def save(folder: Path, family: str) -> Path:
    kind, options, *_ = FAMILIES[family]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = getattr(transformers, kind)(**options, out_indices=[2, 3, 4])
        transformers.AutoBackbone.from_config(config).save_pretrained(folder / family)
    return folder / family


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@torch.inference_mode()
def test_backbone_becomes_an_encoder(tmp_path: Path, family: str) -> None:
    _, _, channels, stride, any_size = FAMILIES[family]
    encoder = build_encoder(f"hf:{save(tmp_path, family)}")
    assert (list(encoder.channels.values()), encoder.stride) == (channels, stride)
    for size in (4 * stride, *((97, 130) if any_size else ())):
        side = encoder.map_size(size)
        levels = encoder(torch.rand(2, 3, size, size))
        assert {key: tuple(level.shape) for key, level in levels.items()} == {
            key: (2, width, side, side) for key, width in zip(("layer2", "layer3", "layer4"), channels, strict=True)
        }


@torch.inference_mode()
def test_fused_form_gives_the_same_features(tmp_path: Path, family: str) -> None:
    encoder = build_encoder(f"hf:{save(tmp_path, family)}")
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    for plain, quick in zip(encoder(images).values(), fused(encoder)(images).values(), strict=True):
        torch.testing.assert_close(quick, plain, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_patch_grid_keeps_its_place(tmp_path: Path) -> None:
    """A bright patch changes the features most where it lies: rows and columns are not swapped."""
    encoder = build_encoder(f"hf:{save(tmp_path, 'dinov2')}")
    images = torch.full((1, 3, 56, 84), 0.5)
    marked = images.clone()
    marked[:, :, 14:28, 56:70] = 1.0
    change = (encoder(marked)["layer2"] - encoder(images)["layer2"]).abs().sum(dim=1)[0]
    assert change.shape == (4, 6)
    assert divmod(int(change.argmax()), 6) == (1, 4)


@pytest.mark.parametrize(
    ("family", "size", "nearest"), [("dinov2", 417, 420), ("dinov2", 3, 14), ("convnext", 417, 416)]
)
def test_size_that_does_not_fit_is_answered_with_the_nearest(
    tmp_path: Path, family: str, size: int, nearest: int
) -> None:
    encoder = build_encoder(f"hf:{save(tmp_path, family)}")
    with pytest.raises(GfssError, match=f"got {size}, the nearest that fits is {nearest}$"):
        encoder.map_size(size)
    with pytest.raises(GfssError, match=f"the nearest that fits is {nearest}$"):
        encoder(torch.rand(1, 3, nearest, size))


def test_normalisation_is_the_one_the_model_was_trained_with(tmp_path: Path) -> None:
    folder = save(tmp_path, "resnet")
    assert build_encoder(f"hf:{folder}").mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    settings = {"image_processor_type": "ViTImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    encoder = build_encoder(f"hf:{folder}")
    assert encoder.mean.flatten().tolist() == [0.5] * 3
    assert encoder.std.flatten().tolist() == [0.25] * 3


def test_unpretrained_has_the_architecture_but_other_weights(tmp_path: Path) -> None:
    name = f"hf:{save(tmp_path, 'resnet')}"
    trained, random = build_encoder(name), build_encoder(name, pretrained=False, seed=5)
    assert trained.weights_hash() != random.weights_hash()
    random.load_state_dict(trained.state_dict())
    assert trained.weights_hash() == random.weights_hash()


def test_configuration_and_weights_are_of_the_revision_that_was_named_and_no_pickle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, asked = save(tmp_path, "resnet"), []

    def remember(kind: Any) -> None:
        load = kind.from_pretrained

        def from_pretrained(place: str, *arguments: Any, **options: Any) -> Any:
            asked.append((place, options.get("revision"), options.get("use_safetensors")))
            return load(folder, *arguments, **{**options, "revision": "main"})

        monkeypatch.setattr(kind, "from_pretrained", from_pretrained)

    remember(transformers.AutoConfig)
    remember(transformers.ResNetBackbone)
    monkeypatch.setattr(huggingface, "_normalisation", lambda name: ([0.5] * 3, [0.25] * 3))
    build_encoder("hf:someone/resnet@ed25f3a")
    assert asked == [("someone/resnet", "ed25f3a", None), ("someone/resnet", "ed25f3a", True)]


def test_weights_that_do_not_fit_are_named(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = save(tmp_path, "resnet")
    state = load_file(folder / "model.safetensors")
    del state["embedder.embedder.convolution.weight"]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(GfssError, match=r"missing embedder\.embedder\.convolution\.weight"):
        build_encoder(f"hf:{folder}")


def test_models_that_cannot_serve_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(GfssError, match="is a bert model"):
        build_encoder(f"hf:{tmp_path}")
    shallow = transformers.Dinov2Config(**{**VIT, "num_hidden_layers": 2})
    shallow.save_pretrained(tmp_path)
    with pytest.raises(GfssError, match="has 2 stages; at least 3"):
        build_encoder(f"hf:{tmp_path}")
    with pytest.raises(GfssError, match="there is no encoder"):
        build_encoder(f"hf:{tmp_path / 'nowhere' / 'at' / 'all'}")
    with pytest.raises(GfssError, match=r"output stride of hf:.* is fixed"):
        build_encoder(f"hf:{tmp_path}", output_stride=8)
