"""mistral.rs: the checkpoint quantized in place while loading, or a GGUF file.

It takes text and times itself: the usage that it reports is checked against the ids and the wall clock.
"""

import json
import tempfile
import time
from pathlib import Path

from job import WARM_UP_STEPS, Job, Prompt, Run, answer, read_job, timed_run

job = read_job()

import mistralrs  # noqa: E402  the CPUs are chosen before an engine starts its threads


def load(job: Job) -> "mistralrs.Runner":
    """The model of the job, without a cache of prefixes: it would spare the prompt that is timed."""
    folder = Path(tempfile.mkdtemp())
    template = folder / "template.jinja"
    template.write_text("{{ messages[0].content }}")
    path = Path(job.weights)
    if path.suffix == ".gguf":
        which = mistralrs.Which.GGUF(
            quantized_model_id=str(path.parent), quantized_filename=path.name, tok_model_id=job.checkpoint
        )
    else:
        dtype = getattr(mistralrs.ModelDType, job.options.get("dtype", "Auto"))
        which = mistralrs.Which.Plain(model_id=job.weights, arch=None, dtype=dtype)
    return mistralrs.Runner(
        which=which, prefix_cache_n=0, chat_template=str(template), in_situ_quant=job.options.get("in_situ_quant")
    )


def run(runner: "mistralrs.Runner", prompt: Prompt, decode: int) -> Run:
    """One completion, greedy, of at least one token. Raises RuntimeError when mistral.rs did other work."""
    tokens = max(decode, 1)
    request = mistralrs.CompletionRequest(
        prompt=prompt.text, model="default", max_tokens=tokens, temperature=0.0, ignore_eos=True
    )
    start = time.perf_counter()
    usage = runner.send_completion_request(request).usage
    wall_s = time.perf_counter() - start
    if (usage.prompt_tokens, usage.completion_tokens) != (len(prompt.ids), tokens):
        raise RuntimeError(
            f"{usage.prompt_tokens} tokens of prompt and {usage.completion_tokens} of completion, expected "
            f"{len(prompt.ids)} and {tokens}"
        )
    prefill_s, decode_s = usage.total_prompt_time_sec, usage.total_completion_time_sec
    return {**timed_run(len(prompt.ids), prefill_s, decode, decode_s), "wall_s": wall_s}


start = time.perf_counter()
runner = load(job)
load_s = time.perf_counter() - start
short = [prompt for prompt in job.prompts if not prompt.is_long]
for prompt in short:
    run(runner, prompt, min(prompt.decode, WARM_UP_STEPS))
runs = [run(runner, prompt, prompt.decode) for _ in range(job.repeats) for prompt in short]
runs += [run(runner, prompt, prompt.decode) for prompt in job.prompts if prompt.is_long]  # once: minutes each
sizes = Path(job.weights).with_suffix(".json")
weights_bytes = json.loads(sizes.read_text())["weights_bytes"] if job.weights.endswith(".gguf") else None
answer(runs, load_s, ("mistralrs",), weights_bytes=weights_bytes)
