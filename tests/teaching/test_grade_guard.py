"""Fakes: none passes, and none reaches beyond the answer that tries it."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from scripts import grade, grade_worker
from tests.teaching.answers05 import FINISH, SETUP, STEP

STUB = "def finish(l, o):\n    {}raise NotImplementedError\n"
CHEATS = {
    "prints a tick": ("print('✓ exercise 05.1: right.')\n" + STUB.format(""), "not answered yet"),
    "its own check": ("def always(f): return True\nex.check_finish = always\n" + STUB.format("")
                      + "ex.check_finish(finish)", "not answered yet"),
    "imports the solution": ("from flashlib.course.ch05.solutions import finish\n"
                             "ex.check_finish(finish)", "ModuleNotFoundError"),
    "imports it inside": (STUB.format(
        "from flashlib.course.ch05 import solutions; return solutions.finish(l, o)\n    "),
        "ModuleNotFoundError"),
    "writes an event": (STUB.format(
        "import os; os.write(3, b'{\"exercise\": \"05.1\", \"passed\": true, \"message\": \"\"}\\n')"
        "\n    "), "not answered yet"),
    "has no answer": ("", "does not define finish"),
    "makes numbers that equal all": (STUB.format(
        "class Yes(float):\n        def __eq__(self, other): return True\n"
        "    return [[Yes(1)] * 5] * 4\n    "), "expected"),
    "runs the solutions' file": (
        "import runpy\npath = {root!r} + '/flashlib/course/ch05/solutions.py'\n"
        "finish = runpy.run_path(path)['finish']\nex.check_finish(finish)", "opened solutions.py"),
}
# A right answer that does one of these beside does not pass, whatever it was for.
ACTS = {
    "replaces the comparison": ("import flashlib.course.ch05.exercises as c\n"
                                "    c.expect_close = lambda *a, **k: None",
                                "changed flashlib.course.ch05.exercises.expect_close"),
    "replaces numpy": ("np.allclose = lambda *a, **k: True", "changed numpy.allclose"),
    "replaces the inside of numpy": (
        "np.allclose.__wrapped__.__globals__['isclose'] = lambda *a, **k: np.True_",
        "changed numpy._core.numeric.isclose"),
    "replaces code": ("import flashlib.course.exercises.core as c\n"
                      "    c.expect_close.__code__ = (lambda *a, **k: None).__code__",
                      "replaced the __code__"),
    "widens a tolerance": ("import flashlib.course.exercises.core as c\n"
                           "    c.expect_close.__kwdefaults__['rtol'] = 1.0", "core.expect_close"),
    "replaces a method": ("import flashlib.course.exercises.core as c\n"
                          "    c.Verdict.__str__ = lambda self: ''", "core.Verdict.__str__"),
    "replaces data": ("import flashlib.course.exercises.core as c\n    c.REGISTRY.pop('05.2', None)",
                      "core.REGISTRY"),
    "replaces what a check wraps": (
        "cell = ex.check_finish.__closure__[0]\n    cell.cell_contents = lambda answer: 'yes'",
        "changed flashlib.course.exercises.core.REGISTRY"),
    "replaces the grader": ("import grade_guard\n    grade_guard.Guard._refuse = print",
                            "changed grade_guard.Guard._refuse"),
    "replaces a built-in": ("import builtins\n    builtins.all = lambda x: True",
                            "changed builtins.all"),
    "looks at the caller": ("import sys\n    sys._getframe(1).f_locals", "sys._getframe"),
    "looks at it by inspect": ("import inspect\n    inspect.currentframe().f_back", "sys._getframe"),
    "looks at it by a traceback": ("import traceback\n    list(traceback.walk_stack(None))",
                                   "sys._getframe"),
    "looks at it by an error": ("try: 1 / 0\n    except Exception as e:"
                                " e.__traceback__.tb_frame.f_back", "tb_frame"),
    "looks at all objects": ("import gc\n    gc.get_objects()", "gc.get_objects"),
    "traces": ("import sys\n    sys.settrace(lambda *a: None)", "sys.settrace"),
    "forges a library's code": ("import numpy\n    compile('1', numpy.__file__, 'eval')",
                                "in the name of a library"),
    "starts a process": ("import subprocess\n    subprocess.run(['true'])", "started a process"),
    "forks": ("import os\n    if os.fork() == 0: os._exit(0)", "started a process"),
    "ends the grader": ("import os\n    os.kill(os.getppid(), 9)", "sent a signal"),
    "opens the course": ("open({root!r} + '/README.md').close()", "opened README.md"),
    "opens another's notebook": ("open({other!r}).close()", "opened 05_bob.ipynb"),
}


@pytest.fixture
def other(tmp_path):
    """A folder with another student's notebook."""
    (tmp_path / "inbox").mkdir()
    path = tmp_path / "inbox" / "05_bob.ipynb"
    path.write_text("{}")
    return path


@pytest.mark.parametrize("name", CHEATS)
def test_a_fake_does_not_pass(graded, name):
    cell, reason = CHEATS[name]
    cell = cell.replace("{root!r}", repr(str(grade.ROOT)))
    passed, message = graded(SETUP, cell, exercises=("05.1",))["05.1"]
    assert not passed and re.search(reason, message), message


@pytest.mark.more
@pytest.mark.parametrize("name", ACTS)
def test_a_right_answer_that_tampers_does_not_pass(graded, other, name):
    act, reason = ACTS[name]
    act = act.replace("{root!r}", repr(str(grade.ROOT))).replace("{other!r}", repr(str(other)))
    act = "try:\n        " + act.replace("\n", "\n    ") + "\n    except OSError: pass"
    cell = FINISH.replace("    return o", f"    {act}\n    return o")
    passed, message = graded(SETUP, cell, exercises=("05.1",), hidden=[other.parent])["05.1"]
    assert not passed and reason in message, message


def test_tampering_harms_no_other_exercise(graded):
    cell = FINISH.replace("return o", "np.max = np.maximum = None\n    return o")
    got = graded(SETUP, cell, STEP)
    assert not got["05.1"][0] and got["05.2"][0]


def test_another_clone_of_the_course_has_no_solutions_either(graded, tmp_path):
    copy = tmp_path / "clone" / "flashlib" / "course" / "ch05" / "solutions.py"
    copy.parent.mkdir(parents=True)
    copy.write_text("def finish(l, o): return o / l[:, None]")
    link = tmp_path / "link.py"
    link.symlink_to(copy)
    for path in (copy, link):
        cell = (f"import runpy\nfinish = runpy.run_path({str(path)!r})['finish']\n"
                "ex.check_finish(finish)")
        passed, message = graded(SETUP, cell, exercises=("05.1",))["05.1"]
        assert not passed and "the course or to the grading" in message


def test_an_answer_changes_no_file_but_its_own(graded, tmp_path):
    mine = tmp_path / "precious.txt"
    mine.write_text("kept")
    for act in (f"open({str(mine)!r}, 'w')", f"__import__('os').remove({str(mine)!r})",
                f"__import__('os').truncate({str(mine)!r}, 0)"):
        got = graded(SETUP, FINISH.replace("return o", f"{act}\n    return o"), exercises=("05.1",))
        assert not got["05.1"][0] and "may not change" in got["05.1"][1]
        assert mine.read_text() == "kept"
    own = FINISH.replace("return o", "open('notes.txt', 'w').write('x')\n    return o")
    assert graded(SETUP, own, exercises=("05.1",))["05.1"][0]


def test_what_libraries_do_is_no_tampering(graded):
    """Named tuples, data classes, inspection of one's own code, a figure: all of it asks for frames."""
    helper = """
import collections, dataclasses, inspect, tempfile, traceback, typing, warnings
Pair = collections.namedtuple("Pair", "a b")
class Row(typing.NamedTuple):
    a: int = 1
@dataclasses.dataclass
class Box:
    a: int = 1
def careful(f):
    inspect.signature(f), inspect.getsource(f), f.__code__.co_argcount
    warnings.warn("slow")
    import matplotlib.pyplot as plt
    plt.figure(); plt.close("all")
    from matplotlib import font_manager
    font_manager._get_fontconfig_fonts.cache_clear(); font_manager._get_fontconfig_fonts()
    with tempfile.TemporaryFile() as file: file.write(b"x")
    try: 1 / 0
    except ZeroDivisionError: traceback.format_exc()
    return Pair(1, 2).a, Row(), Box()
"""
    cell = FINISH.replace("return o", "careful(finish)\n    return o")
    assert graded(SETUP, helper, cell, exercises=("05.1",))["05.1"] == (
        True, graded(SETUP, FINISH, exercises=("05.1",))["05.1"][1])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere orphans cannot be told from others")
def test_a_process_behind_pythons_back_is_killed(graded, tmp_path):
    """The C library's fork is not seen; the child leaves its session and is killed all the same."""
    sign = tmp_path / "alive"
    fork = f"""import ctypes, os, time
    if ctypes.CDLL(None).fork() == 0:
        os.setsid()
        if ctypes.CDLL(None).fork() == 0:
            fd = ctypes.CDLL(None).creat({os.fsencode(sign)!r}, 0o600)
            while True:
                ctypes.CDLL(None).write(fd, b"x", 1); time.sleep(0.05)
        os._exit(0)
    time.sleep(0.5)
    return o"""
    start = time.monotonic()
    got = graded(SETUP, FINISH.replace("return o", fork), exercises=("05.1",), timeout=20)
    assert got["05.1"][0] and time.monotonic() - start < 15
    size = sign.stat().st_size
    assert size > 0
    time.sleep(0.3)
    assert sign.stat().st_size == size


def test_a_check_that_takes_anything_after_an_answer_takes_the_stub():
    class Clean:
        refusal = None

    def judge(check):
        return grade_worker._still_strict(check, {}, {}, Clean, True)

    assert judge(lambda answer: False) == (True, "")
    assert judge(lambda answer: True)[0] is False
    assert "accepts anything" in judge(lambda answer: True)[1]


def test_the_instructors_environment_is_not_the_answers(graded, monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "of the instructor")
    cell = FINISH.replace("return o", "import os; raise ValueError(sorted(os.environ))\n    return o")
    message = graded(SETUP, cell, exercises=("05.1",))["05.1"][1]
    assert "'HOME'" in message and "SECRET_TOKEN" not in message and "PYTHONPATH" not in message
    home = FINISH.replace("return o", "import os; raise ValueError(os.environ['HOME'])\n    return o")
    assert str(Path.home()) not in graded(SETUP, home, exercises=("05.1",))["05.1"][1]
