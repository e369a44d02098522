"""What devices can do at most."""

import pytest

from imagekiln.steps.limits import limit


@pytest.mark.parametrize(
    ("device", "dtype", "most"),
    [
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.5e12),
        ("NVIDIA H100 PCIe", "float16", 756.5e12),
        ("NVIDIA H100 NVL", "bfloat16", 835.5e12),
        ("NVIDIA H200", "bfloat16", 989.5e12),
        ("NVIDIA B200", "bfloat16", 2250e12),
        ("NVIDIA A100-SXM4-40GB", "bfloat16", 312e12),
        ("NVIDIA A100 80GB PCIe", "float32", 19.5e12),
        ("NVIDIA L40S", "bfloat16", 362e12),
        ("NVIDIA L4", "bfloat16", 121e12),
        ("NVIDIA A10G", "float16", 70e12),
        ("NVIDIA A10", "float16", 125e12),
        ("Tesla T4", "float16", 65e12),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2e12),
    ],
)
def test_devices_are_known_by_the_names_that_cuda_gives_them(device: str, dtype: str, most: float) -> None:
    assert limit(device, dtype) == most


@pytest.mark.parametrize(("cut", "slices"), [("1g.10gb", 1), ("3g.40gb", 3), ("1c.3g.40gb", 1), ("7g.80gb", 7)])
def test_a_slice_of_a_gpu_has_its_share(cut: str, slices: int) -> None:
    assert limit(f"NVIDIA H100 80GB HBM3 MIG {cut}", "bfloat16") == pytest.approx(989.5e12 * slices / 7)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("cpu", "float32"),
        ("mps", "float16"),
        ("NVIDIA L400", "float16"),
        ("Tesla T4", "bfloat16"),
        ("NVIDIA L4", "int8"),
    ],
)
def test_what_is_not_known_is_not_guessed(device: str, dtype: str) -> None:
    assert limit(device, dtype) is None
