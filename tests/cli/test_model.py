"""The practitioner's commands, from the command line."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.app import make
from tests.data import make as files

import gfss
from gfss.app.segmenter import Segmenter
from gfss.cli import main
from gfss.common.errors import GfssError
from gfss.data.images import read_mask


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was not taught anything."""
    folder = tmp_path_factory.mktemp("models") / "base"
    make.model().save(folder)
    return folder


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pictures of a box with binary masks, and one to segment."""
    root = tmp_path_factory.mktemp("shots")
    for seed in (1, 2):
        image, mask = make.labelled(seed)
        files.png(root / "images" / f"shot{seed}.png", image)
        files.png(root / "masks" / f"shot{seed}.png", mask * np.uint8(255))
    files.png(root / "query" / "yard.png", make.labelled(5)[0])
    return root


def teach(model: Path, shots: Path, *more: str, name: str = "box") -> int:
    return main(["teach", str(model), "--name", name, "--images", str(shots / "images"), *_masks(shots), *more])


def _masks(shots: Path) -> list[str]:
    return ["--masks", str(shots / "masks")]


@pytest.fixture(scope="module")
def taught(base: Path, shots: Path) -> Path:
    folder = base.with_name("taught")
    assert teach(base, shots, "-o", str(folder)) == 0
    return folder


def failure(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one sentence of a command that must fail."""
    capsys.readouterr()
    assert main(arguments) == 2
    sentence = capsys.readouterr().err.strip()
    assert len(sentence.splitlines()) == 1
    assert sentence.startswith("gfss: ")
    return sentence


@pytest.fixture(scope="module")
def rival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other pictures of boxes, to be taught under another name, and a validation folder that shows boxes."""
    root = tmp_path_factory.mktemp("rival")
    for seed in (8, 9):
        image, mask = make.labelled(seed)
        files.png(root / "images" / f"shot{seed}.png", image)
        files.png(root / "masks" / f"shot{seed}.png", mask * np.uint8(255))
        files.png(root / "validation" / "images" / f"v{seed}.png", image)
        files.png(root / "validation" / "masks" / f"v{seed}.png", mask)
    (root / "validation" / "classes.txt").write_text("box\n")
    return root


def test_a_report_shows_pictures_of_where_most_was_lost(taught: Path, rival: Path, tmp_path: Path) -> None:
    report = tmp_path / "r.html"
    model, validation = str(tmp_path / "m"), ["--validation", str(rival / "validation")]
    assert teach(taught, rival, "-o", model, name="thing") == 0
    assert main(["report", model, *validation, "--guard", "100", "-o", str(report)]) == 0
    assert "data:image/jpeg" in report.read_text()


def test_teach_segment_classes_forget(
    base: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = tmp_path / "yard", tmp_path / "out"
    assert teach(base, shots, "-o", str(model)) == 0
    text = capsys.readouterr().out
    assert main(["report", str(model), "--guard", "100", "-o", str(tmp_path / "r.html")]) == 0
    assert "On the support images (2 images)" in text
    assert "now knows 4 classes, including box" in text
    assert f"box: {gfss.load(model).estimate('box').words}" in text.splitlines()
    page = (tmp_path / "r.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "box" in page
    assert main(["classes", str(model)]) == 0
    assert "  4  box  (taught from 2: shot1.png, shot2.png)" in capsys.readouterr().out
    assert main(["segment", str(model), str(shots / "query"), str(shots / "images" / "*1.png"), "-o", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {
        "classes.txt", "yard.png", "yard_overlay.jpg", "shot1.png", "shot1_overlay.jpg",
    }  # fmt: skip
    assert (read_mask(out / "yard.png") == gfss.load(model).segment(shots / "query" / "yard.png").mask).all()
    assert (out / "classes.txt").read_text().split() == [*make.BASE, "box"]
    assert main(["rename", str(model), "box", "crate"]) == 0
    assert main(["forget", str(model), "crate"]) == 0
    assert gfss.load(model).classes == gfss.load(base).classes
    assert teach(base, shots, "-o", str(model)) == 0  # nothing is lost: the same again is fine
    assert main(["forget", str(model), "box"]) == 0
    query = shots / "query" / "yard.png"
    assert (gfss.load(model).segment(query).scores == gfss.load(base).segment(query).scores).all()


def test_options_of_segment(taught: Path, shots: Path, tmp_path: Path) -> None:
    image = str(shots / "query" / "yard.png")
    for name, balance in (("few", "-50"), ("many", "50")):
        options = ["--no-overlay", "--scores", "--tile", "--balance", balance]
        assert main(["segment", str(taught), image, "-o", str(tmp_path / name), *options]) == 0
        assert {path.name for path in (tmp_path / name).iterdir()} == {"classes.txt", "yard.png", "yard_scores.npz"}
    assert not (read_mask(tmp_path / "few" / "yard.png") == 4).any()
    assert (read_mask(tmp_path / "many" / "yard.png") == 4).all()


def test_several_classes_from_one_label_file(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = files.plain(tmp_path / "data", {"a": files.boxes(1, 2), "b": files.boxes(2, 1)}, ("ball", "box"), val=("b",))
    names = ["--name", "ball", "--name", "box"]
    source = ["--images", str(root / "images"), "--masks", str(root)]
    assert main(["teach", str(base), *names, *source, "-o", str(tmp_path / "m")]) == 0
    model = gfss.load(tmp_path / "m")
    assert model.classes[-2:] == ("ball", "box")
    assert [len(one.examples) for one in model.taught] == [2, 2]
    assert model.lesson == 1  # taught together, judged together
    assert capsys.readouterr().out.count("After teaching ball and box:") == 1


def test_the_guard_warns_and_strict_refuses(
    taught: Path, rival: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in taught.iterdir()}
    strict, validation = ["--strict", "--guard", "0"], ["--validation", str(rival / "validation")]
    source = ["--images", str(rival / "images"), *_masks(rival)]
    arguments = ["teach", str(taught), "--name", "thing", *source, *validation, *strict]
    sentence = failure(capsys, arguments)
    assert "is unchanged, nothing was written" in sentence
    assert "points of IoU on the validation images" in sentence
    assert {path.name: path.read_bytes() for path in taught.iterdir()} == before
    assert main([*arguments[: -len(strict)], "-o", str(tmp_path / "worse")]) == 0
    assert main(["report", str(tmp_path / "worse"), "--guard", "0", *validation]) == 1
    assert "Warning: '" in capsys.readouterr().out
    assert main(["report", str(taught), "--guard", "100", "-o", str(tmp_path / "r.html")]) == 0
    assert "No known class loses more than 100 points." in capsys.readouterr().out
    assert (tmp_path / "r.html").exists()


def test_images_without_the_class(base: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    without = tmp_path / "without"
    for seed in (30, 31):
        files.png(without / f"yard{seed}.png", make.picture(seed))
    more = files.png(tmp_path / "gate.png", make.picture(32))
    options = ["--without", str(without), "--without", str(more), "-o", str(tmp_path / "m")]
    assert teach(base, shots, *options) == 0
    assert "On the support images (5 images)" in capsys.readouterr().out
    (box,) = gfss.load(tmp_path / "m").taught
    assert [(example.id, example.shows) for example in box.examples[1:]] == [
        ("shot2.png", True), ("yard30.png", False), ("yard31.png", False), ("gate.png", False),
    ]  # fmt: skip
    assert "no images found in" in failure(
        capsys, ["teach", str(base), "--name", "x", "--images", str(shots / "images"), *_masks(shots), "--without",
                 str(tmp_path / "none"), "-o", str(tmp_path / "n")]
    )  # fmt: skip


def test_the_balance_is_shown_and_stored(
    taught: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed"
    gfss.load(taught).save(changed)
    assert main(["balance", str(changed), "box", "-50"]) == 0
    assert "the balance of 'box' is -50 (was +0)" in capsys.readouterr().out
    assert gfss.load(changed).balance("box") == -50
    assert gfss.load(taught).balance("box") == 0
    assert main(["balance", str(changed), "box"]) == 0
    assert capsys.readouterr().out == "-50\n"
    assert main(["segment", str(changed), str(shots / "query"), "-o", str(tmp_path / "out")]) == 0
    assert not (read_mask(tmp_path / "out" / "yard.png") == 4).any()
    assert main(["balance", str(changed), "box", "1.5"]) == 0  # in place
    assert gfss.load(changed).balance("box") == 1.5
    assert "is nan; expected a number from -100 to 100" in failure(capsys, ["balance", str(changed), "box", "nan"])
    assert "did you mean 'box'?" in failure(capsys, ["balance", str(changed), "bx"])
    assert "cannot be changed in place" in failure(capsys, ["balance", "scenes-tiny", "box", "1"])
    assert "valid number" in failure(capsys, ["balance", str(changed), "box", "--vale"])


def test_a_report_stores_the_balance_that_it_recommends(
    taught: Path, rival: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, validation = tmp_path / "m", ["--validation", str(rival / "validation")]
    gfss.load(taught).save(model)
    assert main(["balance", str(model), "box", "-3"]) == 0
    capsys.readouterr()
    assert main(["report", str(model), *validation]) == 0
    value = gfss.load(model).report(rival / "validation").recommended["box"]
    assert value > -3
    assert f"Recommended balance of 'box' {value:+g}; gfss balance MODEL box {value:g} stores it." in (
        capsys.readouterr().out
    )
    assert gfss.load(model).balance("box") == -3
    assert main(["report", str(model), *validation, "--store"]) == 0
    assert f"stored the balance box {value:+g}" in capsys.readouterr().out
    assert gfss.load(model).balance("box") == value
    assert main(["report", str(model), *validation]) == 0
    assert f"The balance of 'box', {value:+g}, is the best of those compared." in capsys.readouterr().out
    assert "--store needs labelled images" in failure(capsys, ["report", str(model), "--store"])


def test_a_report_reads_labels_as_the_lesson_did(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Value 3 is the class and 9 is void, for the supports and for the validation images."""
    for seed in (1, 2):
        image, mask = make.labelled(seed)
        values = np.where(mask == 1, np.uint8(3), np.uint8(5))
        values[0] = 9
        files.png(tmp_path / "images" / f"shot{seed}.png", image)
        files.png(tmp_path / "masks" / f"shot{seed}.png", values)
    model, options = tmp_path / "m", ["--label", "3", "--void", "9"]
    assert teach(base, tmp_path, "-o", str(model), *options) == 0
    validation = ["--validation", str(tmp_path), "--guard", "100"]
    capsys.readouterr()
    assert main(["report", str(model), *validation, *options]) == 0
    assert "On the validation images" in capsys.readouterr().out
    assert "--label VALUE" in failure(capsys, ["report", str(model), *validation])


def test_suggest_lists_images_in_order(taught: Path, shots: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suggest", str(taught), str(shots / "images"), str(shots / "query")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].endswith("yard.png")


def test_every_wrong_input_is_one_sentence(
    base: Path, taught: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, mask = (str(shots / kind / "shot1.png") for kind in ("images", "masks"))
    files.png(tmp_path / "empty.png", np.zeros((48, 64), dtype=np.uint8))
    files.png(tmp_path / "small.png", np.ones((8, 8), dtype=np.uint8))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "file").write_text("x")
    new = ["teach", str(taught), "--name", "thing", "--images"]
    cases = [
        ([*new, image, "--masks", str(tmp_path / "empty.png")], "no mask shows 'thing'"),
        ([*new, image, "--masks", str(tmp_path / "small.png")], "they must have the same size"),
        ([*new, str(tmp_path / "broken.png"), "--masks", mask], "not an image of a known kind"),
        (["teach", str(taught), "--name", "box", "--images", image, "--masks", mask], "'box' is already a class"),
        (["forget", str(taught), "bx"], "did you mean 'box'?"),
        (["rename", str(taught), "box", "dog"], "'dog' is already a base class"),
        (["segment", str(taught), str(tmp_path / "broken.png"), "-o", str(tmp_path / "o")], "not an image of a known"),
        (["segment", str(taught), image, "-o", str(shots / "images")], "would be written into the image folder"),
        (["teach", str(base), "--name", "thing", "--images", image, "--masks", mask, "-o", str(taught)], "taught box"),
        ([*new, image, "--masks", mask, "-o", str(tmp_path / "file")], "not a model folder"),
        ([*new[:4], "--name", "g", "--images", image, "--masks", mask], "show one class, but 2 names were given"),
        (["segment", str(taught), str(tmp_path / "none"), "-o", str(tmp_path)], "no images found in"),
        (["segment", str(taught), image, "-o", str(tmp_path / "file" / "out")], "cannot create the folder"),
        (["segment", str(tmp_path / "none.onnx"), image, "-o", str(tmp_path)], "does not exist"),
        (["classes", "voc20"], "unknown model 'voc20'"),
        (["export", str(base), "-o", str(tmp_path / "model.pt")], "ends in neither .onnx nor .xml"),
    ]
    for arguments, part in cases:
        assert part in failure(capsys, arguments), arguments


def test_masks_of_other_classes_do_not_share_a_folder(
    base: Path, taught: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    segment = ["segment", str(taught), str(shots / "query"), "-o", str(tmp_path)]
    (tmp_path / "classes.txt").write_text("forklift\npallet\n")
    assert "'forklift' instead of" in failure(capsys, segment)
    assert [path.name for path in tmp_path.iterdir()] == ["classes.txt"]
    (tmp_path / "classes.txt").unlink()
    assert main(["segment", str(base), str(shots / "query"), "-o", str(tmp_path)]) == 0
    assert main(segment) == 0  # one class more, the others as before


def test_masks_that_a_hand_drew_are_not_overwritten(
    taught: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image, mask = make.labelled(0)[:2]
    picture, drawn = files.png(tmp_path / "images" / "a.png", image), files.png(tmp_path / "masks" / "a.png", mask)
    before = drawn.read_bytes()
    sentence = failure(capsys, ["segment", str(taught), str(picture), "-o", str(drawn.parent)])
    assert "a.png already exists" in sentence
    assert drawn.read_bytes() == before
    links = tmp_path / "links"
    links.mkdir()
    (links / "a.png").symlink_to(picture)
    assert "into the image folder" in failure(capsys, ["segment", str(taught), str(links / "a.png"), "-o", str(links)])
    assert (links / "a.png").is_symlink()
    out = ["segment", str(taught), str(picture), "-o", str(tmp_path / "out")]
    assert main(out) == main(out) == 0  # what gfss wrote is written again


def test_a_model_that_was_changed_meanwhile_is_not_replaced(taught: Path, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    gfss.load(taught).save(folder)
    first, second = gfss.load(folder), gfss.load(folder)
    (name,) = [one.name for one in first.taught]
    first.rename(name, "renamed")
    first.save(folder)
    first.rename("renamed", "again")
    first.save(folder)
    with pytest.raises(GfssError, match="changed by another program in the meantime"):
        second.save(folder)
    with pytest.raises(GfssError, match=f"was taught 'again' with {len(first.taught[0].examples)} image"):
        gfss.load(base).save(folder)
    assert [one.name for one in gfss.load(folder).taught] == ["again"]
    second.save(tmp_path / "other")


def test_a_bad_picture_does_not_stop_the_others(
    taught: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = tmp_path / "pictures"
    for name in "ac":
        files.png(pictures / f"{name}.png", make.labelled(ord(name))[0])
    (pictures / "b.png").write_bytes((pictures / "a.png").read_bytes()[:100])
    sentence = failure(capsys, ["segment", str(taught), str(pictures), "-o", str(tmp_path / "out")])
    assert "1 of 3 images were skipped, the others are done" in sentence
    assert {"a.png", "c.png"} <= {path.name for path in (tmp_path / "out").iterdir()}
    assert main(["suggest", str(taught), str(pictures)]) == 0
    heard = capsys.readouterr()
    assert len(heard.out.splitlines()) == 3
    assert "skipped: " in heard.err


def test_empty_masks_are_named(base: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.png(tmp_path / "masks" / "shot1.png", make.labelled(1)[1] * np.uint8(255))
    files.png(tmp_path / "masks" / "shot2.png", make.labelled(2)[1] * np.uint8(0))
    images = ["--name", "box", "--images", str(shots / "images")]
    assert main(["teach", str(base), *images, *_masks(tmp_path), "-o", str(tmp_path / "m")]) == 0
    note = "note: 1 of 2 masks are empty, 1 of them taken as images without the class: shot2.png"
    assert note in capsys.readouterr().err
    assert [example.shows for example in gfss.load(tmp_path / "m").taught[0].examples] == [True, False]


def test_a_name_that_is_no_text(base: Path, shots: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / os.fsdecode(b"caf\xe9.png")
    picture.write_bytes((shots / "images" / "shot1.png").read_bytes())
    arguments = ["--name", "box", "--images", str(picture), "--masks", str(shots / "masks" / "shot1.png")]
    assert main(["teach", str(base), *arguments, "-o", str(tmp_path / "m")]) == 0
    assert main(["report", str(tmp_path / "m"), "--guard", "100", "-o", str(tmp_path / "r.html")]) == 0
    assert main(["classes", str(tmp_path / "m")]) == 0
    assert "(taught from 1: caf?.png)" in capsys.readouterr().out


def test_images_that_were_kept_stay(base: Path, shots: Path, tmp_path: Path) -> None:
    model = tmp_path / "m"
    one = [
        "--name",
        "box",
        "--images",
        str(shots / "images" / "shot1.png"),
        "--masks",
        str(shots / "masks" / "shot1.png"),
    ]
    two = [word.replace("shot1", "shot2") for word in one]
    assert main(["teach", str(base), *one, "--keep-images", "-o", str(model)]) == 0
    assert main(["teach", str(model), *two, "--add"]) == 0
    assert main(["rename", str(model), "box", "crate"]) == 0
    (crate,) = gfss.load(model).taught
    assert [example.image is not None for example in crate.examples] == [True, False]


def test_encoder_weights_that_do_not_match_are_refused(
    tmp_path: Path, shots: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = make.network()
    network.base.card = replace(network.base.card, trained_encoder=False, encoder_hash="0123456789abcdef")
    Segmenter(network).save(tmp_path / "m")
    weights = tmp_path / "tiny.safetensors"
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in network.base.encoder.state_dict().items()}, weights)
    image = str(shots / "query" / "yard.png")
    arguments = ["segment", str(tmp_path / "m"), image, "-o", str(tmp_path / "out"), "--encoder-weights", str(weights)]
    assert "was trained on other weights of tiny (0123456789abcdef)" in failure(capsys, arguments)
    network.base.card = replace(network.base.card, encoder_hash=network.base.encoder.weights_hash())
    Segmenter(network).save(tmp_path / "m")
    assert main(arguments) == 0


def test_helps_do_not_import_torch(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("teach", "segment", "classes", "forget", "rename", "report", "balance", "suggest", "export"):
        assert main([command, "--help"]) == 0
        assert "MODEL" in capsys.readouterr().out


def test_overlay_shows_the_image(taught: Path, shots: Path, tmp_path: Path) -> None:
    assert main(["segment", str(taught), str(shots / "query" / "yard.png"), "-o", str(tmp_path)]) == 0
    with Image.open(tmp_path / "yard_overlay.jpg") as file:
        assert file.size == (64, 48)
