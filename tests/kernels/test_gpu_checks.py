"""The GPU checks themselves, at small sizes on the CPU: they pass what is right and see what is not."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from flashlib.kernels import configs, flash_attention, flash_attention_varlen, flash_decode  # noqa: E402
from flashlib.kernels.backends import triton  # noqa: E402
from tests.kernels import (  # noqa: E402
    gpu_checks,
    gpu_checks_decode,
    gpu_checks_fused,
    gpu_checks_gluon,
    gpu_checks_varlen,
)
from tests.kernels.budget import Grid  # noqa: E402
from tests.kernels.gpu_checks import Where  # noqa: E402
from tests.kernels.run_gpu import Outcome, run_all, run_task, statistics, tasks  # noqa: E402

SMALL = {
    "run_configuration": (torch.bfloat16, 64, True, 200, 3, 4),
    "check_many_heads": (64,),
    "check_large_offsets_into_inputs": (2 ** 17,),
    "check_large_tensors": (6, 150, 16),
    "check_a_long_sequence": (2048, 16),
    "check_fused_accuracy": (12, 150),
}
here = Where("reference", "cpu")


def check(name):
    """Return a check, or what a check calls, by its name."""
    return getattr(gpu_checks, name, None) or getattr(gpu_checks_fused, name)


@pytest.mark.parametrize("name", SMALL)
def test_it_passes_the_reference_backend(name):
    assert isinstance(check(name)(here, *SMALL[name]), str)


class Wrong(Where):
    """Attention that forgets one key in one head, far behind."""

    def __call__(self, q, k, v, **options):
        v = v.clone()
        v[-1, -1, k.shape[2] // 2] += 20
        return flash_attention(q, k, v, impl=self.impl, **options)


@pytest.mark.parametrize("name", SMALL)
def test_it_sees_one_wrong_value(name):
    with pytest.raises(AssertionError):
        check(name)(Wrong("reference", "cpu"), *SMALL[name])


class Fickle(Where):
    """Attention whose gradient of the queries is another one each time."""

    def __call__(self, q, k, v, **options):
        q = q * 1
        q.register_hook(lambda gradient: gradient + torch.rand(()).to(gradient.dtype))
        return flash_attention(q, k, v, impl=self.impl, **options)


def test_bits_that_change_are_seen():
    assert isinstance(gpu_checks_fused.check_fused_bits(here, 70, 2), str)
    with pytest.raises(AssertionError, match="other bits from run to run"):
        gpu_checks_fused.check_fused_bits(Fickle("reference", "cpu"), 70, 2)


@pytest.mark.parametrize("mask", gpu_checks_varlen.MASKS)
def test_packed_sequences_pass_the_reference_backend(mask):
    said = gpu_checks_varlen.run_varlen(here, torch.bfloat16, 16, mask, times=1)
    assert said.startswith("worst 0.")


def test_packed_sequences_that_meet_are_seen(monkeypatch):
    def one(q, k, v, cu_q, cu_k=None, **options):
        cu_k = None if cu_k is None else cu_k[[0, -1]]
        return flash_attention_varlen(q, k, v, cu_q[[0, -1]], cu_k, **options)

    monkeypatch.setattr(gpu_checks_varlen.answer, "__defaults__", (one,))
    with pytest.raises(AssertionError):
        gpu_checks_varlen.run_varlen(here, torch.bfloat16, 16, "causal", times=1)


DECODED = ("decode values", "decode company", "decode poison")
TINY = (2, 4, 2, 2, 70, 16)                                 # B, H, H_k, N_q, room, D


@pytest.mark.parametrize("name", DECODED)
def test_decoding_passes_the_reference(name):
    assert isinstance(gpu_checks_decode.run_decode(here, name, TINY), str)
    assert gpu_checks_decode.check_decode_packed(here, (TINY,)) == ""


def test_each_check_of_decoding_sees_its_bug(monkeypatch):
    def everything(q, k, v, *, lengths=None, **options):
        return flash_decode(q, k, v, **options)

    def in_company(q, *others, **options):
        return flash_decode(q * (1 + q.shape[0]), *others, **options)

    def on_pages(q, *others, table=None, **options):
        return flash_decode(q if table is None else q * 2, *others, table=table, **options)

    calls = itertools.count()

    def fickle(q, *others, **options):
        return flash_decode(q * (1 + (next(calls) > 20)), *others, **options)

    for wrong, names, said in (
            (everything, ("decode values", "decode poison"), "O |NaN behind"),
            (in_company, ("decode company",), "alone it differs"),
            (fickle, ("decode company",), "run to run"),
            (on_pages, ("decode values", "decode poison"), "pages of 16|a page behind")):
        monkeypatch.setattr(gpu_checks_decode, "flash_decode", wrong)
        for name in names:
            with pytest.raises(AssertionError, match=said):
                gpu_checks_decode.run_decode(here, name, TINY)
    with pytest.raises(AssertionError, match="pages of 16"):
        gpu_checks_decode.check_decode_packed(here, (TINY,))


def test_the_runner_reports_a_failure_and_a_crash():
    ok = run_task(("x", ("promise", ("empty", torch.float32)), here))
    assert ok.failures == [] and ok.cases == 1
    crash = run_task(("x", ("promise", ("empty", torch.float32)), Where("cuda", "cpu")))
    assert "expected one of" in crash.failures[0]


def test_the_runner_counts_what_it_ran():
    seen = []
    outcomes = run_all(here, processes=1, only="promise empty", each=seen.append)
    assert outcomes == seen and not [o for o in seen if o.failures]
    assert {o.task for o in seen} == {f"promise empty {d}" for d in ("float32", "float16", "bfloat16")}
    assert sum(name.startswith("configuration") for name in tasks()) == 40


def test_the_grid_is_judged_by_dtype():
    y = torch.randn(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grids = {"O": Grid()}
    grids["O"].add(y * (1 + 1e-3), y, y * (1 + 5e-4))
    made = list(statistics([Outcome("accuracy float16-D8", 1, [], grids=grids)]))
    assert [o.task for o in made] == ["grid float16"] and "RMSE 2.0" in made[0].failures[0]


def test_the_watchdog_kills_and_names_what_does_not_end():
    seen = []
    outcomes = run_all(here, processes=1, only="promise empty", each=seen.append, watchdog_s=0.001)
    assert outcomes == seen and {o.task for o in seen} >= {"promise empty float32"}
    assert all("killed by the watchdog" in o.failures[0] for o in seen)


def test_the_check_of_fp8_sees_a_wrong_kernel():
    def unmasked(q, k, v, *, causal, return_lse):
        return flash_attention(q, k, v, return_lse=return_lse)

    few = ((33, 29), (40, 64))
    assert gpu_checks_gluon.check_fp8(here, flash_attention, few).startswith("worst relative error 0.0")
    with pytest.raises(AssertionError):
        gpu_checks_gluon.check_fp8(here, unmasked, few)
    assert gpu_checks_gluon.check_fp8(here) == "left out: needs a Hopper GPU"


def test_there_are_candidates_to_leave_out():
    """The check of tuning patches their lists by name, and runs on a GPU only."""
    with gpu_checks_gluon.few_candidates():
        assert not any(configs.GLUON_TILES.values()) and triton.WARPS == (4,)
    assert all(configs.GLUON_TILES.values()) and len(triton.WARPS) > 1
