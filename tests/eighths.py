"""The denoiser in 8 bits on a CPU, which computes the same products, slowly."""

import pytest

from imagekiln.steps.generate.diffusion import pipeline


def emulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torchao and a job take a CPU for fp8."""
    from torchao.quantization import quant_api

    monkeypatch.setattr(quant_api, "_check_hardware_support", lambda _: None)
    monkeypatch.setattr(pipeline, "require_quantization_support", lambda *_: None)
