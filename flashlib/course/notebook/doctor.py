"""What this machine can run, chapter by chapter, with a remedy for what it cannot."""

import importlib.metadata
import os
import platform
from dataclasses import dataclass

from flashlib.course.notebook.chapters import CHAPTERS, Chapter
from flashlib.lens import cache

REMEDIES = {
    "numpy": "run `make lab`, or pip install numpy",
    "matplotlib": "run `make lab`, or pip install matplotlib: without it there are no figures",
    "ipywidgets": "run `make lab`, or pip install ipywidgets: the figures stay, the sliders need it",
    "ml_dtypes": "run `make lab`, or pip install ml_dtypes: it knows the eight-bit formats",
    "torch": "run `make lab`, or pip install the version that requirements.txt pins",
    "triton": "on Linux run `make lab`; macOS and Windows have no Triton: read those chapters with"
              " the outputs they carry",
    "gpu": "not needed: recorded figures are shown instead. A free T4 in the cloud is enough to"
           " run kernels",
    "cache": f"{cache.REMEDY}; until then kernels are compiled anew in each session, and a GPU's do not"
             " start",
}


@dataclass(frozen=True)
class Report:
    """The answer of `doctor()`; print it, or let a notebook show it as a table."""

    machine: dict[str, str]
    missing: dict[str, str]
    chapters: list[dict[str, str]]

    @property
    def ok(self) -> bool:
        """True if every chapter that exists runs here."""
        return all(row["runs here"].startswith("yes") for row in self.chapters)

    def __str__(self) -> str:
        lines = ["This machine", *(f"  {name:<12}{value}" for name, value in self.machine.items())]
        said = {row["chapter"]: row["runs here"] for row in self.chapters}
        if set(said.values()) == {"yes"}:
            said = {f"all {len(said)}": "yes"}
        lines += ["", "Chapters", *(f"  {chapter:<36}{runs}" for chapter, runs in said.items())]
        if self.missing:
            lines += ["", "Remedies"]
            lines += [f"  {name:<12}{remedy}" for name, remedy in self.missing.items()]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def doctor() -> Report:
    """Return what this machine can run: OS, Python, packages, GPU, and each chapter with a remedy.

    It only looks: it changes nothing, and never raises because something is missing. A notebook shows
    the answer; a script prints it, `print(doctor())`, and so does `python -m flashlib`. Taught in
    notebook 00.
    """
    machine = {"system": f"{platform.system()} {platform.machine()}",
               "Python": platform.python_version(), "CPU cores": str(os.cpu_count())}
    missing = {}
    for package in ("numpy", "matplotlib", "ipywidgets", "ml_dtypes", "torch", "triton"):
        try:
            machine[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            machine[package] = "not installed"
            missing[package] = REMEDIES[package]
    machine["GPU"], gpu_found = _gpu(machine["torch"] != "not installed")
    if not gpu_found:
        missing["gpu"] = REMEDIES["gpu"]
    if "triton" not in missing and (why := cache.problem(os.environ)):
        machine["cache"] = f"none: {why}"
        missing["cache"] = REMEDIES["cache"]
    if gpu_found and "triton" not in missing:
        machine["launches"] = _launches()
    ready = [chapter for chapter in CHAPTERS if chapter.ready]
    return Report(machine, missing, [_row(chapter, missing) for chapter in ready])


def _gpu(torch_installed: bool) -> tuple[str, bool]:
    if not torch_installed:
        return "unknown: torch, which would find it, is not installed", False
    try:
        import torch
    except (ImportError, OSError) as error:
        return f"unknown: torch is installed and does not start ({error})", False
    if not torch.cuda.is_available():
        return "none", False
    properties = torch.cuda.get_device_properties(0)
    return (f"{properties.name}, sm_{properties.major}{properties.minor},"
            f" {properties.total_memory / 1e9:.0f} GB"), True


def _launches() -> str:
    """Say whether kernels are launched without Triton's own work, or why not."""
    try:
        from flashlib.kernels.plans import why_slow
    except ImportError as error:
        return f"unknown: Triton is installed and does not import ({error})"
    reason = why_slow()
    return f"Triton's own way, slower by tens of microseconds: {reason}" if reason else "the short way"


def _row(chapter: Chapter, missing: dict[str, str]) -> dict[str, str]:
    lacking = [need for need in chapter.needs if need in missing]
    if lacking:
        verdict = f"not yet: {', '.join(lacking)} missing, see the remedy"
    elif "matplotlib" in missing:
        verdict = "yes, without figures"
    elif "ipywidgets" in missing:
        verdict = "yes, without sliders"
    else:
        verdict = "yes"
    return {"chapter": f"{chapter.number} {chapter.title}", "runs here": verdict}
