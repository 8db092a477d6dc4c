"""What a row becomes: text, chat, supervised, prebuilt, and formats of the user's own."""

from ponente.tokens.formats.chat import ChatFormat
from ponente.tokens.formats.prebuilt import PrebuiltFormat
from ponente.tokens.formats.supervised import SupervisedFormat
from ponente.tokens.formats.text import TextFormat

__all__ = ["ChatFormat", "PrebuiltFormat", "SupervisedFormat", "TextFormat"]
