"""sentence-transformers: the checkpoint as it is, float32, in batches of 32, which it sorts by length."""

from embed_job import measure_embedding, read_embed_job

job = read_embed_job()

import torch  # noqa: E402  the CPUs are chosen before an engine starts its threads
from sentence_transformers import SentenceTransformer  # noqa: E402

torch.set_num_threads(job.threads)
model = SentenceTransformer(job.checkpoint, device="cpu")
measure_embedding(
    job,
    lambda sentences: model.encode(sentences, batch_size=32, normalize_embeddings=True, show_progress_bar=False),
    ("sentence-transformers", "transformers", "torch"),
)
