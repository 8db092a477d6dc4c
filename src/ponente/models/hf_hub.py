"""Models of the Hugging Face hub: fetched by name, or sent there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from huggingface_hub import HfApi
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is of the library beneath
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    RepositoryNotFoundError,
)

from ponente.config.errors import UserError
from ponente.models.hf_folder import CONFIG, GENERATION_CONFIG, INDEX, WEIGHTS
from ponente.store.hub_files import fetch_files, first_line
from ponente.store.paths import absolute, basename, protocol_of
from ponente.store.tokenizer_files import TOKENIZER_FILES

_SMALL = [CONFIG, GENERATION_CONFIG, INDEX, *TOKENIZER_FILES]
_WEIGHTS = [*_SMALL, WEIGHTS, "model-*-of-*.safetensors"]
_HOLDING = "its config.json and safetensors"


def fetch_small_files(name: str) -> str:
    """A local folder with the config and tokenizer of "repo", "org/repo" or either with "@revision"."""
    return fetch_files(name, _SMALL, _HOLDING)


def fetch_weights(name: str, small_files: str) -> str:
    """A local folder with all of the model, of the very commit that `fetch_small_files` gave the folder of."""
    return fetch_files(f"{name.partition('@')[0]}@{basename(small_files)}", _WEIGHTS, _HOLDING)


def upload_folder(
    folder: str, repo: str, *, message: str = "Upload model", visibility: Literal["private", "public"] = "private"
) -> str:
    """Sends a local folder to the hub, as one commit; gives the commit's address.

    Args:
        folder: what `save_hf_model` wrote.
        repo: "org/name", or "org/name@branch"; what is not there yet is made.
        visibility: of a repository that is made; one that is there stays as it is.
    """
    local = absolute(folder)
    if protocol_of(local) != "file" or not os.path.isfile(os.path.join(local, CONFIG)):
        raise UserError(
            f"found no local folder with a {CONFIG} at {folder}; needed one to upload. Export the model to a local "
            "path."
        )
    name, _, branch = repo.partition("@")
    with _speaking_of_uploads(repo):
        api = HfApi()
        api.create_repo(name, exist_ok=True, private=visibility == "private")
        if branch:
            api.create_branch(name, branch=branch, exist_ok=True)
        commit = api.upload_folder(repo_id=name, folder_path=local, commit_message=message, revision=branch or None)
    return str(commit.commit_url)


@contextmanager
def _speaking_of_uploads(repo: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise UserError(
            f"found {repo!r} as the place to upload to, which cannot name a repository ({first_line(error)}); needed "
            "org/name or org/name@branch; change it"
        ) from error
    except (RepositoryNotFoundError, HfHubHTTPError) as error:
        raise UserError(
            f"found that the hub does not take an upload to {repo} ({first_line(error)}); needed a token that may "
            "write there; make one at https://huggingface.co/settings/tokens and set HF_TOKEN. What was exported stays "
            "where it is."
        ) from error
    except (HTTPError, OSError) as error:
        raise UserError(
            f"found that the hub could not be reached to upload to {repo} ({first_line(error)}); needed the network; "
            "go online (HF_HUB_OFFLINE unset) and upload again. What was exported stays where it is."
        ) from error
