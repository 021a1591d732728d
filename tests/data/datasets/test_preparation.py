from __future__ import annotations

from pathlib import Path

from gfss.data.datasets.preparation import link


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "store" / "a.jpg").write_bytes(b"picture")
    source, target = tmp_path / "images" / "a.jpg", tmp_path / "out" / "elsewhere" / "a.jpg"
    source.symlink_to("../store/a.jpg")
    link(source, target)
    assert target.read_bytes() == b"picture"


def test_a_link_to_nothing_is_mended(tmp_path: Path) -> None:
    source, target = tmp_path / "a.jpg", tmp_path / "b.jpg"
    source.write_bytes(b"picture")
    target.symlink_to("nowhere.jpg")
    link(source, target)
    assert target.read_bytes() == b"picture"
