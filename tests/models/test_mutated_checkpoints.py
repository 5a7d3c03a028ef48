"""Checkpoints changed in one way each: a typed error of one printable line, or the module that is meant."""

import json
import struct

import numpy as np
import pytest

from pyc.models.adapters import read_adapter
from pyc.models.catalog import load_model
from pyc.models.model_source import ModelSource
from pyc.runtime.errors import AdapterError, IngestError

Q = "model.layers.0.self_attn.q_proj.weight"
INDEX = "model.safetensors.index.json"
NASTY = "a\u202e\n\x1b[31m"


def read(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    return {k: (e["dtype"], e["shape"], data[8 + size :][slice(*e["data_offsets"])]) for k, e in header.items()}


def write(path, tensors, spell=json.dumps):
    header, body = {}, b""
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = spell(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def tensors(change):
    def edit(folder):
        table = read(folder / "model.safetensors")
        change(table)
        write(folder / "model.safetensors", table)

    return edit


def put(name, shape, dtype="F32", width=4):
    return tensors(lambda table: table.update({name: (dtype, shape, bytes(int(np.prod(shape)) * width))}))


def fields(file, **changes):
    def edit(folder):
        path = folder / file
        path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **changes}))

    return edit


def index(change):
    def edit(folder):
        table = json.loads((folder / INDEX).read_text())
        change(table)
        (folder / INDEX).write_text(json.dumps(table))

    return edit


def twice(folder):
    path = folder / "model.safetensors"
    write(path, read(path), lambda header: json.dumps(header)[:-1] + "," + json.dumps({Q: header[Q]})[1:])


def only(name):
    return lambda folder: (folder / "model.safetensors").rename(folder / name)


REFUSED = {
    "no rows": (put(Q, [0, 48]), "has shape [0, 48], expected [48, 48]"),
    "a scalar": (put(Q, []), "has shape [], expected [48, 48]"),
    "a scalar gain": (put("model.norm.weight", []), "has shape [], expected [48]"),
    "a gain of two axes": (put("model.norm.weight", [1, 48]), "has shape [1, 48], expected [48]"),
    "transposed": (put("model.layers.0.mlp.up_proj.weight", [48, 80]), "has shape [48, 80], expected [80, 48]"),
    "int8": (put(Q, [48, 48], "I8", 1), "is stored as i8, expected one of f64, f32, f16, bf16"),
    "fp8": (put(Q, [48, 48], "F8_E4M3", 1), "is stored as f8_e4m3"),
    "booleans": (put(Q, [48, 48], "BOOL", 1), "is stored as bool"),
    "a type of nobody's": (put(Q, [48, 48], NASTY), "has the unknown data type 'a\\u202e\\n"),
    "a name twice": (twice, f"the name '{Q}' occurs twice"),
    "an extra tensor": (put("model.extra", [2]), "'model.extra' is not part of the architecture"),
    "an extra tensor without bytes": (put("model.extra", [0]), "'model.extra' is not part of the architecture"),
    "a name that hides": (put("model.\u202eevil", [2]), "'model.\\u202eevil' is not part of"),
    "a name of a terminal": (put("a\x1b[31m", [2]), "'a\\x1b[31m' is not plain"),
    "a name that is half a pair": (put("a\udcff", [2]), "surrogates not allowed"),
    "a name that leads out": (put("../x", [2]), "'../x' is not plain"),
    "an architecture that hides": (fields("config.json", architectures=[NASTY]), "architecture a\\u202e\\n\\x1b"),
    "a long architecture": (fields("config.json", architectures=["a" * 100_000]), "architecture aaaa"),
    "a long position embedding": (fields("config.json", position_embedding_type=NASTY * 10_000), "is not supported"),
    "an activation that hides": (fields("config.json", hidden_act=NASTY), "hidden_act 'a\\u202e"),
    "a kind of layer that hides": (fields("config.json", layer_types=[NASTY] * 2), "layer type 'a\\u202e"),
    "a parameter that hides": (
        fields("config.json", rope_parameters={"rope_type": "default", NASTY: 1}),
        "'a\\u202e\\n\\x1b[31m' is not a parameter of rope type 'default'",
    ),
    "a template that hides": (
        lambda folder: (
            (folder / "chat_template.jinja").unlink(missing_ok=True),
            fields("tokenizer_config.json", chat_template=[{"name": NASTY, "template": "x"}])(folder),
        ),
        "chat templates a\\u202e\\n\\x1b[31m, none",
    ),
    "a file that hides": (only(f"{NASTY}.safetensors"), "; found a\\u202e\\n\\x1b[31m.safetensors"),
    "a pickle that hides": (only(f"{NASTY}.bin"), "found a\\u202e\\n\\x1b[31m.bin, but only"),
}
SHARDS = {
    "a shard that leads out": (index(lambda t: t["weight_map"].update({Q: "../x.safetensors"})), "not the base name"),
    "a shard of the root": (index(lambda t: t["weight_map"].update({Q: "/x.safetensors"})), "not the base name"),
    "a shard that hides": (index(lambda t: t["weight_map"].update(x=f"{NASTY}.safetensors")), "not a plain relative"),
    "a tensor of no shard": (
        index(lambda t: t["weight_map"].update({NASTY: t["weight_map"][Q]})),
        "tensor 'a\\u202e\\n\\x1b[31m' is not in model-",
    ),
    "no map": (index(lambda t: t.update(weight_map=[])), "Expected `object`, got `array`"),
}


def check(folder, message):
    with pytest.raises(IngestError) as caught:
        load_model(ModelSource(str(folder), folder))
    text = str(caught.value)
    assert message in text
    assert text.isprintable()
    assert len(text) < 700


@pytest.mark.slow
@pytest.mark.parametrize("case", REFUSED)
def test_one_file(case, tiny_copy):
    folder = tiny_copy("llama")
    change, message = REFUSED[case]
    change(folder)
    check(folder, message)


@pytest.mark.parametrize("case", SHARDS)
def test_shards(case, tiny_copy):
    folder = tiny_copy("llama", sharded=True)
    change, message = SHARDS[case]
    change(folder)
    check(folder, message)


@pytest.mark.parametrize("shape", [[3, 3], [0]])
def test_a_head_of_another_shape_is_refused_though_the_model_is_tied(shape, tiny_copy):
    """As transformers does."""
    folder = tiny_copy("qwen2", tie_word_embeddings=True)
    put("lm_head.weight", shape)(folder)
    check(folder, "tensor 'lm_head.weight' has shape")


def test_every_tensor_may_have_a_type_of_its_own(tiny_copy):
    import ml_dtypes

    kinds = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "F64": np.float64, "F32": np.float32}

    def mix(table):
        for position, (name, (_, shape, data)) in enumerate(list(table.items())):
            kind = list(kinds)[position % 4]
            table[name] = (kind, shape, np.frombuffer(data, np.float32).astype(kinds[kind]).tobytes())

    folder = tiny_copy("llama", attention_bias=True)
    tensors(mix)(folder)
    assert load_model(ModelSource(str(folder), folder)).weights


ADAPTERS = {
    "alpha": (fields("adapter_config.json", lora_alpha=1e308), "is 1e+308, expected at most 1e+06"),
    "type": (fields("adapter_config.json", peft_type=NASTY * 100), "peft_type 'a\\u202e"),
    "bias": (fields("adapter_config.json", bias=NASTY * 100), "Invalid enum value"),
    "start": (fields("adapter_config.json", init_lora_weights=NASTY * 100), "init_lora_weights 'a\\u202e"),
    "rank": (fields("adapter_config.json", r=10**400), "Expected `int | null`|Integer value out of range|expected"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ADAPTERS)
def test_adapters(case, tiny_checkpoint, tiny_adapter):
    folder = tiny_adapter(tiny_checkpoint("llama"), "lora", r=2, target_modules=["q_proj"])
    change, message = ADAPTERS[case]
    change(folder)
    with pytest.raises(AdapterError) as caught:
        read_adapter(str(folder), folder)
    text = str(caught.value)
    assert any(part in text for part in message.split("|"))
    assert text.isprintable()
    assert len(text) < 700
