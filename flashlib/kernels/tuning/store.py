"""What tuning found is kept here: in memory, and in a JSON file on request.

A result holds for exactly one case: the kernel, the GPU, Triton's version, the dtype, all sizes, the
window, and whether the copy engine reads the tensors. It is looked up when a launch is made, so that a
call costs nothing more, and it comes after an explicit configuration and before the fixed table.

    from flashlib.kernels import load_tuned, save_tuned, tune

    tune(q, k, v, causal=True)
    save_tuned("tuned.json")
    load_tuned("tuned.json")                                # in a later process
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import triton

from flashlib.kernels import plans
from flashlib.kernels.configs import GluonConfig, TritonConfig, TritonConfigs
from flashlib.kernels.problem import CAUSAL, FULL, Problem

FORMAT = 1
CONFIGS = {"triton_forward": TritonConfig, "triton_backward": TritonConfigs,
           "gluon_forward": GluonConfig}
DTYPES = ("float16", "bfloat16", "float32")


class Case(NamedTuple):
    """What a result holds for; `tma` of the backward is a pair: for dK and dV, and for dQ."""

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


_kept: dict[Case, NamedTuple] = {}


def case_of(backend, p: Problem, direction: str) -> Case:
    """Return the case that a backend's configuration for a problem is kept under."""
    return Case(f"{backend.name}_{direction}", p.device.name, triton.__version__,
                str(p.dtype).removeprefix("torch."), p.B, p.H, p.H_K, p.N_Q, p.N_K, p.D, p.causal,
                backend.copies(p, direction))


def kept(backend, p: Problem, direction: str):
    """Return the configuration that tuning found for this problem, or None."""
    if not _kept or p.window not in (FULL, CAUSAL):         # no other window is tuned
        return None
    return _kept.get(case_of(backend, p, direction))


def keep(case: Case, config) -> None:
    """Keep a configuration for this case, or with None drop what was kept; later launches see it."""
    if config is None and case not in _kept:
        return
    if config is None:
        del _kept[case]
    else:
        _kept[case] = config
    plans.forget()


def forget_tuned() -> None:
    """Drop all that tuning found: the fixed table holds again. Files stay."""
    _kept.clear()
    plans.forget()


def save_tuned(path: str | os.PathLike) -> int:
    """Write all that is kept to a JSON file, over what was there; return the number of results.

    The file is written beside and renamed, so that one that was there stays whole if that fails.
    """
    results = [case._asdict() | {"config": _as_json(config)} for case, config in _kept.items()]
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
        read[case] = config
    _kept.update(read)
    plans.forget()
    return sum(case.triton == triton.__version__ and case.gpu in _here() for case in read)


def _here() -> set[str]:
    """Return what this machine's devices are called in a case."""
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return names | ({"cpu"} if triton.knobs.runtime.interpret else set())


def _as_json(config):
    if isinstance(config, tuple):
        return {name: _as_json(value) for name, value in config._asdict().items()}
    return config


def _read(entry) -> tuple[Case, NamedTuple]:
    """Return case and configuration of an entry."""
    fields = (*Case._fields, "config")
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise ValueError(f"expected the fields {', '.join(fields)}, got {entry!r}")

    def expect(name, right, expected):
        if not right:
            raise ValueError(f"{name}: expected {expected}, got {entry[name]!r}")

    kernel, tma = entry["kernel"], entry["tma"]
    expect("kernel", isinstance(kernel, str) and kernel in CONFIGS, f"one of {tuple(CONFIGS)}")
    for name in ("gpu", "triton"):
        expect(name, isinstance(entry[name], str), "a text")
    expect("dtype", entry["dtype"] in DTYPES, f"one of {DTYPES}")
    for name in ("B", "H", "H_k", "N_q", "N_k", "D"):
        expect(name, type(entry[name]) is int and entry[name] >= 1, "an integer of at least 1")
    expect("causal", type(entry["causal"]) is bool, "true or false")
    if kernel == "triton_backward":
        expect("tma", isinstance(tma, list) and [type(x) for x in tma] == [bool, bool],
               "a list of two, true or false")
        tma = tuple(tma)
    elif kernel == "gluon_forward":
        expect("tma", tma is True, "true")
    else:
        expect("tma", type(tma) is bool, "true or false")
    case = Case(*(entry[name] for name in Case._fields[:-1]), tma)
    return case, _read_config(CONFIGS[kernel], "config", entry["config"])


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
