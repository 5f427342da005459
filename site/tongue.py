"""The languages of i18n/, for the modules of this folder."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "i18n"))

import catalogue  # noqa: E402
from language import CHINESE, ENGLISH, LANGUAGES, Language  # noqa: E402

import notebooks  # noqa: E402

__all__ = ["CHINESE", "ENGLISH", "LANGUAGES", "Language", "catalogue", "notebooks"]
