"""transformers in float64 over the weights that an artifact stands for: rounding them is no part of a difference."""

import re

import numpy as np

from pyc.backends.cpu.layouts import panel_layout
from pyc.backends.cpu.packing import unpack_rows
from pyc.runtime.artifact.reader import open_artifact


def dequantized(path, shapes, scheme_of):
    """The matrices and vectors of an artifact by the checkpoint's names; what is not in it is absent."""
    values = {}
    with open_artifact(path) as artifact:
        arrays = {tensor.name: np.array(artifact.tensor(tensor.name)) for tensor in artifact.header.tensors}
    for name, array in arrays.items():
        stem, _, kind = name.rpartition(".")
        if kind not in ("weight", "bias"):
            continue
        prefix, _, last = stem.rpartition(".")
        parts = [f"{prefix}.{part}.{kind}".lstrip(".") for part in last.split("+")]
        rows = [shapes[part][0] for part in parts]
        if array.dtype == np.uint8:
            layout = panel_layout(scheme_of(parts[0]), shapes[parts[0]][1])
            array = unpack_rows(array, layout, sum(rows))
        values.update(zip(parts, np.split(array, np.cumsum(rows)[:-1]), strict=True))
    return values


def reference_logits(checkpoint, values, ids):
    """Logits of transformers in float64 over `values`; gains that are absent were folded and become ones."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float64, attn_implementation="eager"
    )
    folded = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in values:
                parameter.copy_(torch.from_numpy(values[name].astype(np.float64)))
            else:
                assert re.search(r"norm\.weight$", name), f"{name} is missing in the artifact"
                parameter.fill_(1)
                folded += 1
        return model.eval()(torch.tensor([ids])).logits[0].numpy(), folded


def shapes_of(checkpoint):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
