"""The page of an evaluation: well-formed, loads nothing, and what a text holds is text in it."""

import msgspec
import pytest
from html_pages import NASTY, Page

from pyc.commands.eval_page import html_page
from pyc.runtime.host.machine import describe_machine
from pyc.runtime.measure.quality import Estimate, joined, log_probabilities, score_rows, text_quality
from pyc.runtime.measure.quality_report import (
    ArtifactQuality,
    Limit,
    QualityReport,
    Reference,
    ReportExample,
    ReportGuess,
    Speed,
    Storage,
    Text,
)
from pyc.runtime.measure.vector_quality import VectorQuality


@pytest.fixture
def report() -> QualityReport:
    import numpy as np

    random = np.random.default_rng(0)
    logits = random.standard_normal((2, 40, 20)).astype(np.float32)
    scores = score_rows(log_probabilities(logits[0]), random.integers(0, 20, 40), log_probabilities(logits[1]))
    quality = text_quality(joined([scores]))
    guesses = (ReportGuess(NASTY, 0.5), ReportGuess(" \n", 0.25))
    example = ReportExample(score=1.5, window=0, position=9, before=NASTY, token=NASTY, found=guesses, wanted=guesses)
    artifacts = tuple(
        ArtifactQuality(
            name=name,
            architecture="llama",
            storage=Storage(
                size_bytes=1000,
                weights_bytes=900,
                bits_a_weight=8,
                scheme="int8",
                schemes=(("int8", 800), ("f32", 100)),
            ),
            speed=Speed(isa="x86-64", threads=1, prompt_tokens_s=50.0, decode_tokens_s=10.0),
            mean_nll=quality.mean_nll,
            perplexity=quality.perplexity,
            divergence=quality.divergence,
            kl_by_position=((9, 0.1), (10, 0.2)),
            examples=(example,),
        )
        for name in ("a.pyca", f"{NASTY}.pyca")
    )
    return QualityReport(
        pyc="1",
        kind="decoder",
        text=Text(name=NASTY, blake3="0", tokens=90, windows=4, context=20, scored=40),
        reference=Reference(name=NASTY, what="checkpoint", perplexity=Estimate(2.0, 0.1)),
        artifacts=artifacts,
        machine=describe_machine(),
        limits=(Limit(name="max_kl", limit=0.1, measured=0.2, is_kept=False),),
    )


def test_the_page_is_well_formed_and_loads_nothing(report):
    text = html_page(report)
    page = Page(text)
    names = {name for name, _ in page.tags}
    assert text.startswith("<!DOCTYPE html>")
    assert not names & {"script", "link", "img", "iframe", "object", "image", "use", "a", "base", "form"}
    for _, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "xlink:href")}
    assert "url(" not in text and "@import" not in text
    assert [tag for tag, _ in page.tags].count("figure") == 4
    policy = next(tag for name, tag in page.tags if name == "meta" and "http-equiv" in tag)
    assert policy["content"].startswith("default-src 'none'")


def test_what_is_untrusted_is_text(report):
    text = html_page(report)
    assert "<script" not in text and "<img" not in text
    assert "\x1b" not in text and "\u202e" not in text
    page = Page(text)
    assert page.text.count("</pre><script>alert(1)</script>") >= 4, "it is all there to be read"
    assert "{{ 7 * 7 }}" in page.text and "49" not in page.text.partition("Worst examples")[2]
    assert "\\x1b[31m\\u202e & \"quoted\"" in page.text
    assert "\u00b7\u21b5" in page.text, "blanks of a token are seen"


def test_a_gate_that_was_not_passed_says_so(report):
    page = Page(html_page(report))
    assert "exceeded\nmax_kl: 0.2, limit 0.1" in page.text
    assert "Gate" not in Page(html_page(msgspec.structs.replace(report, limits=()))).text


def test_without_a_reference_there_are_no_charts(report):
    bare = tuple(
        msgspec.structs.replace(each, divergence=None, kl_by_position=(), examples=()) for each in report.artifacts
    )
    page = Page(html_page(msgspec.structs.replace(report, reference=None, artifacts=bare)))
    assert "svg" not in {name for name, _ in page.tags}
    assert "perplexity" in page.text


def test_encoders(report):
    vectors = VectorQuality(9, Estimate(0.99, 0.01), 0.9, 3, 0.98, 9)
    speed = Speed(isa="x86-64", threads=1, texts_s=5.0)
    example = ReportExample(score=0.9, window=3, position=0, before=NASTY)
    each = msgspec.structs.replace(
        report.artifacts[0],
        mean_nll=None,
        perplexity=None,
        divergence=None,
        vectors=vectors,
        speed=speed,
        kl_by_position=(),
        examples=(example,),
    )
    page = Page(html_page(msgspec.structs.replace(report, kind="encoder", artifacts=(each,), limits=())))
    assert "rank correlation" in page.text and "cosine 0.900000" in page.text and "text 3" in page.text
