"""A user's own checks and scores, found by the names in a job, before anything is made."""

from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.gates import UserCheckGate
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.reader import read_job
from imagekiln.steps.job.user_checks import find_untried_entries, import_check, require_entries
from tests import own_checks

BRIGHTNESS = (
    "def brightness(images, specs):\n    return [float(image.mean()) for image in images]\n"
)


def _check(entry: str) -> UserCheckGate:
    return UserCheckGate(name="mine", entry=entry)


def _job(folder: Path, check: str = "tests.own_checks:even", score: str = "") -> Job:
    """A job in a file of that folder; its check is on line 6, its score on line 7."""
    folder.mkdir(exist_ok=True)
    lines = [
        *("name: a", "prompts: p.csv", "output: out", "model: {id: m}", "gates:"),
        f"  checks: [{{name: mine, entry: '{check}'}}]",
        f"scores: {{warm: {{kind: own, entry: '{score}'}}}}" if score else "",
    ]
    (folder / "job.yaml").write_text("\n".join(lines))
    return read_job(str(folder / "job.yaml"))


def _refusal(job: Job) -> str:
    with pytest.raises(BadInput) as refused:
        require_entries(job)
    return str(refused.value)


def test_check_that_imports_here_is_tried_without_a_word(tmp_path: Path) -> None:
    assert find_untried_entries(_job(tmp_path)) == ()
    assert import_check(_check("tests.own_checks:even")) is own_checks.even


def test_module_that_is_not_here_is_noted_where_others_draw(tmp_path: Path) -> None:
    job = _job(tmp_path, check="no_such_package.module:check", score="absent_score:warm")
    check, score = find_untried_entries(job)
    assert check == (
        "gates.checks: mine: no_such_package.module:check does not import "
        "(ModuleNotFoundError: No module named 'no_such_package'). Put no_such_package/module.py "
        "into the current folder or beside the job that the command names, or install it where "
        "images are made, or correct the entry."
    )
    assert score.startswith("scores.warm: absent_score:warm does not")
    assert _refusal(job) == f"{check}\n{score}"


@pytest.mark.parametrize(
    ("source", "entry", "sentence"),
    [
        ("import no_such_library", "f", "No module named 'no_such_library'). Correct the module"),
        ("def f(:", "f", "SyntaxError"),
        ("import sys; sys.exit(0)", "f", "SystemExit"),
        (BRIGHTNESS, "brightnes", "has no attribute 'brightnes'). Write MODULE:brightness."),
        ("warm = 3", "warm", "is not a function"),
        ("def f(images): ...", "f", "does not take the arguments (images, specs): too many"),
        ("def f(images, specs, *, scale): ...", "f", "missing a required argument: 'scale'"),
        ("class Warm:\n    def __init__(self): ...", "Warm", "the arguments (device): too many"),
    ],
)
def test_module_beside_the_job_that_has_no_such_function_is_refused_(
    source: str, entry: str, sentence: str, tmp_path: Path
) -> None:
    module = f"own_{tmp_path.name}"  # each is imported once in this process
    (tmp_path / f"{module}.py").write_text(source)
    message = _refusal(_job(tmp_path, score=f"{module}:{entry}"))
    assert message.startswith(f"scores.warm: {module}:{entry} ")
    assert sentence.replace("MODULE", module) in message


def test_name_of_a_file_is_refused_with_how_to_write_it(tmp_path: Path) -> None:
    message = _refusal(_job(tmp_path, score="my_score.py:brightness"))
    assert message.endswith(" Write my_score:brightness.")


def test_module_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in_current_folder.py").write_text(BRIGHTNESS)
    monkeypatch.chdir(tmp_path)
    require_entries(_job(tmp_path / "jobs", score="in_current_folder:brightness"))
