"""Kinds of bad input, and what the program answers: ``python -m tests.fuzz.bad_inputs`` writes docs/bad-input.md."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import shutil
import struct
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from tests.data.make import SIZE, boxes, header_only_png, photo, png
from tests.fuzz import targets

from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.data.labels import read_labels

PAGE = Path(__file__).parents[2] / "docs" / "bad-input.md"
HEIGHT, WIDTH = SIZE
READ = "read"  # the answer to what looks bad and is not

HEAD = """# Bad input and the answers to it

What the program says to each kind of bad input; `DATA` stands for the folder. The page is written by
`python -m tests.fuzz.bad_inputs`, and a test compares it with what the program says now. "{read}" stands where input
that looks wrong has a meaning.
"""


class Kind(NamedTuple):
    """One kind of bad input.

    Attributes:
        group: what is bad.
        words: in which way.
        run: makes it in an empty folder and gives it to the program.
    """

    group: str
    words: str
    run: Callable[[Path], object]


def answer(kind: Kind) -> str:
    """What the program says."""
    place = Path(tempfile.mkdtemp(prefix="bad-"))
    root = place / "data"
    root.mkdir()
    try:
        with redirect_stderr(io.StringIO()):
            kind.run(root)
    except GfssError as error:
        return str(error).replace(str(root), "DATA")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return READ


def read_all(source: Path, name: str | None = "cat", **more: Any) -> None:
    """Labels and all their masks."""
    labels = read_labels(source, class_name=name, **more)
    for i in range(len(labels)):
        labels.mask(i)


def command(*words: str) -> None:
    """The command line; its answer as an error."""
    err, out = io.StringIO(), io.StringIO()
    with redirect_stderr(err), redirect_stdout(out):
        code = main(words)
    if code:
        raise GfssError(err.getvalue().strip().removeprefix("gfss: ") or out.getvalue())


def changed(content: Any, path: str, value: Any) -> Any:
    """JSON with one value replaced, or left out if the value is ``...``."""
    content = copy.deepcopy(content)
    holder, keys = content, [int(key) if key.isdecimal() else key for key in path.split("/")]
    for key in keys[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
    return content


def json_kinds(group: str, good: Callable[[], Any], prepare: Callable[[Path], None], table: str) -> Iterator[Kind]:
    """Kinds from lines "words | path | value"; the value is Python."""
    for line in table.strip().splitlines():
        words, path, value = (part.strip() for part in line.split("|"))

        def run(root: Path, path: str = path, value: str = value) -> None:
            prepare(root)
            content = changed(good(), path, eval(value, {"nan": float("nan"), "inf": float("inf")}))
            (root / "labels.json").write_text(json.dumps(content))
            read_all(root / "labels.json")

        yield Kind(group, words, run)


def file_kinds(group: str, good: Callable[[Path], None], table: dict[str, tuple[str, bytes | str]]) -> Iterator[Kind]:
    """Kinds in which one file has another content."""
    for words, (name, content) in table.items():

        def run(root: Path, name: str = name, content: bytes | str = content) -> None:
            good(root)
            data = content.encode() if isinstance(content, str) else content
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
            read_all(root)

        yield Kind(group, words, run)


def call_kinds(group: str, table: dict[str, Callable[[Path], object]]) -> Iterator[Kind]:
    """Kinds that are a function each."""
    for words, run in table.items():
        yield Kind(group, words, run)


LABELME = """
no list of shapes | shapes | ...
shapes are a text | shapes | "cat"
shapes are a number | shapes | 5
a shape is a text | shapes/0 | "cat"
a shape is nothing | shapes/0 | None
a shape without label | shapes/0/label | ...
a shape without points | shapes/0/points | ...
a label that is a number | shapes/0/label | 7
an empty label | shapes/0/label | ""
a label of escape sequences | shapes/0/label | "\\x1b[2J"
a label of 5,000 characters | shapes/0/label | "a" * 5000
points are a text | shapes/0/points | "1,1 9,9"
points are nothing | shapes/0/points | None
no point | shapes/0/points | []
a polygon of one point | shapes/0/points | [[1, 1]]
a polygon of two points | shapes/0/points | [[1, 1], [9, 9]]
a point of one number | shapes/0/points | [[1], [9], [9]]
a point of three numbers | shapes/0/points | [[1, 1, 0], [9, 1, 0], [9, 9, 0]]
a point that is a text | shapes/0/points/0 | ["left", "top"]
a point that is nothing | shapes/0/points/0 | None
a point that is NaN | shapes/0/points/0 | [nan, 1]
a point at infinity | shapes/0/points/0 | [inf, 1]
a point of 400 digits | shapes/0/points/0 | [10**400, 1]
a point outside the image | shapes/0/points/0 | [900, 1]
a point at negative place | shapes/0/points/0 | [-50, 1]
all points the same | shapes/0/points | [[1, 1], [1, 1], [1, 1]]
a polygon of 100,000 points to and fro | shapes/0/points | [[i % 2 * 31, i % 23] for i in range(100000)]
a rectangle of one point | shapes/1/points | [[1, 1]]
a circle without its edge | shapes/2/points | [[5, 5]]
a painted mask that is no picture | shapes/3/mask | "aGVsbG8="
a painted mask that is no base64 | shapes/3/mask | "%%%"
a painted mask that is a number | shapes/3/mask | 5
a painted mask left out | shapes/3/mask | ...
an unknown kind of shape | shapes/0/shape_type | "spline"
another image size | imageHeight | 99
an image size that is a text | imageHeight | "high"
an image that does not exist | imagePath | "gone.jpg"
an image path that is a number | imagePath | 5
an image path out of the folder | imagePath | "../../../etc/passwd"
an image path of 5,000 characters | imagePath | "a" * 5000
"""

COCO = """
no images | images | ...
images are a text | images | "a.jpg"
no annotations | annotations | ...
an empty list of annotations | annotations | []
annotations are an object | annotations | {}
an annotation is nothing | annotations/0 | None
an annotation is a number | annotations/0 | 5
no categories | categories | ...
an empty list of categories | categories | []
a category without id | categories/0/id | ...
a category without name | categories/0/name | ...
a category called null | categories/0/name | None
a category called 7 | categories/0/name | 7
a category called nothing | categories/0/name | ""
a category of escape sequences | categories/0/name | "\\x1b]0;x\\x07"
two categories of one name | categories | [{"id": 3, "name": "cat"}, {"id": 4, "name": "cat"}]
300 categories | categories | [{"id": i, "name": str(i)} for i in range(300)]
a category id that is a list | categories/0/id | [3]
an image without id | images/0/id | ...
an image without file name | images/0/file_name | ...
a file name that is a number | images/0/file_name | 5
an empty file name | images/0/file_name | ""
the file name .. | images/0/file_name | ".."
a file name out of the folder | images/0/file_name | "../../../etc/passwd"
a file name with a zero in it | images/0/file_name | "a\\x00.jpg"
a file name of 5,000 characters | images/0/file_name | "a" * 5000
an image that does not exist | images/0/file_name | "gone.jpg"
no height | images/0/height | ...
a height that is a text | images/0/height | "high"
a height of infinity | images/0/height | inf
a height of NaN | images/0/height | nan
a negative height | images/0/height | -24
a height of zero | images/0/height | 0
a height of 10^30 | images/0/height | 10**30
another height than the image has | images/0/height | 25
an annotation of an unknown image | annotations/0/image_id | 99
an image id that is a text | annotations/0/image_id | "1"
an image id that is a list | annotations/0/image_id | [1]
an annotation of an unknown category | annotations/0/category_id | 99
a category id that is a text | annotations/0/category_id | "cat"
no segmentation | annotations/0/segmentation | ...
an empty segmentation | annotations/0/segmentation | []
a segmentation that is a text | annotations/0/segmentation | "polygon"
a segmentation that is a number | annotations/0/segmentation | 5
a polygon of an odd number of values | annotations/0/segmentation | [[1, 1, 9, 1, 9, 9, 5]]
a polygon of two points | annotations/0/segmentation | [[1, 1, 9, 9]]
a polygon of texts | annotations/0/segmentation | [["a", "b", "c", "d", "e", "f"]]
a polygon with NaN | annotations/0/segmentation | [[1, 1, 9, nan, 9, 9]]
a polygon far outside | annotations/0/segmentation | [[1, 1, 900, 1, 900, 900]]
a polygon of lists | annotations/0/segmentation | [[[1, 1], [9, 1], [9, 9]]]
a polygon of 100,000 points to and fro | annotations/0/segmentation | [[i // 2 % 2 * 31 for i in range(200000)]]
run lengths for another size | annotations/1/segmentation/size | [25, 32]
run lengths without size | annotations/1/segmentation/size | ...
run lengths without counts | annotations/1/segmentation/counts | ...
run lengths that are too short | annotations/1/segmentation/counts | [10, 10]
run lengths that are too long | annotations/1/segmentation/counts | [10000, 10]
negative run lengths | annotations/1/segmentation/counts | [-10, 778]
run lengths of fractions | annotations/1/segmentation/counts | [0.5, 767.5]
run lengths that are a number | annotations/1/segmentation/counts | 5
compressed run lengths that are damaged | annotations/1/segmentation/counts | "zzzzzz"
compressed run lengths of other characters | annotations/1/segmentation/counts | "é"
"""

PANOPTIC = """
segments that are nothing | annotations/0/segments_info | None
no segment | annotations/0/segments_info | []
a segment without id | annotations/0/segments_info/0/id | ...
a segment id that is a text | annotations/0/segments_info/0/id | "one"
a segment of an unknown category | annotations/0/segments_info/0/category_id | 99
another segment than the image shows | annotations/0/segments_info/0/id | 77
an unknown image | annotations/0/image_id | 99
a PNG that does not exist | annotations/0/file_name | "gone.png"
a PNG out of the folder | annotations/0/file_name | "../../../etc/passwd"
an image that does not exist | images/0/file_name | "gone.jpg"
a category without name | categories/0/name | None
no categories | categories | ...
"""


def json_text(words: str, text: str) -> Kind:
    def run(root: Path) -> None:
        targets.one_image(root)
        (root / "labels.json").write_text(text)
        read_all(root / "labels.json")

    return Kind("JSON file", words, run)


def yolo_kinds() -> Iterator[Kind]:
    line = "0 0.1 0.1 0.5 0.1 0.5 0.5"
    labels = {
        "a box": "0 0.5 0.5 0.2 0.2",
        "a class number alone": "0",
        "an odd number of values": line + " 0.5",
        "two points": "0 0.1 0.1 0.5 0.5",
        "a class name": line.replace("0 ", "cat ", 1),
        "a negative class": "-1" + line[1:],
        "a class that has no name": "7" + line[1:],
        "class 10^20": "1" + "0" * 20 + line[1:],
        "a point that is a text": line + " x y",
        "a point that is NaN": line + " nan 0.1",
        "a point at infinity": line + " inf 0.1",
        "pixels instead of shares": "0 10 10 20 10 20 20",
        "negative shares": line + " -0.5 0.5",
        "commas": line.replace(" ", ","),
        "100,000 points to and fro": "0 " + " ".join(f"{i % 2} {i % 2}" for i in range(100_000)),
        "an empty file": "",
        "bytes that are no text": "\udcff\udcfe",
    }
    for words, text in labels.items():

        def run(root: Path, text: str = text) -> None:
            targets.yolo_root(root)
            (root / "labels" / "a.txt").write_bytes(text.encode("utf-8", "surrogateescape"))
            read_all(root)

        yield Kind("YOLO label", words, run)
    lists = {
        "names that are a text": "names: cat",
        "names that are nothing": "names:",
        "names with gaps": "names: {0: cat, 5: dog}",
        "names that are lists": "names: [[cat], [dog]]",
        "a name twice": "names: [cat, cat]",
        "a name of escape sequences": 'names: ["\\e[2J", dog]',
        "no names": "nc: 2",
        "no YAML": "names: [cat",
        "a Python object": "names: !!python/object/apply:os.system [ls]",
        "nested 5,000 deep": "names: " + "[" * 5000,
    }
    for words, text in lists.items():

        def run_list(root: Path, text: str = text) -> None:
            targets.yolo_root(root)
            (root / "data.yaml").write_text(text)
            read_all(root / "data.yaml")

        yield Kind("YOLO data.yaml", words, run_list)


def picture(mode: str, suffix: str = "PNG", size: tuple[int, int] = (WIDTH, HEIGHT)) -> bytes:
    buffer = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).convert(mode).save(buffer, suffix)
    return buffer.getvalue()


def array(values: np.ndarray, suffix: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, suffix)
    return buffer.getvalue()


def with_crc(data: bytes) -> bytes:
    """A PNG whose header says 60,000 x 60,000."""
    header = b"IHDR" + struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def nan_tiff() -> bytes:
    values = np.ones((HEIGHT, WIDTH), dtype=np.float32)
    values[3, 3] = np.nan
    return array(values, "TIFF")


def stack() -> bytes:
    buffer = io.BytesIO()
    first, second = Image.fromarray(boxes(1)), Image.fromarray(boxes(0, 1))
    first.save(buffer, "TIFF", save_all=True, append_images=[second])
    return buffer.getvalue()


def mask_kinds() -> Iterator[Kind]:
    good = array(boxes(1))
    noisy = np.random.default_rng(0).integers(0, 255, SIZE, dtype=np.uint8)
    wide = np.array([0, 1000, 2000, 65535], dtype=np.uint16)[boxes(1, 2, 3)]
    half = boxes(1).astype(np.float32) / 2
    trimap = boxes(255)
    trimap[8, :8] = 200
    table: dict[str, tuple[str, bytes | str]] = {
        "an empty file": ("masks/a.png", b""),
        "a text file called .png": ("masks/a.png", b"hello"),
        "half a file": ("masks/a.png", good[: len(good) // 2]),
        "a damaged checksum": ("masks/a.png", good[:45] + bytes([good[45] ^ 255]) + good[46:]),
        "a header of 60,000 x 60,000 pixels": ("masks/a.png", with_crc(good)),
        "colours (RGB)": ("masks/a.png", picture("RGB")),
        "photographic noise": ("masks/a.png", array(noisy)),
        "another size than the image": ("masks/a.png", array(boxes(1, size=(25, 32)))),
        "16 bit with values of no class": ("masks/a.png", array(wide)),
        "fractions (32-bit float)": ("masks/a.tif", array(half, "TIFF")),
        "NaN (32-bit float)": ("masks/a.tif", nan_tiff()),
        "negative values (32 bit)": ("masks/a.tif", array(-boxes(1).astype(np.int32), "TIFF")),
        "the values 0, 200 and 255": ("masks/a.png", array(trimap)),
        "two values beside 0": ("masks/a.png", array(boxes(1, 2))),
        "no pixel of the class": ("masks/a.png", array(boxes())),
        "a mask whose image is missing": ("masks/b.png", good),
        "a mask and an image of other names": ("masks/c.png", good),
        "a mask as SVG": ("masks/a.svg", "<svg/>"),
        "several pictures in one TIFF": ("masks/a.tif", stack()),
        "white on transparency": ("masks/a.png", array(np.dstack([np.full((*SIZE, 3), 255, np.uint8), boxes(255)]))),
    }

    for words, (name, content) in table.items():
        yield Kind("binary mask", words, lambda root, n=name, c=content: only(root, n, c, targets.binary_root))
    index = {
        "a value that no line names": ("masks/a.png", array(boxes(1, 7))),
        "colours (RGB)": ("masks/a.png", picture("RGB")),
        "16 bit with values of no class": ("masks/a.png", array(wide)),
        "fractions (32-bit float)": ("masks/a.tif", array(half, "TIFF")),
        "another size than the image": ("masks/a.png", array(boxes(1, size=(25, 32)))),
        "a second file of the same name": ("masks/a.bmp", array(boxes(1), "BMP")),
    }

    for words, (name, content) in index.items():
        yield Kind("index mask", words, lambda root, n=name, c=content: only(root, n, c, targets.index_root))


def only(root: Path, name: str, content: bytes | str, good: Callable[[Path], None]) -> None:
    """A mask in place of the good one, or beside it where it has another name."""
    good(root)
    if name.startswith("masks/a.") and not name.endswith(".bmp"):
        (root / "masks" / "a.png").unlink()
    (root / name).write_bytes(content.encode() if isinstance(content, str) else content)
    read_all(root)


def name_kinds() -> Iterator[Kind]:
    table: dict[str, tuple[str, bytes | str]] = {
        "an empty classes.txt": ("classes.txt", ""),
        "a name twice": ("classes.txt", "cat\ncat\n"),
        "a background line": ("classes.txt", "background\ncat\n"),
        "300 names": ("classes.txt", "\n".join(map(str, range(300)))),
        "a name of escape sequences": ("classes.txt", "\x1b[2J\n"),
        "a name of 5,000 characters": ("classes.txt", "a" * 5000),
        "bytes that are no text": ("classes.txt", b"\xff\xfe\xff"),
        "fewer names than values": ("classes.txt", "cat"),
        "a labelmap.txt without colours": ("labelmap.txt", "cat\n"),
        "a labelmap.txt of texts": ("labelmap.txt", "cat:red,green,blue::\n"),
        "a labelmap.txt with colour 300": ("labelmap.txt", "cat:300,0,0::\n"),
        "a labelmap.txt with a colour twice": ("labelmap.txt", "cat:1,1,1::\ndog:1,1,1::\n"),
        "a labelmap.txt without the colour of a mask": ("labelmap.txt", "cat:9,9,9::\n"),
        "a labelmap.txt of comments": ("labelmap.txt", "# nothing\n"),
        "a class_dict.csv without colours": ("class_dict.csv", "name,r,g,b\ncat\n"),
        "a class_dict.csv of texts": ("class_dict.csv", "name,r,g,b\ncat,red,green,blue\n"),
        "a _classes.csv without numbers": ("_classes.csv", "Pixel Value, Class\nzero, background\n"),
        "a _classes.csv that misses a value": ("_classes.csv", "Pixel Value, Class\n0, background\n2, cat\n"),
        "an objectInfo150.txt without tabs": ("objectInfo150.txt", "Idx Name\n1 cat\n"),
        "a class_names.txt of background alone": ("class_names.txt", "_background_\n"),
    }

    def good(root: Path) -> None:
        targets.one_image(root)
        png(root / "masks" / "a.png", boxes(1, 2))

    yield from file_kinds("names of classes", good, table)


def image_kinds() -> Iterator[Kind]:
    from gfss.data.images import read_image

    good = picture("RGB", "JPEG")
    contents = {
        "an empty file": ("a.jpg", b""),
        "a text file called .jpg": ("a.jpg", b"hello"),
        "half a JPEG": ("a.jpg", good[: len(good) // 2]),
        "half a PNG": ("a.png", picture("RGB")[:200]),
        "a JPEG without an end": ("a.jpg", good[:-2]),
        "a zip called .png": ("a.png", b"PK\x03\x04" + bytes(100)),
        "a PDF called .jpg": ("a.jpg", b"%PDF-1.4\n"),
        "an EPS called .png": ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n"),
        "a header of 60,000 x 60,000 pixels": ("a.png", with_crc(array(boxes(1)))),
        "a TIFF with NaN": ("a.tif", nan_tiff()),
        "a HEIC file": ("a.jpg", b"\x00\x00\x00\x18ftypheic" + bytes(50)),
        "an SVG called .png": ("a.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        "an image of 1 x 1": ("a.png", picture("RGB", size=(1, 1))),
        "CMYK": ("a.jpg", picture("CMYK", "JPEG")),
        "grey with transparency": ("a.png", picture("LA")),
    }
    for words, (name, content) in contents.items():

        def run(root: Path, name: str = name, content: bytes = content) -> None:
            (root / name).write_bytes(content)
            read_image(root / name)

        yield Kind("image", words, run)
    yield from call_kinds(
        "image",
        {
            "a file that does not exist": lambda root: read_image(root / "gone.jpg"),
            "a folder": lambda root: read_image(root),
            "a pipe": lambda root: (os.mkfifo(root / "a.jpg"), read_image(root / "a.jpg")),
            "a link to itself": lambda root: ((root / "a.jpg").symlink_to("a.jpg"), read_image(root / "a.jpg")),
            "a header that promises more": lambda root: read_image(header_only_png(root / "a.png", 100, 100)),
        },
    )


def tree_kinds() -> Iterator[Kind]:
    def two_folders(root: Path) -> None:
        photo(root / "left" / "a.jpg")
        photo(root / "right" / "a.jpg")
        read_all(root)

    def two_mask_folders(root: Path) -> None:
        targets.one_image(root)
        png(root / "masks" / "a.png", boxes(1))
        png(root / "labels" / "a.png", boxes(1))
        read_all(root)

    def same_stem(root: Path) -> None:
        photo(root / "a.png")
        photo(root / "a.bmp")
        read_all(root)

    def no_names(root: Path) -> None:
        targets.binary_root(root)
        read_all(root, None)

    def two_sets(root: Path) -> None:
        targets.one_image(root)
        for name in ("one", "two"):
            content = changed(targets.coco(), "categories/0/name", name)
            (root / f"{name}.json").write_text(json.dumps(content))
        read_all(root)

    def both_coco(root: Path) -> None:
        targets.panoptic_root(root)
        (root / "annotations").mkdir()
        (root / "annotations" / "instances.json").write_text(json.dumps(targets.coco()))
        (root / "annotations" / "panoptic.json").write_text(json.dumps(targets.panoptic()))
        read_all(root)

    def other_file(root: Path) -> None:
        (root / "labels.xml").write_text("<annotation/>")
        read_all(root / "labels.xml")

    def only_images(root: Path) -> None:
        targets.one_image(root)
        read_all(root)

    def only_masks(root: Path) -> None:
        for name in "ab":
            png(root / "masks" / f"{name}.png", boxes(1))
        read_all(root)

    def class_sizes(root: Path) -> None:
        targets.one_image(root)
        png(root / "masks" / "cat" / "a.png", boxes(1))
        png(root / "masks" / "dog" / "a.png", boxes(1, size=(9, 9)))
        read_all(root)

    def void_elsewhere(root: Path) -> None:
        targets.one_image(root)
        png(root / "masks" / "a.png", boxes(1, 2, 3))
        read_all(root, "cat", void=3)

    yield from call_kinds(
        "folder",
        {
            "a path that does not exist": lambda root: read_all(root / "gone"),
            "an empty folder": read_all,
            "images without labels": only_images,
            "masks without images": only_masks,
            "two folders of photographs": two_folders,
            "two folders of masks": two_mask_folders,
            "two photographs of one name": same_stem,
            "binary masks for a data set of classes": no_names,
            "two COCO files of other classes": two_sets,
            "COCO instances and panoptic": both_coco,
            "a file of another kind": other_file,
            "masks of two sizes for one image": class_sizes,
            "--void and still two values": void_elsewhere,
        },
    )


def zip_kinds() -> Iterator[Kind]:
    def archive(root: Path, files: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> Path:
        with zipfile.ZipFile(root / "task.zip", "w", how) as file:
            for name, content in files.items():
                file.writestr(name, content)
        return root / "task.zip"

    def raw(content: bytes) -> Callable[[Path], None]:
        def run(root: Path) -> None:
            (root / "task.zip").write_bytes(content)
            read_all(root / "task.zip")

        return run

    def encrypted(root: Path) -> None:
        path = archive(root, {"labelmap.txt": b"cat:1,1,1::"}, zipfile.ZIP_STORED)
        data = bytearray(path.read_bytes())
        for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
            data[data.index(mark) + place] |= 1
        path.write_bytes(bytes(data))
        read_all(path)

    good = targets.cvat()
    yield from call_kinds(
        "zip file",
        {
            "an empty file": raw(b""),
            "half a zip": raw(good[: len(good) // 2]),
            "a text called .zip": raw(b"hello"),
            "a zip of nothing": lambda root: read_all(archive(root, {})),
            "a zip of other things": lambda root: read_all(archive(root, {"notes.txt": b"hello"})),
            "a bomb: 600 MB of zeros": lambda root: read_all(archive(root, {"masks/a.png": bytes(600_000_000)})),
            "a password": encrypted,
            "names that lead out of it": lambda root: read_all(archive(root, {"../../../evil.txt": b"x"})),
            "a damaged member": raw(good[:60] + bytes(20) + good[80:]),
        },
    )


def option_kinds() -> Iterator[Kind]:
    segment = ("segment", "scenes-tiny", "x.jpg", "-o", "out")
    lines: dict[str, tuple[str, ...]] = {
        "no such command": ("tech",),
        "no such option": ("segment", "--colour"),
        "teach without options": ("teach", "scenes-tiny"),
        "--balance nan": (*segment, "--balance", "nan"),
        "--balance inf": (*segment, "--balance", "inf"),
        "--balance much": (*segment, "--balance", "much"),
        "--threads -5": (*segment, "--threads", "-5"),
        "--threads 99999999": (*segment, "--threads", "99999999"),
        "--guard nan": ("report", "scenes-tiny", "--guard", "nan"),
        "--guard -1": ("report", "scenes-tiny", "--guard", "-1"),
        "an empty model name": ("classes", ""),
        "an unknown model": ("classes", "scenes-tny"),
        "a model that is a folder of other things": ("classes", "tests"),
        "an unknown class to forget": ("forget", "scenes-tiny", "zebra", "-o", "out"),
        "a base class to forget": ("forget", "scenes-tiny", "cross", "-o", "out"),
        "export to another format": ("export", "scenes-tiny", "-o", "model.pt"),
        "images that do not exist": ("segment", "scenes-tiny", "gone*.jpg", "-o", "out"),
        "an unknown data set": ("data", "check", "pascl"),
        "an unknown split": ("data", "sheet", "scenes", "--split", "dev"),
        "--label with two names": (
            "teach", "scenes-tiny", "--name", "a", "--name", "b", "--images", "x", "--masks", "y", "--label", "z", "-o",
            "out",
        ),
        "a model changed in place that is not to be": (
            "teach", "scenes-tiny", "--name", "a", "--images", "x", "--masks", "y",
        ),
    }  # fmt: skip
    for words, line in lines.items():
        yield Kind("command line", words, lambda root, line=line: command(*line))


def api_kinds() -> Iterator[Kind]:
    from gfss.app.inputs import as_image, labelled_images

    image, mask = np.zeros((6, 8, 3), dtype=np.uint8), np.eye(6, 8, dtype=np.uint8)
    arrays = {
        "an array of 1 dimension": np.zeros(5),
        "an array of 2 channels": np.zeros((3, 4, 2)),
        "an empty array": np.zeros((0, 4, 3)),
        "an array with NaN": np.full((3, 4), np.nan),
        "an array of negative values": np.full((3, 4), -1.0),
        "an array of values beyond 1": np.full((3, 4), 7.5),
        "an array of texts": np.array([["a", "b"]]),
        "an array of objects": np.array([[None]]),
    }
    for words, values in arrays.items():
        yield Kind("image as array", words, lambda root, values=values: as_image(values))
    pairs: dict[str, tuple[Any, Any]] = {
        "two images and one mask": ([image, image], [mask]),
        "no image": ([], []),
        "a mask of another size": ([image], [mask[:3]]),
        "a mask of fractions": ([image], [mask / 2]),
        "a mask of three channels": ([image], [image]),
        "a mask of negative values": ([image], [-mask.astype(int)]),
        "a mask of values beyond 255": ([image], [mask.astype(int) * 1000]),
        "a mask of three values": ([image], [mask + 2 * np.eye(6, 8, 1, dtype=np.uint8)]),
        "an empty mask": ([image], [mask[:0]]),
        "arrays with a folder of masks": ([image], "masks"),
        "images that do not exist": (["gone.jpg"], [mask]),
        "labelme without files": (["gone.jpg"], "labelme"),
    }
    for words, (images, masks) in pairs.items():
        yield Kind(
            "image and mask as arrays",
            words,
            lambda root, images=images, masks=masks: labelled_images(images, masks, "cat"),
        )


RECIPE = """
    no data | data | ...
    an unknown encoder | encoder | "resnet5"
    a fold beyond the last | folds | [4]
    folds that are a text | folds | "first"
    a fold twice | folds | [1, 1]
    a size of zero | size | 0
    a size that is a fraction | size | 113.5
    an unknown preset | base | "fast"
    a preset that is a list | base | {"preset": [1]}
    options that are a number | base | 3
    an option that is a text | base/epochs | "many"
    an unknown option | base/epoch | 2
    an unknown key | shot | 1
    no method | methods | {}
    an unknown method | methods | ["nsf", "pcm"]
    a method that is a list | methods | [["nsf"]]
    options of a method that has none | methods/nsf | {"training": {"iterations": 5}}
    zero shots | shots | [0]
    a shot of 10^400 | shots | [10**400]
    a protocol that is a number | protocols | 5
    an unknown protocol | protocols | {"single": 5}
    a negative seed | seed | -1
    more parts than classes | training/held_out | 10**9
    data with a zero in its name | data | "a\\0b"
"""
RECORD = """
    no method | method | ...
    a figure of 10^15 | figures/per-image/novel | 1e15
    a figure below 0 | figures/per-image/novel | -50
    a figure of NaN | figures/per-image/novel | nan
    a figure that is a text | figures/per-image/novel | "high"
    an unknown key | colour | 1
    an unknown protocol | protocol | "single"
    zero tasks | tasks | 0
"""


def experiment_kinds() -> Iterator[Kind]:
    """Recipes and records."""
    for group, good, run, lines in (
        ("recipe", targets.recipe, targets.run_recipe, RECIPE),
        ("record", targets.record, targets.run_record, RECORD),
    ):
        for line in lines.strip().splitlines():
            words, path, value = (part.strip() for part in line.split("|"))
            content = changed(good(), path, eval(value, {"nan": float("nan")}))
            data = json.dumps(content).encode()
            yield Kind(group, words, lambda root, run=run, data=data: run(root, data))
    texts = {"no YAML": b"a: [", "a list": b"- nsf", "an empty file": b"", "nested 2,000 deep": b"[" * 2000}
    for words, data in texts.items():
        yield Kind("recipe file", words, lambda root, data=data: targets.run_recipe(root, data))


def kinds() -> list[Kind]:
    """All kinds of bad input."""
    texts = {
        "an empty file": "",
        "no JSON": "{'a': 1}",
        "cut off": '{"shapes": [',
        "a number": "5",
        "a list": "[]",
        "nested 100,000 deep": "[" * 100_000,
        "a number of 5,000 digits": '{"shapes": ' + "7" * 5000 + "}",
        "a lone surrogate": '{"shapes": [], "x": "\\ud800"}',
        "two values": "{} {}",
        "neither labelme nor COCO": '{"name": "x"}',
    }
    return [
        *(json_text(words, text) for words, text in texts.items()),
        *json_kinds("labelme file", _labelme, targets.one_image, LABELME),
        *json_kinds("COCO file", targets.coco, targets.one_image, COCO),
        *json_kinds("COCO panoptic file", targets.panoptic, targets.panoptic_root, PANOPTIC),
        *yolo_kinds(),
        *mask_kinds(),
        *name_kinds(),
        *image_kinds(),
        *tree_kinds(),
        *zip_kinds(),
        *api_kinds(),
        *experiment_kinds(),
        *option_kinds(),
    ]


def _labelme() -> dict[str, Any]:
    return targets.labelme() | {"imagePath": "images/a.jpg"}


def table() -> str:
    """The page."""
    warnings.simplefilter("ignore")
    lines = [HEAD.format(read=READ)]
    group = ""
    for kind in kinds():
        if kind.group != group:
            group = kind.group
            lines += ["", f"## {group[0].upper()}{group[1:]}", "", "| input | answer |", "|---|---|"]
        text = answer(kind).replace("|", "\\|").replace("<", "&lt;")
        if kind.group == "recipe":  # the lists grow with every option
            text = re.sub(r"known: .*", "known: ...", text)
        lines.append(f"| {kind.words} | {text} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


if __name__ == "__main__":
    PAGE.write_text(table())
    print(f"{len(kinds())} kinds of bad input in {PAGE}")
