"""ik_llama.cpp: its own perplexity tool compares itself with the reference's log-probabilities."""

import json
import re
import subprocess
from pathlib import Path

from quality_job import read_quality_job

FIGURES = {
    "perplexity": r"^Mean PPL\(Q\) *: *([0-9.]+)",
    "kl": r"^Mean +KLD: *([0-9.e+-]+)",
    "kl_error": r"^Mean +KLD: *[0-9.e+-]+ ± *([0-9.e+-]+)",
    "same_top": r"^Same top p: *([0-9.]+)",
}

job = read_quality_job()
program = Path(job.options["program"]).with_name("llama-perplexity")
weights = ("-m", job.weights, "-rtr", "-fa", "on", "-c", "512", "-b", "512", "-ub", "512", "-t", str(job.threads))
cache = ("-ctk", job.options["cache"], "-ctv", job.options["cache"])
compare = ("--kl-divergence", "--kl-divergence-base", job.reference)
done = subprocess.run((str(program), *weights, *cache, *compare), capture_output=True, text=True, check=False)
found = {name: re.search(pattern, done.stdout, re.MULTILINE) for name, pattern in FIGURES.items()}
if done.returncode != 0 or not all(found.values()):
    raise SystemExit(f"llama-perplexity: exit status {done.returncode}: {done.stdout[-300:]} {done.stderr[-500:]}")
figures = {name: float(match[1]) for name, match in found.items() if match}
figures["same_top"] /= 100
print("\n" + json.dumps(figures))
