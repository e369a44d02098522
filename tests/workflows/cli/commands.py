"""Commands as tests run them."""

import json

from click.testing import CliRunner, Result

from imagekiln.workflows.cli.main import main
from tests.runs import PROMPTS

ROWS = PROMPTS[:6]  # of the fixture `job`: shards of 4 and 2 images


def kiln(*arguments: str) -> Result:
    """Run a command in this process, without a terminal: progress comes as JSON lines."""
    return CliRunner().invoke(main, arguments)


def parse_json(result: Result, exit_code: int = 0) -> dict[str, object]:
    """The object that a command printed with `--format json`."""
    assert result.exit_code == exit_code, result.output
    values: dict[str, object] = json.loads(result.stdout)
    return values


def plan_run(job: str, *options: str) -> str:
    """Plan a job by its command; return the run's URI."""
    return str(parse_json(kiln("plan", job, *options, "--format", "json"))["uri"])
