"""passes/mixed_precision: a goal's KL is that of the artifact, by transformers in float64 over its tensors."""

import os

import ml_dtypes
import numpy as np
import pytest
from dequantized_reference import dequantized
from quantized_checkpoints import quantized_copy
from safetensors.numpy import load_file, save_file

from pyc.compiler.files.cache import Cache
from pyc.compiler.files.source_files import SourceFiles
from pyc.compiler.recipe.api import recipe_from
from pyc.compiler.schemes import parse_scheme
from pyc.compiler.stacked_names import names_in_stack
from pyc.compiler.weights import Stacked
from pyc.passes.driver.build import build, build_context
from pyc.passes.driver.ingest_recipe import ingest_recipe
from pyc.passes.mixed_precision.mix_schemes import mix_schemes
from pyc.passes.mixed_precision.scheme_problem import problem
from pyc.passes.mixed_precision.stored_groups import stored_groups
from pyc.runtime.artifact.reader import open_artifact

pytestmark = pytest.mark.usefixtures("compiled_once")

IS_LONG = os.environ.get("PYC_CASES") == "all"
TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}
SMALL = {"shapes": {"tokens": [1], "logits": [1]}, "targets": [{"isa": ["x86-64"]}]}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
WINDOW, TOKENS = 32, 512
TEXT = " ".join(f"the cat {number} sat on {number * 7}" for number in range(2000))
QUERIES, UP = "re:.*q_proj", "re:.*(q_proj|up_proj)"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    """One cache for all: the graphs are few."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_home(tmp_path, programs, monkeypatch):
    monkeypatch.setenv("PYC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYC_CACHE_DIR", str(programs))


@pytest.fixture
def model_of(tiny_copy):
    """`model_of(model_type, dtype, gains)`: a checkpoint whose norms have gains of 1 and a fifth, or large ones."""

    def make(model_type, dtype, gains="plain", **options):
        path = tiny_copy(model_type, dtype=dtype, **SIZES, **options)
        if gains == "large":
            random, file = np.random.default_rng(0), path / "model.safetensors"
            tensors = load_file(file)
            for name in sorted(tensors):
                if name.endswith("norm.weight"):
                    factors = np.exp(1.5 * random.standard_normal(len(tensors[name])))
                    tensors[name] = (tensors[name].astype(np.float32) * factors).astype(TYPES[dtype])
            save_file(tensors, file, {"format": "pt"})
        return path

    return make


@pytest.fixture
def document(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    calibration = {"text": str(text), "window": WINDOW, "tokens": TOKENS}

    def make(checkpoint, quantize):
        return {"model": str(checkpoint), **SMALL, "quantize": {"calibration": calibration, **quantize}}

    return make


def kl_of(checkpoint, made, first=0, count=TOKENS, adapter=None):
    """The mean KL of an artifact to its model, in float64, on tokens of the text; and the norms that are in it."""
    import torch
    import transformers

    def exact():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            checkpoint, dtype=torch.float64, attn_implementation="eager"
        )
        if adapter is not None:
            import peft

            model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
        return model.eval()

    ids = transformers.AutoTokenizer.from_pretrained(checkpoint)(TEXT)["input_ids"][first : first + count]
    ids = torch.tensor(ids[: len(ids) // WINDOW * WINDOW]).reshape(-1, WINDOW)
    wanted, model = exact(), exact()
    schemes = {name: group.scheme for group in made.mixture.groups for name in group.names}
    shapes = {name: tuple(value.shape) for name, value in wanted.state_dict().items()}
    values = dequantized(made.path, shapes, lambda name: parse_scheme(schemes[name].replace("none", "bf16"), "int8"))
    norms = {name for name in values if name.endswith(("layernorm.weight", "model.norm.weight"))}
    absent = [name for name in shapes if name.endswith("norm.weight") and name not in values]
    values |= dict.fromkeys(absent, np.ones(1)) | dict(zip(absent, scaled_gains(made.path), strict=False))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values[name].astype(np.float64)))
        p, q = (torch.log_softmax(each(ids).logits, -1) for each in (wanted, model))
    return float((p.exp() * (p - q)).sum(-1).mean()), norms


def scaled_gains(path):
    """The gains that AWQ gives to norms, in the order in which a model reads them: to all whose own are folded."""
    with open_artifact(path) as artifact:
        names = [tensor.name for tensor in artifact.header.tensors if tensor.name.endswith(".gain")]
        return [np.array(artifact.tensor(name)) for name in sorted(names, key=lambda name: int(name[1:].split(".")[0]))]


def check(found, kl, limit=None):
    """As many digits as are printed, of which the last may be another where the next ones are a half."""
    assert found.measured == pytest.approx(kl, rel=6e-4)
    if limit is not None:
        assert kl <= limit * (1 + 5e-4), "half a unit of the last digit"


MIXED = [
    ("qwen3", "float16", "plain", {"max_kl": 2e-4}),
    ("llama", "float32", "plain", {"max_kl": 3e-4}),
    ("llama", "bfloat16", "large", {"max_kl": 0.01}),
    ("mistral", "bfloat16", "large", {"bits_per_weight": 12}),
    ("llama", "bfloat16", "plain", {"bits_per_weight": 9, "overrides": [{"match": QUERIES, "scheme": "none"}]}),
    ("llama", "bfloat16", "plain", {"bits_per_weight": 9}),
    ("llama", "float16", "large", {"bits_per_weight": 12}),
    ("llama", "float32", "large", {"bits_per_weight": 12}),
    ("llama", "bfloat16", "large", {"bits_per_weight": 14, "overrides": [{"match": QUERIES, "scheme": "f32"}]}),
    ("qwen2", "float16", "large", {"bits_per_weight": 9, "overrides": [{"match": UP, "scheme": "bf16"}]}),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "dtype", "gains", "quantize"), MIXED[: None if IS_LONG else 4], ids=lambda value: str(value)[:40]
)
def test_the_kl_of_a_mix_with_bf16_is_that_of_the_artifact(
    model_type, dtype, gains, quantize, model_of, document, tmp_path
):
    """Behind norms matrices are quantized, with the gain, or in bf16, without; beside one in bf16 all are without."""
    checkpoint = model_of(model_type, dtype, gains)
    made = build(document(checkpoint, quantize), output=tmp_path / "m.pyca")
    kl, norms = kl_of(checkpoint, made)
    schemes = {group.scheme.replace("none", "bf16") for group in made.mixture.groups}
    assert norms
    assert "bf16" in schemes
    assert len(schemes) > 1
    check(made.mixture, kl, quantize.get("max_kl"))


@pytest.mark.slow
def test_the_kl_beside_a_tied_embedding_is_that_of_the_artifact(model_of, document, tmp_path):
    """The last norm keeps its gain, since the embedding is looked up, too."""
    checkpoint = model_of("qwen3", "bfloat16", "large", tie_word_embeddings=True)
    made = build(document(checkpoint, {"bits_per_weight": 9}), output=tmp_path / "m.pyca")
    kl, norms = kl_of(checkpoint, made)
    assert "model.norm.weight" in norms
    check(made.mixture, kl)


@pytest.mark.slow
@pytest.mark.parametrize("quantize", [{"max_kl": 0.001}, {"bits_per_weight": 14}][: 2 if IS_LONG else 1], ids=str)
def test_the_kl_beside_an_adapter_is_that_of_the_artifact(quantize, model_of, tiny_adapter, document, tmp_path):
    """What LoRA adds to a matrix in bf16 is rounded with it."""
    checkpoint = model_of("llama", "bfloat16")
    adapter = tiny_adapter(checkpoint)
    given = {**document(checkpoint, quantize), "adapters": [{"path": str(adapter)}]}
    made = build(given, output=tmp_path / "m.pyca")
    kl, norms = kl_of(checkpoint, made, adapter=adapter)
    assert norms
    check(made.mixture, kl, quantize.get("max_kl"))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gptq", "awq", "imatrix"][: 3 if IS_LONG else 1])
def test_the_kl_of_calibrated_codes_is_that_of_the_artifact(algorithm, model_of, document, tmp_path):
    """On tokens behind those that calibrate."""
    checkpoint = model_of("llama", "bfloat16", "large")
    made = build(document(checkpoint, {"bits_per_weight": 12, "algorithm": algorithm}), output=tmp_path / "m.pyca")
    kl, norms = kl_of(checkpoint, made, TOKENS, 4096)
    assert norms
    check(made.mixture, kl)


@pytest.mark.slow
@pytest.mark.parametrize("gains", ["plain", "large"])
def test_what_loses_nothing_keeps_every_limit(gains, model_of, document, tmp_path):
    checkpoint = model_of("llama", "bfloat16", gains)
    made = build(document(checkpoint, {"max_kl": 1e-6}), output=tmp_path / "m.pyca")
    assert made.mixture.measured <= 1e-6
    kl, norms = kl_of(checkpoint, made)
    assert kl <= 1e-6
    assert norms


def test_codes_that_are_kept_lose_nothing(tiny_checkpoint, document, tmp_path):
    """Those of a checkpoint in int4 keep any limit in 4 bits: they are taken as they are, and gains stay apart."""
    checkpoint = tmp_path / "awq"
    quantized_copy(tiny_checkpoint("llama", dtype="bfloat16", **SIZES), "awq", checkpoint)
    with build_context(Cache(None), 2) as context:
        recipe = recipe_from(document(checkpoint, {"max_kl": 1e-6}))
        found = mix_schemes(ingest_recipe(recipe, context.files, None, {}), context, lambda *what: None)
    assert found.measured <= 1e-6
    products = {group.scheme for group in found.groups if group.names[0].endswith("_proj.weight")}
    assert products == {"int4-g32-asym"}
    assert all(group.distance == 0 for group in found.groups if group.scheme == "int4-g32-asym")


def test_groups_are_measured_as_they_are_stored(tiny_checkpoint, document):
    """Whatever others take, but for those that read the same norm beside a group: keys and values beside queries."""
    random = np.random.default_rng(0)
    for overrides in ([], [{"match": QUERIES, "scheme": "bf16"}], [{"match": QUERIES, "scheme": "int8"}]):
        checkpoint = tiny_checkpoint("llama", dtype="float16", **SIZES)
        given = document(checkpoint, {"bits_per_weight": 9, "overrides": overrides})
        with SourceFiles() as files:
            found = problem(ingest_recipe(recipe_from(given), files, None, {}))
            stored = stored_groups(found).of
            for _ in range(4):
                choice = [int(random.integers(len(group.candidates))) for group in found.groups]
                built = found.ingested.stored(found.resolved(choice).quantize).weights
                whole = {
                    part: weight.parts[index] if isinstance(weight, Stacked) else weight
                    for name, weight in built.items()
                    for index, part in enumerate(names_in_stack(name))
                }
                for group, index in zip(found.groups, choice, strict=True):
                    if not group.is_fixed:
                        assert stored[group.names][index] == {name: whole[name] for name in group.names}
