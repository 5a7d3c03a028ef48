"""Three tokenizers of different kinds, trained on a few lines in many scripts."""

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXT = [
    "the quick brown fox jumps over the lazy dog, and then it does it again and again.",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
    "Größe, naïve, façade, Ærøskøbing, Ελληνικά, русский текст, 日本語の文章です。 中文文本, 한국어",
    "emoji: 😀 😀😀 👩‍👩‍👧‍👦 🇩🇪 ❤️ combining: e\u0301 a\u030a n\u0303 zalgo",
    "hello world hello there world wide web hello",
] * 3
SPECIAL = ["<s>", "</s>", "<pad>", "<unk>", "<|im_start|>", "<|im_end|>"]


def byte_level_bpe() -> Tokenizer:
    """As GPT-2, Llama 3 and Qwen have: any text, characters split over tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def metaspace_unigram() -> Tokenizer:
    """As T5 and XLM-R have: a sentencepiece model whose first word carries a space that is not shown."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=300, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback_bpe() -> Tokenizer:
    """As Llama 2 and Mistral have: sentencepiece BPE, with <0x..> tokens for what the vocabulary lacks."""
    vocabulary = {token: index for index, token in enumerate(SPECIAL)}
    for byte in range(256):
        vocabulary[f"<0x{byte:02X}>"] = len(vocabulary)
    for character in sorted(set("▁abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,:()+=\nöß")):
        vocabulary.setdefault(character, len(vocabulary))
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("l", "o"), ("▁", "a"), ("i", "n")]
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT has: words, and pieces that begin with ##."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *SPECIAL]
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    return tokenizer


KINDS = {
    "byte_level_bpe": byte_level_bpe,
    "metaspace_unigram": metaspace_unigram,
    "byte_fallback_bpe": byte_fallback_bpe,
    "word_piece": word_piece,
}
