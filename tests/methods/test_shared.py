"""One tester for all methods: whatever is entered in ``gfss.methods`` is evaluated here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.methods.cases import SIZE, make_context, make_episode, permute_base
from torch import Tensor, nn

from gfss.common.errors import GfssError
from gfss.features.episodes import Episode
from gfss.methods import TRAINED, UNTRAINED, build_method
from gfss.methods.base import Method
from gfss.methods.pcn import Calibrated
from gfss.training.checkpoints import load_checkpoint, load_method, save_method

REPOSITORY = Path(__file__).resolve().parents[2]
METHODS = [*UNTRAINED, *TRAINED, "score+T", "bcm+T", "acastle+T"]
WITH_MODULE = [name for name in METHODS if name in TRAINED or name.endswith("+T")]
ORDER = (3, 5, 1, 2, 4)


def build(name: str, size: tuple[int, int] = SIZE, seed: int = 0) -> Method:
    """A method as it is built for an experiment."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return build_method(name, make_context(size))


def ready(name: str, size: tuple[int, int] = SIZE, seed: int = 0) -> Method:
    """A method that can be used: its module has seen an episode and has random weights where training would be."""
    method = build(name, size, seed)
    if isinstance(method, Calibrated) and method.inner.module is not None:
        method.inner = ready(method.inner.name, size, seed)
    if method.module is not None:
        method.loss(make_episode(seed=seed + 100, size=size))
        disturb(method.module, seed)
        method.module.eval().requires_grad_(False)
        method.trained = True
    return method


def disturb(module: nn.Module, seed: int) -> None:
    """Move all weights a little: some start at zero, which would hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)


def predict(method: Method, episode: Episode) -> Tensor:
    """Scores of the queries after learning the support, as the harness asks for them."""
    method.learn(episode.support)
    with torch.inference_mode():
        return method.scores(episode.query.features).clone()


def tensors(episode: Episode) -> list[Tensor]:
    """CopyPool of everything an episode holds."""
    held = [episode.support.labels, episode.support.base_rows, episode.query.labels]
    for features in (episode.support.features, episode.query.features):
        held += [*features.levels.values(), *features.pooled, features.bottleneck, features.base]
    return [tensor.clone() for tensor in held]


@pytest.mark.parametrize("novel", [1, 3])
@pytest.mark.parametrize("shots", [1, 5])
@pytest.mark.parametrize("name", METHODS)
def test_learns_and_predicts(name: str, shots: int, novel: int) -> None:
    episode = make_episode(shots, novel)
    scores = predict(ready(name), episode)
    assert scores.shape == (2, 1 + 5 + novel, *SIZE)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", METHODS)
def test_leaves_its_input_alone(name: str) -> None:
    episode = make_episode(1, 2)
    before = tensors(episode)
    predict(ready(name), episode)
    for old, new in zip(before, tensors(episode), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("name", METHODS)
def test_same_result_in_any_order_of_tasks(name: str) -> None:
    first, second = make_episode(1, 2, seed=1), make_episode(2, 1, seed=2)
    method = ready(name)
    before = predict(method, first)
    predict(method, second)
    assert torch.equal(predict(method, first), before)
    assert torch.equal(predict(ready(name), first), before)  # built anew from the same seed


@pytest.mark.parametrize("name", METHODS)
def test_permuted_base_classes_permute_the_scores(name: str) -> None:
    episode = make_episode(2, 2)
    method = ready(name)
    scores = predict(method, episode)
    permuted = predict(method, permute_base(episode, ORDER))
    torch.testing.assert_close(permuted, scores[:, [0, *ORDER, 6, 7]], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("side", [24, 53])
@pytest.mark.parametrize("name", METHODS)
def test_works_on_other_map_sizes(name: str, side: int) -> None:
    size = (side, side)
    scores = predict(ready(name, size), make_episode(size=size, queries=1))
    assert scores.shape == (1, 7, side, side)
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("name", METHODS)
def test_support_without_the_class_is_refused(name: str) -> None:
    if name in ("background", "base"):
        pytest.skip("learns nothing from the support")
    support = make_episode().support
    method = ready(name)
    with pytest.raises(GfssError, match="no pixel of the class") as caught:
        method.learn(replace(support, labels=torch.zeros_like(support.labels)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", METHODS)
def test_says_what_it_needs(name: str) -> None:
    method = build(name)
    assert method.name == name
    assert (method.module is not None) == (name in WITH_MODULE)
    assert method.trained == (method.module is None)
    if method.module is None:
        with pytest.raises(GfssError, match="nothing to train"):
            method.loss(make_episode())


@pytest.mark.parametrize("name", WITH_MODULE)
def test_untrained_is_refused(name: str) -> None:
    episode = make_episode()
    method = build(name)
    with pytest.raises(GfssError, match="is not trained yet") as caught:
        predict(method, episode)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", WITH_MODULE)
def test_a_training_step_lowers_the_loss(name: str) -> None:
    """A small step against the gradient, with dropout off."""
    episode = make_episode(seed=4)
    method = build(name)
    if isinstance(method, Calibrated) and method.inner.module is not None:
        method.inner = ready(method.inner.name)
    assert method.module is not None
    method.module.eval()
    parameters = [p for p in method.module.parameters() if p.requires_grad]
    total, pixels = method.loss(episode)
    slopes = torch.autograd.grad(total / pixels, parameters, allow_unused=True)
    length = sum(float(slope.square().sum()) for slope in slopes if slope is not None)
    assert length > 0
    with torch.no_grad():
        for parameter, slope in zip(parameters, slopes, strict=True):
            if slope is not None:
                parameter -= 1e-3 / length**0.5 * slope
        after, _ = method.loss(episode)
    assert float(after) < float(total.detach())


@pytest.mark.parametrize("name", WITH_MODULE)
def test_saved_and_loaded_is_the_same(name: str, tmp_path: Path) -> None:
    episode = make_episode()
    card = make_context().model.card
    method = ready(name)
    save_method(tmp_path, method, card, {})
    loaded = build(name, seed=1)
    if isinstance(loaded, Calibrated) and isinstance(method, Calibrated):
        loaded.inner = method.inner  # has a checkpoint of its own
    load_method(tmp_path, loaded, card)
    assert torch.equal(predict(loaded, episode), predict(method, episode))


@pytest.mark.parametrize("name", WITH_MODULE)
def test_wrong_checkpoints_are_refused(name: str, tmp_path: Path) -> None:
    card = make_context().model.card
    save_method(tmp_path, build(name), card, {})
    for method, base, message in (
        (build(name), replace(card, encoder="lite0"), "encoder is tiny, not lite0"),
        (build(name), replace(card, encoder_hash="1" * 16), "encoder hash is 0000000000000000, not 1111111111111111"),
    ):
        with pytest.raises(GfssError, match=re.escape(message)) as caught:
            load_method(tmp_path, method, base)
        assert "\n" not in str(caught.value)
        assert not method.trained


def test_a_checkpoint_of_another_map_size_is_refused(tmp_path: Path) -> None:
    card = make_context().model.card
    save_method(tmp_path, build("pcn-as-printed"), card, {})
    with pytest.raises(GfssError, match="does not fit method 'pcn-as-printed'"):
        load_method(tmp_path, build("pcn-as-printed", (11, 11)), card)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pcn-support", "acastle"])
def test_two_processes_train_as_one(name: str, tmp_path: Path) -> None:
    script = str(Path(__file__).with_name("train_small.py"))
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    for world in (1, 2):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        done = subprocess.run(
            [*command, script, name, str(tmp_path / str(world))], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
    one, two = (load_checkpoint(tmp_path / str(world), "method")[0] for world in (1, 2))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-5, rtol=1e-4)
