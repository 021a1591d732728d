"""Data sets by name or path."""

from gfss.data.datasets.folder import NAMES, SPLITS, open_dataset, own_path
from gfss.data.episodes import open_fold

__all__ = ["NAMES", "SPLITS", "open_dataset", "open_fold", "own_path"]
