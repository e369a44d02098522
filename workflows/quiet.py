"""Keeping a pod's log for what the job does."""

import logging
import os
import warnings

VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def silence_libraries() -> None:
    """Leave out what libraries say of each other as they are imported, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    # Of what diffusers itself calls: Kolors the one, FLUX's ControlNets the other.
    warnings.filterwarnings("ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning)
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
