"""models/generation.py: what generation_config.json asks for and the runtime does not do is said."""

import json

import pytest

from pyc.compiler.files.source_files import SourceFiles
from pyc.models.files import Directory
from pyc.models.generation import read_generation

UNSUPPORTED = {
    "suppress_tokens": [5],
    "begin_suppress_tokens": [5],
    "bad_words_ids": [[5]],
    "min_length": 3,
    "min_new_tokens": 3,
    "forced_eos_token_id": 2,
    "forced_bos_token_id": 1,
    "sequence_bias": [[[5], -1.0]],
    "exponential_decay_length_penalty": [5, 1.1],
    "encoder_repetition_penalty": 1.2,
    "epsilon_cutoff": 0.1,
    "eta_cutoff": 0.1,
    "top_h": 0.5,
    "guidance_scale": 1.5,
    "stop_strings": ["x"],
    "penalty_alpha": 0.6,
    "dola_layers": "high",
    "num_beams": 4,
    "no_repeat_ngram_size": 3,
    "typical_p": 0.9,
}
NEUTRAL = {"suppress_tokens": [], "num_beams": 1, "typical_p": 1.0, "guidance_scale": 1.0, "top_h": None}


class Config:
    eos_token_id = bos_token_id = pad_token_id = None


def read(folder):
    with SourceFiles() as files:
        read_generation(Directory(folder, "model", files), Config(), 100)


def warnings(folder, caplog, content):
    caplog.clear()
    (folder / "generation_config.json").write_text(json.dumps(content))
    read(folder)
    return caplog.messages


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_would_choose_other_tokens_is_said(name, tmp_path, caplog):
    assert warnings(tmp_path, caplog, {name: UNSUPPORTED[name], "do_sample": True}) == [
        f"model: generation_config.json: not supported, and left out: {name}"
    ]


def test_what_changes_nothing_is_not(tmp_path, caplog):
    assert warnings(tmp_path, caplog, NEUTRAL) == []


def test_defaults_of_transformers_change_nothing(tmp_path, caplog):
    transformers = pytest.importorskip("transformers")
    transformers.GenerationConfig(temperature=0.7, do_sample=True).save_pretrained(tmp_path)
    read(tmp_path)
    assert caplog.messages == []
