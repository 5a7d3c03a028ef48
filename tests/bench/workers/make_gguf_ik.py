"""GGUF files in storages that ik_llama.cpp alone has, made by its own program from a file of f16.

usage: make_gguf_ik.py LLAMA_BENCH PREFIX TYPE...    -> PREFIX-TYPE.gguf and PREFIX-TYPE.json with the bytes of
weights that a decode step reads, from PREFIX-f16.gguf; llama-quantize lies beside llama-bench. Needs Python alone.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

program, prefix = Path(sys.argv[1]).with_name("llama-quantize"), sys.argv[2]
for kind in sys.argv[3:]:
    output = Path(f"{prefix}-{kind}.gguf")
    command = (str(program), f"{prefix}-f16.gguf", str(output), kind.upper())
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    size = re.search(r"quant size += +([0-9.]+) MB", done.stdout + done.stderr)
    if done.returncode != 0 or size is None:
        raise SystemExit(f"llama-quantize to {kind}: exit status {done.returncode}: {done.stderr[-500:]}")
    # MiB, all tensors: the embedding is the output matrix too, or it would be read by a step in part only
    output.with_suffix(".json").write_text(json.dumps({"weights_bytes": round(float(size[1]) * 2**20)}))
