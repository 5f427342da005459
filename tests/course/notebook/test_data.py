"""The running examples and the recorded measurements: shapes, meaning, and honest failures."""

import re

import numpy as np
import pytest

from flashlib import data


def softmax(S):
    P = np.exp(S - S.max(axis=1, keepdims=True))
    return P / P.sum(axis=1, keepdims=True)


def new_maxima(row):
    return [j for j in range(1, len(row)) if row[j] > row[:j].max()]


def weight(sentence, head, row, column):
    """Return how much of its weight the token at `row` gives to the token at `column`."""
    return softmax(sentence.logits(head))[row, column]


def test_toy_is_small_friendly_and_fresh():
    toy = data.toy()
    for X in (toy.Q, toy.K, toy.V):
        assert X.shape == (6, 4)
        assert X.dtype == np.float64
        assert np.array_equal(X, np.round(X)), "integers print best"
        assert np.abs(X).max() <= 2
    assert np.array_equal(toy.logits * 2, np.round(toy.logits * 2))
    toy.Q[0, 0] = 99
    assert data.toy().Q[0, 0] == 0, "a reader's edit must not reach the next reader"


def test_toy_rows_meet_their_maximum_at_different_keys():
    S = data.toy().logits
    assert [new_maxima(row) for row in S] == [[1, 2, 3, 4], [1, 2], [1], [5], [2], []]
    for row in S:
        assert np.count_nonzero(row == row.max()) == 1


def test_sentence_has_the_shape_the_notebooks_use():
    sentence = data.sentence()
    count, N, d = sentence.Q.shape
    assert (count, N, d) == (4, 56, 32)
    assert sentence.K.shape == sentence.V.shape == sentence.Q.shape
    assert {X.dtype for X in (sentence.Q, sentence.K, sentence.V)} == {np.dtype(np.float64)}
    assert len(sentence.tokens) == N
    assert (sentence.tokens[0], sentence.tokens[-1]) == ("[CLS]", "[SEP]")
    assert len(sentence.heads) == len(sentence.places) == count
    assert all(type(name) is str for name in (*sentence.tokens, *sentence.heads, sentence.text))
    assert "Apache-2.0" in sentence.source


def test_sentence_tokens_spell_the_text():
    sentence = data.sentence()
    pieces = " ".join(sentence.tokens[1:-1]).replace(" ##", "")
    assert re.sub(r" ([,.])", r"\1", pieces) == sentence.text.lower()


def test_sentence_heads_do_what_they_are_described_to_do():
    sentence = data.sentence()
    tokens = sentence.tokens
    it, them, desk = tokens.index("it"), tokens.index("them"), tokens.index("desk")
    books, again = (i for i, token in enumerate(tokens) if token == "books")
    assert weight(sentence, 0, it, desk) > 0.5
    assert weight(sentence, 0, them, books) > 0.4
    previous = softmax(sentence.logits(1))
    assert np.diag(previous, -1).min() > 0.9
    assert sentence.logits(1).max() > np.log(65504), "naive softmax overflows float16 here"
    assert weight(sentence, 2, again, books) > 0.7
    broad = softmax(sentence.logits(3))
    assert -(broad * np.log(broad)).sum(axis=1).mean() > 0.95 * np.log(len(tokens))


def test_sentence_logits_are_scaled():
    sentence = data.sentence()
    Q, K, V = sentence.head(1)
    assert Q.shape == K.shape == V.shape == (56, 32)
    np.testing.assert_allclose(sentence.logits(1), Q @ K.T / np.sqrt(32), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, "float16"], ids=str)
def test_sentence_comes_in_the_type_asked_for(dtype):
    sentence = data.sentence(dtype)
    assert sentence.Q.dtype == sentence.logits(0).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [np.int64, bool, "no type", complex], ids=str)
def test_sentence_refuses_other_types(dtype):
    with pytest.raises(TypeError, match=r"dtype: expected a floating type"):
        data.sentence(dtype)


@pytest.mark.parametrize(
    ("h", "error"), [(4, ValueError), (-1, ValueError), (0.0, TypeError), (True, TypeError)]
)
def test_sentence_refuses_a_head_it_does_not_have(h, error):
    sentence = data.sentence()
    for call in (sentence.head, sentence.logits):
        with pytest.raises(error, match=r"h: expected a head number from 0 to 3, got"):
            call(h)


def test_sentence_file_is_small_and_unpickled():
    path = data.asset("data", "sentence_heads.npz")
    assert path.stat().st_size < 300_000
    with np.load(path, allow_pickle=False) as file:
        kinds = {name: file[name].dtype.kind for name in file.files}
    assert {kinds[name] for name in "QKV"} == {"f"}
    assert "O" not in kinds.values()


def test_sentence_script_ends_in_one_sentence_without_the_model(monkeypatch, capsys):
    import importlib.util
    import sys

    path = data.PACKAGE.parent / "assets" / "data" / "make_sentence_heads.py"
    if not path.exists():
        pytest.skip("the script stands in the checkout, not beside an installed package")
    spec = importlib.util.spec_from_file_location("make_sentence_heads", path)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert data.sentence().text == script.TEXT
    assert tuple(head[:2] for head in script.HEADS) == data.sentence().places
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(SystemExit, match=r"This script needs the package 'torch'"):
        script.load_model()


def test_asset_prefers_what_the_wheel_carries(tmp_path, monkeypatch):
    package = tmp_path / "flashlib"
    for folder in (tmp_path / "assets", package / "_assets"):
        folder.mkdir(parents=True)
        (folder / "note.txt").write_text(folder.name)
    monkeypatch.setattr(data, "PACKAGE", package)
    assert data.asset("note.txt").read_text() == "_assets"
    (package / "_assets" / "note.txt").unlink()
    (package / "_assets").rmdir()
    assert data.asset("note.txt").read_text() == "assets"


def test_asset_says_what_is_missing():
    with pytest.raises(FileNotFoundError, match=r"data/nothing\.npz is not in .*install flashlib"):
        data.asset("data", "nothing.npz")


@pytest.mark.parametrize("parts", [(), ("",), (3,)], ids=repr)
def test_asset_refuses_what_is_no_name(parts):
    with pytest.raises(TypeError, match=r"parts: expected names"):
        data.asset(*parts)


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "some.csv"
    path.write_text(
        "# gpu: A card: the second\n# date: 2026-11-21\nimpl,N,seconds\n"
        "flash,512,1e-3\nflash,1024,\nstandard,512,0.5\n"
    )
    return data.read_measurement(path)


def test_measurement_keeps_provenance_apart(recorded):
    assert recorded.provenance == {"gpu": "A card: the second", "date": "2026-11-21"}
    assert recorded.columns == ("impl", "N", "seconds")
    assert recorded.rows[1] == {"impl": "flash", "N": 1024, "seconds": None}


def test_measurement_columns_are_arrays(recorded):
    assert recorded.column("N").tolist() == [512, 1024, 512]
    np.testing.assert_equal(recorded.column("seconds"), [1e-3, np.nan, 0.5])
    assert recorded.column("impl").tolist() == ["flash", "flash", "standard"]


def test_measurement_where_selects_rows(recorded):
    flash = recorded.where(impl="flash", N=512)
    assert flash.column("seconds").tolist() == [1e-3]
    assert flash.provenance == recorded.provenance
    assert recorded.where(impl="nobody").column("N").size == 0


def test_measurement_names_an_unknown_column(recorded):
    with pytest.raises(ValueError, match=r"column: expected one of impl, N, seconds, got 'n'"):
        recorded.column("n")
    with pytest.raises(ValueError, match=r"got 'speed'"):
        recorded.where(speed=1)


def test_measurement_reads_numbers_from_its_provenance(recorded):
    recorded.provenance.update(overhead_us_ours="46.1", overhead_us_flash="36.6", copy="4.3e+12")
    assert recorded.number("copy") == 4.3e12
    assert recorded.numbers("overhead_us_") == {"ours": 46.1, "flash": 36.6}


def test_measurement_says_which_line_holds_no_number(recorded):
    with pytest.raises(ValueError, match=r"key: expected one of gpu, date, got 'overhead_us'"):
        recorded.number("overhead_us")
    with pytest.raises(ValueError, match=r"gpu: expected a number, got 'A card: the second'"):
        recorded.number("gpu")
    with pytest.raises(ValueError, match=r"prefix: expected .* one of gpu, date, got 'o_'"):
        recorded.numbers("o_")


def test_measurement_refuses_a_malformed_head(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text("# no colon here\na\n1\n")
    with pytest.raises(ValueError, match=r"expected '# key: value' at its head"):
        data.read_measurement(path)


def test_measurement_keeps_a_row_that_begins_with_a_number_sign(tmp_path):
    """Provenance ends where the table begins: what follows is a row, whatever it looks like."""
    path = tmp_path / "some.csv"
    path.write_text("# gpu: A card\nname,N\nplain,1\n# odd: name,2\n")
    found = data.read_measurement(path)
    assert found.provenance == {"gpu": "A card"}
    assert found.rows == [{"name": "plain", "N": 1}, {"name": "# odd: name", "N": 2}]


@pytest.mark.parametrize("name", ["", 3, None], ids=repr)
def test_measurements_refuse_what_is_no_name(name):
    with pytest.raises(TypeError, match=r"name: expected the name of a file"):
        data.measurements(name)


def test_recorded_demo_supports_what_notebook_00_says():
    demo = data.measurements("attention_demo_h200")
    assert demo.provenance["gpu"] == "NVIDIA H200"
    assert {"command", "date", "driver", "torch", "triton", "cuda"} <= set(demo.provenance)
    for mode in ("forward", "forward+backward"):
        at = {impl: demo.where(impl=impl, mode=mode, B=4, N_q=4096) for impl in ("standard", "flash")}
        seconds = {impl: rows.column("seconds")[0] for impl, rows in at.items()}
        room = {impl: rows.column("extra_bytes")[0] for impl, rows in at.items()}
        assert seconds["flash"] < seconds["standard"] / 2
        assert room["flash"] < room["standard"] / 10
    backward = demo.where(mode="forward+backward", B=4, N_q=4096)
    more = backward.where(impl="flash").column("matmul_flops")
    assert more > backward.where(impl="standard").column("matmul_flops")


def test_recorded_counters_show_where_the_bytes_went():
    counters = data.measurements("attention_demo_counters_h200")
    moved = {}
    for impl in ("standard", "flash"):
        rows = counters.where(impl=impl, mode="forward", B=4, N_q=4096)
        moved[impl] = sum(
            rows.column(name).sum() for name in ("dram_read_bytes", "dram_write_bytes")
        )
    assert moved["standard"] > 4 * moved["flash"]


@pytest.mark.parametrize(("B", "N"), [(4, 1024), (4, 4096), (64, 1024)])
def test_recorded_l2_reads_are_what_the_loops_of_v2_predict(B, N):
    counters = data.measurements("attention_demo_counters_h200")
    rows = counters.where(impl="flash", mode="forward", B=B, N_q=N)
    H, d, Br, element_bytes = 16, 64, 128, 2
    predicted = B * H * (N * d + 2 * (N // Br) * N * d) * element_bytes
    assert rows.column("l2_to_sm_bytes").sum() == pytest.approx(predicted, rel=2e-3)
