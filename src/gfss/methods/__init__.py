"""All systems by name, and methods from outside: a file (``--plugin``) or the entry points ``gfss.methods``."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from gfss.common.errors import GfssError, unknown
from gfss.methods import acastle, capl, denet, diam_options, pfenet
from gfss.methods.acastle import Acastle, AcastleOptions
from gfss.methods.base import Method
from gfss.methods.bcm import BaseClassMining
from gfss.methods.bcm_published import PublishedBaseClassMining
from gfss.methods.capl import Capl, CaplOptions
from gfss.methods.denet import Denet, DenetOptions
from gfss.methods.diam import Diam
from gfss.methods.diam_options import DiamOptions
from gfss.methods.logistic import Logistic
from gfss.methods.pcn import RULES, Calibrated, NormalisedScoreFusion, NovelFitter, RuleFusion, ScoreFusion
from gfss.methods.pfenet import Pfenet, PfenetOptions
from gfss.methods.probe import LinearProbe
from gfss.methods.prototype import Prototype
from gfss.methods.prototypes import Imprint, NormalisedParameterFusion
from gfss.methods.trivial import BaseOnly
from gfss.models.base_model import BaseModel
from gfss.models.calibrators.calibrator import PRESETS, Calibrator

GROUP = "gfss.methods"
LOADED: list[Path] = []  # files of plugins, for the workers of a cluster
SOURCES: dict[str, str] = {}  # name of a method from outside -> hash of its source, part of what it is known by


@dataclass
class Context:
    """What a method may be built from.

    Attributes:
        model: the base model.
        map_size: height and width of its feature maps.
        fitter: fits novel classifiers; shared, so that methods evaluated together fit each task once.
        levels: encoder levels that features carry, besides those that the base model reads.
        published: compared systems as published: DENet and PFENet in their published width, for GPUs, ACASTLE with its
            published training tasks, CAPL with raw vectors, DIaM as the published program.
        diams: further DIaMs by name, and the usual one with other options.
    """

    model: BaseModel
    map_size: tuple[int, int]
    fitter: NovelFitter = field(default_factory=lambda: NovelFitter(form="fast"))
    levels: tuple[str, ...] = ()
    published: bool = False
    diams: Mapping[str, DiamOptions] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """Number of base classes."""
        return len(self.model.card.classes)

    @property
    def channels(self) -> dict[str, int]:
        """Channels of the encoder levels that features carry."""
        return {name: self.model.encoder.channels[name] for name in self.levels} | self.model.head.channels

    @property
    def denet(self) -> DenetOptions:
        """What DENet is made of."""
        return denet.PUBLISHED if self.published else DenetOptions()

    @property
    def pfenet(self) -> PfenetOptions:
        """What PFENet is made of; its published bins are fixed on PASCAL and fractions of the map on COCO."""
        on_coco = self.model.card.data == "coco"
        return (pfenet.PUBLISHED_COCO if on_coco else pfenet.PUBLISHED) if self.published else PfenetOptions()

    @property
    def acastle(self) -> AcastleOptions:
        """What ACASTLE is made of."""
        return acastle.PUBLISHED if self.published else AcastleOptions()

    @property
    def capl(self) -> CaplOptions:
        """What CAPL is made of."""
        return capl.PUBLISHED if self.published else CaplOptions()


Builder = Callable[[Context], Method]

UNTRAINED: dict[str, Builder] = {
    "base": lambda context: BaseOnly(),
    "score": lambda context: ScoreFusion(context.fitter),
    "logistic": lambda context: Logistic(),
    "prototype": lambda context: Prototype(),
    "npf": lambda context: NormalisedParameterFusion(),
    "npf-fitted": lambda context: NormalisedParameterFusion(fitted=True),
    "nsf": lambda context: NormalisedScoreFusion(context.fitter),
    "imprint": lambda context: Imprint(),
    "imprint-centred": lambda context: Imprint(centred=True),
    "linear-probe": lambda context: LinearProbe(context.fitter.options),
    "bcm": lambda context: BaseClassMining(context.fitter.options),
    "bcm-top3": lambda context: BaseClassMining(context.fitter.options, mined=3, balanced=True, name="bcm-top3"),
    "bcm-published": lambda context: PublishedBaseClassMining(),
    "diam": lambda context: Diam(diam_options.PROGRAM if context.published else diam_options.CHOSEN),
    **{rule: (lambda context, rule=rule: RuleFusion(context.fitter, rule)) for rule in RULES},
}

# NAME with one of these is method NAME with a calibrator on its scores: the paper's T, or ours
CALIBRATOR_SUFFIXES = {"+T": "pcn", "+support": "pcn-support"}

# the compared systems with a trained part; they average over supports, so one training serves any number of shots
LEARNED: dict[str, Builder] = {
    "acastle": lambda context: Acastle(context.model.head, context.acastle),
    "capl": lambda context: Capl(context.model.head, context.capl),
    "denet": lambda context: Denet(context.model.head, context.denet, context.channels),
    "pfenet": lambda context: Pfenet(context.model.head, context.pfenet, context.channels),
}

TRAINED: dict[str, Builder] = {
    **{
        name: (
            lambda context, name=name, options=options: Calibrated(
                NormalisedScoreFusion(context.fitter), Calibrator(options, context.map_size, fast=True), name
            )
        )
        for name, options in PRESETS.items()  # calibrators on NSF
    },
    **LEARNED,
}


def inner_method(name: str) -> str:
    """The method that a calibrator stands on, by the names of both; other methods stand on themselves.

    >>> inner_method("acastle+T"), inner_method("pcn")
    ('acastle', 'pcn')
    """
    for suffix in CALIBRATOR_SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def calibrator_preset(name: str) -> str | None:
    """The preset of :data:`PRESETS` that a method's calibrator has if nothing else is said; None without one.

    >>> calibrator_preset("acastle+T"), calibrator_preset("pcn-support"), calibrator_preset("acastle")
    ('pcn', 'pcn-support', None)
    """
    suffix = name.removeprefix(inner_method(name))
    return CALIBRATOR_SUFFIXES.get(suffix, name if name in PRESETS else None)


def training_shots(method: str, shots: int) -> int:
    """Supports per class in the episodes that a method is trained on, to be evaluated at ``shots``."""
    return 1 if method in LEARNED else shots


def needed_levels(method: str, published: bool = False) -> list[tuple[str, ...]]:
    """Encoder levels without which a method cannot be built; one of each tuple is enough.

    >>> needed_levels("pfenet")
    [('layer2', 'layer3'), ('layer4',)]
    """
    name = inner_method(method)
    if name == "denet":
        return [(level,) for level in (denet.PUBLISHED if published else DenetOptions()).levels]
    if name == "pfenet":
        return [PfenetOptions().middle, (PfenetOptions().high,)]
    return []


def refuse_unknown_method(name: str) -> None:
    """Raise if there is no method of this name."""
    builders = UNTRAINED | TRAINED
    if inner_method(name) not in builders:
        raise unknown("method", name, [*builders, *(f"NAME{suffix}" for suffix in CALIBRATOR_SUFFIXES)])


def build_method(name: str, context: Context) -> Method:
    """A method by name; ``NAME+T`` puts the paper's calibrator on any other method, ``NAME+support`` ours.

    Methods with a module come untrained.
    """
    if name in context.diams:
        return Diam(context.diams[name], name)
    inner, preset = inner_method(name), calibrator_preset(name)
    if inner not in context.diams:
        refuse_unknown_method(name)
    if inner == name or preset is None:
        return (UNTRAINED | TRAINED)[name](context)
    return Calibrated(build_method(inner, context), Calibrator(PRESETS[preset], context.map_size, fast=True), name)


def register(method: type[Method]) -> None:
    """Make a method known under its name, as if it were in the package.

    Args:
        method: its :meth:`Method.build` makes one; with a :meth:`Method.loss` of its own, ``gfss run`` trains it.
    """
    name = getattr(method, "name", None)
    if not isinstance(name, str) or not name or "+" in name or "," in name:
        raise GfssError(
            f"{method.__name__} has the name {name!r}; set its class attribute 'name' to a word such as 'mine'"
        )
    trained = method.loss is not Method.loss
    if trained and method.reads_images is True:
        raise GfssError(
            f"method '{name}' reads images, which gfss run does not train; train it in a script of your own "
            "(gfss.protocols.episodes), load its weights in 'build', and leave 'loss' out"
        )
    source = hashlib.sha256(_source(method).encode()).hexdigest()[:12]
    if name in {**UNTRAINED, **TRAINED} and SOURCES.get(name) != source:
        raise GfssError(f"there is a method '{name}' already; give {method.__name__} another name")
    (TRAINED if trained else UNTRAINED)[name] = method.build
    SOURCES[name] = source


def load_plugin(path: Path) -> list[str]:
    """Register every method that a Python file defines; returns their names."""
    if not path.is_file():
        raise GfssError(f"{path} is not a file; --plugin takes a Python file that defines a method")
    own = [one for one in vars(_run(path)).values() if _is_method(one) and one.__module__ == _module_name(path)]
    if not own:
        raise GfssError(f"{path} defines no method; write a class of gfss.methods.base.Method with learn and scores")
    for method in own:
        register(method)
    LOADED.append(path.absolute())
    return [method.name for method in own]


def load_installed() -> list[str]:
    """Register the methods of installed packages that name them under ``gfss.methods``; returns their names."""
    names: list[str] = []
    for entry in entry_points(group=GROUP):
        try:
            method = entry.load()
        except Exception as error:  # whatever a package does when it is imported
            raise GfssError(
                f"the installed method '{entry.name}' ({entry.value}) cannot be imported: {error}"
            ) from error
        if not _is_method(method):
            raise GfssError(
                f"the entry point '{entry.name}' ({entry.value}) is not a class of gfss.methods.base.Method"
            )
        register(method)
        names.append(method.name)
    return names


def _run(path: Path) -> ModuleType:
    """A Python file as a module."""
    name = _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise GfssError(f"{path} is not a Python file; its name should end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickling and dataclasses look for it
    try:
        spec.loader.exec_module(module)
    except GfssError:
        raise
    except Exception as error:  # whatever someone else's file does
        raise GfssError(f"the plugin {path} cannot be run: {type(error).__name__}: {error}") from error
    return module


def _module_name(path: Path) -> str:
    return f"gfss_plugin_{path.stem}"


def _is_method(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Method) and not inspect.isabstract(one)


def _source(method: type[Method]) -> str:
    """Text of the file of a method, of its class where there is none."""
    file = inspect.getsourcefile(method)
    return Path(file).read_text(encoding="utf-8") if file and Path(file).is_file() else method.__qualname__
