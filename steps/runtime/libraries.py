"""What libraries are told by variables and filters before they are imported."""

import logging
import os
import warnings

VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")
THREADS_VARIABLE = "OMP_NUM_THREADS"


def silence_libraries() -> None:
    """Suppress what libraries say of each other on import, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    # Deprecations inside diffusers: of Kolors, and of FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
