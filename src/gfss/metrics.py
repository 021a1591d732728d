"""The metrics of gfss for the predictions of any network, and records of them.

    from gfss import metrics, protocols

    record = metrics.score(protocols.paired("pascal", tasks=20), predict=my_network, method="my-network")
    record.figures["per-image"].harmonic
    metrics.write_record("my-results/my-network.json", record)      # then: gfss tables my-results

``predict`` gets a :class:`gfss.protocols.TaskImages` and gives a label map for each of its queries. :class:`Scorer`
does the same step by step; :class:`PerImage`, :class:`Accumulated` and :func:`image_counts` work on plain label maps.
"""

from gfss.evaluation.metrics import Accumulated, Figures, Metric, PerImage, harmonic_mean, image_counts
from gfss.evaluation.records import Record, read_record, read_records, write_record
from gfss.evaluation.scoring import Scorer, score

__all__ = [
    "Accumulated",
    "Figures",
    "Metric",
    "PerImage",
    "Record",
    "Scorer",
    "harmonic_mean",
    "image_counts",
    "read_record",
    "read_records",
    "score",
    "write_record",
]
