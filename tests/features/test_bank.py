from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from tests.training.tiny import FOLD, LEVELS, SIZE, make_dataset

from gfss.common.errors import GfssError
from gfss.data.datasets.base import Dataset
from gfss.data.images import square_image, square_label, to_tensor
from gfss.features import bank as bank_module
from gfss.features.bank import Bank, bank_key, build_bank, check_bank
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder

COUNT, SHARD = 20, 8


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data"), COUNT)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return build_encoder("tiny")


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_module, "SHARD", SHARD)


@pytest.fixture
def build(dataset: Dataset, encoder: Encoder, tmp_path: Path) -> Callable[[], Bank]:
    return lambda: build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of the shards that are written from now on."""
    numbers: list[int] = []
    write = bank_module._write_shard

    def spy(folder: Path, number: int, *rest: object) -> None:
        numbers.append(number)
        write(folder, number, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(bank_module, "_write_shard", spy)
    return numbers


def contents(bank: Bank) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(bank.folder.iterdir())}


def test_reading_equals_computing(build: Callable[[], Bank], dataset: Dataset, encoder: Encoder) -> None:
    chosen = [7, 0, 19, 8, 7]  # over all shards, in any order, also twice
    bank = build()
    read = bank.features(chosen)
    with torch.inference_mode():
        images = np.stack([square_image(dataset.image(i), SIZE) for i in chosen])
        computed = encoder(to_tensor(images))
    assert list(read) == list(LEVELS)
    for name in LEVELS:
        assert read[name].shape == computed[name].shape
        torch.testing.assert_close(read[name], computed[name], rtol=2e-3, atol=2e-3)  # fp16 keeps 11 bits
    assert bank.map_size == computed["layer4"].shape[-1]


def test_labels_are_those_of_the_masks(build: Callable[[], Bank], dataset: Dataset) -> None:
    bank = build()
    chosen = [12, 3]
    truth = np.stack([square_label(dataset.mask(i), SIZE) for i in chosen])
    assert np.array_equal(bank.labels(chosen), truth)
    assert np.array_equal(
        bank.labels(chosen, FOLD.label_table((1,)), stride=4), FOLD.label_table((1,))[truth[:, ::4, ::4]]
    )


def test_a_complete_bank_is_not_computed_again(build: Callable[[], Bank], written: list[int]) -> None:
    first = contents(build())
    assert written == [0, 1, 2]
    assert contents(build()) == first
    assert written == [0, 1, 2]


def test_an_interrupted_build_continues(
    dataset: Dataset, encoder: Encoder, tmp_path: Path, written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Dataset.image

    def interrupted(self: Dataset, i: int) -> np.ndarray:
        if i == 12:
            raise KeyboardInterrupt
        return read(self, i)

    monkeypatch.setattr(Dataset, "image", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path / "stopped")
    monkeypatch.setattr(Dataset, "image", read)
    assert written == [0]
    continued = build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path / "stopped")
    assert written == [0, 1, 2]
    assert contents(continued) == contents(build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path / "at once"))


def test_processes_of_one_machine_share_the_work(
    build: Callable[[], Bank], written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = contents(build()), build().folder
    written.clear()
    for note in folder.glob("*.json"):
        note.unlink()
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    write = bank_module._write_shard

    def with_another(folder: Path, number: int, *rest: object) -> None:
        write(folder, number, *rest)  # type: ignore[arg-type]
        (folder / "0000.json").write_bytes(whole["0000.json"])  # meanwhile the other one finishes its first

    monkeypatch.setattr(bank_module, "_write_shard", with_another)
    assert contents(build()) == whole
    assert written == [1, 2]  # its own, then of the other's the last


@pytest.mark.parametrize("name", ["0001.features.npy", "0001.labels.npy", "0001.json"])
@pytest.mark.parametrize("damage", ["removed", "truncated"])
def test_a_torn_shard_is_made_anew(build: Callable[[], Bank], written: list[int], name: str, damage: str) -> None:
    bank = build()
    whole = contents(bank)
    path = bank.folder / name
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-40])
    written.clear()
    assert contents(build()) == whole
    assert written == [1]


def test_a_flipped_byte_is_found_by_the_check_and_mended(build: Callable[[], Bank]) -> None:
    bank = build()
    check_bank(bank)
    whole = contents(bank)
    path = bank.folder / "0002.features.npy"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(GfssError, match=r"damaged in shard 0002; build it again"):
        check_bank(bank)
    again = build()
    check_bank(again)
    assert contents(again) == whole


def test_key_changes_with_everything_it_stands_for(dataset: Dataset, encoder: Encoder, tmp_path: Path) -> None:
    keys = [
        bank_key(encoder, dataset, SIZE, LEVELS),
        bank_key(build_encoder("tiny", seed=1), dataset, SIZE, LEVELS),
        bank_key(encoder, dataset, SIZE + 4, LEVELS),
        bank_key(encoder, dataset, SIZE, LEVELS[:1]),
        bank_key(encoder, dataset, SIZE, LEVELS[::-1]),
        bank_key(encoder, make_dataset(tmp_path, COUNT, seed=1), SIZE, LEVELS),
        bank_key(
            encoder,
            replace(dataset, ids=dataset.ids[1:], images=dataset.images[1:], masks=dataset.masks[1:]),
            SIZE,
            LEVELS,
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert bank_key(build_encoder("tiny"), dataset, SIZE, LEVELS) == keys[0]


def test_key_changes_when_a_file_does(encoder: Encoder, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path, 4)
    before = bank_key(encoder, dataset, SIZE, LEVELS)
    os.utime(dataset.masks[2], ns=(0, 0))  # copied elsewhere, or touched
    assert bank_key(encoder, replace(dataset), SIZE, LEVELS) == before
    mask = np.array(Image.open(dataset.masks[2]))
    mask[0, 0] = 1 - mask[0, 0].clip(0, 1)
    Image.fromarray(mask).save(dataset.masks[2])
    assert bank_key(encoder, replace(dataset), SIZE, LEVELS) != before


def test_disk_need_is_said_before_starting(build: Callable[[], Bank], capsys: pytest.CaptureFixture[str]) -> None:
    bank = build()
    need = COUNT * (2 * (64 + 96) * 9 * 9 + SIZE**2)
    assert f"the feature bank takes {need / 1e9:.2f} GB" in " ".join(capsys.readouterr().err.split())
    stored = sum(path.stat().st_size for path in bank.folder.glob("*.npy"))
    assert need <= stored <= need + 6 * 128  # each of the six files has a header of 128 bytes


def test_a_bank_that_does_not_fit_is_refused(
    build: Callable[[], Bank], written: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bank_module.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(GfssError, match=r"needs 0\.00 GB but .* has 0\.00 GB free; make room or set GFSS_CACHE"):
        build()
    assert written == []


def test_unknown_level(dataset: Dataset, encoder: Encoder, tmp_path: Path) -> None:
    with pytest.raises(GfssError, match="unknown feature level 'layer5'; did you mean"):
        build_bank(encoder, dataset, SIZE, ("layer5",), root=tmp_path)


def test_mask_of_another_size_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "data", 3)
    Image.fromarray(np.zeros((16, 16), dtype=np.uint8)).save(dataset.masks[1])
    with pytest.raises(GfssError, match=r"train_001\.png is 32 x 32 but its mask is 16 x 16"):
        build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path / "banks")


def test_infinite_features_are_refused_with_the_image(dataset: Dataset, tmp_path: Path) -> None:
    encoder = build_encoder("tiny", seed=2)
    next(encoder.get_submodule("layer4").parameters()).data.fill_(float("inf"))
    with pytest.raises(GfssError, match="infinite features for train_000"):
        build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells mapped files from a process's own memory")
def test_memory_stays_flat_over_many_reads(build: Callable[[], Bank]) -> None:
    bank = build()
    rng = np.random.default_rng(0)

    def read(times: int) -> int:
        size = 0
        for _ in range(times):
            size += sum(level.nbytes for level in bank.features(rng.choice(COUNT, 16).tolist()).values())
        return size

    read(20)
    before = own_memory()
    assert read(200) > 100e6  # what a leak would keep
    assert own_memory() - before < 20e6


def own_memory() -> int:
    """Memory of this process without mapped files, in bytes."""
    info = psutil.Process().memory_info()
    return info.rss - info.shared


def test_a_side_beside_the_grid_is_noted(
    dataset: Dataset, encoder: Encoder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_bank(encoder, dataset, SIZE, LEVELS, root=tmp_path)
    assert "fit" not in capsys.readouterr().err
    build_bank(encoder, dataset, SIZE + 2, LEVELS, root=tmp_path)
    assert "with side 35 the maps end 2 pixels before the image does" in capsys.readouterr().err
