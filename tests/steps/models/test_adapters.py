"""ControlNets and models by their configurations alone."""

import diffusers
import pytest

from imagekiln.steps.models.adapters import CONTROLNET_KINDS, controlnet_mismatch
from imagekiln.steps.models.families import FAMILY_VARIANTS

WIDE = {
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "in_channels": 64,
    "patch_size": 2,
    "num_attention_heads": 24,
    "attention_head_dim": 128,
}


@pytest.mark.parametrize(
    ("kind", "changes", "mismatch"),
    [
        ("FluxControlNetModel", {}, None),
        ("FluxControlNetModel", {"num_mode": None, "patch_size": 1}, None),
        ("FluxControlNetModel", {"num_attention_heads": 48, "attention_head_dim": 64}, None),
        ("FluxControlNetModel", {"num_mode": 7}, "is a union ControlNet, which needs a mode"),
        (
            "FluxControlNetModel",
            {"in_channels": 16},
            "expects latents of 16 channels, but the model has 64",
        ),
        (
            "FluxControlNetModel",
            {"pooled_projection_dim": 2048},
            "expects pooled text embeddings of 2048 channels, but the model has 768",
        ),
        ("SD3ControlNetModel", {"joint_attention_dim": None}, None),
        (
            "SD3ControlNetModel",
            {"joint_attention_dim": 2048},
            "expects text embeddings of 2048 channels, but the model has 4096",
        ),
        (
            "SD3ControlNetModel",
            {"num_attention_heads": 38},
            "has layers of 4864 channels, but the model has 3072",
        ),
        ("SD3ControlNetModel", {"num_attention_heads": "38"}, None),
        ("SD3ControlNetModel", {"patch_size": 1}, "expects patches of side 1, but the model has 2"),
        (
            "SD3ControlNetModel",
            {"extra_conditioning_channels": 1},
            "needs a mask beside its image",
        ),
    ],
)
def test_a_network_of_another_size_is_told_by_its_configuration(
    kind: str, changes: dict[str, object], mismatch: str | None
) -> None:
    assert controlnet_mismatch(kind, WIDE | changes, WIDE) == mismatch


def test_each_kind_that_a_pipeline_takes_is_known_and_one_of_diffusers() -> None:
    kinds = {each.controlnet for each in FAMILY_VARIANTS.values() if each.controlnet}
    assert kinds == {*CONTROLNET_KINDS}
    assert all(getattr(diffusers, kind).__name__ == kind for kind in kinds)
