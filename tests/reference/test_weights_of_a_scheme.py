"""A plain checkpoint whose weights are those of a scheme: a build has them as they are, also behind norms."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from built_models import random_ids

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def ternary(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    scales = random.uniform(0.02, 0.2, (shape[0], 1)).astype(np.float32)
    return random.integers(-1, 2, shape).astype(np.float32) * scales


def mxfp4(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = random.choice(np.concatenate([E2M1, -E2M1]), (shape[0], shape[1] // 32, 32))
    numbers[..., 0] = 6
    scales = 2.0 ** random.integers(-7, -4, (*numbers.shape[:2], 1))
    return (numbers * scales).astype(np.float32).reshape(shape)


def nvfp4(random: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    numbers = random.choice(np.concatenate([E2M1, -E2M1]), (shape[0], shape[1] // 16, 16))
    numbers[..., 0] = 6
    scales = random.choice(np.array([448, 256, 104, 13, 1.125], np.float32), (*numbers.shape[:2], 1))
    scales[0, 0] = 448  # so that the matrix has the factor that it is given here
    return (numbers * scales * np.float32(2.0**-14)).astype(np.float32).reshape(shape)


@pytest.mark.parametrize("drawn", [ternary, mxfp4, nvfp4], ids=lambda drawn: drawn.__name__)
def test_logits_are_those_of_the_checkpoint(drawn, tiny_checkpoint, reference, built, tmp_path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = Path(shutil.copytree(tiny_checkpoint("llama", hidden_size=128, intermediate_size=192), tmp_path / "drawn"))
    random = np.random.default_rng(5)
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith("proj.weight"):
            tensors[name] = torch.from_numpy(drawn(random, tuple(tensor.shape)))
        elif name.endswith("norm.weight"):
            tensors[name] = torch.from_numpy(random.uniform(0.2, 3, tensor.shape).astype(np.float32))
        else:
            tensors[name] = tensor.float()
    save_file(tensors, path / "model.safetensors", {"format": "pt"})
    quantize = {"scheme": drawn.__name__, "embeddings": "f32", "activations": "f32", "kv_cache": "f32"}
    model = built(path, quantize=quantize)
    ids = random_ids(model, 24)
    with torch.no_grad():
        wanted = reference(path)(torch.tensor([ids])).logits[0].numpy()
    assert np.abs(wanted).max() > 0.5
    np.testing.assert_allclose(model.logits(ids), wanted, atol=2e-4 * np.abs(wanted).max())
