"""Ray: the same steps, sharded maps and trainings on many machines. The one room that imports `ray`."""

from importlib.util import find_spec

from ponente.config.errors import RefusedError

if find_spec("ray") is None:
    raise RefusedError("found no Ray, which --cluster needs; install it: pip install 'ponente[ray]'")
