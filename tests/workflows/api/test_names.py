"""What `import imagekiln` gives: every name at once, each loaded when it is used."""

import doctest
import inspect
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import imagekiln

MODULES = (
    "imagekiln",
    "imagekiln.cluster",
    "imagekiln.checks",
    "imagekiln.results",
    "imagekiln.schedule",
    "imagekiln.settings",
)
PUBLIC = [
    pytest.param(module, name, id=f"{module}.{name}")
    for module in MODULES
    for name in import_module(module).__all__
    if name != "__version__"
]


def test_completion_shows_exactly_the_public_names() -> None:
    assert dir(imagekiln) == sorted(imagekiln.__all__)


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_every_public_name_is_there_and_documented(module: str, name: str) -> None:
    assert inspect.getdoc(getattr(import_module(module), name))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'imagekiln' has no attribute 'nosuch'"):
        getattr(imagekiln, "nosuch")  # noqa: B009  # type checkers refuse it as an attribute


def test_version_is_that_of_the_package() -> None:
    assert imagekiln.__version__ == version("imagekiln")


def test_a_user_s_check_gets_and_returns_what_steps_use() -> None:
    from imagekiln.steps import checks

    assert imagekiln.checks.ImageSpec is checks.ImageSpec
    assert imagekiln.checks.Verdict is checks.Verdict


@pytest.mark.parametrize("module", ["imagekiln.local", "imagekiln.checks", "imagekiln.settings"])
def test_examples_in_docstrings_run(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(module))
    assert result.attempted > 0
    assert result.failed == 0
