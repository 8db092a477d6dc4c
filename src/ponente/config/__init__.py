"""Configuration: what a config field is, and (later) YAML and flags to frozen dataclasses."""

from ponente.config.errors import RefusedError, UserError
from ponente.config.fields import Kind, execution, observation

__all__ = ["Kind", "RefusedError", "UserError", "execution", "observation"]
