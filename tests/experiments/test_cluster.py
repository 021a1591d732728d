"""On a Ray cluster of two nodes everything comes out as in one process, also when a node or the driver dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image
from tests.conftest import REPOSITORY
from tests.experiments.tiny_recipe import SMALL, tiny_content

import gfss
from gfss.app.batch import JOURNAL, segment_files
from gfss.common import cluster, devices
from gfss.common.devices import CPU
from gfss.common.errors import GfssError
from gfss.evaluation.costs import read_costs
from gfss.evaluation.records import find_records, read_record, same_result
from gfss.experiments.recipes import make_recipe
from gfss.experiments.runner import build_banks, run_plan
from gfss.experiments.sharing import waves
from gfss.experiments.spec import Recipe
from gfss.experiments.steps import Plan

pytest.importorskip("ray", reason="needs the extra gfss[ray]")
pytestmark = pytest.mark.slow
MODEL = "scenes-tiny"
Nodes = Any


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """A cluster of two nodes with a worker each, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.second = made.add_node(num_cpus=1)
    cluster.connect(made.address)
    yield made
    devices.cluster = None
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    for number in range(40):
        Image.fromarray(rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)).save(folder / f"{number:02d}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def masks(images: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What one process writes."""
    out = tmp_path_factory.mktemp("one process")
    list(segment_files(gfss.load(MODEL), images, out))
    return contents(out)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def slow_job(folder: Path) -> Callable[[], Callable[[int], int]]:
    """Squares numbers, slowly, and notes the process."""

    def make() -> Callable[[int], int]:
        (folder / f"made {os.getpid()}").touch()

        def job(number: int) -> int:
            time.sleep(0.3)
            (folder / f"{number} by {os.getpid()}").touch()
            return number**2

        return job

    return make


def test_results_are_in_order_and_every_worker_starts_once(nodes: Nodes, tmp_path: Path) -> None:
    connected = devices.connected_cluster()
    assert connected is not None
    assert connected.workers == 2
    assert list(connected.map(slow_job(tmp_path), range(12))) == [number**2 for number in range(12)]
    processes = {path.name.split()[-1] for path in tmp_path.glob("* by *")}
    assert {path.name.split()[-1] for path in tmp_path.glob("made *")} == processes
    assert len(processes) >= 2


def test_a_node_that_dies_loses_nothing(nodes: Nodes, tmp_path: Path) -> None:
    connected = devices.connected_cluster()
    assert connected is not None
    results = connected.map(slow_job(tmp_path), range(20))
    found = [next(results) for _ in range(6)]
    nodes.remove_node(nodes.second, allow_graceful=False)
    assert [*found, *results] == [number**2 for number in range(20)]


def test_errors_of_workers_are_sentences(nodes: Nodes) -> None:
    def make() -> Callable[[int], int]:
        raise GfssError("the recipe asks for something that is not there")

    connected = devices.connected_cluster()
    assert connected is not None
    with pytest.raises(GfssError, match=r"^the recipe asks for something that is not there$"):
        list(connected.map(make, range(3)))


def test_a_cluster_that_does_not_answer_is_named() -> None:
    with pytest.raises(GfssError, match=r"no Ray cluster answers at .127\.0\.0\.1:1."):
        cluster.connect("127.0.0.1:1")


def test_masks_are_those_of_one_process_though_a_node_dies(
    nodes: Nodes, images: list[Path], masks: dict[str, bytes], tmp_path: Path
) -> None:
    lines = segment_files(gfss.load(MODEL), images, tmp_path)
    first = [next(lines) for _ in range(8)]
    nodes.remove_node(nodes.second, allow_graceful=False)
    assert len([*first, *lines]) == len(images)
    assert contents(tmp_path) == masks


def test_a_driver_that_dies_goes_on(
    nodes: Nodes, images: list[Path], masks: dict[str, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = [
        sys.executable,
        "-m",
        "gfss",
        "segment",
        MODEL,
        str(images[0].parent),
        "-o",
        str(out),
        "--ray",
        nodes.address,
    ]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        while driver.poll() is None and not (out / JOURNAL).exists():
            time.sleep(0.01)
        while driver.poll() is None and len((out / JOURNAL).read_text().splitlines()) < 9:
            time.sleep(0.001)
        driver.send_signal(signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL
    done = len((out / JOURNAL).read_text().splitlines()) - 1
    assert 8 <= done < len(images)
    assert len(list(segment_files(gfss.load(MODEL), images, out))) == len(images) - done
    assert f"{done} of {len(images)} images were done" in capsys.readouterr().err
    assert contents(out) == masks


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    methods = {"nsf": None, "acastle": None, "acastle+T": SMALL, "pcn-support": SMALL}
    data = tmp_path_factory.mktemp("data") / "squares"
    return tiny_content(data, methods=methods, folds=[0, 1], protocols={"paired": 5, "joint": 2})


@pytest.fixture(scope="module")
def one_process(content: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which one process has run the recipe."""
    folder = tmp_path_factory.mktemp("one process")
    run_plan(plan_in(folder, make_recipe(content)))
    return folder


def plan_in(folder: Path, recipe: Recipe, **options: Any) -> Plan:
    return Plan(recipe, folder / "runs", folder / "results", **options)


def assert_same_records(first: Path, second: Path) -> None:
    records = [[read_record(path) for path in find_records([folder])] for folder in (first, second)]
    assert len(records[0]) == len(records[1]) > 0
    assert all(same_result(a, b) for a, b in zip(*records, strict=True))


def test_steps_come_after_those_that_they_need(content: dict[str, Any], tmp_path: Path) -> None:
    plan = plan_in(tmp_path, make_recipe(content))
    found = [[(step.fold, step.kind, step.method) for step in wave] for wave in waves(plan)]
    assert [{kind for _, kind, _ in wave} for wave in found] == [{"base"}, {"method"}, {"method"}]
    assert {fold for fold, _, _ in found[0]} == {0, 1}  # folds side by side
    assert sorted(found[1]) == sorted((fold, "method", name) for fold in (0, 1) for name in ("acastle", "pcn-support"))
    assert found[2] == [(fold, "method", "acastle+T") for fold in (0, 1)]


def test_records_of_one_process_two_processes_and_two_nodes_are_equal(
    nodes: Nodes, content: dict[str, Any], one_process: Path, tmp_path: Path
) -> None:
    recipe = make_recipe(content)
    run_plan(plan_in(tmp_path / "nodes", recipe), lambda words: kill_once(nodes, words))
    assert_same_records(one_process / "results", tmp_path / "nodes" / "results")
    notes = [read_costs(path) for path in sorted((tmp_path / "nodes" / "results").rglob("costs.csv"))]
    assert [sorted(note.method for note in of_fold) for of_fold in notes] == [
        ["acastle", "acastle+T", "pcn-support"]
    ] * 2
    run_plan(Plan(recipe, one_process / "runs", tmp_path / "evaluated"))  # what one process trained
    assert_same_records(one_process / "results", tmp_path / "evaluated")
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(content))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "gfss"]
    command = [*launcher, "run", str(file), "--runs", str(one_process / "runs"), "--out", str(tmp_path / "processes")]
    subprocess.run(command, cwd=REPOSITORY, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, check=True)
    assert_same_records(one_process / "results", tmp_path / "processes")


def kill_once(nodes: Nodes, words: str) -> None:
    """Kill the second node when the first step is done."""
    if nodes.second is not None and words.startswith("done"):
        node, nodes.second = nodes.second, None
        nodes.remove_node(node, allow_graceful=False)


def test_settings_are_compared_on_a_cluster(nodes: Nodes, content: dict[str, Any], tmp_path: Path) -> None:
    few = {**content, "methods": {"nsf": None, "pcn-support": SMALL}, "protocols": {"paired": 2}, "folds": [0]}
    run_plan(plan_in(tmp_path / "nodes", make_recipe(few), tuning=True))
    devices.cluster, connected = None, devices.cluster
    run_plan(plan_in(tmp_path / "one", make_recipe(few), tuning=True))
    devices.cluster = connected
    assert_same_records(tmp_path / "one" / "results", tmp_path / "nodes" / "results")


def test_the_bank_is_that_of_one_process(
    nodes: Nodes, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(content)
    banks: list[dict[str, bytes]] = []
    for name, connected in (("nodes", devices.cluster), ("one", None)):
        monkeypatch.setenv("GFSS_CACHE", str(tmp_path / name))
        monkeypatch.setattr(devices, "cluster", connected)
        folders = [bank.folder for bank in build_banks(recipe, tmp_path, CPU)]
        banks.append({f"{folder.name}/{name}": data for folder in folders for name, data in contents(folder).items()})
    assert banks[0] == banks[1]
