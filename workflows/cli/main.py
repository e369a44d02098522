"""The group of all commands: their order in help, and exit codes of failures."""

import os
import sys
from typing import Any

import click
import cloup

from imagekiln.steps.errors import KilnError, TryAgain
from imagekiln.steps.runtime.machine import empty_log_context, silence_libraries
from imagekiln.steps.runtime.sanitize import redact_secrets
from imagekiln.steps.runtime.signals import Stopped, stop_on_signals
from imagekiln.workflows.cli import cluster, local, maintain, publish, steps
from imagekiln.workflows.cli.terminal import print_failure

SECTIONS = (
    cloup.Section(
        "On this machine",
        (
            local.init,
            local.estimate,
            local.preview,
            local.run,
            local.tune,
            local.demo,
            local.schema,
        ),
    ),
    cloup.Section(
        "On a cluster",
        (
            cluster.manifests,
            cluster.doctor,
            cluster.submit,
            cluster.watch,
            cluster.workflows,
            cluster.logs,
            cluster.stop,
            cluster.resubmit,
            cluster.apply,
            cluster.render,
            cluster.schedule,
        ),
    ),
    cloup.Section(
        "After a run",
        (
            maintain.runs,
            maintain.verify,
            maintain.retry,
            maintain.reproduce,
            maintain.diff,
            maintain.gallery,
            maintain.gc,
        ),
    ),
    cloup.Section("Datasets", (publish.export, publish.push, publish.forget)),
    cloup.Section(
        "Steps that pods run",
        (
            steps.rewrite,
            steps.plan,
            steps.generate,
            steps.aggregate,
            steps.copy,
            steps.fetch,
            steps.outcome,
            steps.publish,
        ),
    ),
)
EXIT_CODES = (
    "Exit codes: 0 done; 1 a bug in Imagekiln; 2 input to correct; 3 incomplete; 75 try again."
)


class KilnGroup(cloup.Group):
    """Command group that prints failures as messages, with exit codes that tell when to retry."""

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  # as click has it
        """Run the command line. From here on, a request to stop has its exit code."""
        try:
            with stop_on_signals(at_once=True) as stop:
                return super().main(*args, obj=stop, **options)
        except Stopped:
            print_failure("Stopped. Run the same command again to resume.", TryAgain.exit_code)
            sys.exit(TryAgain.exit_code)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command. On failure, print the message and exit with its code."""
        try:
            with empty_log_context():
                return super().invoke(ctx)
        except KilnError as error:
            from imagekiln.workflows.pod.outcome import secret_values, write_termination_message

            message = redact_secrets(str(error), secret_values(os.environ))
            print_failure(message, error.exit_code)
            write_termination_message(message)
            ctx.exit(error.exit_code)


@cloup.group(
    cls=KilnGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@cloup.version_option(package_name="imagekiln")
def main() -> None:
    """Batch image generation: a table of prompts (CSV, Parquet, ...) in, an image dataset out."""
    silence_libraries()
