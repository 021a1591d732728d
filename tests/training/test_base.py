from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from tests.training.tiny import CLASSES, FOLD, LEVELS, SIZE, make_dataset, make_model
from torch import Tensor

from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.data.catalog import VOID
from gfss.data.datasets.base import Dataset
from gfss.features.bank import Bank, build_bank
from gfss.models.base_model import BaseModel
from gfss.models.encoders import build_encoder
from gfss.training import base as base_module
from gfss.training.base import BaseData, BaseOptions, pixel_loss, train_base, training_table, untrained_base
from gfss.training.batches import augmentations, batch_images, training_images
from gfss.training.checkpoints import load_base, save_base
from gfss.training.loop import Schedule, TrainingRun

FROZEN = BaseOptions(levels=LEVELS, pyramid=4, width=12, epochs=3, batch=8, rate=1e-2)
SCRATCH = replace(FROZEN, levels=("layer4",), separable=False, epochs=1, train_encoder=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def bank(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Bank:
    return build_bank(build_encoder("tiny"), dataset, SIZE, LEVELS, root=tmp_path_factory.mktemp("banks"))


def trained(
    dataset: Dataset, bank: Bank | None, options: BaseOptions = FROZEN, folder: Path | None = None
) -> BaseModel:
    return train_base(
        BaseData(dataset, FOLD, bank=bank),
        build_encoder("tiny"),
        "tiny",
        options,
        size=SIZE,
        run=TrainingRun(folder=folder),
    )


def same_weights(first: BaseModel, second: BaseModel) -> bool:
    states = first.state_dict(), second.state_dict()
    return all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_warm_up_is_part_of_the_schedule(dataset: Dataset, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: list[Schedule] = []
    monkeypatch.setattr(base_module, "train", lambda module, loss, schedule, *_, **__: schedules.append(schedule))
    for epochs in (10, 2):
        trained(dataset, bank, replace(FROZEN, epochs=epochs, rate=0.3, warmup=3))
    long, short = schedules
    assert (long.rate, long.warmup) == (short.rate, 3) == (0.3, 3)
    assert short.warmup == short.iterations // 5 < 3  # a fifth at most


def test_novel_pixels_teach_nothing(dataset: Dataset, bank: Bank, tmp_path: Path) -> None:
    """Weights are the same, bit by bit, as with masks whose novel pixels are void."""
    masks = []
    for i, path in enumerate(dataset.masks):
        mask = dataset.mask(i)
        masks.append(tmp_path / path.name)
        Image.fromarray(np.where(np.isin(mask, FOLD.novel), VOID, mask).astype(np.uint8)).save(masks[-1])
    hidden = replace(dataset, masks=tuple(masks))
    other = build_bank(build_encoder("tiny"), hidden, SIZE, LEVELS, root=tmp_path)
    assert not torch.equal(bank.labels(range(8)), other.labels(range(8)))
    assert same_weights(trained(dataset, bank), trained(hidden, other))


def test_novel_classes_have_no_label() -> None:
    table = FOLD.label_table()
    assert table[list(FOLD.novel)].tolist() == [VOID, VOID]
    assert table[[0, *FOLD.base, VOID]].tolist() == [0, 1, 2, 3, 4, 5, 6, VOID]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5), st.integers(0, 3))
def test_every_epoch_is_a_permutation(count: int, batch: int, seed: int, epoch: int) -> None:
    images = np.arange(100, 100 + count)
    per_epoch = max(1, count // batch)
    numbers = range(epoch * per_epoch, (epoch + 1) * per_epoch)
    drawn = [i for number in numbers for i in batch_images(images, batch, seed, number)]
    assert len(set(drawn)) == len(drawn) == min(count, per_epoch * batch)
    assert set(drawn) <= set(images.tolist())
    assert drawn == [i for number in numbers for i in batch_images(images, batch, seed, number)]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    images = np.arange(40)
    orders = [
        [i for n in range(5 * e, 5 * e + 5) for i in batch_images(images, 8, s, n)] for s, e in ((0, 0), (0, 1), (1, 0))
    ]
    assert all(sorted(order) == list(range(40)) for order in orders)
    assert orders[0] != orders[1]
    assert orders[0] != orders[2]


def test_flips_are_pure_fair_and_can_be_left_out() -> None:
    both = BaseOptions(flip=True, flip_vertical=True)
    drawn = np.concatenate([augmentations(0, number, 10, both)[:, :2] for number in range(100)])
    assert np.array_equal(augmentations(0, 99, 10, both)[:, :2], drawn[-10:])
    assert np.all(np.abs(drawn.mean(axis=0) - 0.5) < 0.06)
    assert not augmentations(0, 0, 100, BaseOptions(flip=False, flip_vertical=False))[:, :2].any()
    across = augmentations(0, 0, 100, BaseOptions(flip=True, flip_vertical=False))
    assert across[:, 0].any()
    assert not across[:, 1].any()


def test_colours_are_shuffled_if_asked_for() -> None:
    orders = augmentations(0, 0, 200, BaseOptions(shuffle_colours=True))[:, 2:]
    assert len({tuple(order) for order in orders.tolist()}) == 6
    assert np.array_equal(np.sort(orders, axis=1), np.tile([0, 1, 2], (200, 1)))
    assert np.array_equal(augmentations(0, 0, 2, BaseOptions())[:, 2:], [[0, 1, 2], [0, 1, 2]])


@dataclass(frozen=True)
class MirroredBank(Bank):
    """A bank of the mirror images."""

    axis: int = -1

    def features(self, images: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        return {name: level.flip(self.axis) for name, level in super().features(images, device).items()}

    def labels(self, images: Sequence[int], table: np.ndarray | None = None, stride: int = 1) -> Tensor:
        return super().labels(images, table, stride).flip(self.axis)


@pytest.mark.parametrize(("axis", "always"), [(-1, [1, 0, 0, 1, 2]), (-2, [0, 1, 0, 1, 2])])
def test_flipping_is_training_on_mirror_images(
    dataset: Dataset, bank: Bank, monkeypatch: pytest.MonkeyPatch, axis: int, always: list[int]
) -> None:
    options = replace(FROZEN, epochs=1, optimiser="sgd")
    mirror = MirroredBank(bank.folder, bank.size, bank.channels, bank.count, axis)
    plain = trained(dataset, mirror, replace(options, flip=False))
    monkeypatch.setattr(base_module, "augmentations", lambda seed, number, count, options: np.array([always] * count))
    flipped = trained(dataset, bank, options)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(flipped.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 100))
def test_pixel_loss_is_cross_entropy_without_void(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, 3, 5, 5, generator=generator)
    labels = torch.randint(0, 4, (2, 5, 5), generator=generator)
    labels[labels == 3] = VOID
    total, count = pixel_loss(logits, labels)
    seen = [(logits[b, :, y, x], int(labels[b, y, x])) for b in range(2) for y in range(5) for x in range(5)]
    losses = [float(torch.logsumexp(scores, 0) - scores[label]) for scores, label in seen if label != VOID]
    assert int(count) == len(losses)
    assert float(total) == pytest.approx(sum(losses), rel=1e-4)


@pytest.mark.parametrize("options", [replace(FROZEN, epochs=8), replace(SCRATCH, epochs=8)], ids=["frozen", "scratch"])
def test_training_learns(dataset: Dataset, bank: Bank, options: BaseOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    run = base_module.train
    monkeypatch.setattr(base_module, "train", lambda *args, **more: losses.extend(run(*args, **more)))
    trained(dataset, bank, options)
    assert len(losses) == 8 * (len(training_images(dataset, FOLD)) // 8)
    assert np.mean(losses[-4:]) < 0.6 * np.mean(losses[:2])


def test_a_frozen_encoder_stays_and_needs_its_bank(dataset: Dataset, bank: Bank) -> None:
    model = trained(dataset, bank, replace(FROZEN, epochs=1))
    assert model.encoder.weights_hash() == build_encoder("tiny").weights_hash() == model.card.encoder_hash
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    with pytest.raises(GfssError, match="give its bank or train the encoder too"):
        trained(dataset, None)


def test_the_card_says_what_the_model_is(dataset: Dataset, bank: Bank) -> None:
    card = trained(dataset, bank, replace(FROZEN, epochs=1)).card
    assert (card.encoder, card.output_stride, card.size, card.data) == ("tiny", 4, SIZE, "tiny")
    assert card.classes == CLASSES[2:]
    assert card.novel == CLASSES[:2]
    assert card.training["rate"] == 1e-2


@pytest.mark.parametrize("options", [replace(FROZEN, epochs=1), SCRATCH], ids=["frozen", "scratch"])
def test_a_saved_model_is_read_back(dataset: Dataset, bank: Bank, options: BaseOptions, tmp_path: Path) -> None:
    model = trained(dataset, bank, options, tmp_path)
    (file,) = tmp_path.glob("*.safetensors")  # the training checkpoint is gone
    assert any(name.startswith("encoder.") for name in load_file(file)) == options.train_encoder
    read = load_base(tmp_path)
    assert same_weights(model, read)
    assert read.card == replace(model.card, training=read.card.training)
    assert read.card.encoder_hash == read.encoder.weights_hash()
    image = torch.rand(1, 3, SIZE, SIZE)
    with torch.no_grad():
        assert torch.equal(model(image).base, read(image).base)


def test_a_resumed_run_ends_as_the_whole_one(
    dataset: Dataset, bank: Bank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gfss.training import loop

    monkeypatch.setattr(loop, "SAVE_EVERY", 3)
    whole = trained(dataset, bank)
    draw = batch_images

    def stopping(images: np.ndarray, batch: int, seed: int, number: int) -> list[int]:
        if number == 5:
            raise KeyboardInterrupt
        return draw(images, batch, seed, number)

    with monkeypatch.context() as patched:
        patched.setattr(base_module, "batch_images", stopping)
        with pytest.raises(KeyboardInterrupt):
            trained(dataset, bank, folder=tmp_path)
    encoder = build_encoder("tiny")
    resumed = train_base(
        BaseData(dataset, FOLD, bank=bank),
        encoder,
        "tiny",
        FROZEN,
        size=SIZE,
        run=TrainingRun(folder=tmp_path, resume=True),
    )
    assert same_weights(whole, resumed)


def test_other_encoder_weights_are_refused(dataset: Dataset, bank: Bank, tmp_path: Path) -> None:
    model = make_model(dataset, bank)
    save_base(tmp_path, model)
    other = build_encoder("tiny", seed=1)
    with pytest.raises(GfssError) as error:
        load_base(tmp_path, other)
    assert model.card.encoder_hash in str(error.value)
    assert other.weights_hash() in str(error.value)
    assert "--encoder-weights" in str(error.value)


def test_a_nan_names_iteration_rate_and_images(dataset: Dataset, bank: Bank, tmp_path: Path) -> None:
    broken = tmp_path / bank.folder.name
    shutil.copytree(bank.folder, broken)
    path = broken / "0000.features.npy"
    features = np.load(path)
    image = batch_images(training_images(dataset, FOLD), 8, 0, 0)[3]
    features[image] = np.nan
    np.save(path, features)
    sample = replace(FROZEN, epochs=1)
    with pytest.raises(GfssError) as error:
        trained(dataset, Bank(broken, SIZE, bank.channels, bank.count), sample)
    assert "at iteration 0 (learning rate 0.01, images " in str(error.value)
    assert dataset.ids[image] in str(error.value)


@pytest.mark.parametrize("changed", [[0, 1, 0, 1, 2], [1, 0, 0, 1, 2], [1, 1, 2, 0, 1]], ids=str)
def test_images_are_changed_with_their_masks(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: list[int]
) -> None:
    """Training the encoder on flipped and recoloured images is training on files that are so."""
    across, down, *colours = changed
    steps = (slice(None, None, -1 if down else 1), slice(None, None, -1 if across else 1))
    files: dict[str, list[Path]] = {"images": [], "masks": []}
    for i, name in enumerate(dataset.ids):
        for kind, array in (("images", dataset.image(i)[steps][..., colours]), ("masks", dataset.mask(i)[steps])):
            files[kind].append(tmp_path / f"{kind}-{name}.png")
            Image.fromarray(np.ascontiguousarray(array)).save(files[kind][-1])
    other = replace(dataset, images=tuple(files["images"]), masks=tuple(files["masks"]))
    options = replace(SCRATCH, flip=False)
    plain = trained(other, None, options)
    monkeypatch.setattr(base_module, "augmentations", lambda seed, number, count, options: np.array([changed] * count))
    assert same_weights(trained(dataset, None, options), plain)


def test_smoothing_gives_every_class_its_share() -> None:
    logits, labels = torch.randn(1, 4, 3, 3), torch.randint(0, 4, (1, 3, 3))
    labels[0, 0, 0] = VOID
    total, count = pixel_loss(logits, labels, smoothing=0.2)
    expected = 0.0
    for y, x in ((y, x) for y in range(3) for x in range(3) if labels[0, y, x] != VOID):
        logs = logits[0, :, y, x].log_softmax(dim=0)
        expected -= float(0.8 * logs[labels[0, y, x]] + 0.2 * logs.mean())
    assert int(count) == 8
    assert float(total) == pytest.approx(expected, rel=1e-4)


def test_the_loss_is_smoothed_as_told(dataset: Dataset, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []
    loss = base_module.pixel_loss

    def spy(logits: Tensor, labels: Tensor, smoothing: float = 0.0, *rest: float) -> tuple[Tensor, Tensor]:
        told.append(smoothing)
        return loss(logits, labels, smoothing, *rest)

    monkeypatch.setattr(base_module, "pixel_loss", spy)
    trained(dataset, bank, replace(FROZEN, epochs=1, smoothing=0.3))
    assert set(told) == {0.3}


def test_pixel_loss_adds_the_missed_overlap_of_every_image() -> None:
    logits = torch.zeros(1, 3, 2, 2)
    labels = torch.tensor([[[0, 1], [1, VOID]]])
    plain, pixels = pixel_loss(logits, labels)
    with_overlap, same = pixel_loss(logits, labels, overlap=0.5)
    assert pixels == same == 3
    # class 1 has a third of 3 pixels' probability: 2/3 in its 2 pixels, union 2 + 1 - 2/3
    missed = 1 - (2 / 3) / (2 + 1 - 2 / 3)
    assert float(with_overlap - plain) == pytest.approx(0.5 * 3 * missed)


def test_novel_pixels_are_void_or_background(dataset: Dataset) -> None:
    data = BaseData(dataset, FOLD)
    void = training_table(data, BaseOptions())
    background = training_table(data, BaseOptions(novel_pixels="background"))
    others = [c for c in range(1, len(dataset.classes) + 1) if c not in FOLD.base]
    assert others
    assert {int(void[c]) for c in others} == {VOID}
    assert {int(background[c]) for c in others} == {0}
    assert background[255] == VOID
    assert [int(background[c]) for c in FOLD.base] == list(range(1, len(FOLD.base) + 1))


def test_a_base_model_that_calls_novel_pixels_background_has_a_bias(dataset: Dataset, bank: Bank) -> None:
    data = BaseData(dataset, FOLD, bank=bank)
    for pixels, has_bias in (("void", False), ("background", True)):
        options = replace(FROZEN, novel_pixels=pixels)
        model = untrained_base(data, build_encoder("tiny"), "tiny", options, SIZE, seed=0)
        assert (model.head.classifier.bias is not None) == has_bias
        assert model.card.training["novel_pixels"] == pixels
