"""Fitting the novel classifier: a loop of torch layers and torch.optim, the plain form and the chosen form.

    python benchmarks/novel_fitting.py --json fitting.json

The maps are those of the paper, 53 x 53 with 512 channels. The dual form is measured where it is the chosen one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from calibrator_forms import alternate
from torch import Tensor, nn
from torch.nn import functional as F

from gfss.common.files import write_json
from gfss.models.novel.classifier import NovelClassifier, NovelOptions, class_weights, dual_is_cheaper, fit_novel


def torch_loop(maps: Tensor, labels: Tensor, options: NovelOptions) -> nn.Sequential:
    """The fit as one writes it first: maps (supports, channels, h, w), labels (supports, height, width)."""
    start = fit_novel(maps[None], labels[None], 2, NovelOptions(hidden=options.hidden, steps=0))
    first = nn.Conv2d(maps.shape[1], options.hidden, 3, padding=1)
    head = nn.Sequential(first, nn.ReLU(), nn.Conv2d(options.hidden, 2, 1))
    values = (start.first[0], start.first_bias[0], start.second[0][..., None, None], start.second_bias[0])
    head.load_state_dict(dict(zip(head.state_dict(), values, strict=True)))
    weights = class_weights(labels[None], 2)[0]
    optimiser = torch.optim.SGD(head.parameters(), lr=options.rate)
    for _ in range(options.steps):
        full = F.interpolate(head(maps), size=labels.shape[-2:], mode="bilinear", align_corners=True)
        loss = F.cross_entropy(full, labels.long(), weights, ignore_index=255)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head


def make_case(supports: int, channels: int, side: int) -> tuple[Tensor, Tensor]:
    """Unit-length features (supports, channels, side, side) and labels at twice their size with a square object."""
    generator = torch.Generator().manual_seed(0)
    maps = F.normalize(torch.randn(supports, channels, side, side, generator=generator), dim=1)
    labels = torch.zeros(supports, 2 * side, 2 * side, dtype=torch.uint8)
    labels[:, side // 2 : side, side // 2 : side] = 1
    return maps, labels


def measure(supports: int, hidden: int, channels: int, side: int, steps: int, rounds: int) -> dict[str, Any]:
    """Times of all forms of one case, and how far apart their first layers end."""
    maps, labels = make_case(supports, channels, side)
    options = NovelOptions(hidden=hidden, steps=steps)
    chosen = "dual" if dual_is_cheaper(maps[None], hidden, steps) else "plain"
    ends: dict[str, Tensor] = {}

    def fit(form: str) -> Callable[[], None]:
        def run() -> None:
            fitted: NovelClassifier = fit_novel(maps[None], labels[None], 2, options, form=form)
            ends[form] = fitted.first[0]

        return run

    def loop() -> None:
        ends["torch"] = torch_loop(maps, labels, options).state_dict()["0.weight"]

    times = alternate({"torch": loop, "plain": fit("plain"), chosen: fit(chosen)}, rounds)
    difference = max(float((end - ends["torch"]).abs().max()) for end in ends.values())
    return {
        "supports": supports,
        "hidden": hidden,
        "chosen": chosen,
        "times": times,
        "ratio_to_plain": times["plain"]["seconds"] / times[chosen]["seconds"],
        "ratio_to_torch": times["torch"]["seconds"] / times[chosen]["seconds"],
        "cpu_ratio_to_plain": times["plain"]["cpu_seconds"] / times[chosen]["cpu_seconds"],
        "cpu_ratio_to_torch": times["torch"]["cpu_seconds"] / times[chosen]["cpu_seconds"],
        "difference": difference,
    }


def main() -> None:
    """Measure all cases, print a table, write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--supports", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--hidden", type=int, nargs="+", default=[64, 512])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--small", action="store_true", help="tiny maps: only to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    channels, side = (8, 7) if options.small else (512, 53)

    load = os.getloadavg()[0]
    print(
        f"{channels} channels, {side} x {side}, {options.steps} steps, {options.threads} threads, "
        f"torch {torch.__version__}, load {load:.1f}"
    )
    print(f"{'supports':<10}{'hidden':>7}{'chosen':>8}{'torch s':>10}{'plain s':>10}{'chosen s':>10}{'ratios':>12}")
    rows: list[dict[str, Any]] = []
    for supports in options.supports:
        for hidden in options.hidden:
            row = measure(supports, hidden, channels, side, options.steps, options.rounds)
            rows.append(row)
            seconds = [row["times"][form]["seconds"] for form in ("torch", "plain", row["chosen"])]
            print(
                f"{supports:<10}{hidden:>7}{row['chosen']:>8}"
                + "".join(f"{value:>10.3f}" for value in seconds)
                + f"{row['ratio_to_torch']:>6.1f}{row['ratio_to_plain']:>6.1f}",
                flush=True,
            )
    if options.json:
        about = {"small": options.small, "channels": channels, "side": side, "steps": options.steps}
        about |= {"threads": options.threads, "rounds": options.rounds}
        write_json(options.json, {**about, "torch": str(torch.__version__), "load": load, "rows": rows})


if __name__ == "__main__":
    main()
