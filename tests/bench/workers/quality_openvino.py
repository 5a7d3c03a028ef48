"""OpenVINO: the exported model's logits of every window, with the precisions that the pipeline runs with."""

from pathlib import Path

from quality_job import read_quality_job, score_windows

job = read_quality_job()

import numpy as np  # noqa: E402  the CPUs are chosen before an engine starts its threads
import openvino  # noqa: E402

options = {"INFERENCE_PRECISION_HINT": job.options["precision"], "INFERENCE_NUM_THREADS": job.threads}
if "cache" in job.options:
    options["KV_CACHE_PRECISION"] = job.options["cache"]
compiled = openvino.Core().compile_model(str(Path(job.weights) / "openvino_model.xml"), "CPU", options)
names = {name for port in compiled.inputs for name in port.names}
request = compiled.create_infer_request()


def logits(ids: list[int]) -> np.ndarray:
    """Logits f32 [ids, vocabulary] of one text."""
    request.reset_state()
    row = np.array([ids], np.int64)
    inputs = {
        "input_ids": row,
        "attention_mask": np.ones_like(row),
        "position_ids": np.arange(len(ids), dtype=np.int64)[None],
        "beam_idx": np.zeros(1, np.int32),
    }
    return request.infer({name: value for name, value in inputs.items() if name in names})["logits"][0]


score_windows(job, logits)
