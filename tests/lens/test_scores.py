"""Kernels with softcap, ALiBi and sinks compile for Hopper in the table's tiles, without spilling."""

import functools

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from flashlib import lens
from tests.lens.toolchain import WORKERS

ALL = {"softcap": True, "alibi": True}
REQUESTS = [
    *(("flash_fwd_kernel", {"head_dim": d, "causal": d == 64, "sink": True, **ALL}) for d in (64, 128)),
    *((name, {"head_dim": d, **ALL}) for name in ("flash_bwd_dq_kernel", "flash_bwd_dkdv_kernel")
      for d in (64, 128)),
    ("flash_decode_fwd_kernel", {"head_dim": 128, "kv_heads": 4, "Nk": 8192, **ALL}),
    ("flash_decode_merge_kernel", {"head_dim": 128, "kv_heads": 4, "Nk": 8192, "sink": True}),
    *(("flash_fwd_hopper_kernel", {"head_dim": d, "causal": True, "sink": True}) for d in (64, 128)),
]


@functools.cache
def compiled():
    """Return the reports, from as few compiling processes as there are cores for."""
    cases = [lens.request(name, arch="H100", **choices) for name, choices in REQUESTS]
    return lens.compile_many(cases, workers=WORKERS)


@pytest.mark.matrix
@pytest.mark.parametrize("number", range(len(REQUESTS)), ids=lambda n: f"{n}-{REQUESTS[n][0]}")
def test_it_does_not_spill(number):
    report = compiled()[number]
    assert not report.spills and report.fits, report


def test_what_is_asked_for_is_in_the_label():
    case = lens.request("flash_fwd_kernel", softcap=True, sink=True)
    assert "softcap sink" in str(case) and case.call.arguments["ALIBI"] is None
    with pytest.raises(ValueError, match="'gluon' expected neither softcap nor alibi"):
        lens.request("flash_fwd_hopper_kernel", softcap=True)
