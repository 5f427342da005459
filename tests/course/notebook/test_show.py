"""What a notebook prints: aligned tables, sources without docstrings, kernels, compiler output."""

import pytest

from flashlib.course.notebook import show


def test_table_aligns(capsys):
    show.table([{"name": "a", "bytes": 1234567, "ratio": 0.5}, {"name": "long", "bytes": 1,
                                                               "ratio": 1.0}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "name      bytes  ratio"
    assert lines[2] == "a     1,234,567    0.5"


def test_table_shows_what_is_missing(capsys):
    show.table([{"tile": "128 × 64", "TFLOP/s": None, "status": "shared memory"},
                {"tile": "64 × 64", "TFLOP/s": 512.5, "status": "ok"}])
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == ["128 × 64        –  shared memory", "64 × 64     512.5  ok"]


def test_source_drops_docstrings(capsys):
    from flashlib.algorithms.flash_v2 import flash_v2

    show.source(flash_v2)
    text = capsys.readouterr().out
    assert text.startswith("def flash_v2(") and "Algorithm 1" not in text and "Oi[...]" in text


@pytest.mark.parametrize(("module", "name"), [
    ("triton/forward", "_attend"), ("triton/forward", "flash_fwd_kernel"),
    ("triton/backward", "_fold_keys"), ("attention", "flash_attention")])
def test_kernel_prints_source_without_docstring(module, name, capsys):
    show.kernel(module, name)
    text = capsys.readouterr().out
    assert name in text
    assert '"""' not in text


def test_kernel_splits_signature_and_body(capsys):
    show.kernel("triton/forward", "_attend", "signature")
    assert capsys.readouterr().out.rstrip().endswith("):")
    show.kernel("triton/forward", "_attend", "body")
    assert "def " not in capsys.readouterr().out
    with pytest.raises(ValueError, match="expected a function"):
        show.kernel("triton/forward", "nothing")


def test_a_branch_that_is_known_is_left_out_or_stands_without_its_if():
    def shown(**where):
        return show.kernel_text("triton/forward", "_attend", "body", where).splitlines()

    whole = shown(nothing=1)
    assert whole == show.kernel_text("triton/forward", "_attend", "body").splitlines()
    late, masked = shown(EARLY_V=False), shown(EARLY_V=False, MASKED=True)
    assert sum("v = load_rows" in line for line in late) == 1 < sum("v = load_rows" in n for n in whole)
    assert "    v = load_rows(values, start, N_K, D, o.BLOCK_N, o.HEAD_DIM, WHOLE, o.USE_TMA)" in late
    assert "    p = tl.where(seen, p, 0.0)" in masked and not any("if " in line for line in masked)
    assert not any("seen" in line for line in shown(MASKED=False))
    assert not any("EARLY_V" in line for line in late)


def test_what_is_known_of_a_part_settles_an_or():
    def has_call(**where):
        text = show.kernel_text("triton/forward", "flash_fwd_kernel", "body", where)
        return "if IS_CAUSAL or RAGGED" in text

    assert has_call(window=None, IS_CAUSAL=False) and not has_call(IS_CAUSAL=True)
    assert not has_call(window=None, IS_CAUSAL=False, RAGGED=False)


def test_ir_lines_leave_out_where_a_line_comes_from():
    text = '#loc = loc("a.py":1:0)\n  %x = tt.load %y : t loc(#loc3)\n  tt.return loc(#x)'
    assert show.ir_lines(text, "tt") == ["  %x = tt.load %y : t", "  tt.return"]
