"""What a release promises: one version everywhere, committed files, links that lead somewhere."""

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAMING_IMAGES = ("images/*", "workflows/**/*.yaml", "docs/*.md")
IMAGE = re.compile(r"imagekiln-[cg]pu:([0-9][\w.]*)")
BLOB = "https://github.com/imagekiln/imagekiln/blob/main/"


def _image_tags() -> Iterator[tuple[str, str]]:
    """Each file that names one of our images with a version, and that version."""
    for pattern in NAMING_IMAGES:
        for path in sorted(ROOT.glob(pattern)):
            for tag in IMAGE.findall(path.read_text()):
                yield str(path.relative_to(ROOT)), tag


def test_images_are_named_with_the_version_of_the_package() -> None:
    tags = list(_image_tags())
    assert len(tags) > 5
    assert [place for place, tag in tags if tag != PROJECT["version"]] == []


def _in(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_release_refuses_files_that_git_does_not_hold(tmp_path: Path) -> None:
    for name in ("Makefile", ".gitignore", "datasets/demo.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    _in(tmp_path, "git", "init")
    _in(tmp_path, "git", "add", ".")
    by = ("-c", "user.name=us", "-c", "user.email=us@example.com", "-c", "commit.gpgsign=false")
    committed = _in(tmp_path, "git", *by, "commit", "--message", "A release")
    assert committed.returncode == 0, committed.stderr

    ignored = ("datasets/secrets.yaml", "datasets/imagekiln-demo/manifest.parquet")
    for name in (*ignored, "notes.md", "datasets/__pycache__/make.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("ours")
    refused = _in(tmp_path, "make", "release")
    assert refused.returncode == 2
    says, *names = refused.stderr.splitlines()
    assert says == "Commit or remove these first:"
    assert sorted(names[:-1]) == ["?? notes.md", *sorted(ignored)]
