"""Where Triton keeps what it compiled, and what to do where it cannot."""

import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

REMEDY = "set TRITON_CACHE_DIR to a folder that can be written"
_temporary: dict[str, tempfile.TemporaryDirectory] = {}      # this session's, kept until it ends


def root(env: Mapping[str, str]) -> Path:
    """Return Triton's cache, as Triton finds it in these environment variables."""
    if env.get("TRITON_CACHE_DIR"):
        return Path(env["TRITON_CACHE_DIR"])
    home = env.get("TRITON_HOME") or os.path.expanduser("~")
    if home == "~":                                   # a user without a home
        home = tempfile.gettempdir()
    return Path(home) / ".triton" / "cache"


def problem(env: Mapping[str, str]) -> str | None:
    """Say why nothing can be kept in Triton's cache, None if it can; nothing is made for it."""
    there = root(env).absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        return f"{there} is no folder"
    return None if os.access(there, os.W_OK | os.X_OK) else f"{there} cannot be written"


def usable(folder: Path) -> Path:
    """Make a folder of the cache; where that fails, return a temporary one and warn about it once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if "folder" not in _temporary:
            _temporary["folder"] = tempfile.TemporaryDirectory(prefix="flashlib-lens-",
                                                               ignore_cleanup_errors=True)
            warnings.warn(f"{folder} cannot be written ({error.strerror}), so that kernels are compiled"
                          f" anew in each session: {REMEDY}.", stacklevel=2)
        return Path(_temporary["folder"].name)
