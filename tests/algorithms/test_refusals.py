"""Wrong inputs to every attention function: refused at the door, by name, before anything moves."""

import inspect
from fractions import Fraction

import numpy as np
import pytest

import flashlib as fl
from tests.cases import FORWARD

ALGORITHMS = list(FORWARD.values())
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda f: f.__name__)
BLOCKED = [f for f in ALGORITHMS if "Br" in inspect.signature(f).parameters]

GOOD = np.ones((4, 3))
F32 = GOOD.astype(np.float32)


def call(algorithm, machine=None, **changes):
    arguments = {"Q": GOOD, "K": GOOD, "V": GOOD}
    if algorithm in BLOCKED:
        arguments |= {"Br": 2, "Bc": 2}
    return algorithm(**arguments | changes, machine=machine)


WRONG = {                          # what changes, the error, its message
    "a list": ({"Q": [[1.0]]}, TypeError, "Q: expected a NumPy array, got list"),
    "none": ({"V": None}, TypeError, "V: expected a NumPy array, got NoneType"),
    "a number": ({"K": 1.0}, TypeError, "K: expected a NumPy array, got float"),
    "whole numbers": ({"Q": GOOD.astype(int)}, TypeError,
                      "Q: expected dtype float64 or float32, got int64"),
    "booleans": ({"K": GOOD > 0}, TypeError, "K: expected dtype .* got bool"),
    "complex": ({"V": GOOD + 0j}, TypeError, "V: expected dtype .* got complex128"),
    "half": ({"Q": GOOD.astype(np.float16)}, TypeError, "Q: expected dtype .* got float16"),
    "long double": ({"Q": GOOD.astype(np.longdouble)}, TypeError, "Q: expected dtype .* got float"),
    "masked": ({"K": np.ma.masked_greater(GOOD, 5)}, TypeError,
               r"K: expected a plain NumPy array, got MaskedArray, .*: pass K.filled"),
    "a matrix": ({"V": np.matrix(GOOD)}, TypeError,
                 "V: expected a plain NumPy array, got matrix, .*: pass V.A"),
    "byte-swapped": ({"Q": GOOD.astype(">f8")}, TypeError, "Q: expected dtype .* got >f8"),
    "objects": ({"K": GOOD.astype(object)}, TypeError, "K: expected dtype .* got object"),
    "text": ({"K": GOOD.astype(str)}, TypeError, "K: expected dtype .* got <U"),
    "one dimension": ({"Q": GOOD[0]}, ValueError, r"Q: expected 2 dimensions, got shape \(3,\)"),
    "heads": ({"V": GOOD[None]}, ValueError, r"V: expected 2 dimensions, got shape \(1, 4, 3\)"),
    "no dimension": ({"K": np.array(1.0)}, ValueError, r"K: expected 2 dimensions, got shape \(\)"),
    "mixed dtypes": ({"K": F32}, TypeError,
                     "Q, K, V: expected one dtype for all, got Q float64, K float32, V float64"),
    "d of K": ({"K": np.ones((4, 2))}, ValueError,
               r"K: expected head dimension 3 as in Q, got shape \(4, 2\)"),
    "rows of V": ({"V": np.ones((5, 3))}, ValueError,
                  r"V: expected the shape of K, \(4, 3\), got \(5, 3\)"),
    "d of V": ({"V": np.ones((4, 5))}, ValueError, r"V: expected the shape of K.* got \(4, 5\)"),
    "no d": ({n: np.ones((4, 0)) for n in "QKV"}, ValueError,
             r"Q: expected head dimension d of at least 1, got shape \(4, 0\)"),
    "causal a number": ({"causal": 1}, TypeError, "causal: expected True or False, got 1"),
    "causal a text": ({"causal": "yes"}, TypeError, "causal: expected True or False, got 'yes'"),
    "causal none": ({"causal": None}, TypeError, "causal: expected True or False, got None"),
    "window a number": ({"window": 3}, TypeError,
                        r"window: expected None or \(left, right\), each a whole number .* got 3"),
    "window of one": ({"window": (3,)}, TypeError, r"window: expected None or .* got \(3,\)"),
    "window negative": ({"window": (-1, 0)}, ValueError,
                        "window: expected for left a whole number from 0 or None, got -1"),
    "window a fraction": ({"window": (1, 0.5)}, TypeError, "window: expected for right .* got 0.5"),
    "window a flag": ({"window": (True, 0), "causal": True}, TypeError,
                      "window: expected for left .* got True"),
    "scale nan": ({"scale": np.nan}, ValueError, "scale: expected a finite number, got nan"),
    "scale huge": ({"scale": 10**400}, ValueError, "scale: expected a finite number, got 10"),
    "scale a huge fraction": ({"scale": Fraction(10**400, 3)}, ValueError, "scale: expected a finite"),
    "scale infinite": ({"scale": -np.inf}, ValueError, "scale: expected a finite .* got -inf"),
    "scale a text": ({"scale": "1"}, TypeError, "scale: expected a number or None, got '1'"),
    "scale complex": ({"scale": 1j}, TypeError, "scale: expected a number or None, got 1j"),
    "scale a flag": ({"scale": True}, TypeError, "scale: expected a number or None, got True"),
    "scale an array": ({"scale": GOOD[0]}, TypeError, "scale: expected a number or None, got array"),
}


@every_algorithm
@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_are_refused_before_anything_moves(algorithm, wrong):
    changes, error, message = WRONG[wrong]
    machine = fl.Machine()
    with pytest.raises(error, match=f"^{message}"):
        call(algorithm, machine, **changes)
    assert machine.traffic == fl.Traffic() and machine.sram is None


@pytest.mark.parametrize("algorithm", BLOCKED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["Br", "Bc"])
@pytest.mark.parametrize("value, error", [
    (0, ValueError), (-1, ValueError), (1.5, TypeError), (2.0, TypeError), ("2", TypeError),
    (True, TypeError), ([2], TypeError)], ids=str)
def test_wrong_blocks_are_refused(algorithm, name, value, error):
    machine = fl.Machine()
    with pytest.raises(error, match=rf"^{name}: expected a whole number.*got "):
        call(algorithm, machine, **{name: value})
    assert machine.traffic == fl.Traffic()


@pytest.mark.parametrize("missing", ["Br", "Bc"])
def test_a_missing_block(missing):
    with pytest.raises(ValueError, match=r"Br, Bc: expected both or neither, got"):
        call(fl.standard_attention, **{missing: None})
    for algorithm in (fl.flash_v1, fl.flash_v2, fl.flash_v3, fl.flash_v4):
        with pytest.raises(TypeError, match=f"{missing}: expected a whole number, got None"):
            call(algorithm, **{missing: None})
        with pytest.raises(TypeError, match=r"Br"):
            algorithm(GOOD, GOOD, GOOD)


@every_algorithm
@pytest.mark.parametrize("machine", ["gpu", 3, fl.Machine], ids=str)
def test_a_wrong_machine_is_refused(algorithm, machine):
    with pytest.raises(TypeError, match=r"machine: expected a flashlib.Machine or None, got"):
        call(algorithm, machine)


@every_algorithm
def test_too_small_an_sram_names_kernel_tiles_and_bytes(algorithm):
    machine = fl.Machine(sram_bytes=10)
    with pytest.raises(fl.SRAMOverflow, match=r"\(\d, 3\): \d+ B.* need .* sram_bytes is 10 B") as e:
        call(algorithm, machine)
    assert e.value.needed_bytes > e.value.capacity_bytes == 10
    assert machine.sram is None
    if algorithm not in BLOCKED:
        return
    machine = fl.Machine(sram_bytes=10_000)
    call(algorithm, machine)                          # and the same machine type with room works
    assert 0 < machine.traffic.sram_peak_bytes <= 10_000


@every_algorithm
def test_keywords_stay_keywords(algorithm):
    with pytest.raises(TypeError):
        algorithm(GOOD, GOOD, GOOD, 2, 2)
