"""models/demo: what is trained, beside transformers' own of that checkpoint, and the prose that one of them reads."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from pyc.models.demo.corpus import SourceFile, encode, read_prose, train_tokenizer  # noqa: E402 (torch is optional)
from pyc.models.demo.export import write_checkpoint  # noqa: E402
from pyc.models.demo.network import LanguageModel, Shape  # noqa: E402
from pyc.models.demo.variants import VARIANTS  # noqa: E402

SMALL = {"vocab_size": 320, "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8, "ffn_size": 48}


@pytest.mark.parametrize(("own", "architecture"), [({}, "qwen3"), ({"head_norm": False, "tied": False}, "mistral")])
def test_the_network_is_the_architecture_of_its_checkpoint(own, architecture, tmp_path):
    shape = Shape(**SMALL, context=64, **own)
    torch.manual_seed(0)
    model = LanguageModel(shape)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
            parameter.copy_(parameter.to(torch.bfloat16))
    tokenizer = train_tokenizer((SourceFile("a.py", "the cat sat on the mat, and the dog on the log\n" * 20),), 320)
    write_checkpoint(model.state_dict(), shape, tokenizer, tmp_path / "checkpoint")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint", dtype=torch.float32)
    assert loaded.config.model_type == architecture
    assert loaded.config.tie_word_embeddings == shape.tied
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 320, (2, 48)))
    with torch.no_grad():
        wanted = loaded(ids, labels=ids).loss.item()
        got = model(ids[:, :-1], ids[:, 1:]).item()
    assert abs(got - wanted) < 1e-5 * wanted


def test_the_prose_model_has_at_least_twenty_million_parameters():
    with torch.device("meta"):
        model = LanguageModel(VARIANTS["prose"].shape)
    assert sum(parameter.numel() for parameter in model.parameters()) >= 20_000_000


def test_prose_is_the_longer_docstrings_each_once(tmp_path):
    text = " ".join(["What it returns, in a sentence or two."] * 8)
    folder = tmp_path / "numpy" / "tests"
    folder.mkdir(parents=True)
    source = f'"""Short."""\n\ndef first():\n    """{text}"""\n\ndef again():\n    """{text}"""\n'
    (tmp_path / "numpy" / "one.py").write_text(source)
    (tmp_path / "numpy" / "two.py").write_text(source)  # the same again
    (tmp_path / "numpy" / "three.py").write_text("def broken(:\n")
    (folder / "four.py").write_text(f'"""{text} A test."""\n')
    found = read_prose(tmp_path)
    files = (*found.training, *found.held_back)
    assert [(file.name, file.text) for file in files] == [("numpy/one.py", text + "\n")]
    assert encode(train_tokenizer(files), files)[-1] == 0
