"""The cluster that this process belongs to, if any, as its environment names it."""

import os

CLUSTER_VARIABLE = "PONENTE_CLUSTER"  # the address
RUNTIME_VARIABLE = "PONENTE_RUNTIME_ENV"  # what Ray makes ready for processes there, as JSON

STEP_VARIABLE = "PONENTE_STEP_VARIABLES"  # names of those that the step was given, for its workers elsewhere


def cluster_address() -> str | None:
    """The address of the Ray cluster that work may be spread over; None where this machine is all there is."""
    return os.environ.get(CLUSTER_VARIABLE) or None
