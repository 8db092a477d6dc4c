"""Documents to token cache: tokenizers, formats, and the build."""
