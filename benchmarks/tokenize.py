"""Our build of a token cache against its peers: see tokenization.py, which this runs.

Run:  .venv/bin/python benchmarks/tokenize.py [--levanter] [--help]
"""

import sys

HERE = __file__.rpartition("/")[0] or "."

if __name__ == "__main__":  # before anything else is imported: the standard library wants its own `tokenize`
    del sys.path[0]
    import runpy
    import tokenize

    assert tokenize.__file__ != __file__
    sys.path.insert(0, HERE)
    runpy.run_path(f"{HERE}/tokenization.py", run_name="__main__")
else:  # imported by a script beside it that wanted the standard library's
    import importlib.util
    import os

    place = os.path.join(os.path.dirname(os.__file__), "tokenize.py")
    spec = importlib.util.spec_from_file_location(__name__, place)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(sys.modules[__name__])
