"""Episodes whose fake novel classes the base model never saw."""

from __future__ import annotations

from pathlib import Path

from tests.training.tiny import FOLD, LEVELS, SIZE, make_dataset, make_model

from gfss.data.catalog import Fold
from gfss.training.bank import build_bank
from gfss.training.source import BLOCK, EpisodeSource, FeatureStore, HeldOutSources


def make_sources(folder: Path) -> HeldOutSources:
    """Two groups of base classes, each held out once."""
    dataset = make_dataset(folder)
    model = make_model(dataset)
    bank = build_bank(model.encoder, dataset, SIZE, LEVELS, folder / "banks")
    groups = (FOLD.base[:3], FOLD.base[3:])
    folds = [Fold(tuple(c for c in FOLD.base if c not in group), group) for group in groups]
    return HeldOutSources(
        tuple(EpisodeSource(FeatureStore(model, bank), dataset, fold, fakes=fold.novel) for fold in folds)
    )


def test_blocks_of_episodes_take_turns(tmp_path: Path) -> None:
    held_out = make_sources(tmp_path)
    turns = [held_out.for_episode(i) for i in range(3 * BLOCK)]
    first, second = held_out.sources
    assert turns == [first] * BLOCK + [second] * BLOCK + [first] * BLOCK


def test_fake_novel_classes_are_those_left_out(tmp_path: Path) -> None:
    held_out = make_sources(tmp_path)
    for i in range(0, 4 * BLOCK, 7):
        source = held_out.for_episode(i)
        drawn = source.draw(0, i)
        assert drawn.novel[0] in source.fold.novel
        fold = source.episode_fold(drawn)
        assert fold.base == source.fold.base
        table = fold.label_table(drawn.novel)
        assert table[drawn.novel[0]] == len(fold.base) + 1
        others = [c for c in (*FOLD.novel, *source.fold.novel) if c != drawn.novel[0]]
        assert (table[others] == 255).all()
