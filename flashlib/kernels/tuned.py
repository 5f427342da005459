"""What tuning found is kept here: in memory, and in a JSON file on request.

A result holds for exactly one case: the kernel, the GPU, Triton's version, the dtype, all sizes, the
mask, and whether the copy engine reads the tensors. It is looked up when a plan is made, so that a call
costs nothing more, and it comes after an explicit configuration and before the fixed table.

    from flashlib.kernels import load_tuned, save_tuned, tune

    tune(q, k, v, causal=True)
    save_tuned("tuned.json")
    load_tuned("tuned.json")                                # in a later process
"""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import NamedTuple, get_type_hints

import torch
import triton

from flashlib.kernels import dispatch
from flashlib.kernels.configs import Config, Configs

FORMAT = 1
KERNELS = ("triton_forward", "triton_backward", "gluon_forward")
DTYPES = ("float16", "bfloat16", "float32")
# What a configuration can hold, from and to; whether it fits into shared memory its first call says.
POWERS_OF_2 = {"BLOCK_M": (8, 256), "BLOCK_N": (8, 256), "num_warps": (1, 32), "O_PARTS": (1, 2)}
COUNTS = {"num_stages": (1, 8), "CONSUMERS": (2, 3), "STAGES": (1, 16), "Q_SLOTS": (1, 4),
          "EMULATED": (0, 2)}


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


@functools.cache
def _gpu(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _case(kernel, q, k, causal, tma) -> Case:
    return Case(kernel, _gpu(q.device), triton.__version__, str(q.dtype).removeprefix("torch."),
                *q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3], causal, tma)


def kept(kernel: str, q, k, causal: bool, tma):
    """Return the configuration that tuning found for this case, or None."""
    return _kept.get(_case(kernel, q, k, causal, tma)) if _kept else None


def keep(kernel: str, q, k, causal: bool, tma, config) -> None:
    """Keep a configuration for this case, or with None drop what was kept; later plans see it."""
    case = _case(kernel, q, k, causal, tma)
    if config is None and case not in _kept:
        return
    if config is None:
        del _kept[case]
    else:
        _kept[case] = config
    dispatch.renew()


def forget_tuned() -> None:
    """Drop all that tuning found: the fixed table holds again. Files stay."""
    _kept.clear()
    dispatch.renew()


def save_tuned(path) -> int:
    """Write all that is kept to a JSON file, over what was there; return the number of results."""
    results = [case._asdict() | {"config": _as_json(config)} for case, config in _kept.items()]
    text = json.dumps({"format": FORMAT, "results": results}, indent=1)
    Path(path).write_text(text + "\n", encoding="utf-8")
    return len(results)


def load_tuned(path) -> int:
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
    except ValueError as error:                             # neither JSON nor UTF-8
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
        if config is not None:
            read[case] = config
    _kept.update(read)
    dispatch.renew()
    return sum(case.triton == triton.__version__ and case.gpu in _here() for case in read)


def _here() -> set[str]:
    """Return what this machine's devices are called in a case."""
    names = {torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())}
    return names | ({"cpu"} if triton.knobs.runtime.interpret else set())


def _as_json(config):
    if isinstance(config, tuple):
        return {name: _as_json(value) for name, value in config._asdict().items()}
    return config


def _read(entry):
    """Return case and configuration of an entry; None for a Gluon kernel where Gluon is missing."""
    fields = (*Case._fields, "config")
    if not isinstance(entry, dict) or set(entry) != set(fields):
        raise ValueError(f"expected the fields {', '.join(fields)}, got {entry!r}")
    kernel, dtype, tma = entry["kernel"], entry["dtype"], entry["tma"]
    if kernel not in KERNELS:
        raise ValueError(f"kernel: expected one of {KERNELS}, got {kernel!r}")
    for name in ("gpu", "triton"):
        if not isinstance(entry[name], str):
            raise ValueError(f"{name}: expected a text, got {entry[name]!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {DTYPES}, got {dtype!r}")
    for name in ("B", "H", "H_k", "N_q", "N_k", "D"):
        if type(entry[name]) is not int or entry[name] < 1:
            raise ValueError(f"{name}: expected an integer of at least 1, got {entry[name]!r}")
    if type(entry["causal"]) is not bool:
        raise ValueError(f"causal: expected true or false, got {entry['causal']!r}")
    if kernel == "triton_backward":
        if not isinstance(tma, list) or [type(x) for x in tma] != [bool, bool]:
            raise ValueError(f"tma: expected a list of two, true or false, got {tma!r}")
        tma = tuple(tma)
    elif type(tma) is not bool or (kernel == "gluon_forward" and not tma):
        raise ValueError(f"tma: expected {'true' if kernel == 'gluon_forward' else 'true or false'},"
                         f" got {tma!r}")
    case = Case(*(entry[name] for name in Case._fields[:-1]), tma)
    if kernel == "triton_backward":
        return case, _read_rows(entry["config"])
    if kernel == "triton_forward":
        return case, _read_config(Config, "config", entry["config"])
    try:
        from flashlib.kernels.launch_hopper import HopperConfig
    except ImportError:
        return case, None
    return case, _read_config(HopperConfig, "config", entry["config"])


def _read_rows(found) -> Configs:
    """Return the configurations of a backward: dK and dV in one kernel, or in one each."""
    _expect_fields(Configs, "config", found)
    parts = {name: None if value is None else _read_config(Config, name, value)
             for name, value in found.items()}
    present = {name for name, value in parts.items() if value is not None}
    if present not in ({"forward", "dkdv", "dq"}, {"forward", "dk", "dv", "dq"}):
        raise ValueError(f"config: expected forward, dq, and dkdv or both dk and dv,"
                         f" got {', '.join(sorted(present)) or 'none'}")
    return Configs(**parts)


def _expect_fields(cls, what, found):
    if not isinstance(found, dict) or set(found) != set(cls._fields):
        raise ValueError(f"{what}: expected the fields {', '.join(cls._fields)}, got {found!r}")


def _read_config(cls, what, found):
    """Return a configuration whose every field has the kind that its class says."""
    _expect_fields(cls, what, found)
    kinds = get_type_hints(cls)
    for name, value in found.items():
        if kinds[name] is bool:
            right, expected = type(value) is bool, "true or false"
        elif kinds[name] is float:
            right = type(value) in (int, float) and math.isfinite(value) and 0 <= value <= 8
            expected = "a number from 0 to 8"
        elif name in POWERS_OF_2:
            least, most = POWERS_OF_2[name]
            right = type(value) is int and least <= value <= most and value & (value - 1) == 0
            expected = f"a power of 2 from {least} to {most}"
        else:
            least, most = COUNTS[name]
            right = type(value) is int and least <= value <= most
            expected = f"an integer from {least} to {most}"
        if not right:
            raise ValueError(f"{what}.{name}: expected {expected}, got {value!r}")
    if found.get("SPECIALIZED") is False and found["CONSUMERS"] != 2:
        raise ValueError(f"{what}.CONSUMERS: expected 2 without SPECIALIZED, got {found['CONSUMERS']}")
    return cls(**{name: kinds[name](value) for name, value in found.items()})
