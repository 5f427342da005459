"""The comparison knows the recorded shapes as the library launches them."""

from dataclasses import replace

import pytest

import flashlib as fl
from flashlib.course.ch12b import compare


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", list(compare.HEADS))
def test_heads_are_put_side_by_side_as_the_launch_does(d, causal):
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton.experimental.gluon")
    from flashlib.kernels.backends.gluon import BACKEND
    from flashlib.kernels.problem import CAUSAL, FULL, Problem

    heads, beside, rising = compare.HEADS[d]
    q = torch.empty((4, heads // 4, 4096, d), dtype=torch.bfloat16)
    p = Problem.of(q, q, q, q, q, window=CAUSAL if causal else FULL)
    p = replace(p, device=p.device._replace(capability=(9, 0), sms=132))
    sizes = BACKEND.plan(p, "backward", BACKEND.table(p, "backward"))["fused"].sizes(p)
    assert (sizes["TOGETHER"], sizes["IN_WAVES"]) == (beside, rising if causal else 0)


def test_every_case_is_recorded_and_stands_beside_a_simulation():
    launches = fl.data.measurements("backward_order_kernels_h200")
    lines = compare.lines(launches, (0, 1.2e-6))
    assert len(lines) == 12 and len({line["name"] for line in lines}) == 12
    for line in lines:
        without, late = line["predicted"]
        assert late == pytest.approx(line["measured"], abs=0.045) and late < without, line
        assert without == pytest.approx(line["measured"], rel=0.026), line      # no worse than with one
    assert [line["predicted"][0] for line in lines[:6]] == pytest.approx([1] * 6)
