"""PNG masks: index or palette masks, binary masks of one class, and a folder of binary masks per class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from gfss.common.errors import GfssError
from gfss.data.catalog import BACKGROUND, VOID
from gfss.data.datasets.base import unique_names
from gfss.data.images import open_image, read_colours, read_mask, read_transparency, read_values
from gfss.data.labels.base import Labels, match, on_top
from gfss.data.labels.values import Meaning

INDEX, BINARY, TRIMAP = "index masks", "binary masks", "trimaps"
NO_VALUE = -1  # void, where there is none
UNNAMED = "the class"  # what masks show that nobody has given a name yet
GREYS = (127, 128)  # of the uncertain rim of a trimap: 255 is the object then
PETS = {1, 2, 3}  # values of the trimaps of the Oxford pets: object, background, uncertain


def read_index_masks(
    masks: dict[str, Path],
    images: dict[str, Path],
    meaning: Meaning,
    folder: Path,
    only: bool = False,
    void: int | None = None,
) -> Labels:
    """Masks whose values are class ids, or stand for classes; palette masks likewise, by their index.

    Black and white masks are taken for what they are if there is one class; else 255 is void.
    """
    classes = meaning.classes
    if len(classes) == 1 and void is None and _are_black_and_white(masks.values()):
        return read_binary_masks(masks, images, classes[0], folder, only)
    pictures, files = match(masks, images, folder, only)
    meaning = meaning.with_void(void)
    if meaning.plain:
        return Labels(INDEX, classes, pictures, files, lambda i: read_mask(files[i]))
    words = f"{INDEX} with the names of {meaning.source}"
    named = tuple(path for path in [Path(meaning.source)] if path.is_file())
    return Labels(words, classes, pictures, files, lambda i: meaning.ids(read_values(files[i]), files[i]), also=named)


def _are_black_and_white(files: Iterable[Path]) -> bool:
    """Whether masks have no values but 0 and 255, and not 0 alone."""
    white = False
    for file in files:
        values = np.unique(read_values(file))
        if not set(values.tolist()) <= {BACKGROUND, VOID}:
            return False
        white = white or VOID in values
    return white


def read_unnamed_masks(
    masks: dict[str, Path],
    images: dict[str, Path],
    class_name: str,
    source: Path,
    only: bool = False,
    void: int | None = None,
) -> Labels:
    """Masks without a list of names: of one class, or of several that are called by their values.

    Args:
        class_name: what masks of one class show; a number is the value of the class (0 too).
        void: the value that is neither class nor background; 255 if left out, where it is not the class itself.
    """
    pictures, files = match(masks, images, source, only)
    present = {path: set(np.unique(read_grey(path)).tolist()) for path in files}
    every = set().union(*present.values())
    chosen = int(class_name) if class_name.isdecimal() and int(class_name) in every else None
    if chosen is None and class_name.isdecimal():
        raise GfssError(
            f"the masks in {source} have the values {_few(sorted(every))}, and none of them is {class_name}; --label "
            "VALUE says which is the class"
        )
    if chosen is None and void is None:
        if every == PETS and "trimap" in str(files[0].parent).lower():
            pets = Meaning((class_name,), {1: 1, 2: BACKGROUND, 3: VOID}, "a trimap")
            return _by_meaning(TRIMAP, pets, pictures, files, "1 is the object, 2 the background and 3 uncertain")
        if class_name != UNNAMED or len(every - {BACKGROUND, VOID}) < 2 or _is_smoothed(every, files):
            return read_binary_masks(masks, images, class_name, source, only)
    left_out = void if void is not None else VOID if chosen != VOID and every - {BACKGROUND, VOID, chosen} else None
    if chosen is not None:
        values = dict.fromkeys(every, BACKGROUND) | {chosen: 1}
        meaning = Meaning((class_name,), values, "--label").with_void(left_out)
        return _by_meaning(BINARY, meaning, pictures, files, f"value {chosen} is the class")
    names = sorted(every - {BACKGROUND, left_out})
    if len(names) == 1:
        meaning = Meaning((class_name,), {BACKGROUND: BACKGROUND, names[0]: 1}, "--void").with_void(left_out)
        return _by_meaning(BINARY, meaning, pictures, files, f"value {names[0]} is the class")
    if class_name != UNNAMED:
        raise GfssError(
            f"the masks in {source} have the values {_few(names)} beside 0; --label VALUE says which is the class, or "
            "classes.txt names them all"
        )
    ids = {value: i for i, value in enumerate(names, start=1)}
    meaning = Meaning(unique_names(map(str, names), source), {BACKGROUND: BACKGROUND} | ids, "its data")
    words = "the values have no names; --label VALUE takes one as the class, classes.txt names them all"
    if VOID in every and names[-1] > 2 * len(names):  # numbers of classes lie closer together
        words += "; if they are greys of smoothed edges, --label 255 takes the white alone"
    return _by_meaning(f"{INDEX} without names", meaning.with_void(left_out), pictures, files, words)


def _by_meaning(
    words: str, meaning: Meaning, pictures: tuple[Path, ...], files: tuple[Path, ...], remark: str
) -> Labels:
    def draw(i: int) -> np.ndarray:
        return meaning.ids(read_grey(files[i]), files[i])

    return Labels(words, meaning.classes, pictures, files, draw, remarks=(remark,))


def _is_smoothed(values: set[int], files: Sequence[Path]) -> bool:
    """Whether values are rather those of smoothed edges than of classes: of JPEG, or nearly all greys."""
    return len(values) > 100 or any(path.suffix.lower() in (".jpg", ".jpeg") for path in files)


def _few(values: Sequence[int]) -> str:
    return ", ".join(map(str, values[:5])) + " ..." * (len(values) > 5)


def read_binary_masks(
    masks: dict[str, Path], images: dict[str, Path], class_name: str, source: Path, only: bool = False
) -> Labels:
    """Masks of one class: one value besides 0 is the class; where there are two, 255 is void.

    A trimap (0, 128, 255) shows the object as 255 and what is uncertain as 128.
    """
    pictures, files = match(masks, images, source, only)
    value, void = foreground(files)

    def draw(i: int) -> np.ndarray:
        mask = read_grey(files[i])
        result = np.where(mask == void, VOID, BACKGROUND).astype(np.uint8)
        result[mask == value] = 1
        return result

    remarks = (f"read as trimaps: {value} is the object, {void} uncertain; --void 255 reads them the other way",)
    trimap = void in GREYS
    return Labels(TRIMAP if trimap else BINARY, (class_name,), pictures, files, draw, remarks=remarks if trimap else ())


def read_class_folders(
    masks: Mapping[str, Mapping[str, Path]], images: dict[str, Path], folder: Path, only: bool = False
) -> Labels:
    """Binary masks in one folder per class: ``masks/dog/ID.png``; small objects lie on top.

    Args:
        masks: class -> name -> mask file.
    """
    classes = unique_names(sorted(masks), folder)
    groups = [masks[name] for name in classes]
    names = {name: path for group in groups for name, path in group.items()}
    pictures, files = match(dict(sorted(names.items())), images, folder, only)
    keys = {path: name for name, path in names.items()}
    values = [foreground(list(group.values())) for group in groups]

    def draw(i: int) -> np.ndarray:
        name = keys[files[i]]
        grey = [
            (class_id, read_grey(group[name]), value)
            for class_id, (group, value) in enumerate(zip(groups, values, strict=True), start=1)
            if name in group
        ]
        if len({mask.shape for _, mask, _ in grey}) > 1:
            raise GfssError(
                f"the masks called {files[i].name} under {folder} differ in size; they must have the same size"
            )
        result = on_top([(class_id, mask == value) for class_id, mask, (value, _) in grey])
        for _, mask, (_, void) in grey:
            result[(result == BACKGROUND) & (mask == void)] = VOID
        return result

    every = tuple(path for group in groups for path in group.values())
    return Labels("binary masks, a folder per class", classes, pictures, files, draw, also=every)


def foreground(files: Sequence[Path]) -> tuple[int, int]:
    """The values that stand for the class and for void in a set of binary masks, see :func:`class_value`."""
    return class_value([_counts(read_grey(path)) for path in files], [str(path) for path in files])


def _counts(mask: np.ndarray) -> dict[int, int]:
    values, pixels = np.unique(mask, return_counts=True)
    return dict(zip(values.tolist(), pixels.tolist(), strict=True))


def class_value(counts: Sequence[Mapping[int, int]], names: Sequence[str]) -> tuple[int, int]:
    """The values of the class and of void in masks of one class.

    The class is the value besides 0; where there are two, 255 is void, but for trimaps: there 255 is the class.

    Args:
        counts: value -> pixels of each mask.
        names: of the masks, for messages.
    """
    first: dict[int, str] = {}
    for count, name in zip(counts, names, strict=True):
        for value in count:
            first.setdefault(value, name)
    negative = min(first, default=0)
    if negative < 0:
        raise GfssError(f"{first[negative]} has the value {negative}; --void {negative} leaves it out")
    values = [value for value in first if value not in (BACKGROUND, VOID)]
    if len(values) > 1:
        strange = first[values[1]]
        advice = "--label VALUE says which is the class, classes.txt names them all; edges must not be smoothed"
        if strange.lower().endswith((".jpg", ".jpeg")):
            advice = "a JPG cannot hold a mask, it blurs the edges; save it as PNG"
        raise GfssError(
            f"{strange} is not a mask of one class: values {values[0]} and {values[1]} occur beside 0; {advice}"
        )
    if not values:
        return VOID, NO_VALUE
    value = values[0]
    if VOID in first and not any(count.get(value) and count.get(VOID) for count in counts):
        raise GfssError(
            f"{first[value]} has the values 0 and {value} but {first[VOID]} has 0 and {VOID}; "
            "save all masks with the same value for the class"
        )
    if sum(count.get(VOID, 0) for count in counts) > sum(count[value] for count in counts if value in count):
        if value in GREYS:
            return VOID, value
        if value > GREYS[0]:
            raise GfssError(
                f"{first[value]} has the values 0, {value} and {VOID}; say which is the class with --label {value} or "
                f"--label {VOID}, and which is uncertain with --void"
            )
    return value, VOID


def read_grey(path: Path) -> np.ndarray:
    """A black and white mask in any mode as (height, width), uint8 or int64; of a coloured palette the index counts."""
    with open_image(path) as file:
        mode = file.mode
    if mode in ("L", "1", "F") or mode.startswith("I"):
        return read_values(path)
    drawn = read_transparency(path)
    if drawn is not None:
        return drawn
    rgb = read_colours(path)
    if (rgb == rgb[..., :1]).all():
        return rgb[..., 0]
    if mode == "P":
        return read_mask(path)
    raise GfssError(
        f"{path} is a colour (RGB) mask; save black and white, or put a labelmap.txt with the colours beside it"
    )
