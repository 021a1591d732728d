"""Where tensors are: the CPU, or a GPU for training and evaluation."""

from __future__ import annotations

import os

import torch

from gfss.common.errors import GfssError, unknown

CPU = torch.device("cpu")
KINDS = ("cpu", "cuda")


def device_name(device: torch.device) -> str:
    """A device for people and records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_memory_mb(device: torch.device) -> float | None:
    """Largest memory that tensors on a GPU have used so far; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None


def find_device(name: str) -> torch.device:
    """A device by name; processes started together by ``torchrun`` use one GPU each.

    >>> find_device("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if kind not in KINDS:
        raise unknown("device", name, KINDS)
    if kind == "cpu":
        return CPU
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if number and os.environ.get("WORLD_SIZE", "1") != "1":
        raise GfssError(f"every process needs its own GPU, but '{name}' names a single one; use --device cuda")
    place = number or os.environ.get("LOCAL_RANK", "0")
    if not place.isdecimal() or int(place) >= gpus:
        raise GfssError(
            f"device '{kind}:{place}' is not available: torch {torch.__version__} sees {gpus} CUDA GPU(s); "
            "install a CUDA build of torch, start at most one process per GPU, or omit --device"
        )
    return torch.device(kind, int(place))
