"""transformers: the checkpoint as it is, eager, bfloat16."""

import time

from job import answer, measure_steps, read_job

job = read_job()

import torch  # noqa: E402  the CPUs are chosen before an engine starts its threads
import transformers  # noqa: E402

torch.set_grad_enabled(False)
torch.set_num_threads(job.threads)
transformers.utils.logging.disable_progress_bar()


class Sequence:
    """A model and what it has cached of one sequence."""

    def __init__(self, path: str) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
        self.cache: object = None

    def feed(self, ids: list[int]) -> int:
        """The token after `ids`."""
        output = self.model(torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache = output.past_key_values
        return int(output.logits[0, -1].argmax())

    def step(self, token: int) -> int:
        """The token after `token`."""
        return self.feed([token])

    def reset(self) -> None:
        """Forget the sequence."""
        self.cache = None


start = time.perf_counter()
sequence = Sequence(job.weights)
load_s = time.perf_counter() - start
runs = measure_steps(job, sequence.feed, sequence.step, sequence.reset)
weights_bytes = sum(value.nbytes for value in sequence.model.parameters())
if not sequence.model.config.tie_word_embeddings:
    weights_bytes -= sequence.model.get_input_embeddings().weight.nbytes
answer(runs, load_s, ("transformers", "torch"), weights_bytes=weights_bytes)
