"""Feature bank: what a frozen encoder says of every image of a data set, computed once.

A bank is a folder named by its key (encoder weights, input size, levels, data) with shards of some
hundred images: features in fp16 and labels in uint8, memory-mapped, each with a checksum.

    <key>/bank.json
    <key>/0000.features.npy   (images, channels, h, w) float16
    <key>/0000.labels.npy     (images, size, size) uint8, mask values as in the files
    <key>/0000.json           checksums; a shard without it is made again
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gfss.common.devices import CPU
from gfss.common.distributed import own_share_first
from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, make_folder, read_json, write_atomically, write_json
from gfss.common.progress import Bar, console, note
from gfss.common.threads import parallel_map
from gfss.data.datasets.base import Dataset
from gfss.data.transforms import square_image, square_label, to_tensor
from gfss.models.encoders.base import Encoder, select_levels
from gfss.models.ops.fused_encoder import Run, fast_form

SHARD = 256  # images per shard


@dataclass(frozen=True)
class Bank:
    """Read access to a complete bank.

    Attributes:
        folder: where the shards are.
        size: side of the square input images and of the labels.
        channels: level name -> channels, in the order of storage.
        count: number of images.
    """

    folder: Path
    size: int
    channels: dict[str, int]
    count: int

    @cached_property
    def _features(self) -> list[np.ndarray]:
        return [np.load(path, mmap_mode="r") for path in sorted(self.folder.glob("*.features.npy"))]

    @cached_property
    def _labels(self) -> list[np.ndarray]:
        return [np.load(path, mmap_mode="r") for path in sorted(self.folder.glob("*.labels.npy"))]

    @property
    def map_size(self) -> int:
        """Side of the feature maps."""
        return self._features[0].shape[-1]

    def features(self, images: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        """Features of some images: level name -> (images, channels, h, w), in single precision."""
        rows = torch.from_numpy(np.stack([self._features[i // SHARD][i % SHARD] for i in images]))
        levels = rows.to(device).float().split(list(self.channels.values()), dim=1)  # half precision travels faster
        return dict(zip(self.channels, levels, strict=True))

    def labels(self, images: Sequence[int], table: np.ndarray | None = None, stride: int = 1) -> Tensor:
        """Label maps (images, size, size) uint8, through a label table if given, every ``stride``-th pixel."""
        rows = np.stack([self._labels[i // SHARD][i % SHARD][::stride, ::stride] for i in images])
        if table is None:
            return torch.from_numpy(rows)
        through = bytearray(rows).translate(table.tobytes())  # several times faster than numpy's look-up
        return torch.frombuffer(through, dtype=torch.uint8).view(rows.shape)


def bank_key(encoder: Encoder, dataset: Dataset, size: int, levels: Sequence[str]) -> str:
    """Name of a bank: changes with weights, input size, levels, data, and where it is computed."""
    parts = f"{encoder.weights_hash()} {encoder.stride} {size} {' '.join(levels)} {dataset.fingerprint}"
    if encoder.device.type != "cpu":  # sums round in another way there
        parts += f" {encoder.device.type}"
    return hashlib.sha256(parts.encode()).hexdigest()[:20]


def build_bank(
    encoder: Encoder,
    dataset: Dataset,
    size: int = 417,
    levels: Sequence[str] = ("layer3", "layer4"),
    root: Path | None = None,
) -> Bank:
    """The bank of a data set under an encoder: opened if complete, continued or built otherwise."""
    channels = {name: encoder.channels[name] for name in levels} if set(levels) <= encoder.channels.keys() else {}
    if not channels:
        select_levels({name: torch.empty(0) for name in encoder.channels}, levels)
    folder = (root or cache_folder("banks")) / bank_key(encoder, dataset, size, levels)
    make_folder(folder)
    shards = [range(start, min(start + SHARD, len(dataset))) for start in range(0, len(dataset), SHARD)]
    todo = [number for number in range(len(shards)) if not _intact(folder, number)]
    if todo:
        side = encoder.map_size(size)
        need = sum(len(shards[n]) for n in todo) * (2 * sum(channels.values()) * side**2 + size**2)
        _require_space(folder, need)
        if encoder.on_pixels and (size - 1) % encoder.stride:
            below = (size - 1) // encoder.stride * encoder.stride + 1
            note(
                f"with side {size} the maps end {size - below} pixels before the image does, and all positions are "
                f"a little off; {below} and {below + encoder.stride} fit"
            )
        fast = fast_form(encoder, size) if encoder.device.type == "cpu" else encoder.eval()
        unfinished: deque[int] = deque()

        def images() -> Iterator[int]:
            """Those of every shard that is still missing when its turn comes; another process may have made it."""
            for number in own_share_first(todo):
                if _intact(folder, number):
                    bar.advance(len(shards[number]))
                else:
                    unfinished.append(number)
                    yield from shards[number]

        done = len(dataset) - sum(len(shards[n]) for n in todo)
        with Bar(f"feature bank of {dataset.name}", len(dataset), start=done) as bar:
            rows: list[tuple[np.ndarray, np.ndarray]] = []
            # all images in one go, so that workers encode the next shard while one is written
            for row in parallel_map(lambda i: _encode(fast, dataset, i, size, levels, encoder.device), images()):
                rows.append(row)
                bar.advance()
                if len(rows) == len(shards[unfinished[0]]):
                    _write_shard(folder, unfinished.popleft(), rows)
                    rows = []
    about = {"data": dataset.name, "size": size, "channels": channels, "count": len(dataset)}
    write_json(folder / "bank.json", about)
    return Bank(folder, size, channels, len(dataset))


def check_bank(bank: Bank) -> None:
    """Compare every shard with its checksum; torn shards are removed, so that the next build makes them again."""
    bad = [path.name[:4] for path in sorted(bank.folder.glob("*.features.npy")) if not _checksums_hold(path)]
    for number in bad:
        (bank.folder / f"{number}.json").unlink(missing_ok=True)
    if bad:
        raise GfssError(
            f"the feature bank {bank.folder} is damaged in shard {', '.join(bad)}; build it again to fix it"
        )


def _intact(folder: Path, number: int) -> bool:
    """Whether a shard was finished and has the sizes it was written with (cheap; see check_bank for content)."""
    try:
        note = read_json(folder / f"{number:04d}.json")
    except GfssError:  # missing or torn
        return False
    return all(
        (folder / name).exists() and (folder / name).stat().st_size == entry["bytes"] for name, entry in note.items()
    )


def _checksums_hold(features: Path) -> bool:
    note = features.with_name(features.name[:4] + ".json")
    return note.exists() and all(
        zlib.crc32((features.parent / name).read_bytes()) == entry["crc32"] for name, entry in read_json(note).items()
    )


@torch.inference_mode()
def _encode(
    encoder: Run, dataset: Dataset, i: int, size: int, levels: Sequence[str], device: torch.device
) -> tuple[np.ndarray, np.ndarray]:
    """Features and label map of an image."""
    image, label = _square(dataset, i, size)
    x = to_tensor(image[None]).to(device).contiguous(memory_format=torch.channels_last)
    maps = torch.cat(select_levels(encoder(x), levels), dim=1)
    if not torch.isfinite(maps).all():
        raise GfssError(f"{dataset.name}: the encoder gives infinite features for {dataset.ids[i]}")
    return maps[0].clamp(-65504, 65504).half().contiguous().cpu().numpy(), label


def _write_shard(folder: Path, number: int, images: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
    note: dict[str, dict[str, int]] = {}
    for name, rows in zip(("features", "labels"), zip(*images, strict=True), strict=True):
        path = folder / f"{number:04d}.{name}.npy"
        head = io.BytesIO()
        about = {"descr": rows[0].dtype.str, "fortran_order": False, "shape": (len(rows), *rows[0].shape)}
        np.lib.format.write_array_header_1_0(head, about)
        checksum = 0
        with write_atomically(path) as file:
            for part in (head.getvalue(), *rows):  # row by row, without a copy of them all
                file.write(part)
                checksum = zlib.crc32(part, checksum)
        note[path.name] = {"bytes": path.stat().st_size, "crc32": checksum}
    write_json(folder / f"{number:04d}.json", note)


def _square(dataset: Dataset, i: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """An image and its mask, brought to a square."""
    image, mask = dataset.image(i), dataset.mask(i)
    if image.shape[:2] != mask.shape:
        raise GfssError(
            f"image {dataset.images[i]} is {image.shape[1]} x {image.shape[0]} but its mask is "
            f"{mask.shape[1]} x {mask.shape[0]}; they must have the same size"
        )
    return square_image(image, size), square_label(mask, size)


def _require_space(folder: Path, need: int) -> None:
    """Say how much disk a bank takes; refuse if that is more than there is."""
    free = shutil.disk_usage(folder).free
    if need > free:
        raise GfssError(
            f"the feature bank needs {need / 1e9:.2f} GB but {folder} has {free / 1e9:.2f} GB free; "
            "make room or set GFSS_CACHE to a folder on a larger disk"
        )
    console.print(f"the feature bank takes {need / 1e9:.2f} GB in {folder}", highlight=False)
