"""Configuration: what a config field is; YAML and flags to frozen dataclasses (`ponente.config.load`)."""

from ponente.config.errors import RefusedError, UserError
from ponente.config.fields import Kind, execution, observation

__all__ = ["Kind", "RefusedError", "UserError", "execution", "observation"]
