"""Errors that speak to the user: what was found, what was needed, what to do. Shown without a traceback."""


class UserError(Exception):
    """Something that the user can mend; its text says how."""


class RefusedError(UserError, ValueError):
    """The request cannot or may not be carried out; nothing was done."""
