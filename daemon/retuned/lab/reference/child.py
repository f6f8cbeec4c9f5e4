"""Child process of a reference: it imports NumPy, drops all other rights, then computes.

Started by path with ``python -I -S``. The first line on descriptor 0 holds settings with the
reference's text. Then each call is one JSON line and the bytes of each input; the response is one
JSON line and the bytes of each output. Inputs arrive as float64, integers or booleans; outputs
leave as float64. If the kernel confirms neither a system-call filter nor Landlock, the text is not
executed unless the settings allow it.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

_CHUNK = 1 << 20


def main() -> None:
    settings = json.loads(_line())
    sys.path[:0] = settings["paths"]
    import math

    import numpy as np
    import numpy.linalg

    from retuned.lab.harness import sandbox
    from retuned.lab.reference.check import builtins, check_reference

    sandbox.enter(parent=settings["parent"], cores=[])
    checked = check_reference(settings["reference"])
    code = compile(checked.tree, "reference", "exec")
    own = {**builtins(), "__import__": _loaded}
    modules = checked.modules.items()
    names: dict[str, Any] = {name: np if module == "numpy" else math for name, module in modules}
    names |= {"__builtins__": own, "__name__": "reference"}  # last: modules cannot override them
    warnings.simplefilter("ignore")  # printing a warning would open files, which is forbidden soon
    np.seterr(all="ignore")
    numpy.linalg.norm(np.ones((8, 8)) @ np.ones((8, 8)))  # NumPy's lazy parts
    walls = sandbox.confine(memory_bytes=settings["memory_bytes"], cpu_s=settings["cpu_s"])
    if not walls and not settings["unconfined"]:  # before anything of the text is executed
        _write({"unconfined": True})
        return
    try:
        exec(code, names)
    except Exception as error:  # a constant of the module that cannot be computed
        _write({"failed": _told(error, [])})
        return
    _write({"ready": True, "walls": walls.as_dict()})
    while line := _line():
        call = json.loads(line)
        inputs = {each["name"]: _array(np, each) for each in call["inputs"]}
        answer, arrays = _answer(np, names["run"], inputs, call["outputs"])
        _write(answer)
        for array in arrays:
            _send(memoryview(array.reshape(-1)).cast("B") if array.size else b"")


def _loaded(name: str, *rest: Any) -> Any:  # noqa: ANN401 - as Python's own
    """Import the Python parts that NumPy's C code looks up on first use.

    A reference cannot name this function: it has underscores, which the check refuses.
    """
    if name not in sys.modules:
        raise ImportError(f"a reference has no {name[:40]}")
    return __import__(name, *rest)


def _answer(
    np: Any,  # noqa: ANN401 - the module
    run: Any,  # noqa: ANN401 - an untrusted function
    inputs: dict[str, Any],
    outputs: list[str],
) -> tuple[dict[str, Any], list[Any]]:
    try:
        found = run(**inputs)
        if not isinstance(found, dict):
            values = found if isinstance(found, tuple) else (found,)
            found = dict(zip(outputs, values, strict=True))
        extra = sorted(str(name)[:40] for name in found.keys() - set(outputs))
        if extra:
            return {"failed": f"returns {extra}, which are not outputs of the definition"}, []
        arrays = []
        for name in outputs:
            value = np.asarray(found[name])
            if value.dtype.kind not in "fiub":
                return {"failed": f"output '{name}' is {value.dtype}, no number"}, []
            arrays.append(np.ascontiguousarray(value, dtype=np.float64).reshape(value.shape))
    except MemoryError:
        return {"failed": "needs more memory than a reference may have"}, []
    except Exception as error:  # an untrusted formula may raise anything
        return {"failed": _told(error, outputs)}, []
    shapes = [list(array.shape) for array in arrays]
    return {"shapes": shapes, "dtypes": [array.dtype.str for array in arrays]}, arrays


def _told(error: Exception, outputs: list[str]) -> str:
    if isinstance(error, KeyError) and error.args and error.args[0] in outputs:
        return f"returns no '{error.args[0]}'"
    line, frame = 0, error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "reference":
            line = frame.tb_lineno
        frame = frame.tb_next
    where = f"line {line}: " if line else ""
    return f"{where}{type(error).__name__}: {str(error)[:300]}"


def _array(np: Any, each: dict[str, Any]) -> Any:  # noqa: ANN401 - an array
    array = np.empty(each["shape"], dtype=each["dtype"])
    view = memoryview(array).cast("B") if array.size else memoryview(b"")
    while view:
        chunk = os.read(0, min(len(view), _CHUNK))
        if not chunk:
            os._exit(1)
        view[: len(chunk)] = chunk
        view = view[len(chunk) :]
    return array


def _line() -> bytes:
    """Read one line byte by byte: the bytes after it are data."""
    found = bytearray()
    while not found.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        found += byte
    return bytes(found)


def _write(answer: dict[str, Any]) -> None:
    _send(json.dumps(answer).encode() + b"\n")


def _send(data: Any) -> None:  # noqa: ANN401 - bytes or a view
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
