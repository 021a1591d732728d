"""Models on a Hugging Face hub: a repository is a model folder with the hub's own card.

Only ``model.json`` and safetensors are ever fetched, so nothing that a stranger put into a repository can run. The
address of the hub is ``HF_ENDPOINT``, the token that of ``hf auth login``; both are the hub library's own.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

from gfss.app.model_folder import ABOUT, CARD, Parts, is_model, write_model
from gfss.common.errors import GfssError

if TYPE_CHECKING:
    from gfss.app.segmenter import Segmenter

FETCHED = [ABOUT, "model*.safetensors"]
HUB_CARD = "README.md"
FRONT = {
    "library_name": "gfss",
    "pipeline_tag": "image-segmentation",
    "tags": ["gfss", "semantic-segmentation", "few-shot-learning"],
}


class HubMixin(ABC):
    """Gives a model its two verbs for a hub."""

    @abstractmethod
    def _contents(self, keep_images: bool) -> tuple[Parts, dict[str, Any], str]:
        """Tensors, description and card of the model, as they are written."""

    @classmethod
    def from_pretrained(
        cls, repository: str, *, revision: str | None = None, encoder_weights: str | Path | None = None
    ) -> Segmenter:
        """Open a model of a Hugging Face hub (extra ``hf``); only safetensors and their description are fetched.

        Args:
            repository: ``owner/name``.
            revision: branch, tag or commit; name a commit where a result must stay the same.
            encoder_weights: as in ``load``.
        """
        from gfss.app.segmenter import load

        return load(fetch_model(repository, revision), encoder_weights=encoder_weights)

    def push_to_hub(
        self, repository: str, *, revision: str | None = None, private: bool = True, license: str | None = None
    ) -> str:
        """Upload the model to a Hugging Face hub (extra ``hf``), its card as the hub's model card.

        The features of the support images go with the model, the images only if they were kept (``save``).

        Args:
            repository: ``owner/name``; made if it is not there.
            revision: the branch to commit to; the main branch if left out.
            private: whether a new repository can be seen by its owner alone.
            license: identifier for the card, such as ``mit``.

        Returns:
            The address of the commit.
        """
        with TemporaryDirectory() as folder:
            write_model(Path(folder), *self._contents(keep_images=False))
            return push_model(Path(folder), repository, revision=revision, private=private, license=license)


def fetch_model(repository: str, revision: str | None = None) -> Path:
    """The folder of a model from the hub; what was fetched before is taken from the hub library's cache.

    Args:
        repository: ``owner/name``.
        revision: a branch, tag or commit; the main branch if left out.
    """
    from huggingface_hub import snapshot_download

    with _sentences(repository, revision):
        folder = Path(snapshot_download(repository, revision=revision, allow_patterns=FETCHED, endpoint=_endpoint()))
    if not is_model(folder):
        raise GfssError(f"{repository} is not a model of gfss: it has no {ABOUT}; push one with Segmenter.push_to_hub")
    return folder


def push_model(
    folder: Path, repository: str, *, revision: str | None = None, private: bool = True, license: str | None = None
) -> str:
    """Upload a model folder, its card in the hub's form; returns the address of the commit.

    Args:
        folder: as ``Segmenter.save`` wrote it.
        repository: ``owner/name``; made if it is not there.
        revision: the branch to commit to, which must be there; the main branch if left out.
        private: whether a new repository can be seen by its owner alone.
        license: identifier for the card, such as ``mit``.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=_endpoint())
    card = hub_card((folder / CARD).read_text(encoding="utf-8"), license)
    files = [path for path in sorted(folder.iterdir()) if path.name == ABOUT or path.suffix == ".safetensors"]
    with _sentences(repository, revision):
        api.create_repo(repository, private=private, exist_ok=True)
        operations = [CommitOperationAdd(path.name, path) for path in files]
        operations.append(CommitOperationAdd(HUB_CARD, card.encode()))
        done = api.create_commit(repository, operations, commit_message="Model by gfss", revision=revision)
    return str(done.commit_url)


def hub_card(card: str, license: str | None = None) -> str:
    """A model card with the front matter by which the hub sorts and shows models.

    >>> print(hub_card("# Model card", "mit"))
    ---
    library_name: gfss
    license: mit
    pipeline_tag: image-segmentation
    tags:
    - gfss
    - semantic-segmentation
    - few-shot-learning
    ---
    # Model card
    ...
    """
    front: dict[str, Any] = {**FRONT, **({"license": license} if license else {})}
    use = (
        "## Use\n\n```python\nfrom gfss import Segmenter\n\n"
        'model = Segmenter.from_pretrained("owner/name")  # the name of this repository\n'
        'model.segment("image.jpg").save("mask.png", overlay=True)\n```\n'
    )
    return f"---\n{yaml.safe_dump(front, sort_keys=True)}---\n{card.rstrip()}\n\n{use}"


def _endpoint() -> str | None:
    """The hub's address; the library's own if none is set."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def _sentences(repository: str, revision: str | None) -> Iterator[None]:
    """Say in one sentence what the hub refused."""
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError:
        raise GfssError(f"'{repository}' is not the name of a repository; expected owner/name") from None
    except errors.RevisionNotFoundError:
        raise GfssError(f"{repository} has no revision '{revision}'; give a branch, a tag or a commit") from None
    except errors.GatedRepoError:
        raise GfssError(f"{repository} is gated; ask its owner for access, then run: hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise GfssError(
            f"the hub has no model {repository}, or it is private; check the name or run: hf auth login"
        ) from None
    except errors.LocalEntryNotFoundError:
        raise GfssError(
            f"the hub cannot be reached and {repository} was not fetched before; connect and try again"
        ) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no")
        raise GfssError(
            f"the hub answered {status} for {repository}; check the token (hf auth login) and try again"
        ) from None
