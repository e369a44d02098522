"""Copies of models' folders and files with tensors more, fewer or under other names."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[dict[str, torch.Tensor]], None]


def without(ending: str) -> Change:
    """Remove the first tensor whose name ends so."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[min(name for name in tensors if name.endswith(ending))]

    return change


def adding(name: str) -> Change:
    """Add a tensor of ones."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = torch.ones(3, 5)

    return change


def copy(folder: Path, target: Path, file: str, change: Change) -> Path:
    """The copy of a folder with a change of one of its safetensors files."""
    shutil.copytree(folder, target, dirs_exist_ok=True)
    rewrite(target / file, change)
    return target


def rewrite(file: Path, change: Change, metadata: dict[str, str] | None = None) -> Path:
    """Change a file in place."""
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"} | (metadata or {}))
    return file
