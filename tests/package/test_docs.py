"""What the README and the docs show is what the program takes."""

import ast
import re
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from imagekiln.steps.job.reader import validate_job
from imagekiln.steps.runs.tables import (
    IMAGE_ROW_SCHEMA,
    LOCATION_SCHEMA,
    NEAR_DUPLICATE_SCHEMA,
    ORIGIN_SCHEMA,
    OUTCOME_SCHEMA,
)
from imagekiln.workflows.profiles.loader import load_profile
from tests.package.finished_job import call
from tests.pages import EXAMPLES, PAGES, ROOT, anchors, blocks, links, page_name, with_blocks

PROJECT_URL = re.compile(r"https://github\.com/imagekiln/imagekiln/(?:blob|tree)/main/")


@pytest.mark.parametrize("page", with_blocks("yaml"), ids=page_name)
def test_shown_jobs_and_profiles_are_some(page: Path, tmp_path: Path) -> None:
    for text in blocks("yaml", page):
        document = yaml.safe_load(text)
        if "kind" in document:
            assert document["kind"] == "Kustomization"
        elif "prompts" in document:
            assert validate_job(document).name
        else:
            (tmp_path / "own.yaml").write_text(text)
            assert load_profile(str(tmp_path / "own.yaml")).name == "own"


def recipes() -> list[list[str]]:
    """The cells of each row of the table of recipes."""
    section = (ROOT / "docs/models.md").read_text().split("## Recipes\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("recipe", recipes(), ids=lambda recipe: recipe[0])
def test_recipes_are_jobs_and_their_weights_fit_the_smallest_gpu_that_they_name(
    recipe: list[str],
) -> None:
    settings, weights, gpus, _ = recipe
    lines = [
        "name: pictures",
        "prompts: prompts.csv",
        "output: pictures",
        *settings.split("`")[1::2],
    ]
    assert validate_job(yaml.safe_load("\n".join(lines))).model.id
    sizes = [8, 16, 24, 32, 48, 80, 96, 141]
    needed = [1.1 * float(gb) for gb in weights.split(",")]
    expected = [next(size for size in sizes if gb <= size) for gb in needed]
    assert [int(size) for size in gpus.split(",")] == expected


def imports(source: str) -> Iterator[tuple[str, str]]:
    """What a Python block takes from this package: modules, and names in them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("imagekiln"):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "imagekiln":
            yield "imagekiln", node.attr


@pytest.mark.parametrize("page", with_blocks("python"), ids=page_name)
def test_shown_python_parses_and_uses_names_that_exist(page: Path) -> None:
    for text in blocks("python", page):
        assert ast.parse(text).body
        for module, name in imports(text):
            assert hasattr(import_module(module), name), f"{module}.{name}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=page_name)
def test_links_lead_somewhere_and_no_marks_of_a_merge_are_left(page: Path) -> None:
    assert [link for link in links(page) if is_dead(link, page)] == []
    assert not re.findall(r"^(?:<{7}|={7}|>{7})(?: |$)", page.read_text(), re.MULTILINE)


def is_dead(link: str, page: Path) -> bool:
    """Whether a link of this page leads to no file, or to no heading of one."""
    if PROJECT_URL.match(link):
        link = PROJECT_URL.sub(f"{ROOT}/", link)
    elif "://" in link:
        return False  # of others: nothing outside this machine is asked
    name, _, anchor = link.partition("#")
    target = page.parent / unquote(name) if name else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


def test_first_job_of_the_quick_start_is_what_init_writes(tmp_path: Path) -> None:
    shutil.copy(EXAMPLES / "prompts.csv", tmp_path)
    assert call(tmp_path, "init", "prompts.csv").exit_code == 0
    shown = next(blocks("yaml", ROOT / "docs" / "start.md"))
    assert shown == (tmp_path / "job.yaml").read_text()


def first_cells(page: str, heading: str) -> set[str]:
    """The names in backticks in the first column of the table below a heading."""
    section = (ROOT / page).read_text().split(f"{heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_column_of_the_dataset_is_described() -> None:
    schemas = [
        IMAGE_ROW_SCHEMA,
        ORIGIN_SCHEMA,
        OUTCOME_SCHEMA,
        LOCATION_SCHEMA,
        NEAR_DUPLICATE_SCHEMA,
    ]
    columns = {name for schema in schemas for name in schema.names}
    assert first_cells("docs/dataset.md", "## Columns") == columns


def test_every_check_of_the_doctor_is_described() -> None:
    modules = (ROOT / "workflows/doctor").glob("check_*.py")
    names = [
        re.findall(r'^@doctor_check\("(.+)"\)', text.read_text(), re.MULTILINE) for text in modules
    ]
    checks = {name for module in names for name in module}
    assert first_cells("docs/cluster.md", "## Check the cluster") == checks
