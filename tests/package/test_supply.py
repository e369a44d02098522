"""What we depend on: locked with hashes, without known vulnerabilities, and licensed for use."""

import csv
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements/lock.txt"
TOOLS_LOCK = ROOT / "requirements/tools.txt"
LICENSES = ROOT / "requirements/licenses.csv"
ADVISORIES = ROOT / "requirements/advisories.toml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ENTRY = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>\S+)(?P<rest>.*(?:\n +.*)*)", re.MULTILINE)

# Whoever uses, changes or passes on such code owes notices at most.
PERMISSIVE = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "HPND", "ISC",
    "MIT", "MIT-CMU", "PSF-2.0", "Python-2.0", "Unlicense", "Zlib", "CNRI-Python",
    "LLVM-exception", "MIT-0", "ZPL-2.1", "bzip2-1.0.6",
}  # fmt: skip
# What docs/security.md says of these is for a lawyer to read.
NAMED = {
    "certifi": {"MPL-2.0"},
    "tqdm": {"MPL-2.0"},
}
NVIDIA = "LicenseRef-NVIDIA-Proprietary"
NVIDIA_PACKAGE = re.compile(r"nvidia-|cuda-")
DEVELOPMENT_ONLY = {"GPL-3.0-only", "GPL-3.0-or-later", "MPL-2.0"}


def normalize_name(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked_packages(lock: Path = LOCK) -> dict[str, re.Match[str]]:
    """Each entry of the lock by the package's name."""
    text = lock.read_text(encoding="utf-8")
    return {normalize_name(entry["name"]): entry for entry in ENTRY.finditer(text)}


def _installed_with_the_wheel() -> set[str]:
    """The locked packages that the wheel or one of its extras needs, directly or not."""
    users = {name: set(_users(entry["rest"])) for name, entry in locked_packages().items()}
    needed = {name for name, of in users.items() if "imagekiln (pyproject.toml)" in of}
    while more := {name for name, of in users.items() if of & needed} - needed:
        needed |= more
    return needed


def _users(rest: str) -> Iterator[str]:
    """Who needs a package, by the comment of its entry."""
    comment = rest.partition("# via ")[2]
    yield from (user.strip() for user in comment.split(","))


def read_licenses() -> dict[str, str]:
    """The license of each package in the list."""
    with LICENSES.open(newline="", encoding="utf-8") as file:
        return {row["package"]: row["license"] for row in csv.DictReader(file)}


def _terms(expression: str) -> set[str]:
    """The licenses in an SPDX expression, of which the first of alternatives is ours."""
    chosen = " AND ".join(part.partition(" OR ")[0] for part in expression.split(" AND "))
    return set(re.findall(r"[\w.+-]+", chosen)) - {"AND", "WITH"}


@pytest.mark.parametrize(("lock", "least"), [(LOCK, 100), (TOOLS_LOCK, 50)])
def test_every_locked_package_has_hashes(lock: Path, least: int) -> None:
    locked = locked_packages(lock)
    assert len(locked) > least
    bare = [name for name, entry in locked.items() if "--hash=sha256:" not in entry["rest"]]
    assert bare == []


@pytest.mark.parametrize("file", ["Makefile", "images/cpu.Dockerfile", "images/gpu.Dockerfile"])
def test_whatever_installs_the_lock_requires_its_hashes(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8").replace("\\\n", " ")
    assert not re.search(r"uvx|uv tool", text)  # which take whatever is newest of what they need
    commands = re.findall(r"(?:pip|PIP\)) install [^&|;]*", text)
    assert len(commands) >= 3
    for command in commands:
        is_ours = "--no-deps" in command  # our own wheel, just built
        assert is_ours or "--require-hashes" in command or re.search(r"\$(\$own|{lock})", command)
    for command in re.findall(r'uv build [^&|;\n]*|lock="[^"]*lock\.txt[^"]*"', text):
        assert "--require-hashes" in command


def test_licenses_of_all_that_is_installed_are_known_and_permitted() -> None:
    licenses = read_licenses()
    assert set(licenses) == set(locked_packages()), (
        "`python -m tests.package.licenses` writes the list"
    )
    shipped = _installed_with_the_wheel()
    assert {"torch", "numpy"} < shipped
    assert "pytest" not in shipped
    refused = {}
    for name, expression in licenses.items():
        permitted = PERMISSIVE | NAMED.get(name, set())
        if NVIDIA_PACKAGE.match(name):
            permitted = permitted | {NVIDIA}
        if name not in shipped:
            permitted = permitted | DEVELOPMENT_ONLY
        if more := _terms(expression) - permitted:
            refused[name] = more
    assert refused == {}


def _advisories() -> list[dict[str, str]]:
    advisories: list[dict[str, str]] = tomllib.loads(ADVISORIES.read_text("utf-8"))["advisory"]
    return advisories


@pytest.mark.parametrize("lock", [LOCK, TOOLS_LOCK])
def test_no_locked_version_has_a_recorded_vulnerability(lock: Path) -> None:
    locked = locked_packages(lock)
    affected = [
        advisory["id"]
        for advisory in _advisories()
        if advisory["package"] in locked
        and Version(locked[advisory["package"]]["version"]) < Version(advisory["fixed"])
    ]
    assert affected == []


def test_lower_bounds_admit_no_recorded_vulnerability() -> None:
    project = PROJECT["project"]
    texts = [*project["dependencies"], *PROJECT["build-system"]["requires"]]
    for extra in project["optional-dependencies"].values():
        texts += extra
    requirements = {normalize_name(item.name): item for item in map(Requirement, texts)}
    admitted = [
        advisory["id"]
        for advisory in _advisories()
        if advisory["package"] in requirements
        and not _excludes(requirements[advisory["package"]], Version(advisory["fixed"]))
    ]
    assert admitted == []


def _excludes(requirement: Requirement, fixed: Version) -> bool:
    """Whether a requirement's lower bound is at least the version that mends a vulnerability."""
    bounds = [Version(item.version) for item in requirement.specifier if item.operator == ">="]
    return any(bound >= fixed for bound in bounds)
