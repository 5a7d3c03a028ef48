"""ONNX Runtime GenAI: a model that its builder wrote. It samples greedily and feeds itself."""

import time

from job import answer, measure_steps, read_job

job = read_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
import onnxruntime_genai as genai  # noqa: E402


class Sequence:
    """A model and one sequence of it."""

    def __init__(self, path: str, context: int) -> None:
        self.model = genai.Model(path)
        self.context = context
        self.reset()

    def reset(self) -> None:
        """Begin a sequence; min_length keeps it from ending at an end-of-sequence token."""
        parameters = genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=self.context, min_length=self.context, do_sample=False)
        self.generator = genai.Generator(self.model, parameters)

    def prefill(self, ids: list[int]) -> None:
        """The prompt, and the token after it."""
        self.generator.append_tokens(np.array([ids], dtype=np.int32))
        self.generator.generate_next_token()

    def step(self, _token: int) -> None:
        """One more token."""
        self.generator.generate_next_token()


start = time.perf_counter()
sequence = Sequence(job.weights, job.context)
load_s = time.perf_counter() - start
runs = measure_steps(job, sequence.prefill, sequence.step, sequence.reset)
answer(runs, load_s, ("onnxruntime-genai", "onnxruntime"))
