"""Decoders that `pyc export --to onnx` writes, over every layout of padding that docs/onnx.md names.

ONNX Runtime runs them, and each text has to get the logits that it has alone, in transformers or without padding.
"""

import numpy as np
import pytest
from decoder_cases import VARIANTS
from onnx_exports import CONTEXT, IDS, Loop, exported

__all__ = ["exported"]


@pytest.mark.parametrize(
    ("variant", "flavour", "sides"),
    [
        *((variant, "fused", sides) for variant in ("qwen3", "mistral-window") for sides in ("left", "right", "both")),
        *(("qwen3", "standard", sides) for sides in ("left", "right", "both")),
        ("mistral-window", "standard", "left"),  # whose window counts places, be they padding
    ],
)
def test_rows_of_a_padded_batch_are_those_alone(variant, flavour, sides, tiny_checkpoint, exported):
    """Padded before the text, as transformers asks of decoders, or behind it, as onnxruntime-genai does."""
    model_type, config = VARIANTS.get(variant, ("mistral", {"sliding_window": 8}))
    folder = exported(tiny_checkpoint(model_type, **{**CONTEXT, **config}), "onnx", flavour=flavour)
    texts = [IDS[:20], IDS[5:18], IDS[30:35]]
    is_left = {"left": (True, True, True), "right": (False, False, False), "both": (False, True, False)}[sides]
    mask, ids = np.zeros((3, 20), np.int64), np.zeros((3, 20), np.int64)
    for row, (text, left) in enumerate(zip(texts, is_left, strict=True)):
        place = slice(20 - len(text), 20) if left else slice(0, len(text))
        mask[row, place], ids[row, place] = 1, text
    loop, alone = Loop(folder), [Loop(folder) for _ in texts]
    cache = {name: np.repeat(value, 3, axis=0) for name, value in loop.cache.items()}
    for step_number in range(4):  # the prompts, and a further token of each row
        if step_number:
            ids = np.array([[IDS[7 * row + step_number]] for row in range(3)])
            mask = np.concatenate([mask, np.ones((3, 1), np.int64)], axis=1)
        step = mask[:, mask.shape[1] - ids.shape[1] :]
        positions = np.maximum(mask.cumsum(axis=1) - 1, 0)[:, -ids.shape[1] :]
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        logits, *present = loop.session.run(None, {**given, **cache})
        cache = dict(zip(cache, present, strict=True))
        for row, one in enumerate(alone):
            there = step[row] == 1
            wanted = one.feed([int(number) for number in ids[row][there]])
            assert np.abs(logits[row][there] - wanted).max() <= 1e-5 * np.abs(wanted).max(), (row, step_number)


LAYOUTS = {
    "pieces of a fixed length": ["11111111 11111000 1 1 1"],
    "a last piece of one token": ["1111 1111 1000 1 1"],
    "a piece padded before its text": ["1111 0011 1 111"],
    "a piece padded on both sides": ["0110 0110 1 01 10 1"],
    "padding between tokens": ["10110 01101 00 1 0 1 101"],
    "a piece of padding alone": ["111 000 11 1"],
    "padding before there is text": ["000 110 1"],
    "a row that pauses": ["1 1 1 1 1 1 1 1", "1 1 1 1 0 1 1 1"],
    "a row that pauses longer": ["1 1 1 1 1 1 1 1", "1 1 0 0 0 1 1 1"],
    "rows that take turns": ["11 1 0 1 0 1", "11 0 1 0 1 1", "01 0 0 0 1 0"],
    "prompts padded on any side, and pauses": ["00111 1 0 1 1", "11000 0 1 1 0", "01010 1 1 0 1", "11111 1 1 1 1"],
    "a row that begins late": ["111 1 1 1", "000 0 1 1"],
}
"""Masks of rows, a word for each step: a batch takes one token a step behind its first."""


@pytest.mark.parametrize(
    ("variant", "flavour"), [("qwen3", "fused"), ("mistral-window", "fused"), ("qwen3", "standard")]
)
def test_padding_anywhere_is_no_part_of_a_text(variant, flavour, tiny_checkpoint, exported, reference):
    model_type, config = VARIANTS.get(variant, ("mistral", {"sliding_window": 4}))
    path = tiny_checkpoint(model_type, **{**CONTEXT, **config})
    loop, wanted = Loop(exported(path, "onnx", flavour=flavour)), reference_of(reference(path))
    behind = {"several tokens of several rows": ["0110 011 10", "1011 110 01"]} if flavour == "standard" else {}
    for layout, rows in {**LAYOUTS, **behind}.items():
        assert farthest(loop, rows, wanted) <= 1e-5, layout
    draw = np.random.Generator(np.random.PCG64(11))
    for _ in range(20):
        one = [int(width) for width in draw.integers(1, 7, 5)]
        for count, widths in ((1, one), (3, [one[0], *[1] * 8])):
            rows = [" ".join("".join(map(str, draw.integers(0, 2, width))) for width in widths) for _ in range(count)]
            assert farthest(loop, rows, wanted) <= 1e-5, rows


def reference_of(model):
    """`wanted(ids)`: logits [tokens, vocab] of a text alone."""
    import torch

    def wanted(ids):
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()

    return wanted


def farthest(loop, rows, wanted):
    """How far from `wanted` logits at tokens are, in parts of the largest, where `rows` say what is padding."""
    masks = [[[int(digit) for digit in step] for step in row.split()] for row in rows]
    mask = np.array([[digit for step in row for digit in step] for row in masks], np.int64)
    positions = np.maximum(mask.cumsum(axis=1) - 1, 0)
    texts = [np.roll(IDS, row)[: max(mask[row].sum(), 1)] for row in range(len(rows))]
    ids = np.where(mask == 1, [text[place] for text, place in zip(texts, positions, strict=True)], 1)
    cache = {name: np.repeat(value, len(rows), axis=0) for name, value in loop.cache.items()}
    found, start = [], 0
    for width in map(len, masks[0]):
        step = slice(start, start + width)
        start += width
        given = {"input_ids": ids[:, step], "position_ids": positions[:, step], "attention_mask": mask[:, :start]}
        logits, *present = loop.session.run(None, {**given, **cache})
        cache = dict(zip(cache, present, strict=True))
        found.append(logits)
    at_tokens = [logits[there] for logits, there in zip(np.concatenate(found, axis=1), mask == 1, strict=True)]
    expected = [wanted([int(number) for number in text]) for text in texts]
    pairs = [(got, right) for got, right in zip(at_tokens, expected, strict=True) if len(got)]
    assert all(np.isfinite(got).all() for got, _ in pairs)
    return max((np.abs(got - right).max() / np.abs(right).max() for got, right in pairs), default=0.0)


@pytest.mark.parametrize("flavour", ["fused", "standard"])
def test_the_last_tokens_of_a_row_are_taken_back_by_a_mask_or_with_their_places(flavour, tiny_checkpoint, exported):
    folder = exported(tiny_checkpoint("qwen3", **CONTEXT), "onnx", flavour=flavour)
    loop, alone = Loop(folder), Loop(folder)
    loop.feed(IDS[:10])
    alone.feed(IDS[:7])
    wanted = alone.feed([5])
    cut = {name: value[:, :, :7] for name, value in loop.cache.items()}
    ways = [([1] * 7 + [0] * 3 + [1], loop.cache), ([1] * 8, cut)]
    if flavour == "fused":  # which writes over what is behind the mask, as in a cache of one size
        ways.append(([1] * 8, loop.cache))
    for mask, cache in ways:
        assert np.abs(one_step(loop, [5], [7], mask, cache) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_a_mask_takes_a_token_out_of_the_standard_flavours_cache(tiny_checkpoint, exported, reference):
    import torch
    import transformers

    path = tiny_checkpoint("qwen3", **CONTEXT)
    loop, model, cache = Loop(exported(path, "onnx", flavour="standard")), reference(path), transformers.DynamicCache()
    loop.feed(IDS[:10])
    mask = [1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1]
    with torch.no_grad():
        model(torch.tensor([IDS[:10]]), past_key_values=cache)
        given = {"attention_mask": torch.tensor([mask]), "position_ids": torch.tensor([[10]])}
        wanted = model(torch.tensor([[5]]), past_key_values=cache, **given).logits[0].numpy()
    assert np.abs(one_step(loop, [5], [10], mask, loop.cache) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def one_step(loop, ids, positions, mask, cache):
    """Logits [tokens, vocab] of one row."""
    given = {"input_ids": ids, "position_ids": positions, "attention_mask": mask}
    arrays = {name: np.array([value], np.int64) for name, value in given.items()}
    return loop.session.run(["logits"], {**arrays, **cache})[0][0]


def test_what_the_fused_flavour_cannot_take_is_an_error_of_onnxruntime(tiny_checkpoint, exported):
    loop = Loop(exported(tiny_checkpoint("qwen3", **CONTEXT), "onnx"))

    def wanted(ids):
        return np.zeros((len(ids), 1))

    with pytest.raises(Exception, match="batch_size must be 1 when sequence_length > 1 and past context is given"):
        farthest(loop, ["1111 11", "1111 11"], wanted)
    loop.feed(IDS[:8])
    for mask in ([1] * 12, [1] * 8 + [0] * 3 + [1], [1] * 3008 + [1]):
        with pytest.raises(Exception, match=r"total_sequence_length must"):
            one_step(loop, [5], [8], mask, loop.cache)
