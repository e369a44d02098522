"""The tiny models, adapters and LoRAs that the scenarios draw with, built once into a folder."""

import shutil
import tempfile
from pathlib import Path


def build(folder: Path) -> None:
    """Make sure that `folder` holds them, each under the name by which the scenarios call it."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unfinished = Path(scratch) / folder.name
        for name, source in _sources().items():
            shutil.copytree(source, unfinished / name)
        if not folder.exists():
            unfinished.rename(folder)


def _sources() -> dict[str, Path]:
    # Only here: they load torch and diffusers, which takes seconds.
    from tests import adapters, loras, models

    return {
        "sd": models.folder("sd"),
        "sdxl": models.folder("sdxl"),
        "flux": models.folder("flux"),
        "controlnet": adapters.controlnet("sd"),
        "ip-adapter": adapters.ip_adapter("sd"),
        "lora-style": loras.folder("sdxl"),
        "lora-detail": loras.folder("sdxl", 1, text=True),
    }
