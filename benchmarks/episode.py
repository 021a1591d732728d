"""One iteration of episodic training (8 episodes): features from the bank against features computed anew.

    python benchmarks/episode.py --json episode.json

``cached`` is the default way to train a calibrator: score and similarity maps of its episodes are cached, an iteration
draws query pairs and reads no features. ``fresh`` is the paper's way: every iteration fits its novel classifiers.
"Anew" computes the encoder's features of the same images first, in its fastest form, as training without a bank would.
``default`` is a cached iteration with its share of playing all episodes once from the bank, against a fresh one
without a bank. The images are noise.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))  # benchmarks are scripts, not a package

from bank_reading import median_ms, noise_dataset

from gfss.common.devices import CPU
from gfss.common.files import write_json
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold
from gfss.data.images import square_image, to_tensor
from gfss.features.bank import Bank, build_bank
from gfss.features.episodes import EpisodeSampler, FeatureStore
from gfss.methods import Context, build_method
from gfss.methods.pcn import Calibrated
from gfss.models.base_model import BaseCard, BaseModel, PyramidHead
from gfss.models.encoders import build_encoder
from gfss.models.encoders.base import Encoder, fused, select_levels
from gfss.training.episodic import SEVERAL_WAYS, train_calibrator
from gfss.training.episodic_options import EpisodicOptions

LEVELS = ("layer2", "layer3", "layer4")
READ = ("layer3", "layer4")
CLASSES = 16


@dataclass(frozen=True)
class NoBank(Bank):
    """Looks like a bank, but computes what is asked for.

    Attributes:
        layout: of the images; torch's own default is ``torch.contiguous_format``.
    """

    encoder: Encoder
    dataset: Dataset
    layout: torch.memory_format = torch.channels_last

    def features(self, images: Sequence[int], device: torch.device = CPU) -> dict[str, Tensor]:
        parts: list[list[Tensor]] = []
        with torch.inference_mode():
            for i in images:
                image = to_tensor(square_image(self.dataset.image(i), self.size)[None])
                maps = self.encoder(image.contiguous(memory_format=self.layout))
                parts.append(select_levels(maps, list(self.channels)))
        return {
            name: torch.cat(level).clone() for name, level in zip(self.channels, zip(*parts, strict=True), strict=True)
        }


def make_source(bank: Bank, dataset: Dataset, encoder: Encoder, fold: Fold) -> EpisodeSampler:
    """A base model with random weights over a bank."""
    torch.manual_seed(0)
    head = PyramidHead({name: encoder.channels[name] for name in READ}, len(fold.base) + 1, 64, 256, separable=True)
    names = [tuple(dataset.classes[c - 1] for c in ids) for ids in (fold.base, fold.novel)]
    card = BaseCard("", encoder.stride, encoder.weights_hash(), False, bank.size, *names, "noise", 0)
    return EpisodeSampler(FeatureStore(BaseModel(encoder, head, card).eval(), bank), dataset, fold)


def iteration_ms(source: EpisodeSampler, side: int, options: EpisodicOptions, rounds: int) -> tuple[float, float]:
    """Median time of one iteration of training PCN's calibrator, wall clock and processor."""
    torch.manual_seed(0)
    method = build_method("pcn-support", Context(source.store.model, (side, side)))
    assert isinstance(method, Calibrated)

    def iterate() -> None:
        method.calibrator.requires_grad_(True)
        train_calibrator(method, source, options, key="benchmark")

    iterate()  # plays the episodes that are kept
    return median_ms(iterate, rounds)


def measure(encoder_name: str, size: int, images: int, episodes: int, rounds: int) -> dict[str, Any]:
    """Times of both ways, with and without a bank."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["GFSS_CACHE"] = folder  # cached episodes and class index
        dataset = noise_dataset(Path(folder), images, size, CLASSES)
        fold = Fold(tuple(range(1, CLASSES)), (CLASSES,))
        encoder = build_encoder(encoder_name)
        bank = build_bank(encoder, dataset, size, LEVELS, root=Path(folder) / "banks")
        none = NoBank(bank.folder, size, bank.channels, bank.count, fused(encoder), dataset)
        options = EpisodicOptions(iterations=1, batch=episodes, episodes=episodes, pairs=2, several=0)
        rows: dict[str, Any] = {}
        for way, chosen in (("cached", options), ("fresh", replace(options, episodes=None))):
            kept, anew = (
                iteration_ms(make_source(store, dataset, encoder, fold), bank.map_size, chosen, rounds)
                for store in (bank, none)
            )
            rows[way] = {
                "bank_ms": kept[0],
                "anew_ms": anew[0],
                "ratio": anew[0] / kept[0],
                "cpu_ratio": anew[1] / kept[1],
            }
        usual = EpisodicOptions()
        cached = (usual.episodes or 0) + SEVERAL_WAYS * usual.several  # one with several classes costs like so many
        share = cached / usual.iterations / episodes  # of a fresh iteration per iteration
        whole = rows["cached"]["bank_ms"] + share * rows["fresh"]["bank_ms"]
        anew = rows["fresh"]["anew_ms"]
        rows["default"] = {"bank_ms": whole, "anew_ms": anew, "ratio": anew / whole, "cpu_ratio": anew / whole}
        return rows


def main() -> None:
    """Measure, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", default="lite0")
    parser.add_argument("--size", type=int, default=417)
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="a few seconds, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    if options.small:
        options.encoder, options.size, options.images, options.episodes, options.rounds = "tiny", 33, 48, 2, 1
    torch.set_num_threads(options.threads)
    keys = ("encoder", "size", "images", "episodes", "rounds")
    rows = measure(*(getattr(options, key) for key in keys))
    about = {key: getattr(options, key) for key in (*keys, "threads")}
    about |= {"torch": str(torch.__version__), "load": os.getloadavg()[0]}
    setting = f"{options.encoder} at {options.size} px, {options.episodes} episodes"
    print(f"{setting}, {options.threads} threads, load {about['load']:.1f}")
    print(f"{'way':<8}{'bank ms':>10}{'anew ms':>10}{'ratio':>8}{'cpu ratio':>11}")
    for way, row in rows.items():
        print(f"{way:<8}{row['bank_ms']:>10.0f}{row['anew_ms']:>10.0f}{row['ratio']:>8.1f}{row['cpu_ratio']:>11.1f}")
    if options.json:
        write_json(options.json, {**about, "rows": rows})


if __name__ == "__main__":
    main()
