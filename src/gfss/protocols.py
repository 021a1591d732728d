"""The protocols of gfss for any network: tasks and episodes with image files, masks and class roles.

    from gfss import metrics, protocols

    for task in protocols.paired("pascal", fold=0, shots=1, tasks=20):
        task.base, task.novel                   # names of the classes; task.classes names them by label
        for sample in task.supports:
            sample.path, sample.image(), sample.mask(), sample.drawn_for
        for query in task.queries:
            query.path, query.image()           # and query.mask(), the truth

The tasks are those of ``gfss evaluate``. :mod:`gfss.metrics` scores predictions.
"""

from gfss.data.task_set import Sample, TaskImages, TaskSet, episodes, joint, paired

__all__ = ["Sample", "TaskImages", "TaskSet", "episodes", "joint", "paired"]
