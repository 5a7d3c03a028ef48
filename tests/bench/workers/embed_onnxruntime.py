"""ONNX Runtime: a model of make_minilm_onnx.py, in batches of 32 sorted by length, as sentence-transformers does."""

from embed_job import measure_embedding, read_embed_job

job = read_embed_job()

from pathlib import Path  # noqa: E402  the CPUs are chosen before an engine starts its threads

import numpy as np  # noqa: E402
import onnxruntime  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

BATCH = 32
MAX_TOKENS = 256  # what the model's own sentence_bert_config.json says

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = job.threads
session = onnxruntime.InferenceSession(job.weights, options, providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_file(str(Path(job.checkpoint) / "tokenizer.json"))
tokenizer.enable_truncation(MAX_TOKENS)
tokenizer.enable_padding()


def embed(sentences: list[str]) -> np.ndarray:
    """Means of the tokens' vectors, of length 1."""
    order = sorted(range(len(sentences)), key=lambda index: -len(sentences[index]))
    vectors = np.empty((len(sentences), session.get_outputs()[0].shape[-1]), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        encoded = tokenizer.encode_batch([sentences[index] for index in chosen])
        ids = np.array([entry.ids for entry in encoded], dtype=np.int64)
        mask = np.array([entry.attention_mask for entry in encoded], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = session.run(None, inputs)[0]
        pooled = (hidden * mask[:, :, None]).sum(axis=1)
        vectors[chosen] = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    return vectors


measure_embedding(job, embed, ("onnxruntime", "tokenizers", "numpy"))
