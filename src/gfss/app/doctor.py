"""What is installed, what is missing for which command, and what the machine can do."""

from __future__ import annotations

import os
import platform
import re
import shutil
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil

import gfss
from gfss.app.model_folder import embedded_models
from gfss.common.files import default_cache

USES = {  # what an extra of pyproject.toml is for
    "lite": "voc20-lite0 and gfss train (weights of the encoder)",
    "serve": "gfss serve",
    "export": "gfss export, gfss segment with .onnx files",
    "openvino": "gfss export --format openvino, gfss segment with .xml files",
    "ray": "--ray: work on a cluster",
    "video": "gfss segment with videos",
    "coco": "gfss data prepare coco",
    "sbd": "gfss data prepare pascal",
    "hf": "encoders of Hugging Face, models from a hub",
    "pandas": "gfss.results, records as a table of pandas",
    "sklearn": "linear probes by scikit-learn",
}
PLACES = {  # where gfss looks for what does not come with it
    "GFSS_PASCAL": "PASCAL-5^i",
    "GFSS_COCO": "COCO-20^i",
    "GFSS_WEIGHTS": "weights of encoders",
}
APART = ("dev", "docs")  # extras for those who work on gfss itself


def diagnose() -> tuple[list[str], bool]:
    """Lines for people, and whether everything that every command needs is there."""
    needed, extras = _requirements(requires("gfss") or [])
    missing = [name for name in needed if installed(name) is None]
    lines = [f"gfss {gfss.__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"]
    lines += _machine(missing)
    lines.append(f"embedded models: {', '.join(embedded_models())}")
    lines += [f"{what}: {_place(variable)}" for variable, what in PLACES.items()]
    lines += [f"missing: {name}; run: pip install '{name}'" for name in missing]
    for extra, names in extras.items():
        absent = [name for name in names if installed(name) is None]
        answer = f"missing {', '.join(absent)}; run: pip install 'gfss[{extra}]'" if absent else "ready"
        lines.append(f"{extra:>8}: {answer}{f'  (for {USES[extra]})' if extra in USES else ''}")
    return lines, not missing


def installed(name: str) -> str | None:
    """Version of an installed package, None if it is missing.

    >>> installed("no-such-package") is None
    True
    """
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _requirements(lines: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Names of packages that are always needed, and those of every extra."""
    needed: list[str] = []
    extras: dict[str, list[str]] = {}
    for line in lines:
        name = re.split(r"[\[<>=!~; ]", line)[0]
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if extra is None:
            needed.append(name)
        elif extra[1] not in APART:
            extras.setdefault(extra[1], []).append(name)
    return needed, extras


def _machine(missing: list[str]) -> list[str]:
    """Processor, memory, disk, GPU."""
    memory = psutil.virtual_memory()
    given = os.environ.get("GFSS_CACHE")
    cache = Path(given).absolute() if given else default_cache()
    place = next(folder for folder in (cache, *cache.parents) if folder.exists())
    lines = [
        f"{os.cpu_count()} cores, {memory.total / 2**30:.0f} GB of memory ({memory.available / 2**30:.0f} GB free)",
        f"cache: {cache} ({shutil.disk_usage(place).free / 2**30:.0f} GB free{_writable(place)})",
    ]
    if "torch" not in missing:
        import torch

        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        gpu = f"GPU: {', '.join(names)} (--device cuda)" if names else "no CUDA GPU: everything runs on the CPU"
        lines.append(f"torch {torch.__version__}, {torch.get_num_threads()} threads; {gpu}")
    return lines


def _place(variable: str) -> str:
    """The folder that a variable names, or how to name one."""
    given = os.environ.get(variable)
    if not given:
        return f"no folder ({variable} is not set)"
    return given if Path(given).is_dir() else f"{variable}={given} is not a folder"


def _writable(folder: Path) -> str:
    return "" if os.access(folder, os.W_OK) else "; not writable, set GFSS_CACHE to another folder"
