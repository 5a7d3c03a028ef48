"""backends/torch_tensorrt/export.py: the sizes that a program takes and refuses, and its file."""

import io
import zipfile

import numpy as np
import pytest
import torch
from torch_programs import Decoder, lowered

from pyc.backends.torch_tensorrt.export import (
    dynamic_shapes,
    examples,
    export_program,
    flat_shapes,
    load_program,
    save_program,
)
from pyc.backends.torch_tensorrt.interface import interface_of
from pyc.runtime.errors import LowerError

CONTEXT = {"tokenizer": False, "max_position_embeddings": 32}
SIZES = {
    "several": ((1, 8), (1, 3)),
    "one-token": ((1,), (1, 3)),
    "one-sequence": ((1, 8), (1,)),
    "one-of-each": ((1,), (1,)),
    "two-of-each": ((1, 2), (2,)),
}


def drawn(interface, batch, tokens, past):
    """Inputs of these sizes, of which some positions are masked."""
    generator = torch.Generator().manual_seed(batch + 10 * tokens + 100 * past)
    ids, rest = torch.randint(3, 263, (batch, tokens), generator=generator), Decoder(None, interface).cache(batch, past)
    mask = (torch.rand((batch, past + tokens), generator=generator) < 0.8).long()
    positions = torch.arange(past, past + tokens).expand(batch, -1)
    return ids, positions, mask, *rest


@pytest.mark.slow
@pytest.mark.parametrize("case", SIZES)
def test_a_program_takes_every_size_within_the_buckets_and_no_other(case, tiny_checkpoint):
    """And computes what the module does, to the bit."""
    tokens, batch = SIZES[case]
    path = tiny_checkpoint("mistral", sliding_window=5, **CONTEXT)
    common, module, _ = lowered(path)
    interface = interface_of(common.info, tokens, batch)
    program = export_program(module, interface).module()
    most, many = tokens[-1], batch[-1]
    within = {(1, 1, 0), (1, most, 0), (many, 1, 0), (many, most, 31), (1, 1, 31), (many, 1, 1), (1, most, 7)}
    beyond = {(many + 1, 1, 3), (1, most + 1, 3), (1, 1, 32)}
    with torch.no_grad():
        for size in sorted(within):
            given = drawn(interface, *size)
            assert all(torch.equal(a, b) for a, b in zip(program(*given), module(*given), strict=True)), size
        for size in sorted(beyond):
            with pytest.raises(AssertionError, match="Guard failed"):
                program(*drawn(interface, *size))


@pytest.mark.slow
def test_an_encoders_program(tiny_checkpoint):
    path = tiny_checkpoint("bert", tokenizer=False, pooling="cls", normalize=False, max_position_embeddings=20)
    _, module, interface = lowered(path, shapes={"tokens": [20], "batch": [1, 4]})
    program = export_program(module, interface).module()
    with torch.no_grad():
        for batch, tokens in ((1, 1), (4, 20), (3, 7)):
            ids = torch.randint(3, 263, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
            given = ids, torch.ones_like(ids)
            assert all(torch.equal(a, b) for a, b in zip(program(*given), module(*given), strict=True))
        with pytest.raises(AssertionError, match="Guard failed"):
            program(torch.ones(1, 21, dtype=torch.int64), torch.ones(1, 21, dtype=torch.int64))


@pytest.fixture(scope="module")
def int4(tiny_checkpoint):
    path = tiny_checkpoint("llama", hidden_size=128, intermediate_size=256, **CONTEXT)
    quantize = {"scheme": "int4-g32", "embeddings": "int4-g64-asym"}
    _, module, interface = lowered(path, quantize=quantize)
    return module, interface, export_program(module, interface)


def saved(program, interface):
    file = io.BytesIO()
    save_program(program, interface, file)
    return file.getvalue()


@pytest.mark.slow
def test_a_file_has_codes_and_no_path_of_this_machine_and_is_the_same_every_time(int4, tmp_path):
    module, interface, program = int4
    data = saved(program, interface)
    assert data == saved(export_program(module, interface), interface)
    entries = zipfile.ZipFile(io.BytesIO(data))
    weights = sum(entry.file_size for entry in entries.infolist() if "/weights/weight_" in entry.filename)
    parameters = 2 * (128 * (128 + 64 + 64 + 128) + 3 * 128 * 256) + 2 * 263 * 128  # 2 kv heads of 32
    assert parameters / 2 < weights < parameters * 0.66
    everything = b"".join(entries.read(entry) for entry in entries.infolist())
    for place in (__file__, str(tmp_path.parent), torch.__file__, "/site-packages/", "torch_tensorrt/module.py"):
        assert place.encode() not in everything


@pytest.mark.slow
def test_a_file_is_read_back(int4, tmp_path):
    _, interface, program = int4
    path = tmp_path / "model.pt2"
    path.write_bytes(saved(program, interface))
    loaded, found = load_program(path)
    assert found == interface
    ids = np.random.default_rng(0).integers(3, 263, 12).tolist()
    ours, again = (Decoder(made.module(), interface).logits(ids, [5, 1, 6]) for made in (program, loaded))
    assert np.array_equal(ours, again)


def test_what_is_no_program_is_refused_with_its_path(tmp_path):
    path = tmp_path / "model.pt2"
    with pytest.raises(LowerError, match=r"model\.pt2: torch .* cannot read it as an exported program"):
        load_program(path)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(LowerError, match=r"model\.pt2: torch .* cannot read it as an exported program"):
        load_program(path)


def test_a_program_of_others_is_refused(tmp_path):
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), path)
    with pytest.raises(LowerError, match=r"model\.pt2: its pyc_interface\.json"):
        load_program(path)


def test_dimensions_of_one_name_are_one(tiny_checkpoint):
    _, _, interface = lowered(tiny_checkpoint("llama", **CONTEXT))
    flat = flat_shapes(interface)
    assert [sorted(shape) for shape in flat] == [[0, 1]] * 3 + [[0, 2]] * 4
    assert len({id(shape[0]) for shape in flat}) == 1
    assert len({id(shape[2]) for shape in flat[3:]}) == 1
    nested = dynamic_shapes(interface)
    assert [sorted(shape) for shape in nested[3]] == [[0, 2]] * 4
    assert len(nested) == 4


def test_examples_have_no_size_that_could_be_a_constant(tiny_checkpoint):
    _, _, interface = lowered(tiny_checkpoint("llama", **CONTEXT))
    shapes = [tuple(example.shape) for example in examples(interface)]
    assert shapes[:4] == [(2, 3), (2, 3), (2, 8), (2, 2, 5, 12)]
    assert all(example.device.type == "meta" for example in examples(interface, "meta"))
