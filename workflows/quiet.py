"""Keeping a pod's log for what the job does."""

import logging
import os
import warnings

TALKING = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")


def quiet_libraries() -> None:
    """Leave out what libraries say of each other as they are imported, unless the environment asks for it."""
    for name in TALKING:
        os.environ.setdefault(name, "error")
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", FutureWarning)  # of what Kolors calls
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
