"""Tokenizers of the Hugging Face hub, by name; the local cache of the hub serves where the hub cannot be reached."""

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from ponente.config.errors import UserError
from ponente.tokens.definition import FILES
from ponente.tokens.files import read_folder

_GIVE_A_FOLDER = "or give the path or URL of a folder that holds its tokenizer.json"


def read_hub(name: str) -> dict[str, bytes]:
    """The files of the tokenizer `name`, which is "repo", "org/repo" or either with "@revision".

    HF_TOKEN, HUGGING_FACE_HUB_TOKEN, HF_HOME and HF_HUB_OFFLINE mean what they mean to huggingface_hub.
    """
    repo, _, revision = name.partition("@")
    page = f"https://huggingface.co/{repo}"
    try:
        folder = snapshot_download(repo, revision=revision or None, allow_patterns=list(FILES))
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
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        raise UserError(
            f"found no folder {name!r} here, and the hub could not be asked ({_first_line(error)}); needed the hub or "
            f"a copy in its local cache; go online (HF_HUB_OFFLINE unset) once, {_GIVE_A_FOLDER}"
        ) from error
    return read_folder(folder) or {}


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
