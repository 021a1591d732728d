"""The base classifier over a whole split."""

from __future__ import annotations

import math

import numpy as np
import torch

from gfss.common.progress import track
from gfss.data.datasets.base import Dataset
from gfss.data.episodes import Fold
from gfss.evaluation.metrics import accumulated_iou, image_counts
from gfss.features.bank import Bank
from gfss.models.base_model import BaseModel
from gfss.models.ops.upsample import class_map


def base_miou(model: BaseModel, bank: Bank, dataset: Dataset, fold: Fold) -> dict[str, float | None]:
    """Accumulated IoU of the base classifier over a split: per class in percent, and ``base`` (no background).

    None for a class that was neither there nor predicted; it is not part of ``base``.
    """
    table = fold.label_table()
    classes = len(fold.base) + 1
    counts = torch.zeros(classes, 3, dtype=torch.int64)
    size = (bank.size, bank.size)
    for start in track(range(0, bank.count, 16), f"base classes of {dataset.name}", total=-(-bank.count // 16)):
        chosen = range(start, min(start + 16, bank.count))
        with torch.no_grad():
            predicted = class_map(model.head.logits(bank.features(chosen, model.encoder.device)), size)
        counts += image_counts(predicted.cpu(), bank.labels(chosen, table), classes).sum(dim=0)
    iou = [None if math.isnan(value) else 100 * value for value in accumulated_iou(counts).tolist()]
    known = [value for value in iou[1:] if value is not None]
    names = ["background", *model.card.classes]
    return {"base": float(np.mean(known)) if known else None, **dict(zip(names, iou, strict=True))}
