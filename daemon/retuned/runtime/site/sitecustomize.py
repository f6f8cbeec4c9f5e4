"""Site customisation: on ``PYTHONPATH``, every Python of a server runs this at its start.

It runs in every Python program that inherits the variable, whatever its version. So this file stays
valid for Python 2.7 too and imports nothing that is not loaded already. A ``sitecustomize`` that it
hides is run as if it were alone. Its own task is to load ``plugins/startup.py`` by its path, which
waits for PyTorch. Nothing here raises or prints.

Not reached: interpreters started with ``-S`` (no site), ``-E`` or ``-I`` (no ``PYTHONPATH``).
"""

import os
import sys

if __name__ == "sitecustomize":  # not where a test or a type checker reads it
    _here = os.path.dirname(os.path.realpath(__file__))
    if sys.version_info >= (3, 10) and "_retuned_startup" not in sys.modules:
        try:
            from importlib.machinery import SourceFileLoader as _Loader

            _file = os.path.join(os.path.dirname(_here), "plugins", "startup.py")
            _startup = type(sys)("_retuned_startup")
            _startup.__file__ = _file
            sys.modules["_retuned_startup"] = _startup
            _Loader("_retuned_startup", _file).exec_module(_startup)
            _startup.start()
        except Exception:  # any failure: the program starts as it would without Retuned
            pass

    # Run the next sitecustomize; entries before and including this folder are not run again.
    _ours = sys.modules.pop("sitecustomize", None)
    _hidden = []
    _found = False
    for _index, _entry in enumerate(sys.path):
        if os.path.isfile(os.path.join(str(_entry), "sitecustomize.py")):
            _hidden.append((_index, _entry))
            _found = os.path.realpath(str(_entry)) == _here
        if _found:
            break
    if _found:
        for _index, _ in reversed(_hidden):
            del sys.path[_index]
        try:
            __import__("sitecustomize")  # it stays in sys.modules, where ours was
        except ImportError as _error:
            if getattr(_error, "name", "sitecustomize") != "sitecustomize":
                raise  # an error of the other file: site reports it as it would without Retuned
        finally:
            for _index, _entry in _hidden:
                sys.path.insert(_index, _entry)
    if _ours is not None:
        sys.modules.setdefault("sitecustomize", _ours)
