"""Adapters of PEFT for tasks of classification: those with a head are refused as such, others are adapters like any."""

import pytest

from pyc.models.adapters import read_adapter
from pyc.runtime.errors import AdapterError

HEADS = {"SEQ_CLS": "score", "TOKEN_CLS": "score", "QUESTION_ANS": "qa_outputs"}
AUTO = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def trained(checkpoint, path, auto, task, **options):
    """Write an adapter for the model as `auto` of transformers loads the checkpoint."""
    import peft
    import transformers

    model = getattr(transformers, auto).from_pretrained(checkpoint)
    config = peft.LoraConfig(r=2, task_type=task, init_lora_weights=False, **options)
    peft.get_peft_model(model, config).save_pretrained(path)


@pytest.mark.parametrize("task", HEADS)
def test_a_head_is_refused_by_its_task(task, tiny_checkpoint, tmp_path):
    trained(tiny_checkpoint("llama"), tmp_path / "classifier", AUTO[task], task, target_modules=["q_proj"])
    with pytest.raises(AdapterError) as caught:
        read_adapter("classifier", tmp_path)
    said = f"task_type is {task!r}: it was trained with a classification head (tensor '{HEADS[task]}."
    assert said in str(caught.value)


def test_a_head_of_an_encoder(tiny_checkpoint, tmp_path):
    trained(tiny_checkpoint("bert"), tmp_path / "classifier", AUTO["SEQ_CLS"], "SEQ_CLS", target_modules=["query"])
    with pytest.raises(AdapterError, match=r"classification head \(tensor 'classifier\.bias'\), which is not built"):
        read_adapter("classifier", tmp_path)


def test_an_encoder_without_a_head_is_adapted(tiny_checkpoint, tmp_path):
    """PEFT writes the names of heads into modules_to_save for the task alone, whatever the model has."""
    trained(tiny_checkpoint("bert"), tmp_path / "features", "AutoModel", "SEQ_CLS", target_modules=["query"])
    config = (tmp_path / "features" / "adapter_config.json").read_text()
    assert '"classifier"' in config
    assert read_adapter("features", tmp_path).low_rank


def test_a_module_that_the_user_saved_is_still_missed(tiny_checkpoint, tmp_path):
    options = {"target_modules": ["query"], "modules_to_save": ["word_embeddings"]}
    trained(tiny_checkpoint("bert"), tmp_path / "features", "AutoModel", "SEQ_CLS", **options)
    place = tmp_path / "features" / "adapter_config.json"
    place.write_text(place.read_text().replace('"word_embeddings"', '"lm_head"'))
    with pytest.raises(AdapterError, match="modules_to_save names 'lm_head'"):
        read_adapter("features", tmp_path)
