"""Tiny models whose weights are quantized, as people share them: torchao, bitsandbytes, GGUF."""

import io
import shutil
from collections.abc import Mapping
from pathlib import Path

import diffusers
import gguf
import numpy as np
import numpy.typing as npt
import torch
import transformers
from PIL import Image as Pillow

from imagekiln.steps.local import run
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from imagekiln.steps.storage import open_store
from tests import models, runs
from tests.faults import image, manifests

DEFAULTS = {"steps": 2, "guidance": 3.0, "seed": 7, "width": models.SIDE, "height": models.SIDE}
Arrays = Mapping[str, npt.NDArray[np.float32]]


def pixels_of_job(folder: Path, **model: object) -> npt.NDArray[np.int16]:
    """What a whole job of three images draws in bfloat16, or as `model` says."""
    prompts = runs.write_prompts(folder / "prompts.parquet", runs.PROMPTS[:3])
    settings = {"dtype": "bfloat16", **model}
    out = str(folder / "out")
    done = run(runs.job(prompts, out, model=settings, defaults=DEFAULTS), NoProgress(), Stop())
    rows = manifests(done.uri)
    assert [row["status"] for row in rows] == ["ok"] * 3
    store = open_store(done.uri)
    pictures = [Pillow.open(io.BytesIO(image(store, row))) for row in rows]
    return np.array([np.asarray(picture) for picture in pictures], "i2")


def denoiser_in_torchao(target: Path, config: object) -> Path:
    """The tiny FLUX with its denoiser quantized by torchao, as diffusers saves it."""
    quantization = diffusers.TorchAoConfig(config)
    return _quantized(target, "transformer", diffusers.FluxTransformer2DModel, quantization)


def encoder_in(target: Path, quantization: object) -> Path:
    """The tiny FLUX with its T5 quantized, as transformers saves it."""
    return _quantized(target, "text_encoder_2", transformers.T5EncoderModel, quantization)


def _quantized(
    target: Path, component: str, network_class: models.Untyped, quantization: object
) -> Path:
    shutil.copytree(models.folder("flux"), target)
    network = network_class.from_pretrained(
        target / component, quantization_config=quantization, dtype=torch.bfloat16
    )
    shutil.rmtree(target / component)
    network.save_pretrained(target / component)
    return target


def write_gguf(
    path: Path,
    arrays: Arrays,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    flat: bool = False,
) -> Path:
    """Write a GGUF file with matrices in this type, and vectors too if `flat`."""
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    writer = gguf.GGUFWriter(path, "flux")
    for name, array in arrays.items():
        if (array.ndim == 2 or flat) and array.shape[-1] % block == 0:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def arrays_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, npt.NDArray[np.float32]]:
    """The tensors of a network for a file."""
    return {name: tensor.float().numpy() for name, tensor in tensors.items()}
