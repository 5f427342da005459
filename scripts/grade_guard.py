"""What a submission may not do while it is graded, and whether the course is still what it was.

Python tells an audit hook of every file opened, process started and frame looked at, before it
happens. `Guard` refuses what serves a fake and no answer, and keeps the first refusal: an answer that
tried does not pass. `fingerprint` is what a check rests on, to be compared before and after.

This stops what can be written in a few lines of Python. It is no jail: code that calls the operating
system by other ways than Python's own (ctypes, a compiled extension) is not seen.
"""

import fnmatch
import os
import re
import sys
import sysconfig
import threading
import types
from pathlib import Path

_PROCESSES = {"os.fork", "os.forkpty", "os.system", "os.exec", "os.posix_spawn", "os.spawn",
              "os.startfile", "pty.spawn", "subprocess.Popen"}
_SIGNALS = {"os.kill", "os.killpg"}
_CHANGES = {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate",
            "os.chmod", "os.chown", "os.utime"}
_FRAMES = {"sys._getframe", "sys._current_frames", "sys._current_exceptions", "sys.settrace",
           "sys.setprofile", "sys.monitoring.register_callback", "sys.addaudithook", "gc.get_objects",
           "gc.get_referrers", "gc.get_referents"}
_FRAMES_OF = {"tb_frame", "gi_frame", "cr_frame", "ag_frame"}
_BODIES = {"__code__", "__defaults__", "__kwdefaults__"}
# Modules of the standard library that hand a frame on to whoever calls them, and one that does so only
# in what is called from outside: it formats errors as well.
_GO_BETWEENS = re.compile(r"[/\\](inspect|threading|bdb|pdb|trace)\.py$")
_STDLIB = re.compile(rf"({re.escape(sysconfig.get_path('stdlib'))}|<frozen )(?!.*(site|dist)-packages)")
_TRACEBACK = f"{os.sep}traceback.py"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Refused(PermissionError):
    """Raised in the submission's code by what it may not do."""


class Guard:
    """An audit hook; `refusal` says what it refused first, None if nothing.

    Args:
        hidden: folders and files that cannot be opened: the course with its solutions, what was
            handed in. Inside of them, what is `shown` can be.
        withheld: patterns such as flashlib/course/chNN/solutions.py, hidden wherever they lie.
        home: the only folder in which anything can be written, but for devices.
    """

    def __init__(self, *, hidden, withheld, shown, home):
        stdlib = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        ours = [*shown, *stdlib, sys.prefix]
        self.rules = ([(_resolved(path), False) for path in hidden]
                      + [(_resolved(path), True) for path in (*ours, home)])
        self.withheld = re.compile("|".join(fnmatch.translate(f"*/{part}{rest}") for part in withheld
                                            for rest in ("", "/*")))
        self.home = _resolved(home)
        self.trusted = ("<frozen ", "<__array_", *{
            str(path) + os.sep for folder in ours for path in (folder, _resolved(folder))})
        self.refusal = None
        self._asking = threading.local()              # asking for a frame is such an event, too

    def start(self):
        """Look at everything from now on; there is no way back."""
        sys.addaudithook(self._look)

    def _look(self, event, arguments):
        if event == "open":
            self._opened(*arguments)
        elif event in _CHANGES:
            for path in arguments:
                if isinstance(path, str | bytes | os.PathLike):
                    self._written(path)
        elif event in _PROCESSES:
            if self._is_trusted(go_between=_STDLIB):      # as matplotlib does to look for fonts
                raise Refused("no process is started while an answer is graded")
            self._refuse("started a process")
        elif event in _SIGNALS and arguments[0] != os.getpid():
            self._refuse("sent a signal to another process")
        elif event in _FRAMES:
            if not self._is_trusted(go_between=_GO_BETWEENS):
                self._refuse(f"looked at what it is not given ({event})")
        elif event == "object.__getattr__":
            if arguments[1] in _FRAMES_OF and not self._is_trusted(go_between=_GO_BETWEENS):
                self._refuse(f"looked at what it is not given ({arguments[1]})")
        elif event in ("object.__setattr__", "object.__delattr__"):
            if arguments[1] in _BODIES and not self._is_trusted():
                self._refuse(f"replaced the {arguments[1]} of a function")
        elif (event in ("compile", "code.__new__") and str(arguments[1]).startswith(self.trusted)
              and not self._is_trusted()):
            self._refuse("made code in the name of a library")

    def _opened(self, path, mode, flags):
        if isinstance(path, int) or path is None:
            return
        there = _resolved(path)
        _, shown = max(((len(str(folder)), shown) for folder, shown in self.rules
                        if there.is_relative_to(folder)), default=(0, True))
        if not shown or self.withheld.match(there.as_posix()):
            self._refuse(f"opened {there.name}, which belongs to the course or to the grading")
        if (flags or 0) & _WRITING or set(mode or "") & set("wax+"):
            self._written(path)

    def _written(self, path):
        there = _resolved(path)
        if not (there.is_relative_to(self.home) or there.is_relative_to("/dev")):
            raise Refused(f"an answer may not change {there}")

    def _refuse(self, what):
        self.refusal = self.refusal or what
        raise Refused(f"an answer may not do this while it is graded: it {what}")

    def _is_trusted(self, go_between=None):
        """Tell whether the code that caused an event is a library's and not the submission's.

        `go_between` matches the files that act for their caller.
        """
        if getattr(self._asking, "now", False):
            return True
        self._asking.now = True
        frame = sys._getframe(2)
        self._asking.now = False
        if go_between is _GO_BETWEENS and frame.f_code.co_filename.endswith(_TRACEBACK):
            frame = frame.f_back
        while go_between and frame is not None and go_between.search(frame.f_code.co_filename):
            frame = frame.f_back
        return frame is None or frame.f_code.co_filename.startswith(self.trusted)


def _resolved(path):
    return Path(os.path.realpath(os.fsdecode(path)))


# What the checks and the machinery around them call, by the first part of a module's name. Not more
# of the standard library: torch, when it is imported, replaces functions of `inspect`.
_WATCHED = {"__main__", "submission", "grade_guard", "flashlib", "numpy", "builtins", "math",
            "itertools"}


def fingerprint():
    """Return {place: what stands there} of the code and the data that a pass rests on.

    Of flashlib that is everything, of Python and NumPy their functions and classes. Two of them differ
    where an object or a function's code was replaced, or a list, dictionary or array was changed. What
    a module outside of the exercises keeps under a private name is a cache, which may fill.
    """
    found = {}
    for name, module in list(sys.modules.items()):
        top = name.split(".")[0]
        if module is None or top not in _WATCHED:
            continue
        ours = top in ("flashlib", "grade_guard", "submission", "__main__")
        for key, value in list(vars(module).items()):
            if key.startswith("__") or not (ours or callable(value)):
                continue
            cache = key.startswith("_") and (name.endswith(".progress_file") or "exercises" not in name)
            found[f"{name}.{key}"] = _state(value, 0 if cache and not callable(value) else 5)
            if isinstance(value, type) and value.__module__.startswith(("flashlib", "grade_guard")):
                found.update({f"{name}.{key}.{k}": _state(v, 5) for k, v in vars(value).items()
                              if not k.startswith("__") or callable(v)})
    return found


class _Same:
    """An object that equals itself and nothing else, whatever its own `==` says."""

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return type(other) is _Same and other.value is self.value


def _state(value, depth):
    """Return what can be compared later: the object, and what can change inside of it."""
    if type(value) in (bool, int, float, str, bytes, type(None)):
        return value if value == value else "nan"
    if not depth or isinstance(value, types.ModuleType):      # `fingerprint` looks at each by itself
        return _Same(value)
    inside = ()
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell != types.CellType()]
        inside = (_Same(value.__code__), _state(value.__defaults__, depth - 1),
                  _state(value.__kwdefaults__, depth - 1), _inside(cells, depth - 1))
    elif isinstance(value, dict):
        inside = _inside(value.items(), depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        inside = _inside(value, depth - 1)
    elif type(value).__name__ == "ndarray":
        inside = (value.dtype.str, value.shape, value.tobytes())
    elif type(value).__module__.startswith("flashlib.") and hasattr(value, "__dict__"):
        inside = _inside(vars(value).items(), depth - 1)
    return _Same(value), inside


def _inside(parts, depth):
    """Return the states of parts; a pair (key, value), which is new each time, counts as its parts."""
    return tuple(_inside(part, depth) if type(part) is tuple and depth else _state(part, depth)
                 for part in parts)
