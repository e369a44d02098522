"""Printing without control characters; in pods, as lines of JSON."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import click

from imagekiln.steps.runtime.machine import format_log_event, is_log_structured
from imagekiln.steps.runtime.sanitize import sanitize_json, sanitize_lines

if TYPE_CHECKING:
    from imagekiln.steps.plan.step import PlanResult

T = TypeVar("T")
FORMAT = "imagekiln.format"  # key of the result format in a command's context


def store_format(ctx: click.Context, _option: click.Parameter, value: str) -> None:
    """Store the value of --format for `print_result`."""
    ctx.meta[FORMAT] = value


def is_json() -> bool:
    """Return whether the running command was called with --format json."""
    context = click.get_current_context(silent=True)
    return context is not None and context.meta.get(FORMAT) == "json"


def print_result(result: T, format_text: Callable[[T], str] | None = None) -> None:
    """Print a result in the chosen format. By default, text has a line for each field."""
    if is_json():
        from pydantic import TypeAdapter
        from pydantic_core import to_jsonable_python

        # Not by pydantic directly, which rejects file names that are not UTF-8, and lone
        # surrogates.
        values = TypeAdapter(type(result)).dump_python(result, mode="json")
        plain = to_jsonable_python(values, inf_nan_mode="null")
        print_json(json.dumps(plain, ensure_ascii=False, indent=2))
        return
    from imagekiln.workflows.cli.text import format_fields

    print_text((format_text or format_fields)(result))


def print_text(message: str, *, err: bool = False, nl: bool = True) -> None:
    """Print our own sentences, line feeds included.

    User input must be passed through `sanitize_line` before it is inserted.
    """
    if is_log_structured():
        print_event("note" if err else "result", message=message, err=err)
    else:
        click.echo(sanitize_lines(message), err=err, nl=nl)


def print_note(message: str) -> None:
    """Print a sentence about the work in progress to stderr, apart from the result."""
    print_text(message, err=True)


def print_plan(result: "PlanResult", gpus: int = 1) -> None:
    """Print a plan before it is carried out, apart from the command's result."""
    from imagekiln.workflows.cli.text import format_plan

    print_note(format_plan(result, gpus))


def print_failure(message: str, exit_code: int) -> None:
    """Print the reason why a command failed, as its last line."""
    if is_log_structured():
        print_event("failure", message=message, exit_code=exit_code, err=True)
    else:
        print_note(message)


def print_event(name: str, *, err: bool = False, **fields: object) -> None:
    """Print a JSON line for a log."""
    click.echo(sanitize_json(format_log_event(name, fields)), err=err)


def print_json(content: str) -> None:
    """Print JSON that every parser reads the same way."""
    click.echo(sanitize_json(content))
