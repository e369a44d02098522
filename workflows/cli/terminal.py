"""Printing, in one way that no control character passes, and keeping libraries quiet."""

import logging
import os
import warnings

import click

from imagekiln.steps.runtime.sanitize import sanitize_json, sanitize_lines

VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def silence_libraries() -> None:
    """Suppress what libraries say of each other on import, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    # Deprecations inside diffusers: of Kolors, and of FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls


def print_text(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print sentences of ours, line feeds included.

    Text of the user's goes through `sanitize_line` before it is put into them.
    """
    click.echo(sanitize_lines(text), err=err, nl=nl)


def print_note(text: str) -> None:
    """Print a sentence about the work in progress, next to the result and not in it."""
    print_text(text, err=True)


def print_json(text: str) -> None:
    """Print JSON that means the same to every program."""
    click.echo(sanitize_json(text))
