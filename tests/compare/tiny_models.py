"""The tiny models, adapters and LoRAs that the scenarios draw with, built once into a folder."""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import safetensors
import safetensors.numpy

PEFT = "lora_adapter_metadata"  # where diffusers puts peft's settings


def build(folder: Path) -> None:
    """Make sure that `folder` holds them, each under the name by which the scenarios call it."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        unfinished = Path(scratch) / folder.name
        command = [sys.executable, "-m", "tests.compare.tiny_models", str(unfinished)]
        subprocess.run(command, cwd=Path(__file__).parents[2], check=True)
        if not folder.exists():
            unfinished.rename(folder)


def _sources() -> dict[str, Path]:
    # Only here: they load torch and diffusers, which takes seconds.
    from tests import adapters, image_models, loras, models

    return {
        "sd": models.folder("sd"),
        "sdxl": models.folder("sdxl"),
        "flux": models.folder("flux"),
        "controlnet": adapters.controlnet("sd"),
        "ip-adapter": adapters.ip_adapter("sd"),
        "upscaler": image_models.upscaler_folder(),
        "captioner": image_models.captioner_folder(),
        "lora-style": loras.folder("sdxl"),
        "lora-detail": loras.folder("sdxl", 1, text=True),
    }


def _sort_metadata(file: Path) -> None:
    """Write a LoRA's file again so that the same weights give the same bytes.

    peft's settings have the scratch folder of the model and lists in the order of sets, and
    several entries of metadata have no fixed order at all.
    """
    content = file.read_bytes()
    with safetensors.safe_open(file, "np") as lora:
        settings = json.loads(lora.metadata()[PEFT])
    for name, value in settings.items():
        if name.endswith("base_model_name_or_path"):
            settings[name] = None
        elif isinstance(value, list):
            settings[name] = sorted(value)
    metadata = {PEFT: json.dumps(settings, sort_keys=True)}
    safetensors.numpy.save_file(safetensors.numpy.load(content), file, metadata)


def _main(folder: Path) -> None:
    for name, source in _sources().items():
        shutil.copytree(source, folder / name)
    for file in folder.glob("lora-*/*.safetensors"):
        _sort_metadata(file)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
