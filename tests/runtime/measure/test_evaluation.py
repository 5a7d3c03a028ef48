"""The report of an evaluation: what it holds of decoders and encoders of numpy, as JSON and back."""

import msgspec
import numpy as np
import pytest

from pyc.runtime.artifact.format import Generation
from pyc.runtime.errors import RunError
from pyc.runtime.measure.evaluation import Baseline, Candidate, Passage, evaluate
from pyc.runtime.measure.quality_report import QualityReport, Storage, document_text
from pyc.runtime.model import Model

STORAGE = Storage(size_bytes=100, weights_bytes=80, bits_a_weight=8.0, scheme="int8", schemes=(("int8", 80),))
TEXT = "the quick brown fox jumps over the lazy dog, and then it does it again.\n" * 8
PASSAGE = Passage("text.txt", TEXT, 16)


@pytest.fixture
def decoder(fake, tokenizers):
    def make(noise: float = 0.0, kind: str = "byte_level_bpe") -> Model:
        info = fake.decoder_info(context=32, vocab_size=400)
        executor = fake.FakeDecoder(info, kv_blocks=8, forward=(1, 16), logits=(1, 16))
        random = np.random.default_rng(3)
        executor._head = executor._head + noise * random.standard_normal(executor._head.shape).astype(np.float32)
        return Model(info, Generation(), executor, tokenizers[kind], kv_blocks=8)

    return make


@pytest.fixture
def encoder(fake, tokenizers):
    def make(hidden_size: int = 12) -> Model:
        info = fake.encoder_info(vocab_size=400, hidden_size=hidden_size)
        return Model(info, Generation(), fake.FakeEncoder(info), tokenizers["word_piece"])

    return make


def run(models: list[Model], base: Model | None, passage: Passage = PASSAGE, **options) -> QualityReport:
    named = [Candidate(f"m{index}", model, STORAGE) for index, model in enumerate(models)]
    baseline = None if base is None else Baseline("base", base, "artifact")
    return evaluate(named, baseline, passage, version="1", **options)


def test_the_report_of_decoders(decoder):
    told: list[tuple[str, int, int]] = []
    report = run([decoder(0.1), decoder(0.3)], decoder(), progress=lambda *what: told.append(what))
    text = report.text
    assert (report.kind, text.name, text.context) == ("decoder", "text.txt", 16)
    assert text.windows == text.tokens // 16
    assert text.scored == text.windows * 7
    first, second = report.artifacts
    assert (first.name, second.name) == ("m0", "m1")
    assert first.divergence.kl.value < second.divergence.kl.value
    for artifact in report.artifacts:
        assert artifact.divergence.reference_perplexity == report.reference.perplexity
    assert first.speed.decode_tokens_s > 0
    assert [position for position, _ in first.kl_by_position] == list(range(9, 16))
    assert told[: text.windows] == [("scoring windows", n + 1, text.windows) for n in range(text.windows)]
    example = first.examples[0]
    assert example.score == first.divergence.kl_most
    whole = TEXT.replace("\n", "")
    assert example.before.replace("\n", "") in whole
    assert (example.before + example.token).replace("\n", "") in whole


def test_json_reads_back(decoder, encoder):
    reports = (run([decoder(0.1)], decoder()), run([decoder()], None), run([encoder()], encoder()))
    for report in reports:
        assert msgspec.json.decode(document_text(report), type=QualityReport) == report


def test_speed_is_not_measured_unasked(decoder):
    assert run([decoder()], None, with_speed=False).artifacts[0].speed.decode_tokens_s is None


def test_the_report_of_encoders(encoder):
    passage = Passage("texts", "the fox\n\nthe dog\nthe lazy dog jumps\n", limit=3)
    report = run([encoder()], encoder(), passage)
    assert (report.kind, report.text.scored, report.text.windows) == ("encoder", 3, 0)
    vectors = report.artifacts[0].vectors
    assert vectors.cosine.value == pytest.approx(1)
    assert vectors.rank_correlation == pytest.approx(1)
    assert {example.before for example in report.artifacts[0].examples} == {"the fox", "the dog", "the lazy dog jumps"}
    assert report.artifacts[0].speed.texts_s > 0


def test_what_cannot_be_compared(decoder, encoder):
    for models, base, message in (
        ([decoder(), encoder()], None, "m1: got a model of the kind encoder, expected decoder, as m0 is"),
        ([decoder()], encoder(), "base: got a model of the kind encoder, expected decoder"),
        ([encoder()], None, "m0: an encoder's vectors say nothing alone; compare them with --reference"),
        ([decoder(kind="byte_fallback_bpe")], decoder(), "base: its tokenizer makes"),
        ([decoder(), decoder(kind="byte_fallback_bpe")], None, "m1: its tokenizer makes"),
        ([encoder(hidden_size=10)], encoder(), "m0: its vectors have 10 values, those of base 12"),
    ):
        with pytest.raises(RunError, match=message):
            run(models, base, Passage("t", TEXT + "the dog\nthe fox", 16))
