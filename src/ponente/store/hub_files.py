"""Files of the Hugging Face hub, by name: a local folder with some files of a repository, or words about why not.

The local cache of the hub serves where it cannot be reached. HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_HOME, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean to huggingface_hub.
"""

from collections.abc import Sequence

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is of the library beneath
    GatedRepoError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ponente.config.errors import UserError


def fetch_files(name: str, patterns: Sequence[str], holding: str) -> str:
    """A local folder with those files of `name`, which is "repo", "org/repo" or either with "@revision".

    Args:
        holding: what a folder must hold that could be given instead, for errors: "its tokenizer.json".
    """
    repo, _, revision = name.partition("@")
    page = f"https://huggingface.co/{repo}"
    give_a_folder = f"or give the path or URL of a folder that holds {holding}"
    try:
        return str(snapshot_download(repo, revision=revision or None, allow_patterns=list(patterns)))
    except GatedRepoError as error:
        raise UserError(
            f"found that {name} is gated: the hub gives it only to those whom its owners let in; needed access and a "
            f"token; ask for access at {page}, make a token at https://huggingface.co/settings/tokens and set "
            f"HF_TOKEN, {give_a_folder}"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(
            f"found no revision {revision!r} of {repo} on the hub; needed a branch, tag or commit of it; look at "
            f"{page}/commits/main, {give_a_folder}"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"found no folder {name!r} here and no such name on the hub ({first_line(error)}); needed a folder, a "
            f"URL or a hub name such as gpt2 or org/name; check the spelling, set HF_TOKEN if it is private, "
            f"{give_a_folder}"
        ) from error
    except (LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise UserError(
            f"found no folder {name!r} here, and the hub could not be asked ({first_line(error)}); needed the hub or "
            f"a copy in its local cache; go online (HF_HUB_OFFLINE unset) once, {give_a_folder}"
        ) from error


def first_line(error: BaseException) -> str:
    """What an error says, without its explanations."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
