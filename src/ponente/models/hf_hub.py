"""Models of the Hugging Face hub: fetched by name, or sent there; its local cache serves where it is out of reach.

HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean to huggingface_hub.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is of the library beneath
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ponente.config.errors import UserError
from ponente.models.hf_folder import CONFIG, GENERATION_CONFIG, INDEX, TOKENIZER_FILES, WEIGHTS
from ponente.store.paths import absolute, basename, protocol_of

_SMALL = [CONFIG, GENERATION_CONFIG, INDEX, *TOKENIZER_FILES]
_WEIGHTS = [*_SMALL, WEIGHTS, "model-*-of-*.safetensors"]
_GIVE_A_FOLDER = "or give the path or URL of a folder that holds its config.json and safetensors"


def fetch_small_files(name: str) -> str:
    """A local folder with the config and tokenizer of "repo", "org/repo" or either with "@revision"."""
    return _fetch(name, _SMALL)


def fetch_weights(name: str, small_files: str) -> str:
    """A local folder with all of the model, of the very commit that `fetch_small_files` gave the folder of."""
    return _fetch(f"{name.partition('@')[0]}@{basename(small_files)}", _WEIGHTS)


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


def _fetch(name: str, patterns: list[str]) -> str:
    repo, _, revision = name.partition("@")
    page = f"https://huggingface.co/{repo}"
    try:
        return str(snapshot_download(repo, revision=revision or None, allow_patterns=patterns))
    except GatedRepoError as error:
        raise UserError(
            f"found that {name} is gated: the hub gives it only to those whom its owners let in; needed access and a "
            f"token; ask for access at {page}, make a token at https://huggingface.co/settings/tokens and set "
            f"HF_TOKEN, {_GIVE_A_FOLDER}"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"found no revision {revision!r} of {repo} on the hub; needed a branch, tag or commit of it; look at "
            f"{page}/commits/main, {_GIVE_A_FOLDER}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"found no folder {name!r} here and no such name on the hub ({_first_line(error)}); needed a folder, a "
            f"URL or a hub name such as gpt2 or org/name; check the spelling, set HF_TOKEN if it is private, "
            f"{_GIVE_A_FOLDER}"
        ) from error
    except (LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise UserError(
            f"found no folder {name!r} here, and the hub could not be asked ({_first_line(error)}); needed the hub or "
            f"a copy in its local cache; go online (HF_HUB_OFFLINE unset) once, {_GIVE_A_FOLDER}"
        ) from error


@contextmanager
def _speaking_of_uploads(repo: str) -> Iterator[None]:
    try:
        yield
    except HFValidationError as error:
        raise UserError(
            f"found {repo!r} as the place to upload to, which cannot name a repository ({_first_line(error)}); needed "
            "org/name or org/name@branch; change it"
        ) from error
    except (RepositoryNotFoundError, HfHubHTTPError) as error:
        raise UserError(
            f"found that the hub does not take an upload to {repo} ({_first_line(error)}); needed a token that may "
            "write there; make one at https://huggingface.co/settings/tokens and set HF_TOKEN. What was exported stays "
            "where it is."
        ) from error
    except (HTTPError, OSError) as error:
        raise UserError(
            f"found that the hub could not be reached to upload to {repo} ({_first_line(error)}); needed the network; "
            "go online (HF_HUB_OFFLINE unset) and upload again. What was exported stays where it is."
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
