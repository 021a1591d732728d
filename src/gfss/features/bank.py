"""Feature bank: what a frozen encoder says of every image of a data set, computed once.

A bank is a folder named by its key (encoder weights, input size, levels, data) with shards of some
hundred images: features in fp16 and labels in uint8, memory-mapped, each with a checksum.

    <key>/bank.json
    <key>/0000.features.npy   (images, channels, h, w) float16, all levels at the resolution of the coarsest
    <key>/0000.labels.npy     (images, size, size) uint8, mask values as in the files
    <key>/0000.json           checksums; a shard without it is made again

A bank of levels at their own resolution has a file for each, ``0000.layer2.npy``, in place of ``0000.features.npy``.

:class:`CachedFeatures` are batches put together from images whose features lie in memory, in half precision.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zlib
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import Tensor

from gfss.common.cluster import Job
from gfss.common.devices import CPU, connected_cluster, own_share_first, parallel_map
from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, make_folder, read_json, write_atomically, write_json
from gfss.common.progress import Bar, console, note, track
from gfss.data.datasets.base import Dataset
from gfss.data.images import square_image, square_label, to_tensor
from gfss.models.base_model import Features, unit_factors
from gfss.models.encoders.base import Encoder, fast_form, select_levels

SHARD = 256  # images per shard
JOINED = "features"  # file of levels of one size
Row = dict[str, np.ndarray]
"""Arrays of one image by the name of their file."""


CACHE_SHARE = 0.5  # of the free memory, for cached images; what methods derive from them comes on top


@dataclass(frozen=True)
class Bank:
    """Read access to a complete bank.

    Attributes:
        folder: where the shards are.
        size: side of the square input images and of the labels.
        channels: level name -> channels, in the order of storage.
        count: number of images.
        own_sizes: whether every level has its own resolution, else that of the coarsest.
    """

    folder: Path
    size: int
    channels: dict[str, int]
    count: int
    own_sizes: bool = field(default=False, kw_only=True)

    @cached_property
    def _features(self) -> dict[str, list[np.ndarray]]:
        return {name: self._shards(name) for name in (self.channels if self.own_sizes else (JOINED,))}

    @cached_property
    def _labels(self) -> list[np.ndarray]:
        return self._shards("labels")

    def _shards(self, name: str) -> list[np.ndarray]:
        return [np.load(path, mmap_mode="r") for path in sorted(self.folder.glob(f"*.{name}.npy"))]

    @property
    def map_size(self) -> int:
        """Side of the coarsest feature maps."""
        return list(self._features.values())[-1][0].shape[-1]

    def features(self, images: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        """Features of some images: level name -> (images, channels, h, w), in single precision."""
        maps = {name: self._rows(shards, images).to(device).float() for name, shards in self._features.items()}
        if self.own_sizes:
            return maps
        return dict(zip(self.channels, maps[JOINED].split(list(self.channels.values()), dim=1), strict=True))

    def _rows(self, shards: Sequence[np.ndarray], images: Sequence[int]) -> Tensor:
        """Some images in half precision, as they are stored; so they travel faster to a device."""
        return torch.from_numpy(np.stack([shards[i // SHARD][i % SHARD] for i in images]))

    def labels(self, images: Sequence[int], table: np.ndarray | None = None, stride: int = 1) -> Tensor:
        """Label maps (images, size, size) uint8, through a label table if given, every ``stride``-th pixel."""
        rows = np.stack([self._labels[i // SHARD][i % SHARD][::stride, ::stride] for i in images])
        if table is None:
            return torch.from_numpy(rows)
        through = bytearray(rows).translate(table.tobytes())  # several times faster than numpy's look-up
        return torch.frombuffer(through, dtype=torch.uint8).view(rows.shape)


def bank_key(encoder: Encoder, dataset: Dataset, size: int, levels: Sequence[str], own_sizes: bool = False) -> str:
    """Name of a bank: changes with weights, input size, levels and their resolution, data, and where it is computed."""
    parts = f"{encoder.weights_hash()} {encoder.stride} {size} {' '.join(levels)} {dataset.fingerprint}"
    if encoder.device.type != "cpu":  # sums round in another way there
        parts += f" {encoder.device.type}"
    if own_sizes:
        parts += " own sizes"
    return hashlib.sha256(parts.encode()).hexdigest()[:20]


def build_bank(
    encoder: Encoder,
    dataset: Dataset,
    size: int = 417,
    levels: Sequence[str] = ("layer3", "layer4"),
    root: Path | None = None,
    own_sizes: bool = False,
) -> Bank:
    """The bank of a data set under an encoder: opened if complete, continued or built otherwise.

    Args:
        own_sizes: keep every level at its own resolution, for a head with a decoder or to train the stages after one.
    """
    channels = {name: encoder.channels[name] for name in levels} if set(levels) <= encoder.channels.keys() else {}
    if not channels:
        select_levels({name: torch.empty(0) for name in encoder.channels}, levels)
    folder = (root or cache_folder("banks")) / bank_key(encoder, dataset, size, levels, own_sizes)
    make_folder(folder)
    shards = [range(start, min(start + SHARD, len(dataset))) for start in range(0, len(dataset), SHARD)]
    todo = [number for number in range(len(shards)) if not _intact(folder, number)]
    if todo:
        _prepare(encoder, folder, size, levels, own_sizes, sum(len(shards[n]) for n in todo))
        making = partial(_encoding, encoder, dataset, size, levels, own_sizes)
        if cluster := connected_cluster():
            done = cluster.map(partial(_shard_job, making, folder, shards), todo)
            for _ in track(done, f"feature bank of {dataset.name}, shards", len(shards), len(shards) - len(todo)):
                pass
        else:
            _write_missing(folder, dataset, shards, todo, making())
    about = {"data": dataset.name, "size": size, "channels": channels, "count": len(dataset)}
    write_json(folder / "bank.json", about | ({"own_sizes": True} if own_sizes else {}))
    return Bank(folder, size, channels, len(dataset), own_sizes=own_sizes)


def _prepare(encoder: Encoder, folder: Path, size: int, levels: Sequence[str], own_sizes: bool, images: int) -> None:
    """Say what a bank will take and what is odd about it, before it is built."""
    sides = encoder.level_sizes(size) if own_sizes else dict.fromkeys(levels, (encoder.map_size(size),) * 2)
    values = sum(encoder.channels[name] * sides[name][0] * sides[name][1] for name in levels)
    _require_space(folder, images * (2 * values + size**2))
    if encoder.on_pixels and (size - 1) % encoder.stride:
        below = (size - 1) // encoder.stride * encoder.stride + 1
        note(
            f"with side {size} the maps end {size - below} pixels before the image does, and all positions are "
            f"a little off; {below} and {below + encoder.stride} fit"
        )


def _write_missing(
    folder: Path, dataset: Dataset, shards: Sequence[range], todo: Sequence[int], encode: Callable[[int], Row]
) -> None:
    """Encode all images of the shards that are missing, and write each shard once it is complete."""
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
        rows: list[Row] = []
        # all images in one go, so that workers encode the next shard while one is written
        for row in parallel_map(encode, images()):
            rows.append(row)
            bar.advance()
            if len(rows) == len(shards[unfinished[0]]):
                _write_shard(folder, unfinished.popleft(), rows)
                rows = []


def _shard_job(making: Callable[[], Callable[[int], Row]], folder: Path, shards: Sequence[range]) -> Job[int, None]:
    """Of a worker of a cluster: make a shard, unless one that died has done so."""
    encode = making()

    def job(number: int) -> None:
        if not _intact(folder, number):
            _write_shard(folder, number, [encode(i) for i in shards[number]])

    return job


def check_bank(bank: Bank) -> None:
    """Compare every shard with its checksum; torn shards are removed, so that the next build makes them again."""
    bad = [path.name[:4] for path in sorted(bank.folder.glob("*.labels.npy")) if not _checksums_hold(path)]
    for number in bad:
        (bank.folder / f"{number}.json").unlink(missing_ok=True)
    if bad:
        raise GfssError(
            f"the feature bank {bank.folder} is damaged in shard {', '.join(bad)}; build it again to fix it"
        )


def _intact(folder: Path, number: int) -> bool:
    """Whether a shard was finished and has the sizes it was written with (cheap; see check_bank for content)."""
    if not (folder / f"{number:04d}.json").exists():
        return False
    try:
        note = read_json(folder / f"{number:04d}.json")
    except GfssError:  # missing or torn
        return False
    return all(
        (folder / name).exists() and (folder / name).stat().st_size == entry["bytes"] for name, entry in note.items()
    )


def _checksums_hold(labels: Path) -> bool:
    note = labels.with_name(labels.name[:4] + ".json")
    return note.exists() and all(
        zlib.crc32((labels.parent / name).read_bytes()) == entry["crc32"] for name, entry in read_json(note).items()
    )


def _encoding(
    encoder: Encoder, dataset: Dataset, size: int, levels: Sequence[str], own_sizes: bool
) -> Callable[[int], Row]:
    """Gives features and label map of an image by its number."""
    if encoder.device.type == "cpu":
        run = fast_form(encoder, size, fine=own_sizes)
    else:
        run = encoder.eval().fine_levels if own_sizes else encoder.eval()

    @torch.inference_mode()
    def encode(i: int) -> Row:
        image, label = _square(dataset, i, size)
        x = to_tensor(image[None]).to(encoder.device).contiguous(memory_format=torch.channels_last)
        maps = dict(zip(levels, select_levels(run(x), levels), strict=True))
        if not own_sizes:
            maps = {JOINED: torch.cat(list(maps.values()), dim=1)}
        if not all(torch.isfinite(level).all() for level in maps.values()):
            raise GfssError(f"{dataset.name}: the encoder gives infinite features for {dataset.ids[i]}")
        half = {name: level[0].clamp(-65504, 65504).half().contiguous() for name, level in maps.items()}
        return {name: level.cpu().numpy() for name, level in half.items()} | {"labels": label}

    return encode


def _write_shard(folder: Path, number: int, images: Sequence[Row]) -> None:
    note: dict[str, dict[str, int]] = {}
    for name in images[0]:
        rows = [image[name] for image in images]
        path = folder / f"{number:04d}.{name}.npy"
        head = io.BytesIO()
        about = {"descr": rows[0].dtype.str, "fortran_order": False, "shape": (len(rows), *rows[0].shape)}
        np.lib.format.write_array_header_1_0(head, about)
        checksum = 0
        with write_atomically(path) as file:
            for part in (head.getvalue(), *(row.data for row in rows)):  # row by row, without a copy of them all
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


@dataclass(frozen=True)
class CachedImage:
    """Features of one image in half precision.

    Attributes:
        features: a batch of one.
        factors: for levels and bottleneck, what brings their vectors to length one (see :func:`unit_factors`).
        derived: maps that methods made of them (see :meth:`CachedFeatures.cached`).
    """

    features: Features
    factors: dict[str, Tensor]
    derived: dict[Hashable, Tensor] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Memory of features and factors."""
        tensors = [*self.features.levels.values(), *self.features.pooled, self.features.bottleneck, self.features.base]
        return sum(tensor.nbytes for tensor in (*tensors, *self.factors.values()))

    def put_unit(self, name: str, out: Tensor) -> None:
        """Write a map with vectors of length one."""
        out.copy_(self.features.named([name])).mul_(self.factors[name])


def cached_images(features: Features) -> list[CachedImage]:
    """The images of a batch, one by one."""
    half = features.map(lambda tensor: tensor.half())
    factors = {name: unit_factors(half.named([name]).float()) for name in (*half.levels, "bottleneck")}

    def own(tensor: Tensor, i: int) -> Tensor:
        return tensor[i : i + 1].clone(memory_format=torch.contiguous_format)

    return [
        CachedImage(
            half.map(lambda tensor, i=i: own(tensor, i)), {name: own(each, i) for name, each in factors.items()}
        )
        for i in range(len(half))
    ]


def free_memory() -> int:
    """Bytes that programs may still take."""
    return psutil.virtual_memory().available


class CachedFeatures(Features):
    """A batch of cached images; each map is put together, in single precision, when it is asked for.

    Methods read some of the maps, and those mostly with vectors of length one.
    """

    images: Sequence[CachedImage]

    def __init__(self, images: Sequence[CachedImage]) -> None:
        self.__dict__ |= {"images": images, "_unit": {}}  # attributes of frozen features cannot be set otherwise

    @cached_property
    def levels(self) -> dict[str, Tensor]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {name: self._level(name) for name in self.images[0].features.levels}

    @cached_property
    def pooled(self) -> tuple[Tensor, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return tuple(_joined(branch) for branch in zip(*(image.features.pooled for image in self.images), strict=True))

    @cached_property
    def bottleneck(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined([image.features.bottleneck for image in self.images])

    @cached_property
    def base(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        return _joined([image.features.base for image in self.images])

    def unit(self, *names: str) -> Tensor:
        """Like :meth:`Features.unit`; maps that are first asked for together lie together."""
        first = self.images[0]
        if any(name in self._unit or name not in first.factors for name in names):
            return super().unit(*names)
        widths = [first.features.named([name]).shape[1] for name in names]
        whole = torch.empty(len(self.images), sum(widths), *self.size, device=self.base.device)
        parts = dict(zip(names, whole.split(widths, dim=1), strict=True))
        for i, image in enumerate(self.images):
            for name, part in parts.items():
                image.put_unit(name, part[i : i + 1])
        self._unit.update(parts)
        return whole

    def cached(self, key: Hashable, compute: Callable[[Features], Tensor]) -> Tensor:
        """Like :meth:`Features.cached`; what is missing is made image by image, so that it is the same in any batch."""
        for image in self.images:
            if key not in image.derived:
                image.derived[key] = compute(CachedFeatures([image])).half()
        return _joined([image.derived[key] for image in self.images])

    def _level(self, name: str) -> Tensor:
        return _joined([image.features.levels[name] for image in self.images])

    def _maps(self, name: str) -> list[Tensor]:
        if name in self.images[0].features.levels:
            return [self._level(name)]  # without the other levels
        return super()._maps(name)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One batch in single precision; copying part by part is several times faster than joining in half precision."""
    whole = torch.empty(len(parts), *parts[0].shape[1:], device=parts[0].device)
    for row, part in zip(whole.split(1), parts, strict=True):
        row.copy_(part)
    return whole
