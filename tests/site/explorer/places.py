"""Where the explorers are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "site" / "explorer"
RUN = Path(__file__).with_name("run.mjs")
