"""The notebook's face of the explorers, as far as it needs no browser."""

import sys

import pytest

from flashlib.course.widgets import explorer
from tests.site.explorer.places import ROOT

pytestmark = pytest.mark.site


@pytest.fixture(autouse=True)
def fresh():
    explorer._widget.cache_clear()
    yield
    explorer._widget.cache_clear()


def test_without_anywidget_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "\.\[explorer\]"'):
        explorer.explorer("walk")


def test_the_extra_exists():
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    offered = project["optional-dependencies"]
    assert any(line.startswith("anywidget") for line in offered["explorer"])
    assert not any("anywidget" in line or "explorer" in line for line in offered["all"])


def test_an_unknown_explorer_is_refused_by_name():
    with pytest.raises(ValueError, match="kind: expected one of blocks, walk, softmax, got 'gantt'"):
        explorer.explorer("gantt")


def test_the_script_is_found_in_a_checkout_and_in_a_wheel(monkeypatch, tmp_path):
    assert explorer.bundle() == ROOT / "site" / "static" / "explorer.js"
    package = tmp_path / "flashlib"
    (package / "_assets" / "explorer").mkdir(parents=True)
    monkeypatch.setattr(explorer, "PACKAGE", package)
    with pytest.raises(FileNotFoundError, match="make explorer"):
        explorer.bundle()
    (package / "_assets" / "explorer" / "explorer.js").write_text("")
    assert explorer.bundle() == package / "_assets" / "explorer" / "explorer.js"


def test_the_widget_carries_the_bundle_as_a_module():
    pytest.importorskip("anywidget", reason="anywidget is not installed")
    widget = explorer.explorer("walk", run="v1")
    assert widget.kind == "walk" and widget.state == {"run": "v1"}
    assert widget._esm.startswith("/* built by")
    assert widget._esm.rstrip().endswith("export default { render: flashExplorer.render };")
