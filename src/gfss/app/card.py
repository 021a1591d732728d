"""The card of a model: what it knows, what it was taught from, what that changed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from gfss.models.base_model import BaseCard


def model_card(
    base: BaseCard,
    taught: Sequence[Mapping[str, Any]],
    versions: Mapping[str, str],
    changes: Mapping[str, Any] | None,
) -> str:
    """The card as Markdown; names that look like HTML are written so that they are text.

    Args:
        taught: as written to ``model.json``: name and supports of every taught class.
        versions: of the programs that made the model.
        changes: the last report in figures.
    """
    encoder = "trained with the model" if base.trained_encoder else f"pretrained, frozen (hash {base.encoder_hash})"
    lines = [
        "# Model card",
        "",
        f"- Encoder: {base.encoder}, {encoder}",
        f"- Input: {base.size} x {base.size} pixels, aspect ratio kept",
        f"- Base model trained on: {base.data}" + ("" if base.fold is None else f", fold {base.fold}"),
        "- New classes: logistic regression on encoder levels and descriptors, threshold from the support images",
        f"- Made with: {', '.join(f'{name} {version}' for name, version in versions.items())}",
        "",
        f"## Base classes ({len(base.classes)})",
        "",
        ", ".join(map(_cell, base.classes)),
        "",
        f"## Added classes ({len(taught)})",
        "",
    ]
    for one in taught:
        estimate = one["verdict"]["estimate"]
        lines += [f"### {_cell(one['name'])}", ""]
        lines += [f"Estimated IoU {estimate['iou']:.0f} (from {estimate['images']} images), balance {one['balance']:g}"]
        lines += ["", "| lesson | image | sha256 of its pixels |", "|---|---|---|"]
        lines += [f"| {s['lesson']} | {_cell(s['id'])} | {s['sha256'][:16]} |" for s in one["supports"]]
        lines.append("")
    if not taught:
        lines += ["none", ""]
    if changes:
        lines += _changes(changes)
    return "\n".join(lines)


def _changes(changes: Mapping[str, Any]) -> list[str]:
    lines = ["## Before and after the last lesson", ""]
    for section in changes["sections"]:
        lines += [f"On {_cell(section['title'])} ({section['images']} images), IoU in percent:", ""]
        lines += ["| class | before | after |", "|---|---|---|"]
        lines += [f"| {_cell(r['name'])} | {_figure(r['before'])} | {_figure(r['after'])} |" for r in section["rows"]]
        lines.append("")
    return lines


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|")
