"""The tokenizer of a run beside its checkpoints, so that they can be used wherever they are taken."""

from ponente.models.saved import TOKENIZER
from ponente.store.paths import join
from ponente.store.volume import publishing_folder, volume_of
from ponente.tokens.files import write_files
from ponente.tokens.load import tokenizer_files
from ponente.tokens.passthrough import PASSTHROUGH
from ponente.train.setup import ModelSetup


def keep_tokenizer(folder: str, setup: ModelSetup) -> None:
    """Writes the tokenizer's files into a run's folder of checkpoints, unless they are there."""
    name, place = setup.config.data.tokenizer, join(folder, TOKENIZER)
    if name == PASSTHROUGH or volume_of(place).published_folder(place) is not None:
        return
    with publishing_folder(place) as private:
        write_files(private, tokenizer_files(name))
