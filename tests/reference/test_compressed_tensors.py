"""`pyc export --to compressed-tensors`: transformers and that package compute what the codes stand for, bit for bit."""

import json
import re

import numpy as np
import pytest
from built_models import recipe_for
from long_runs import sample

from pyc.passes.calibration.rounding import ROUNDINGS
from pyc.passes.export.checkpoint import export_checkpoint
from pyc.passes.export.compressed import export_compressed
from pyc.passes.export.source import exportable
from pyc.runtime.errors import ArtifactError

WIDE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "head_dim": 32,
    "tokenizer": False,
    "max_position_embeddings": 128,
}
IDS = [int(number) for number in np.random.Generator(np.random.PCG64(7)).integers(3, 90, 40)]
TEXT = {"tokens": 256, "window": 16}
MIXED = {
    "scheme": "int4-g32",
    "overrides": [
        {"match": "re:.*down_proj", "scheme": "fp8-tensor"},
        {"match": "re:.*layers\\.0\\..*o_proj", "scheme": "none"},
        {"match": "re:.*layers\\.1\\..*o_proj", "scheme": "int8"},
    ],
}
CASES = {
    **{name: {"scheme": name} for name in ("int4-g32", "int4-g128", "int8", "int8-g32", "int3-g128")},
    **{name: {"scheme": name} for name in ("lut5-g32", "lut4-g32")},
    **{name: {"scheme": name} for name in ("fp8", "fp8-tensor", "fp8-b128")},
    "mixed": MIXED,
    **{name: {"scheme": "int4-g32", "algorithm": name, "calibration": TEXT} for name in ROUNDINGS},
}


@pytest.fixture
def exported(tmp_path):
    """`exported(checkpoint, form, quantize)`: the folder that an export of a recipe makes, in f32 outside of codes."""

    def make(checkpoint, form, quantize, target=None, **recipe):
        path = tmp_path / f"{form}.yaml"
        quantize = {"activations": "f32", **quantize}
        path.write_text(json.dumps(recipe_for(checkpoint, quantize=quantize, **recipe)))
        write = export_checkpoint if form == "hf" else export_compressed
        with exportable(path) as source:
            return write(source, tmp_path / (target or form), dtype="f32")

    return make


def logits(folder):
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def settings(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


@pytest.mark.parametrize("case", sample(CASES, *[*CASES][:10:2], "mixed", *[*ROUNDINGS][::3]))
def test_transformers_computes_the_same_from_codes_and_from_numbers(case, tiny_checkpoint, exported):
    sizes = {**WIDE, "tokenizer": "calibration" in CASES[case]}
    path = tiny_checkpoint("qwen3", tie_word_embeddings=case != "fp8", **sizes)
    folder = exported(path, "compressed-tensors", CASES[case])
    wanted = logits(exported(path, "hf", CASES[case]))
    np.testing.assert_array_equal(logits(folder), wanted)
    assert np.std(wanted) > 0.1


def test_each_kind_of_matrix_has_a_group(tiny_checkpoint, exported):
    found = settings(exported(tiny_checkpoint("qwen3", **WIDE), "compressed-tensors", MIXED))
    assert found["format"] == "mixed-precision"
    formats = {group["format"]: group for group in found["config_groups"].values()}
    assert set(formats) == {"pack-quantized", "float-quantized"}
    assert "model.layers.0.self_attn.o_proj" in found["ignore"]
    assert [group["weights"]["num_bits"] for group in found["config_groups"].values()].count(4) == 1


@pytest.mark.parametrize("scheme", ["int8", "lut4-g32", "nvfp4"])
def test_activations_of_8_bits_are_named(scheme, tiny_checkpoint, exported):
    """And rounded there as the format has it, which costs little."""
    path = tiny_checkpoint("qwen3", **WIDE)
    quantize = {"scheme": scheme, "embeddings": scheme, "activations": "int8"}
    folder = exported(path, "compressed-tensors", quantize)
    (group,) = settings(folder)["config_groups"].values()
    assert (group["format"], group["input_activations"]["strategy"]) == ("int-quantized", "token")
    wanted = logits(exported(path, "hf", quantize))
    assert 0 < np.abs(logits(folder) - wanted).max() < 0.05 * np.abs(wanted).max()


def test_asymmetric_codes_are_unpacked_by_the_package(tiny_checkpoint, exported):
    """Its loader cannot, as it expects zero points that are not packed; its decompressor can."""
    import torch
    from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors.torch import load_file

    path = tiny_checkpoint("qwen3", **WIDE)
    quantize = {"scheme": "int4-g32-asym", "embeddings": "int4-g32-asym"}
    coded = load_file(exported(path, "compressed-tensors", quantize) / "model.safetensors")
    numbers = load_file(exported(path, "hf", quantize) / "model.safetensors")
    weights = QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    modules = [name.removesuffix(".weight_packed") for name in coded if name.endswith(".weight_packed")]
    assert len(modules) > 10
    for module in modules:
        names = PackedQuantizationCompressor.compression_param_names(scheme)
        parts = {name: coded[f"{module}.{name}"] for name in names}
        found = PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
        assert torch.equal(found, numbers[f"{module}.weight"]), module


@pytest.mark.parametrize("scheme", ["int4-g32", "int4-g32-asym", "int8", "fp8", "fp8-b128"])
def test_a_build_of_the_export_has_the_same_codes(scheme, tiny_checkpoint, exported):
    path = tiny_checkpoint("qwen3", **WIDE)
    quantize = {"scheme": scheme, "embeddings": "none", "activations": "f32"}
    first = exported(path, "hf", quantize)
    again = exported(exported(path, "compressed-tensors", quantize), "hf", {"scheme": "none"}, "again")
    from safetensors.numpy import load_file

    wanted = load_file(first / "model.safetensors")
    for name, value in load_file(again / "model.safetensors").items():
        np.testing.assert_allclose(value, wanted[name], rtol=2**-11, atol=1e-7, err_msg=name)


@pytest.mark.parametrize(
    ("config", "quantize", "message"),
    [
        ({}, {"scheme": "none"}, "none of its matrices is quantized; export it with --to hf"),
        ({}, {"scheme": "fp8-e5m2"}, r"compressed-tensors cannot express model\.layers\.0\..*: it is e5m2"),
        ({"intermediate_size": 258}, {"scheme": "int8"}, r"down_proj.*: 258 inputs of 8 bits do not fill words of 32"),
    ],
)
def test_what_the_format_cannot_say(config, quantize, message, tiny_checkpoint, exported, tmp_path):
    with pytest.raises(ArtifactError, match=message):
        exported(tiny_checkpoint("qwen3", **{**WIDE, **config}), "compressed-tensors", quantize)
    assert not (tmp_path / "compressed-tensors").exists()


BERT = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}
ENCODER_SCHEMES = (
    *("int8", "int8-g32", "int4-g32", "int4-g128", "int4-g32-asym", "int3-g128", "int2-g32"),
    *("lut4-g32", "lut5-g32", "mxfp4", "nvfp4", "ternary", "fp8", "fp8-tensor", "fp8-b128"),
)
MIXED_ENCODER = {
    "scheme": "int8",
    "overrides": [
        {"match": "re:.*intermediate", "scheme": "int4-g32"},
        {"match": "re:.*layer\\.0\\.output", "scheme": "none"},
    ],
}
WHOLE_TEXTS = {"tokens": [64], "batch": [3]}
TEXTS = ["the quick brown fox jumps over the lazy dog", "a", "the cat sat on the mat"]


def rows(folder, name="AutoModel"):
    """What transformers computes in front of the pooling, or of the token that is asked for."""
    import torch
    import transformers

    model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    body = model if name == "AutoModel" else model.bert
    model(torch.tensor([IDS]))  # the call of the model as a whole is what makes numbers of codes
    with torch.no_grad():
        return body(torch.tensor([IDS])).last_hidden_state[0].numpy()


@pytest.mark.parametrize("activations", ["int8", "f32"])
@pytest.mark.parametrize("scheme", sample(ENCODER_SCHEMES, "int8", "lut4-g32"))
def test_an_encoder_loads_in_transformers_and_sentence_transformers(
    scheme, activations, tiny_checkpoint, exported, built
):
    """The pooler is in no file, and is no matrix that transformers expects codes of."""
    import sentence_transformers

    path = tiny_checkpoint("bert", pooling="mean", normalize=True, **BERT)
    quantize = {"scheme": scheme, "activations": activations}
    folder = exported(path, "compressed-tensors", quantize, shapes=WHOLE_TEXTS)
    np.testing.assert_array_equal(rows(folder), rows(exported(path, "hf", quantize, shapes=WHOLE_TEXTS)))
    vectors = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    wanted = built(path, shapes=WHOLE_TEXTS, quantize=quantize | {"activations": "f32"}).embed(TEXTS)
    assert np.abs(vectors - wanted).max() < 4e-6


@pytest.mark.parametrize("name", ["AutoModel", "AutoModelForMaskedLM", "AutoModelForSequenceClassification"])
@pytest.mark.parametrize("quantize", [{"scheme": "int8"}, MIXED_ENCODER], ids=["one scheme", "several"])
def test_an_encoder_loads_as_any_class(quantize, name, tiny_checkpoint, exported):
    """Names have "bert." in front in those that have a head, and the head is in no file."""
    path = tiny_checkpoint("bert", pooling="mean", **BERT)
    folder = exported(path, "compressed-tensors", quantize, shapes=WHOLE_TEXTS)
    np.testing.assert_array_equal(rows(folder, name), rows(exported(path, "hf", quantize, shapes=WHOLE_TEXTS)))


def test_an_encoder_of_several_schemes_says_that_sentence_transformers_cannot_run_it(tiny_checkpoint, tmp_path):
    recipe = tmp_path / "mixed.yaml"
    path = tiny_checkpoint("bert", **BERT)
    recipe.write_text(json.dumps(recipe_for(path, quantize=MIXED_ENCODER, shapes=WHOLE_TEXTS)))
    notes = []
    with exportable(recipe) as source:
        folder = export_compressed(source, tmp_path / "out", progress=notes.append)
    (event,) = notes
    assert event.note.startswith(f"{recipe}: its matrices are quantized in more than one way, so sentence-transformers")
    assert settings(folder)["dequantize"] is False


@pytest.mark.parametrize("prefix", ["", "bert.", "model.", "roberta.model."])
@pytest.mark.parametrize("quantize", [{"scheme": "int8"}, MIXED_ENCODER], ids=["one scheme", "several"])
def test_patterns_of_an_encoder_hold_whatever_a_class_calls_it(quantize, prefix, tiny_checkpoint, exported):
    """vLLM's name of it is `model`, and patterns are matched from the start of a name."""
    found = settings(exported(tiny_checkpoint("bert", **BERT), "compressed-tensors", quantize, shapes=WHOLE_TEXTS))

    def fits(module, patterns):
        return any(re.match(each.removeprefix("re:"), prefix + module) for each in patterns)

    layers = [f"encoder.layer.{n}.{part}" for n in (0, 1) for part in ("attention.self.query", "output.dense")]
    dense = ["encoder.layer.0.output.dense"] if len(found["config_groups"]) > 1 else []
    assert [name for name in layers if fits(name, found["ignore"])] == dense
    assert fits("pooler.dense", found["ignore"]) and fits("classifier", found["ignore"])
    if len(found["config_groups"]) > 1:
        for name in set(layers) - set(dense):
            assert sum(fits(name, group["targets"]) for group in found["config_groups"].values()) == 1
        targets = [each["targets"] for each in found["config_groups"].values()]
        assert not any(fits("encoder.layer.11.output.dense", each) for each in targets)


@pytest.mark.parametrize("scheme", ["int8", "int8-g32"])
def test_rows_of_one_group_are_quantized_as_the_matrices_beside_them(scheme, tiny_checkpoint, exported):
    path = tiny_checkpoint("bert", hidden_size=32, intermediate_size=64, num_attention_heads=2)
    found = settings(exported(path, "compressed-tensors", {"scheme": scheme}, shapes=WHOLE_TEXTS))
    (group,) = found["config_groups"].values()
    assert group["weights"]["strategy"] == ("channel" if scheme == "int8" else "group")
    assert found["dequantize"]
