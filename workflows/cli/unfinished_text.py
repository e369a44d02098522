"""What is printed of an unfinished run, before another run of its job begins."""

import json
from typing import TYPE_CHECKING

from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.runtime.sanitize import format_command, quote_shell_word, sanitize_line
from imagekiln.workflows.cli.terminal import print_note

if TYPE_CHECKING:
    from imagekiln.steps.maintain.unfinished_run import ChangedSetting, UnfinishedRun
    from imagekiln.steps.plan.step import PlanResult
    from imagekiln.workflows.pod.request import JobRequest

MAX_VALUE_CHARS = 60


def print_unfinished_run(result: "PlanResult", verb: str, request: "JobRequest") -> None:
    """Print a note where a new plan leaves an unfinished run of the job aside."""
    from imagekiln.steps.maintain.unfinished_run import find_unfinished_run

    plan = result.plan
    if result.adopted or plan.job.run_id is not None:
        return
    run = find_unfinished_run(plan.job.output, plan)
    if run is not None:
        print_note(format_unfinished_run(run, verb, request))


def format_unfinished_run(run: "UnfinishedRun", verb: str, request: "JobRequest") -> str:
    """How far the run is, by which settings it differs, and the command that resumes it."""
    differences = [*map(_describe_difference, run.differences), *_describe_input(run)]
    cause = ", ".join(differences) or "other files of the model"
    changes = {
        change.partition("=")[0].strip(): change.partition("=")[2] for change in request.settings
    }
    changes |= {difference.name: _to_text(difference.planned) for difference in run.differences}
    changes["run_id"] = run.run_id
    options = [f"--set {quote_shell_word(f'{name}={text}')}" for name, text in changes.items()]
    command = format_command(verb, request.source, *options)
    return sanitize_line(
        f"This is a new run. {run.run_id} is unfinished ({run.done:,} of {run.images:,} images); "
        f"planned with {cause}. To resume that one: {command}"
    )


def _describe_input(run: "UnfinishedRun") -> list[str]:
    planned, current = run.input, run.current_input
    if planned.sha256 == current.sha256:
        return []
    if planned.rows == current.rows:
        return ["other input"]
    return [f"other input ({pluralize(planned.rows, 'row')}, now {current.rows:,})"]


def _describe_difference(difference: "ChangedSetting") -> str:
    planned, current = (
        "unset" if value is None else _to_text(value)[:MAX_VALUE_CHARS]
        for value in (difference.planned, difference.current)
    )
    return f"{difference.name} {planned} (now {current})"


def _to_text(value: object) -> str:
    """A value as --set reads it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
