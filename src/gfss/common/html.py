"""HTML pages from templates, with images and charts inside the page itself."""

from __future__ import annotations

import base64
import functools
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    from jinja2 import Environment
    from matplotlib.figure import Figure


def render(template: Path, **values: Any) -> str:
    """A page from a jinja2 template file; text is escaped, and ``image_url`` and ``chart_url`` are filters."""
    return _environment(template.parent).get_template(template.name).render(**values)


def image_url(image: np.ndarray, kind: str = "PNG") -> str:
    """An image (height, width, 3) uint8 as a ``data:`` address.

    Args:
        kind: ``PNG`` or ``JPEG``.
    """
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, kind, optimize=True)
    return _data_url(f"image/{kind.lower()}", buffer.getvalue())


def chart_url(figure: Figure) -> str:
    """A matplotlib figure as a ``data:`` address of an SVG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", bbox_inches="tight")
    return _data_url("image/svg+xml", buffer.getvalue())


def _data_url(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@functools.cache
def _environment(folder: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"image_url": image_url, "chart_url": chart_url}
    return environment
