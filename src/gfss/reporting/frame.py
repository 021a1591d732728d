"""Records as a pandas DataFrame."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gfss.common.errors import GfssError
from gfss.evaluation.records import read_records
from gfss.reporting.tables import csv_table

if TYPE_CHECKING:
    import pandas


def results(*places: str | Path, with_background: bool = False) -> pandas.DataFrame:
    """Records as a DataFrame, one row per record and metric; columns as in ``gfss tables --format csv``.

    Args:
        places: record files, or folders of them; ``results`` if none is given.
        with_background: count the background as one more base class.

    >>> frame = results("results/pascal-lite0")  # doctest: +SKIP
    >>> frame.query("metric == 'per-image'").pivot_table("harmonic", "method", "shots")  # doctest: +SKIP
    """
    try:
        import pandas
    except ImportError:
        raise GfssError("gfss.results needs pandas: pip install 'gfss[pandas]'") from None
    found = read_records([Path(place) for place in places or ("results",)])
    return pandas.read_csv(io.StringIO(csv_table(found, with_background)), keep_default_na=False, na_values=[""])
