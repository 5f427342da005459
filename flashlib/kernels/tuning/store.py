"""What tuning found is kept here: in memory, and in a JSON file on request.

A result holds for exactly one case: the kernel, the GPU, Triton's version, the dtype, all sizes, the
window, the scores, and whether the copy engine reads the tensors. It is looked up when a launch is
made, so that a call costs nothing more, and it comes after an explicit configuration and before the
fixed table.

    from flashlib.kernels import load_tuned, save_tuned, tune

    tune(q, k, v, causal=True)
    save_tuned("tuned.json")
    load_tuned("tuned.json")                                # in a later process
"""

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs

from flashlib.kernels import plans
from flashlib.kernels.configs import BACKENDS, GluonConfig, TritonConfig, TritonConfigs
from flashlib.kernels.problem import Problem
from flashlib.kernels.scores import PLAIN, Kind

FORMAT = 1
CONFIGS = {f"{backend}_{direction}": cls for backend, classes in BACKENDS.items()
           for direction, cls in classes.items()}
DTYPES = ("float16", "bfloat16", "float32")


class Case(NamedTuple):
    """What a result holds for; `tma` of the backward is a pair: for dK and dV, and for dQ.

    `window` is (left, right), None where there is none but, with `causal`, the causal mask. `scores`
    is a `Kind`.
    """

    kernel: str
    gpu: str
    triton: str
    dtype: str
    B: int
    H: int
    H_k: int
    N_q: int
    N_k: int
    D: int
    causal: bool
    tma: bool | tuple[bool, bool]
    window: tuple[int, int] | None = None
    scores: Kind = PLAIN


_results: dict[Case, Any] = {}


def case_of(backend, p: Problem, direction: str) -> Case:
    """Return the case that a backend's configuration for a problem is kept under."""
    return Case(f"{backend.name}_{direction}", p.device.name, triton.__version__,
                str(p.dtype).removeprefix("torch."), p.B, p.H, p.H_K, p.N_Q, p.N_K, p.D, p.causal,
                backend.copies(p, direction), p.sides, p.scores)


def result_for(backend, p: Problem, direction: str):
    """Return the configuration that tuning found for this problem, or None."""
    return _results.get(case_of(backend, p, direction)) if _results else None


def keep(case: Case, config) -> None:
    """Keep a configuration for this case, or with None drop what was kept; later launches see it."""
    if config is None and case not in _results:
        return
    if config is None:
        del _results[case]
    else:
        _results[case] = config
    plans.forget()


def forget_tuned() -> None:
    """Drop all that tuning found: the fixed table holds again. Files stay."""
    _results.clear()
    plans.forget()


def save_tuned(path: str | os.PathLike) -> int:
    """Write all that is kept to a JSON file, over what was there; return the number of results.

    The file is written beside and renamed, so that one that was there stays whole if that fails.
    """
    results = [case._asdict() | {"config": _as_json(config)} for case, config in _results.items()]
    text = json.dumps({"format": FORMAT, "results": results}, indent=1) + "\n"
    path = Path(path)
    handle, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(beside, path.stat().st_mode & 0o777 if path.exists() else 0o644)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise
    return len(results)


def load_tuned(path: str | os.PathLike) -> int:
    """Add what a file of `save_tuned` holds to what is kept; of the same case, the file's holds.

    Results of a kernel that this version does not have are left out, with a warning that names it.

    Args:
        path: the file.
    Returns:
        How many of its results fit this machine: its GPUs and its Triton. The others do no harm.
    Raises:
        ValueError: not such a file, or one with a wrong entry; then nothing of it is taken. That a
            configuration fits into the GPU's shared memory is not checked: its first call would say so.
    """
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:           # not JSON, not UTF-8, or nested without end
        raise ValueError(f"path: expected a file of save_tuned, got {path}: {error}") from None
    if not isinstance(found, dict) or set(found) != {"format", "results"} or (
            not isinstance(found["results"], list)):
        raise ValueError(f"path: expected a file of save_tuned, with 'format' and a list 'results',"
                         f" got {path}")
    if type(found["format"]) is not int or found["format"] != FORMAT:
        raise ValueError(f"path: expected format {FORMAT}, got {found['format']!r} in {path}")
    read = {}
    for number, entry in enumerate(found["results"]):
        try:
            case, config = _read(entry)
        except ValueError as error:
            raise ValueError(f"path: {path}, entry {number}: {error}") from None
        if config is None:
            warnings.warn(f"path: {path}, entry {number}: no kernel is called {case.kernel!r}, so its"
                          " result is left out", stacklevel=2)
        else:
            read[case] = config
    _results.update(read)
    plans.forget()
    return sum(case.triton == triton.__version__ and case.gpu in _here() for case in read)


def _here() -> set[str]:
    """Return what this machine's devices are called in a case."""
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return names | ({"cpu"} if knobs.runtime.interpret else set())


def _as_json(config: Any):
    if hasattr(config, "_asdict"):
        return {name: _as_json(value) for name, value in config._asdict().items()}
    return config


def _read(entry: dict[str, Any]) -> tuple[Case, Any]:
    """Return case and configuration of an entry; None is that of a kernel that is not known."""
    fields = (*Case._fields, "config")
    if not isinstance(entry, dict) or set(entry) | {"window", "scores"} != set(fields):
        raise ValueError(f"expected the fields {', '.join(fields)}, got {entry!r}")
    found = {"window": None, "scores": list(PLAIN), **entry}        # older files know neither

    def expect(name, right, expected):
        if not right:
            raise ValueError(f"{name}: expected {expected}, got {found[name]!r}")

    def pair(name, right, expected):
        value = found[name]
        expect(name, isinstance(value, list) and len(value) == 2 and all(map(right, value)), expected)
        found[name] = tuple(value)

    for name in ("kernel", "gpu", "triton"):
        expect(name, isinstance(found[name], str), "a text")
    expect("dtype", found["dtype"] in DTYPES, f"one of {DTYPES}")
    for name in ("B", "H", "H_k", "N_q", "N_k", "D"):
        expect(name, type(found[name]) is int and found[name] >= 1, "an integer of at least 1")
    expect("causal", type(found["causal"]) is bool, "true or false")
    if found["window"] is not None:
        pair("window", lambda x: type(x) is int and x >= 0, "null or two integers from 0")
    kind = found["scores"]
    expect("scores", isinstance(kind, list) and len(kind) == 3 and type(kind[0]) is bool
           and all(type(x) is int and 0 <= x <= 2 for x in kind[1:]),
           "a list: true or false, and twice an integer from 0 to 2")
    found["scores"] = Kind(*kind)
    cls, config = CONFIGS.get(found["kernel"]), found.pop("config")
    if cls is None:
        return Case(**{**found, "tma": False}), None
    if cls is TritonConfigs:
        pair("tma", lambda x: type(x) is bool, "a list of two, true or false")
    elif cls is GluonConfig:
        expect("tma", found["tma"] is True, "true")
    else:
        expect("tma", type(found["tma"]) is bool, "true or false")
    return Case(**found), _read_config(cls, "config", config)


def _read_config(cls, what, found):
    """Return a configuration of a class, which looks at each value itself."""
    if not isinstance(found, dict) or set(found) != set(cls._fields):
        raise ValueError(f"{what}: expected the fields {', '.join(cls._fields)}, got {found!r}")
    if cls is TritonConfigs:
        return cls(**{name: None if value is None else _read_config(TritonConfig, name, value)
                      for name, value in found.items()})
    try:
        return cls(**found)
    except ValueError as error:
        raise ValueError(f"{what}.{error}") from None
