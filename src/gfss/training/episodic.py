"""Stage 2: train a calibrator, or any method, on episodes with fake novel classes.

Fitting the fake novel classifiers is what costs time, so a calibrator can be trained on a fixed number of episodes
that are played once: their fused score maps are kept on disk, and each iteration draws new pairs of their queries. The
paper's way, fresh episodes in every iteration, is ``episodes=None``.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from gfss.data.episodes import Task
from gfss.errors import GfssError
from gfss.files import cache_folder, program_hash, write_atomically
from gfss.methods.base import Method
from gfss.methods.fitted import Calibrated, calibration_loss
from gfss.models.calibrator import Calibrator
from gfss.models.evidence import Evidence, evidence_channels
from gfss.progress import track
from gfss.threads import Copies, side_by_side
from gfss.training.loop import Schedule, Step, mixed_seed, train
from gfss.training.parallel import Workers
from gfss.training.source import BLOCK, EpisodeSource, HeldOutSources

CHUNK = BLOCK  # played episodes per file
ALONE = Workers()
SEVERAL_WAYS = 5  # classes of an episode with several

# what only calibrators read, and only with kept episodes
CALIBRATOR_ONLY = ("episodes", "pairs", "novel_weight", "overlap", "mixed", "ways", "several", "held_out")

Source = EpisodeSource | HeldOutSources


@dataclass(frozen=True)
class EpisodicOptions:
    """How to train on episodes; :data:`PAPER` is the paper's way.

    Attributes:
        shots: supports per fake novel class.
        iterations: optimiser steps.
        batch: episodes per iteration.
        episodes: how many different episodes are played; None plays fresh ones in every iteration.
        pairs: query pairs (fake novel image, base image) of a kept episode; one of them is used at a time.
        rate: highest learning rate.
        optimiser: ``sgd`` or ``adamw``.
        weight_decay: weight decay.
        label_stride: the loss is taken at every so many pixels.
        novel_weight: pixels of the fake novel class count so many times in a calibrator's loss on kept episodes.
        overlap: weight of the missed overlap (see :func:`gfss.methods.fitted.missed_overlap`) in that loss.
        seed: of episodes and batches.
        mixed: a calibrator for several shots sees episodes of one shot as often as those of several; kept episodes of
            one shot are as many as ``episodes``, those of several shots, which cost more, a third of that.
        ways: fake novel classes of a kept episode; several at once are shown any images as queries, as in the joint
            protocol, and not pairs.
        several: so many further episodes of one shot and five ways (or as many as there can be) are kept, and used in
            every third iteration.
        held_out: train on episodes of so many base models, each without a part of the base classes
            (see :class:`gfss.training.source.HeldOutSources`); 0 uses the base model itself, as the paper does.
    """

    shots: int = 1
    iterations: int = 1200
    batch: int = 8
    episodes: int | None = 600
    pairs: int = 4
    rate: float = 2e-3
    optimiser: Literal["sgd", "adamw"] = "adamw"
    weight_decay: float = 1e-4
    label_stride: int = 8
    novel_weight: float = 2.0
    overlap: float = 0.5
    seed: int = 0
    mixed: bool = True
    ways: int = 1
    several: int = 90
    held_out: int = 3

    def schedule(self) -> Schedule:
        """The optimiser's part."""
        return Schedule(self.iterations, self.rate, self.optimiser, self.weight_decay)


PAPER = EpisodicOptions(
    iterations=10_000,
    episodes=None,
    rate=1e-2,
    optimiser="sgd",
    label_stride=1,
    novel_weight=1,
    overlap=0,
    mixed=False,
    several=0,
    held_out=0,
)


@dataclass
class PlayedEpisodes:
    """Episodes played by a method: the score and evidence maps of their queries, kept on disk in half precision.

    Attributes:
        method: whose scores enter its calibrator.
        key: what the maps depend on besides the options (base model, method); names the folder.
    """

    method: Calibrated
    source: Source
    options: EpisodicOptions
    key: str

    def __post_init__(self) -> None:
        count = self.options.episodes
        if count is None:
            raise GfssError("fresh episodes are not kept; give a number of episodes")
        sources = self.source.sources if isinstance(self.source, HeldOutSources) else (self.source,)
        parts = [self.key]
        parts += [(one.dataset.fingerprint, one.fakes, one.fold, tuple(map(int, one.avoid))) for one in sources]
        names = self.method.calibrator.options.compared
        parts += [self.options.shots, self.options.ways, self.options.pairs, self.options.seed, names]
        parts += [program_hash("data", "methods", "models", "training")]
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
        self.folder = cache_folder("episodes") / name
        self.count = count
        self.compared = len(names)
        self._chunks: dict[int, np.ndarray] = {}

    def play(self, workers: Workers = ALONE) -> None:
        """Play every episode that is not on disk yet; each process takes its share of the files."""
        chunks = range(-(-self.count // CHUNK))[workers.rank :: workers.world]
        todo = [c for c in chunks if not self._path(c).exists()]
        done = len(chunks) - len(todo)
        device = self.source.for_episode(0).store.device
        methods = Copies(self.method, CHUNK, device)

        def play(i: int) -> Tensor:
            with methods.one() as method, torch.no_grad():
                return self._play(method, i)

        for chunk in track(todo, f"playing {self.count} episodes", total=len(chunks), start=done):
            numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, self.count))
            maps = list(side_by_side(play, numbers, device))
            with write_atomically(self._path(chunk)) as file:
                np.save(file, torch.stack(maps).half().cpu().numpy())

    def draw(self, i: int) -> Task:
        """Images of episode ``i``; two queries are a pair."""
        source, o = self.source.for_episode(i), self.options
        if o.ways == 1:
            return source.draw(o.seed, i, o.shots, 1, o.pairs)
        return source.draw_several(o.seed, i, o.shots, o.ways, 2 * o.pairs)

    def maps(self, i: int, pair: int) -> tuple[Tensor, Evidence]:
        """Fused scores (2, classes, h, w) and evidence of both queries of a pair."""
        chunk = i // CHUNK
        if chunk not in self._chunks:
            self._chunks[chunk] = np.load(self._path(chunk), mmap_mode="r")
        both = torch.from_numpy(self._chunks[chunk][i % CHUNK, 2 * pair : 2 * pair + 2].astype(np.float32))
        novel, compared = self.options.ways, self.compared
        said = evidence_channels(compared)
        classes = (both.shape[1] - novel * said) // (2 + compared)
        widths = [classes, classes, novel * said, classes * compared]
        fused, shared, support, cohesion = both.split(widths, dim=1)
        return fused, Evidence(shared, support.unflatten(1, (novel, said)), cohesion.unflatten(1, (classes, compared)))

    def _play(self, method: Calibrated, i: int) -> Tensor:
        drawn, source = self.draw(i), self.source.for_episode(i)
        fold = source.episode_fold(drawn)
        method.learn(source.support(drawn, fold))
        query = source.query_features(drawn.queries, fold)
        fused = method.fused(query)
        shared, support, cohesion = method.evidence(query, fused)
        return torch.cat([fused, shared, support.flatten(1, 2), cohesion.flatten(1, 2)], dim=1)

    def _path(self, chunk: int) -> Path:
        size = min(CHUNK, self.count - chunk * CHUNK)
        return self.folder / (f"{chunk:05d}.npy" if size == CHUNK else f"{chunk:05d}-first{size}.npy")


def train_calibrator(
    method: Calibrated,
    source: Source,
    options: EpisodicOptions,
    *,
    key: str,
    folder: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
) -> list[float]:
    """Train the calibrator of a method; the method is ready afterwards.

    Args:
        key: hash of what the score maps depend on; see :class:`PlayedEpisodes`.

    Returns:
        The loss of every iteration.
    """
    workers = workers or Workers()
    if options.episodes is None:
        losses = train_method(method, source, options, key=key, folder=folder, resume=resume, workers=workers)
    else:
        turns = [PlayedEpisodes(method, source, part, key) for part in _turns(options, source.most_ways)]
        for played in turns:
            played.play(workers)
        workers.wait()

        def of_step(number: int) -> PlayedEpisodes:
            return turns[number % len(turns)]

        losses = train(
            method.calibrator,
            lambda step: _played_loss(method.calibrator, of_step(step.number), step),
            options.schedule(),
            seed=options.seed,
            folder=folder,
            resume=resume,
            workers=workers,
            name="calibrator",
            settings=[asdict(options), asdict(method.calibrator.options), [played.folder.name for played in turns]],
            describe=lambda number: (
                "episodes " + ", ".join(str(i) for i, _ in _drawn_pairs(of_step(number).count, options, number))
            ),
        )
    method.calibrator.requires_grad_(False)
    method.trained = True
    return losses


def _turns(options: EpisodicOptions, most_ways: int) -> list[EpisodicOptions]:
    """Kinds of kept episodes that iterations take in turn."""
    assert options.episodes is not None
    ways = min(SEVERAL_WAYS, most_ways)
    turns = [options]
    if options.mixed and options.shots > 1:
        turns = [replace(options, episodes=-(-options.episodes // 3)), replace(options, shots=1)]
    if options.several and ways > 1:
        turns = [turns[0], turns[-1], replace(options, shots=1, ways=ways, episodes=options.several)]
    return turns


def _drawn_pairs(count: int, options: EpisodicOptions, number: int) -> list[tuple[int, int]]:
    """The kept episodes and pairs of their queries that make up an iteration."""
    rng = np.random.default_rng((7, options.seed, number))
    episodes = rng.choice(count, size=options.batch, replace=count < options.batch)
    pairs = rng.integers(options.pairs, size=options.batch)
    return list(zip(episodes.tolist(), pairs.tolist(), strict=True))


def _played_loss(calibrator: Calibrator, played: PlayedEpisodes, step: Step) -> tuple[Tensor, Tensor]:
    """Loss of an iteration: a batch of pairs of kept episodes, those of one source together."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for i, pair in step.share(_drawn_pairs(played.count, played.options, step.number)):
        groups.setdefault(id(played.source.for_episode(i)), []).append((i, pair))
    losses = [_group_loss(calibrator, played, chosen) for chosen in groups.values()]
    return sum((total for total, _ in losses), torch.zeros(())), sum((count for _, count in losses), torch.zeros(()))


def _group_loss(calibrator: Calibrator, played: PlayedEpisodes, chosen: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
    source, options = played.source.for_episode(chosen[0][0]), played.options
    queries: list[int] = []
    fused: list[Tensor] = []
    evidence: list[Evidence] = []
    labels: list[Tensor] = []
    for i, pair in chosen:
        drawn = played.draw(i)
        images = drawn.queries[2 * pair : 2 * pair + 2]
        table = source.episode_fold(drawn).label_table(drawn.novel)
        scores, said = played.maps(i, pair)
        queries += images
        fused.append(scores)
        evidence.append(said)
        labels.append(source.store.labels(images, table, options.label_stride))
    features = source.store.features(queries) if calibrator.reads_features else None
    device = source.store.device
    together = Evidence(*(torch.cat(maps).to(device) for maps in zip(*evidence, strict=True)))
    scores = calibrator(torch.cat(fused).to(device), features, options.ways, together)
    return calibration_loss(scores, torch.cat(labels), options.ways, options.novel_weight, options.overlap)


def train_method(
    method: Method,
    source: Source,
    options: EpisodicOptions,
    *,
    key: str = "",
    folder: Path | None = None,
    resume: bool = False,
    workers: Workers | None = None,
) -> list[float]:
    """Train a method's module on fresh episodes; the method is ready afterwards.

    Args:
        key: hash of what the episodes depend on; an unfinished training on others is not continued.
    """
    if method.module is None:
        raise GfssError(f"method '{method.name}' has nothing to train")

    def loss(step: Step) -> tuple[Tensor, Tensor]:
        numbers = range(step.number * options.batch, (step.number + 1) * options.batch)
        total, count = torch.zeros(()), torch.zeros(())
        for i in step.share(numbers):
            torch.manual_seed(mixed_seed(options.seed, i))  # dropout of this episode, whichever process plays it
            part, pixels = method.loss(
                source.for_episode(i).episode(options.seed, i, options.shots, stride=options.label_stride)
            )
            total, count = total + part, count + pixels
        return total, count

    losses = train(
        method.module,
        loss,
        options.schedule(),
        seed=options.seed,
        folder=folder,
        resume=resume,
        workers=workers,
        name=method.name,
        settings=[asdict(options), key],
        describe=lambda number: f"episodes {number * options.batch} and following",
    )
    method.module.requires_grad_(False)
    method.trained = True
    return losses
