"""Encoders by name."""

from gfss.models.encoders.base import HUGGING_FACE, build_encoder, encoder_names, usual_stride

__all__ = ["HUGGING_FACE", "build_encoder", "encoder_names", "usual_stride"]
