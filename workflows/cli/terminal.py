"""Keeping a pod's log for what the job does."""

import logging
import os
import warnings

import click

from imagekiln.steps.runtime.sanitize import sanitize_json, sanitize_lines

VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def silence_libraries() -> None:
    """Leave out what libraries say of each other as they are imported, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    # Of what diffusers itself calls: Kolors the one, FLUX's ControlNets the other.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences, whose line feeds are ours; texts of the user's go through `in_line` before they are put in."""
    click.echo(sanitize_lines(text), err=err, nl=nl)


def print_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(sanitize_json(text))
