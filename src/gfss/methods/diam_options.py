"""Parameters of DIaM."""

from __future__ import annotations

from dataclasses import replace

from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from gfss.common.options import options


@options
class DiamOptions:
    """Parameters of DIaM; the defaults are the published ones but for the weights of distillation and
    the three switches: :data:`PUBLISHED` has the published weights, :data:`PROGRAM` is the published program.

    The published weight holds the query closely to what the base model said, which is right where
    the base model takes unknown objects for background. Ours was never told that they are, and takes half of their
    positions for a base class; the weights here were chosen on held-out base classes.

    Attributes:
        iterations: gradient steps per query image.
        rate: learning rate of plain gradient descent.
        support_weight: of the cross entropy on the supports.
        prior_weight: of the divergence of the class shares from the estimated ones.
        entropy_weight: of the query's entropy.
        distillation_weight: of the divergence from the base model, with one novel class.
        distillation_several: the same with several.
        background_one_shot: weight of support positions without a novel class, with one support per class.
        background_more_shots: the same with several.
        prior_update: iteration at which the class shares are estimated again.
        void_left_out: the terms on the query leave out positions that are void in its labels: objects' borders, and the
            padding around the image. The published program reads the query's labels for that.
        pooled: prototypes are means over the positions of all shots together, their masks sampled at the positions,
            instead of means over shots, with masks averaged to map size.
        as_probabilities: class probabilities are upsampled, not logits.
        low_rank: descend along the leading directions of the features only, and read half of the support positions in
            every second step (see :mod:`gfss.methods.diam_low_rank`): a third of the time, nearly the same scores.
    """

    iterations: PositiveInt = 100
    rate: PositiveFloat = 1.25e-3
    support_weight: NonNegativeFloat = 100.0
    prior_weight: NonNegativeFloat = 1.0
    entropy_weight: NonNegativeFloat = 1.0
    distillation_weight: NonNegativeFloat = 3.0
    distillation_several: NonNegativeFloat = 10.0
    background_one_shot: NonNegativeFloat = 0.01
    background_more_shots: NonNegativeFloat = 0.15
    prior_update: NonNegativeInt = 10
    void_left_out: bool = False
    pooled: bool = False
    as_probabilities: bool = False
    low_rank: bool = False


CHOSEN = DiamOptions(low_rank=True)
PUBLISHED = DiamOptions(distillation_weight=100.0, distillation_several=100.0, low_rank=True)
PROGRAM = replace(PUBLISHED, void_left_out=True, pooled=True, as_probabilities=True)
