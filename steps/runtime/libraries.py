"""What libraries are told by variables and filters before they are imported."""

import logging
import os
import warnings

VERBOSITY_VARIABLES = ("TRANSFORMERS_VERBOSITY", "DIFFUSERS_VERBOSITY")
TELEMETRY_VARIABLE = "HF_HUB_DISABLE_TELEMETRY"
GCSFS_DEBUG_VARIABLE = "GCSFS_DEBUG"
RENEWAL_LOGGERS = ("aiobotocore.credentials", "aiobotocore.tokens")
THREADS_VARIABLE = "OMP_NUM_THREADS"
WAIT_POLICY_VARIABLE = "OMP_WAIT_POLICY"
SPIN_VARIABLE = "GOMP_SPINCOUNT"  # of libgomp, which PyTorch has on Linux
QUIET_SPIN_COUNT = "10000"  # libgomp's own is 300,000, about a millisecond


def silence_libraries() -> None:
    """Suppress what libraries say of each other on import, unless the environment asks for it."""
    for name in VERBOSITY_VARIABLES:
        os.environ.setdefault(name, "error")
    os.environ.setdefault(TELEMETRY_VARIABLE, "1")  # the hub need not know what runs here
    # Deprecations inside diffusers: of Kolors, and of FLUX's ControlNets.
    warnings.filterwarnings(
        "ignore", "`(torch.jit.script|FluxPosEmbed)` is deprecated", FutureWarning
    )
    # Of EXIF that is damaged, and of sizes: which images of the input are taken, we decide.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)  # of what torchao calls
    if GCSFS_DEBUG_VARIABLE not in os.environ:
        # It logs the traceback of each failed request, which we explain in a sentence.
        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)
    for name in RENEWAL_LOGGERS:  # the same, of credentials that cannot be renewed
        logging.getLogger(name).setLevel(logging.CRITICAL)


def limit_spinning() -> None:
    """Let PyTorch's threads on the CPU sleep while they wait for each other, or spin briefly.

    Called before torch is imported. Threads that spin keep a busy machine from those that they wait
    for. On a quiet machine, to sleep and be woken costs more. What the user has set stays.
    """
    if WAIT_POLICY_VARIABLE in os.environ or SPIN_VARIABLE in os.environ:
        return
    if is_machine_busy():
        os.environ[WAIT_POLICY_VARIABLE] = "passive"
    else:
        os.environ[SPIN_VARIABLE] = QUIET_SPIN_COUNT


def is_machine_busy() -> bool:
    """Whether more processes wanted a CPU in the last minute than there are CPUs."""
    try:
        load, _, _ = os.getloadavg()
    except OSError:
        return False
    return load > (os.cpu_count() or 1)
