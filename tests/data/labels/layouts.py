"""Data sets as their programs write them, small: what the tests read and what docs/data-formats.md shows.

``python -m tests.data.labels.layouts`` writes the page.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from tests.data.make import SIZE, box_polygon, boxes, coco_json, labelme, photo, png, write

from gfss.data.labels.png import UNNAMED

PAGE = Path(__file__).parents[3] / "docs" / "data-formats.md"
HEIGHT, WIDTH = SIZE
CAT, DOG = boxes(1), boxes(0, 1)  # where the two classes are
PALETTE = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 0]], dtype=np.uint8)


def names(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def yolo_line(number: int, left: int) -> str:
    points = [(left, 8), (left + 7, 8), (left + 7, 15), (left, 15)]
    return f"{number} " + " ".join(f"{x / WIDTH:.6f} {y / HEIGHT:.6f}" for x, y in points)


def coco_file(path: Path, image: str, folder: Path) -> None:
    photo(folder / image)
    animals = [{"category_id": i, "segmentation": [box_polygon(left, 8, left + 8, 16)]} for i, left in ((1, 0), (5, 8))]
    coco_json(path, {image: animals}, {1: "cat", 5: "dog"})


def index_and_names(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def folder_per_class(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / "cat" / f"{name}.png", boxes(255))
        png(root / "masks" / "dog" / f"{name}.png", boxes(0, 255))


def pascal_voc(root: Path) -> None:
    for name, split in (("a", "train"), ("b", "val")):
        photo(root / "JPEGImages" / f"{name}.jpg")
        picture = Image.fromarray(np.where(boxes(1) == 1, 8, np.where(boxes(0, 1) == 1, 12, 0)).astype(np.uint8))
        picture.putpalette(bytes(range(256)) * 3)
        (root / "SegmentationClass").mkdir(parents=True, exist_ok=True)
        picture.save(root / "SegmentationClass" / f"{name}.png")
        png(root / "SegmentationObject" / f"{name}.png", boxes(1))
        names(root / "ImageSets" / "Segmentation" / f"{split}.txt", name)


def labelme_beside(root: Path) -> None:
    for name in "ab":
        photo(root / f"{name}.jpg")
        shapes = [("cat", "rectangle", [[0, 8], [7, 15]]), ("dog", "rectangle", [[8, 8], [15, 15]])]
        labelme(root / f"{name}.json", shapes)


def labelme_apart(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        shapes = [("cat", "rectangle", [[0, 8], [7, 15]]), ("dog", "rectangle", [[8, 8], [15, 15]])]
        labelme(root / "annotations" / f"{name}.json", shapes, imagePath=f"..\\images\\{name}.jpg")


def labelme_voc_export(root: Path) -> None:
    for name in "ab":
        photo(root / "JPEGImages" / f"{name}.jpg")
        png(root / "SegmentationClass" / f"{name}.png", boxes(1, 2), "P")
        photo(root / "SegmentationClassVisualization" / f"{name}.jpg")
        (root / "SegmentationClassNpy").mkdir(exist_ok=True)
        np.save(root / "SegmentationClassNpy" / f"{name}.npy", boxes(1, 2))
    names(root / "class_names.txt", "_background_", "cat", "dog")


def coco_one_file(root: Path) -> None:
    coco_file(root / "labels.json", "a.jpg", root / "images")


def coco_tree(root: Path) -> None:
    for split in ("train", "val"):
        coco_file(root / "annotations" / f"instances_{split}2017.json", f"{split}1.jpg", root / f"{split}2017")
        write(root / "annotations" / f"captions_{split}2017.json", {"annotations": [{"caption": "two animals"}]})


def coco_panoptic(root: Path) -> None:
    photo(root / "val2017" / "a.jpg")
    segments = np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    segments[boxes(1) == 1] = (44, 1, 0)  # 300
    segments[boxes(0, 1) == 1] = (7, 0, 0)
    segments[boxes(1, 1) == 0] = (9, 0, 0)
    png(root / "annotations" / "panoptic_val2017" / "a.png", segments)
    infos = [{"id": 300, "category_id": 1}, {"id": 7, "category_id": 5}, {"id": 9, "category_id": 9}]
    content = {
        "images": [{"id": 1, "file_name": "a.jpg", "height": HEIGHT, "width": WIDTH}],
        "annotations": [{"image_id": 1, "file_name": "a.png", "segments_info": infos}],
        "categories": [{"id": i, "name": n, "isthing": 1} for i, n in ((1, "cat"), (5, "dog"), (9, "grass"))],
    }
    write(root / "annotations" / "panoptic_val2017.json", content)


def coco_of_roboflow(root: Path) -> None:
    for split in ("train", "valid"):
        coco_file(root / split / "_annotations.coco.json", f"{split}1.jpg", root / split)


def coco_of_cvat(root: Path) -> None:
    coco_file(root / "annotations" / "instances_default.json", "a.jpg", root / "images" / "default")


def yolo(root: Path) -> None:
    for split in ("train", "val"):
        photo(root / "images" / split / f"{split}1.jpg")
        names(root / "labels" / split / f"{split}1.txt", yolo_line(0, 0), yolo_line(1, 8))
    names(root / "data.yaml", "path: .", "train: images/train", "val: images/val", "names:", "  0: cat", "  1: dog")


def yolo_of_roboflow(root: Path) -> None:
    for split in ("train", "valid"):
        photo(root / split / "images" / f"{split}1.jpg")
        names(root / split / "labels" / f"{split}1.txt", yolo_line(0, 0), yolo_line(1, 8))
    names(root / "data.yaml", "train: ../train/images", "nc: 2", "names: ['cat', 'dog']")


def cvat_masks(root: Path) -> None:
    export = root / "export"
    png(export / "SegmentationClass" / "a.png", PALETTE[boxes(1, 2)])
    png(export / "SegmentationObject" / "a.png", PALETTE[boxes(1, 2)])
    photo(export / "JPEGImages" / "a.jpg")
    names(
        export / "labelmap.txt",
        "# label:color_rgb:parts:actions",
        "background:0,0,0::",
        "cat:128,0,0::",
        "dog:0,128,0::",
    )
    with zipfile.ZipFile(root / "task.zip", "w") as archive:
        for path in sorted(export.rglob("*")):
            archive.write(path, path.relative_to(export))


def roboflow_masks(root: Path) -> None:
    for split in ("train", "valid"):
        photo(root / split / f"{split}1.jpg")
        png(root / split / f"{split}1_mask.png", boxes(1, 2))
        names(root / split / "_classes.csv", "Pixel Value, Class", "0, background", "1, cat", "2, dog")


def side_by_side(root: Path) -> None:
    for name in "ab":
        photo(root / f"{name}.jpg")
        png(root / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def suffix_pairs(root: Path) -> None:
    for name in ("001", "002"):
        photo(root / f"{name}_image.png")
        png(root / f"{name}_mask.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def suffixes_in_two_folders(root: Path) -> None:
    for name in "ab":
        photo(root / "imgs" / f"{name}.jpg")
        png(root / "train_masks" / f"{name}_mask.gif", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def parallel_folders(root: Path) -> None:
    for name in "ab":
        photo(root / "Aufnahmen" / f"{name}.png")
        png(root / "Ziele" / f"{name}.png", boxes(1, 2))
    names(root / "classes.txt", "cat", "dog")


def folders_of_splits(root: Path) -> None:
    for split in ("training", "validation"):
        photo(root / "images" / split / f"{split}1.jpg")
        png(root / "annotations" / split / f"{split}1.png", boxes(1, 2))
    names(root / "objectInfo150.txt", "Idx\tRatio\tTrain\tVal\tName", "1\t0.1\t9\t9\tcat, kitty", "2\t0.1\t9\t9\tdog")


def cityscapes(root: Path) -> None:
    for split in ("train", "val"):
        stem = f"bonn_{split}_000019"
        photo(root / "leftImg8bit" / split / "bonn" / f"{stem}_leftImg8bit.png")
        values = np.where(boxes(1) == 1, 26, np.where(boxes(0, 1) == 1, 24, 4)).astype(np.uint8)
        png(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_labelIds.png", values)
        photo(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_color.png")
        photo(root / "gtFine" / split / "bonn" / f"{stem}_gtFine_instanceIds.png")


def camvid(root: Path) -> None:
    for split in ("train", "val"):
        photo(root / split / f"{split}1.png")
        png(root / f"{split}_labels" / f"{split}1_L.png", PALETTE[boxes(1, 2)])
    names(root / "class_dict.csv", "name,r,g,b", "cat,128,0,0", "dog,0,128,0", "Void,0,0,0")


def oxford_pets(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        mask = np.where(boxes(1) == 1, 1, np.where(boxes(0, 1) == 1, 3, 2)).astype(np.uint8)
        png(root / "annotations" / "trimaps" / f"{name}.png", mask)


def binary_masks(root: Path) -> None:
    for name in "ab":
        photo(root / "images" / f"{name}.jpg")
        png(root / "masks" / f"{name}.png", boxes(255))


LAYOUTS: list[tuple[Callable[[Path], None], str, str]] = [
    (index_and_names, "cat", "dog"),
    (folder_per_class, "cat", "dog"),
    (pascal_voc, "cat", "dog"),
    (labelme_beside, "cat", "dog"),
    (labelme_apart, "cat", "dog"),
    (labelme_voc_export, "cat", "dog"),
    (coco_one_file, "cat", "dog"),
    (coco_tree, "cat", "dog"),
    (coco_panoptic, "cat", "dog"),
    (coco_of_roboflow, "cat", "dog"),
    (coco_of_cvat, "cat", "dog"),
    (yolo, "cat", "dog"),
    (yolo_of_roboflow, "cat", "dog"),
    (cvat_masks, "cat", "dog"),
    (roboflow_masks, "cat", "dog"),
    (side_by_side, "cat", "dog"),
    (suffix_pairs, "cat", "dog"),
    (suffixes_in_two_folders, "cat", "dog"),
    (parallel_folders, "cat", "dog"),
    (folders_of_splits, "cat", "dog"),
    (cityscapes, "car", "person"),
    (camvid, "cat", "dog"),
    (oxford_pets, UNNAMED, ""),
    (binary_masks, UNNAMED, ""),
]

TITLES = {
    "index_and_names": "Index masks and names: line i of classes.txt names mask value i, 0 is background, 255 void",
    "folder_per_class": "Binary masks, a folder per class",
    "pascal_voc": "PASCAL VOC, as it is unpacked; its 20 names are known",
    "labelme_beside": "labelme, the JSON files beside the images",
    "labelme_apart": "labelme, the JSON files in a folder of their own",
    "labelme_voc_export": "labelme's VOC export (labelme2voc)",
    "coco_one_file": "COCO, one JSON file",
    "coco_tree": "COCO, the standard tree; captions and key points are passed over",
    "coco_panoptic": "COCO panoptic; what has no segment is void",
    "coco_of_roboflow": "COCO as Roboflow exports it",
    "coco_of_cvat": "COCO as CVAT exports it",
    "yolo": "YOLO segment labels",
    "yolo_of_roboflow": "YOLO segment labels as Roboflow exports them",
    "cvat_masks": "CVAT, segmentation mask 1.1: the zip file itself, or its content",
    "roboflow_masks": "Roboflow, semantic segmentation masks",
    "side_by_side": "Image and mask side by side, of one name",
    "suffix_pairs": "Pairs by the end of the name: _image and _mask, _sat and _mask, _label, _seg, _gt ...",
    "suffixes_in_two_folders": "Two folders, and the masks have an ending",
    "parallel_folders": "Two folders of any names; what is inside says which holds the masks",
    "folders_of_splits": "Folders of splits, as ADE20K has them, with its objectInfo150.txt",
    "cityscapes": "Cityscapes; its 19 names are known, other labels are void",
    "camvid": "CamVid and other colour masks with class_dict.csv",
    "oxford_pets": "Trimaps: the Oxford pets (1 object, 2 background, 3 uncertain), or 0, 128 and 255",
    "binary_masks": "Binary masks: black and white, or any one value beside 0; gfss teach gives the name",
}
HEAD = """# Data in its native form

`gfss data check PATH`, `gfss teach ... --images PATH --masks PATH`, `gfss train PATH`, `--validation PATH` and
`--set data=PATH` of a recipe read data sets as they come. Each of these {count} layouts is read as it is; a test makes
them and lists their files here. Zip files are unpacked by themselves.

```sh
gfss data check PATH
```

prints what it understood, the problems it found, and the command to continue with. Where a folder could be read in
two ways it names the option that decides:

| option | says |
|---|---|
| `--images DIR` | where the images are |
| `--masks PATH` | where the labels are: a folder, a COCO `.json`, a YOLO `data.yaml`, a `.zip`, a mask |
| `--label VALUE` | which value of an index mask is the class, 0 too, or what labels call it, if not `--name` |
| `--void VALUE` | which mask value is neither class nor background, if it is not 255 |
| `--name NAME` | what the class is called, where masks do not say it (`teach`, `train`) |

`gfss train` and `--validation` take one path: of two folders that of the masks, whose images are then looked for in the
folders beside it.

- Masks may have 8, 16 or 32 bits. Values are taken exactly as they are, or refused: nothing is rounded or merged.
- Folders called train, val, valid, test and so on say which images are for what; `teach` learns from those for training
  and `--validation` looks at those for validation. `train.txt` and `val.txt` decide where they are there.
- An empty mask, a label file without objects, and an image on which only other classes are labelled say that the class
  is not in that image. An image without any label says nothing and is left out.
- Where objects overlap, small ones lie on top of large ones. Crowds of COCO are void.
"""


def tree(root: Path) -> str:
    """The files of a folder, as a tree."""
    lines: list[str] = []
    for path in sorted(root.rglob("*"), key=lambda p: (p.relative_to(root).parts[:-1], p.is_dir(), p.name)):
        if path.is_file() and path.parent.name != "export" and "export" not in path.parts:
            lines.append(str(path.relative_to(root)))
    return "\n".join(lines)


def page() -> str:
    """docs/data-formats.md."""
    parts = [HEAD.format(count=len(LAYOUTS))]
    for number, (make, _, _) in enumerate(LAYOUTS, start=1):
        with tempfile.TemporaryDirectory() as folder:
            make(Path(folder))
            listing = tree(Path(folder))
            if make is cvat_masks:
                names = zipfile.ZipFile(Path(folder) / "task.zip").namelist()
                listing = "task.zip\n" + "\n".join(f"  {name}" for name in names if not name.endswith("/"))
        parts.append(f"## {number}. {TITLES[make.__name__]}\n\n```text\n{listing}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
