"""Class names, folds, label tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfss.common.errors import GfssError
from gfss.data import open_fold
from gfss.data.catalog import COCO_CLASSES, PASCAL_CLASSES, VOID
from gfss.data.episodes import fold_of_names, make_fold


def test_catalogs_have_the_known_classes() -> None:
    assert len(set(PASCAL_CLASSES)) == 20
    assert len(set(COCO_CLASSES)) == 80
    assert (PASCAL_CLASSES[6], PASCAL_CLASSES[7]) == ("car", "cat")
    assert (COCO_CLASSES[0], COCO_CLASSES[-1]) == ("person", "toothbrush")


@given(classes=st.integers(4, 80), interleaved=st.booleans())
def test_folds_share_the_classes_out(classes: int, interleaved: bool) -> None:
    folds = [make_fold(classes, i, interleaved=interleaved) for i in range(4)]
    assert sorted(c for fold in folds for c in fold.novel) == list(range(1, classes + 1))
    for fold in folds:
        assert sorted(fold.base + fold.novel) == list(range(1, classes + 1))
        assert list(fold.base) == sorted(fold.base)


def test_folds_of_the_field() -> None:
    assert open_fold("pascal", 20, 3).novel == (16, 17, 18, 19, 20)
    assert open_fold("scenes", 12, 1).novel == (4, 5, 6)
    assert open_fold("coco", 80, 0).novel == tuple(range(1, 78, 4))
    assert open_fold("coco", 80, 1, contiguous=True).novel == tuple(range(21, 41))


def test_label_table_hides_absent_novel_classes() -> None:
    table = make_fold(20, 0).label_table(novel=[3])
    assert table[0] == 0
    assert table[3] == 16
    assert [table[c] for c in (1, 2, 4, 5)] == [VOID] * 4
    assert [table[c] for c in range(6, 21)] == list(range(1, 16))
    assert (table[21:] == VOID).all()


def test_label_table_can_make_absent_novel_classes_background() -> None:
    table = make_fold(20, 1).label_table(novel=[6, 8], hidden=0)
    assert [table[c] for c in (6, 7, 8, 9, 10)] == [16, 0, 17, 0, 0]
    assert table[255] == VOID
    assert table.dtype == np.uint8


@pytest.mark.parametrize("fold", [-1, 4])
def test_fold_out_of_range(fold: int) -> None:
    with pytest.raises(GfssError, match=rf"fold {fold} is out of range: this data set has folds 0 to 3"):
        make_fold(20, fold)


def test_too_few_classes_for_folds() -> None:
    with pytest.raises(GfssError, match="3 classes cannot be split into 4 folds"):
        make_fold(3, 0)


def test_fold_by_names() -> None:
    fold = fold_of_names(["cat", "dog", "cow"], ["dog"])
    assert (fold.base, fold.novel) == ((1, 3), (2,))
    with pytest.raises(GfssError, match="unknown class 'dig'; did you mean 'dog'"):
        fold_of_names(["cat", "dog", "cow"], ["dig"])
