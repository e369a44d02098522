"""The wheel that users install: what it holds, and that its light half works without torch."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements" / "lock.txt"
SHIPPED = ("steps", "workflows", "datasets")
FRONT = "imagekiln/workflows/api/"  # is the package itself
KEPT = ROOT / "datasets" / "scripts"  # how data came to be
COMMIT_TIME = "1700000000"
LONG_AGO = 1_500_000_000


def _run(*command: str | Path, **environment: str) -> str:
    """Run a command away from the sources and return what it printed, errors included."""
    done = subprocess.run(
        command,
        cwd=ROOT.anchor,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _uv(*arguments: str | Path, **environment: str) -> str:
    return _run(sys.executable, "-m", "uv", *arguments, **environment)


def _build(source: Path, folder: Path, **environment: str) -> Path:
    """Build the wheel as a release does: from the source distribution, at the commit's time."""
    chosen = ("--python", sys.executable, "--require-hashes", "--build-constraints", LOCK)
    times = {"SOURCE_DATE_EPOCH": COMMIT_TIME}
    _uv("build", "--quiet", *chosen, "--out-dir", folder, source, **times, **environment)
    return next(folder.glob("*.whl"))


def _sources() -> Iterator[str]:
    """Name each file that ships, as the wheel should name it."""
    for folder in SHIPPED:
        for path in (ROOT / folder).rglob("*"):
            hidden = any(
                part.startswith((".", "__pycache__")) for part in path.relative_to(ROOT).parts
            )
            if path.is_file() and not hidden and KEPT not in path.parents:
                name = f"imagekiln/{path.relative_to(ROOT).as_posix()}"
                yield name.replace(FRONT, "imagekiln/", 1)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of these sources."""
    return _build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without extras, at the locked versions; return the folder of programs."""
    environment = tmp_path_factory.mktemp("environment") / "venv"
    _uv("venv", "--quiet", "--python", sys.executable, environment)
    python = environment / "bin" / "python"
    _uv("pip", "install", "--quiet", "--python", python, "--constraints", LOCK, wheel)
    return environment / "bin"


def test_wheel_holds_every_source_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == set(_sources())
    assert (KEPT / "make_prompts.py").is_file()
    assert {"imagekiln/steps/py.typed", "imagekiln/workflows/py.typed"} <= names


@pytest.mark.slow
def test_same_sources_give_the_same_files_wherever_and_whenever_they_are_built(
    wheel: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "a checkout of somebody else"
    for name in ("LICENSE", "README.md", "pyproject.toml", "setup.py", "docs/pypi.md"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)
    for name in SHIPPED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("workflows/cluster/base", "datasets"):
        (copy / folder / "secrets.yaml").write_text("key: secret")  # filled in
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)  # as under another umask
        os.utime(path, (LONG_AGO, LONG_AGO))
    again = _build(copy, tmp_path / "dist", TZ="Asia/Tokyo", LANG="C")
    assert again.name == wheel.name
    assert again.read_bytes() == wheel.read_bytes()
    (source,) = wheel.parent.glob("*.tar.gz")
    assert (again.parent / source.name).read_bytes() == source.read_bytes()
    with tarfile.open(source) as archive:
        owners = {(file.uid, file.gid, file.uname, file.gname) for file in archive}
    assert owners == {(0, 0, "", "")}


@pytest.mark.slow
def test_light_install_has_the_command_line_without_torch(installed: Path) -> None:
    assert "Usage: imagekiln" in _run(installed / "imagekiln", "--help")
    assert "Usage: python -m imagekiln" in _run(installed / "python", "-m", "imagekiln", "--help")
    code = "import imagekiln.cluster, importlib.util as u; print(u.find_spec('torch'))"
    assert _run(installed / "python", "-c", code).split() == ["None"]
