"""Episode cache: what a calibrator reads of the queries of a fixed number of episodes, and its loss on them.

Fitting the fake novel classifiers is what costs time, so each episode is computed once, and each iteration draws new
pairs of their queries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gfss.common.devices import CopyPool, Workers, parallel_map
from gfss.common.errors import GfssError
from gfss.common.files import cache_folder, program_hash, write_atomically
from gfss.common.progress import track
from gfss.data.episodes import Task
from gfss.features.episodes import BLOCK, EpisodeSampler, HeldOutSamplers
from gfss.methods.losses import calibration_loss
from gfss.methods.pcn import Calibrated
from gfss.models.calibrators.calibrator import Calibrator
from gfss.models.calibrators.pcn_support import SimilarityMaps, support_similarity_channels
from gfss.training.episodic_options import EpisodicOptions
from gfss.training.loop import Iteration

CHUNK = BLOCK  # episodes per file
ALONE = Workers()

Source = EpisodeSampler | HeldOutSamplers


@dataclass
class CachedEpisodes:
    """Score and similarity maps of the queries of some episodes, on disk in half precision.

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
            raise GfssError("fresh episodes are not cached; give a number of episodes")
        sources = self.source.sources if isinstance(self.source, HeldOutSamplers) else (self.source,)
        parts = [self.key]
        parts += [(one.dataset.fingerprint, one.fakes, one.fold, tuple(map(int, one.avoid))) for one in sources]
        names = self.method.calibrator.options.compared
        parts += [self.options.shots, self.options.ways, self.options.pairs, self.options.seed, names]
        parts += [program_hash("common", "data", "models", "features", "methods", "training")]
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:20]
        self.folder = cache_folder("episodes") / name
        self.count = count
        self.compared = len(names)
        self._chunks: dict[int, np.ndarray] = {}

    def fill(self, workers: Workers = ALONE) -> None:
        """Compute every episode that is not on disk yet; each process takes its share of the files."""
        chunks = range(-(-self.count // CHUNK))[workers.rank :: workers.world]
        todo = [c for c in chunks if not self._path(c).exists()]
        done = len(chunks) - len(todo)
        device = self.source.for_episode(0).store.device
        methods = CopyPool(self.method, CHUNK, device)

        def compute(i: int) -> Tensor:
            with methods.one() as method, torch.no_grad():
                return self._compute(method, i)

        for chunk in track(todo, f"computing {self.count} episodes", total=len(chunks), start=done):
            numbers = range(chunk * CHUNK, min((chunk + 1) * CHUNK, self.count))
            maps = list(parallel_map(compute, numbers, device))
            with write_atomically(self._path(chunk)) as file:
                np.save(file, torch.stack(maps).half().cpu().numpy())

    def draw(self, i: int) -> Task:
        """Images of episode ``i``; two queries are a pair."""
        source, o = self.source.for_episode(i), self.options
        if o.ways == 1:
            return source.draw(o.seed, i, o.shots, 1, o.pairs)
        return source.draw_several(o.seed, i, o.shots, o.ways, 2 * o.pairs)

    def maps(self, i: int, pair: int) -> tuple[Tensor, SimilarityMaps]:
        """Fused scores (2, classes, h, w) and similarity of both queries of a pair."""
        chunk = i // CHUNK
        if chunk not in self._chunks:
            self._chunks[chunk] = np.load(self._path(chunk), mmap_mode="r")
        both = torch.from_numpy(self._chunks[chunk][i % CHUNK, 2 * pair : 2 * pair + 2].astype(np.float32))
        novel, compared = self.options.ways, self.compared
        channels = support_similarity_channels(compared)
        classes = (both.shape[1] - novel * channels) // (2 + compared)
        widths = [classes, classes, novel * channels, classes * compared]
        fused, score_fusion, support, within = both.split(widths, dim=1)
        support, within = support.unflatten(1, (novel, channels)), within.unflatten(1, (classes, compared))
        return fused, SimilarityMaps(score_fusion, support, within)

    def _compute(self, method: Calibrated, i: int) -> Tensor:
        drawn, source = self.draw(i), self.source.for_episode(i)
        fold = source.episode_fold(drawn)
        method.learn(source.support(drawn, fold))
        query = source.query_features(drawn.queries, fold)
        fused = method.fused(query)
        score_fusion, support, within = method.similarity(query, fused)
        return torch.cat([fused, score_fusion, support.flatten(1, 2), within.flatten(1, 2)], dim=1)

    def _path(self, chunk: int) -> Path:
        size = min(CHUNK, self.count - chunk * CHUNK)
        return self.folder / (f"{chunk:05d}.npy" if size == CHUNK else f"{chunk:05d}-first{size}.npy")


def drawn_pairs(count: int, options: EpisodicOptions, number: int) -> list[tuple[int, int]]:
    """The cached episodes and pairs of their queries that make up an iteration."""
    rng = np.random.default_rng((7, options.seed, number))
    episodes = rng.choice(count, size=options.batch, replace=count < options.batch)
    pairs = rng.integers(options.pairs, size=options.batch)
    return list(zip(episodes.tolist(), pairs.tolist(), strict=True))


def cached_loss(calibrator: Calibrator, episodes: CachedEpisodes, step: Iteration) -> tuple[Tensor, Tensor]:
    """Loss of an iteration: a batch of pairs of cached episodes, those of one source together."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for i, pair in step.share(drawn_pairs(episodes.count, episodes.options, step.number)):
        groups.setdefault(id(episodes.source.for_episode(i)), []).append((i, pair))
    losses = [_group_loss(calibrator, episodes, chosen) for chosen in groups.values()]
    return sum((total for total, _ in losses), torch.zeros(())), sum((count for _, count in losses), torch.zeros(()))


def _group_loss(
    calibrator: Calibrator, episodes: CachedEpisodes, chosen: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    source, options = episodes.source.for_episode(chosen[0][0]), episodes.options
    queries: list[int] = []
    fused: list[Tensor] = []
    similarity: list[SimilarityMaps] = []
    labels: list[Tensor] = []
    for i, pair in chosen:
        drawn = episodes.draw(i)
        images = drawn.queries[2 * pair : 2 * pair + 2]
        table = source.episode_fold(drawn).label_table(drawn.novel)
        scores, maps = episodes.maps(i, pair)
        queries += images
        fused.append(scores)
        similarity.append(maps)
        labels.append(source.store.labels(images, table, options.label_stride))
    features = source.store.features(queries) if calibrator.reads_features else None
    device = source.store.device
    together = SimilarityMaps(*(torch.cat(maps).to(device) for maps in zip(*similarity, strict=True)))
    scores = calibrator(torch.cat(fused).to(device), features, options.ways, together)
    return calibration_loss(scores, torch.cat(labels), options.ways, options.novel_weight, options.overlap)
