"""Which tensors the Gluon kernel takes, in which configuration: decided on the host, without a GPU."""

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton.experimental.gluon")

from flashlib.kernels import dispatch, launch, launch_hopper  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_kept")


def half(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)


GOOD = half(2, 4, 64, 64)


@pytest.mark.parametrize("capability, words", [
    (None, "got the CPU"), ((8, 0), r"got compute capability 8\.0"), ((10, 0), "got .* 10.0")])
def test_other_devices_are_refused(monkeypatch, capability, words):
    monkeypatch.setattr(launch, "capability_of", lambda device: capability)
    reason = launch_hopper.refusal(GOOD, GOOD, GOOD)
    assert reason.startswith("impl: 'gluon' expected a Hopper GPU (compute capability 9.0), got ")
    with pytest.raises(NotImplementedError, match=rf"^impl: 'gluon' .*{words}.*; use impl='auto'$"):
        launch_hopper.forward(GOOD, GOOD, GOOD, causal=False, scale=1.0)


def with_stride(*stride):
    return half(8192 * 4).as_strided((1, 2, 16, 64), stride)


REFUSED = {                        # the tensors, words of the message
    "float32": (GOOD.float(), "expected float16 or bfloat16, got torch.float32"),
    "float64": (GOOD.double(), "expected float16 or bfloat16, got torch.float64"),
    "narrow D": (half(1, 1, 8, 8), "expected a head dimension D of at least 16, got 8"),
    "D of odd bytes": (half(1, 1, 8, 20), "as the copy engine reads them"),
    "D not contiguous": (half(1, 1, 64, 64).transpose(2, 3), "the last dimension contiguous"),
    "an odd row stride": (with_stride(2048, 1024, 68, 1), "multiples of 8 elements"),
    "an odd head stride": (with_stride(2048, 1028, 64, 1), "multiples of 8 elements"),
    "a stride of 0": (half(1, 1, 16, 64).expand(1, 2, 16, 64), "strides positive multiples"),
    "an odd address": (half(2 * 16 * 64 + 1)[1:].view(1, 2, 16, 64), "addresses of 16 bytes"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_what_the_kernel_cannot_read_is_refused_by_name(hopper, wrong):
    x, words = REFUSED[wrong]
    reason = launch_hopper.refusal(x, x, x)
    assert reason.startswith("impl: 'gluon' expected ") and words in reason
    with pytest.raises(NotImplementedError, match=r"^impl: 'gluon' expected .*; use impl='auto'$"):
        launch_hopper.forward(x, x, x, causal=False, scale=1.0)


@pytest.mark.parametrize("which", range(3))
def test_each_of_the_three_tensors_is_looked_at(hopper, which):
    tensors = [GOOD] * 3
    tensors[which] = half(2, 4, 64, 64).transpose(2, 3)
    assert "as the copy engine reads them" in launch_hopper.refusal(*tensors)


@pytest.mark.parametrize("x", [
    GOOD, GOOD.half(), half(1, 1, 1, 16), half(1, 2, 5, 24), half(2, 16, 4, 64).transpose(1, 2),
    half(1, 2, 16, 128)[..., :64], with_stride(5, 1024, 64, 1),     # an axis of 1 has no stride
], ids=lambda x: f"{x.dtype}-{tuple(x.shape)}-{x.stride()}")
def test_what_it_can_read_is_taken(hopper, x):
    assert launch_hopper.refusal(x, x, x) is None


@pytest.mark.parametrize("D, head_dim", [(16, 32), (17, 32), (32, 32), (33, 64), (64, 64), (72, 128),
                                         (128, 128), (136, 256), (256, 256)])
def test_ragged_keys_and_a_causal_mask_take_the_masked_entry(D, head_dim):
    free, masked = (launch_hopper.CONFIGS[head_dim, cut] for cut in (False, True))
    block = free.BLOCK_N
    few, ragged = {64: (launch_hopper.SHORT_64,) * 2,
                   128: (launch_hopper.SHORT_128, masked)}.get(head_dim, (masked, masked))
    fewer = few if head_dim == 128 else free
    for causal, N_K, entry in (
            (False, 1024, fewer), (False, 2048, free), (False, 2049, ragged), (False, 65_537, ragged),
            (False, block - 1, few), (True, 7, few), (True, 2048, few), (True, 2048 + block, masked),
            (True, 65_537, ragged)):
        assert launch_hopper.config_for(D, causal, N_K) is entry
    for entry in (masked, ragged):                          # or ragged would not mean the same to both
        assert block == entry.BLOCK_N


def test_few_rows_take_lower_tiles_whatever_the_keys(hopper, monkeypatch):
    table, few = launch_hopper.CONFIGS[128, False], launch_hopper.SHORT_128
    asked = []
    monkeypatch.setattr(launch_hopper, "_specialized", lambda *a: asked.append(a[6]))
    for N_Q, causal, entry in ((1, False, few), (1024, False, few), (1025, False, table),
                               (2048, True, few), (2049, True, launch_hopper.CONFIGS[128, True])):
        assert launch_hopper.config_for(128, causal, 4096, N_Q) is entry
        q, k = half(1, 1, N_Q, 128), half(1, 1, 4096, 128)
        launch_hopper._plan_forward(q, k, k, causal, None)
        assert asked.pop() is entry
    assert launch_hopper.config_for(64, False, 4096, 1) is launch_hopper.CONFIGS[64, False]


def test_the_tables_hold_every_head_dimension_and_what_the_kernel_can_be():
    assert set(launch_hopper.CONFIGS) == set(itertools.product((32, 64, 128, 256), (False, True)))
    assert set(launch_hopper.FP8_CONFIGS) == set(itertools.product((64, 128, 256), (False, True)))
    for config in (*launch_hopper.CONFIGS.values(), *launch_hopper.FP8_CONFIGS.values(),
                   launch_hopper.SHORT_64, launch_hopper.SHORT_128):
        assert config.BLOCK_M == 64 * config.CONSUMERS and config.SPECIALIZED
        for head_dim in (32, 64, 128, 256):
            registers, cap = launch_hopper.registers_of(config, head_dim)
            assert registers % 8 == cap % 8 == 0
            assert config.CONSUMERS * registers + 24 <= 512 >= (config.CONSUMERS + 1) * cap
    for config in launch_hopper.FP8_CONFIGS.values():       # a key tile has one scale
        assert 128 % config.BLOCK_N == 0 and config.TAU == 0
    # 2**τ times the largest weight is far from float16's end, and float32 sums no more than N of them
    assert {config.TAU for config in launch_hopper.CONFIGS.values()} <= {0.0, 8.0}


def test_auto_takes_the_kernel_where_it_was_faster(hopper):
    assert launch_hopper.is_faster(half(1, 1, 8, 24)) and launch_hopper.is_faster(half(1, 1, 8, 128))
    assert not launch_hopper.is_faster(half(1, 1, 8, 16))


@pytest.mark.parametrize("persistent, causal", itertools.product((True, False), repeat=2))
def test_the_table_of_tiles_gives_each_to_one_program(hopper, persistent, causal):
    q, k = half(2, 4, 300, 64), half(2, 2, 200, 64)
    config = launch_hopper.config_for(64, causal, 200)._replace(PERSISTENT=persistent)
    table = launch_hopper._order(q, k, config, causal)
    tiles = -(-300 // config.BLOCK_M) * 8
    assert table.dtype == torch.int32 and table.is_contiguous()
    assert table.shape[0] == (4 if persistent else tiles) and table.shape[2] == 4
    found = []
    for (count, *_), *hand in table.tolist():
        # the kernel reads one entry behind its last tile's, which must be a tile that exists
        assert 1 <= count < len(hand) and not any(map(any, hand[count:]))
        found += hand[:count]
    rows = range(0, 300, config.BLOCK_M)
    assert len(found) == tiles
    assert sorted(found) == [[b, h, row, 0] for b in range(2) for h in range(4) for row in rows]


def test_many_tiles_are_handed_out_in_turn(hopper, monkeypatch):
    monkeypatch.setattr(launch_hopper, "MANY_TILES", 10)
    config = launch_hopper.CONFIGS[64, False]
    table = launch_hopper._order(half(2, 4, 300, 64), half(2, 2, 256, 64), config, False)
    hands = [hand[:count] for (count, *_), *hand in table.tolist()]
    assert sorted(itertools.chain(*hands)) == [[b, h, row, 0] for b in range(2) for h in range(4)
                                               for row in (0, 192)]
    assert {len(hand) for hand in hands} == {4}


def test_the_scale_zero_becomes_a_factor_that_is_seen_by_nobody(hopper, monkeypatch):
    seen = []

    def plan(*arguments):
        return lambda *leading: seen.append(leading[-1])

    monkeypatch.setattr(dispatch, "plan_for", plan)
    for scale in (0.0, 0.5):
        launch_hopper.forward(GOOD, GOOD, GOOD, causal=False, scale=scale)
    assert 0 < seen[0] < 1e-29 and seen[1] == pytest.approx(0.5 * launch_hopper.LOG2E)


def test_fp8_takes_its_own_table(hopper, monkeypatch):
    configs = []
    monkeypatch.setattr(launch_hopper, "_specialized", lambda *a: configs.append(a[6:]))
    for (head_dim, causal), config in launch_hopper.FP8_CONFIGS.items():
        x = half(1, 1, 128, head_dim)
        launch_hopper._plan_fp8(x, x, x, None, None, None, 128, causal, torch.bfloat16, None)
        assert configs.pop() == (config, True)
