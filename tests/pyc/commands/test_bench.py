"""pyc bench: the keys that others read, and numbers that fit together."""

import json

import pytest


def test_decoder(pyc, decoder_artifact):
    sizes = ("--prompt-tokens", 20, "--decode-tokens", 10, "--repeat", 2, "--threads", 1)
    code, out, err = pyc("bench", decoder_artifact, *sizes, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert (document["prompt_tokens"], document["decode_tokens"], document["repeat"]) == (20, 10, 2)
    assert document["load_s"] > 0
    assert document["ttft_s"] > 20 / document["prefill_tok_s"] * 0.5
    assert document["decode_ms"]["p50"] <= document["decode_ms"]["p90"] <= document["decode_ms"]["p99"]
    assert sum(count for _, count in document["decode_histogram"]) == 20
    assert document["decode_histogram"][-1][0] >= document["decode_ms"]["p99"]
    assert document["peak_rss_bytes"] > 10 << 20
    for name in ("ttft_s", "prefill_tok_s", "decode_tok_s"):
        least, most = document["spread"][name]
        assert least <= document[name] <= most
    machine = document["machine"]
    assert machine["threads"] == 1
    assert machine["cores"] >= 1
    assert machine["cpu"]
    assert machine["kernel"].startswith("Linux ")
    assert machine["isa"]
    assert isinstance(machine["features"], list)


def test_defaults_fit_a_small_context(pyc, decoder_artifact):
    document = json.loads(pyc("bench", decoder_artifact, "--repeat", 1, "--json")[1])
    assert (document["prompt_tokens"], document["decode_tokens"]) == (32, 32)


def test_the_table_has_every_value(pyc, decoder_artifact):
    out = pyc("bench", decoder_artifact, "--prompt-tokens", 4, "--decode-tokens", 4, "--repeat", 1)[1]
    names = {line.split()[0] for line in out.splitlines()}
    assert {"load_s", "ttft_s", "prefill_tok_s", "decode_tok_s", "decode_ms.p50", "decode_ms.p90"} <= names
    assert {"decode_ms.p99", "peak_rss_bytes", "machine.cpu", "machine.isa", "spread.ttft_s"} <= names


def test_encoder(pyc, encoder_artifact):
    document = json.loads(pyc("bench", encoder_artifact, "--sentences", 8, "--repeat", 2, "--json")[1])
    assert document["sentences"] == 8
    assert document["sentences_s"] > 0
    assert document["latency_s"] > 0
    assert "ttft_s" not in document


@pytest.mark.parametrize("sizes", [("--prompt-tokens", 60, "--decode-tokens", 10), ("--prompt-tokens", 100)])
def test_more_than_the_context_is_refused(pyc, decoder_artifact, sizes):
    code, out, err = pyc("bench", decoder_artifact, *sizes)
    assert (code, out) == (9, "")
    assert "exceed the context of 64" in err
