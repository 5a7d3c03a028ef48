"""Train the embedded demo model, a 4.5 M parameter Qwen3-type model of Python source, on two CPU cores.

    python -m pyc.models.demo.train --minutes 50
    python -m pyc.models.demo.train --variant prose --minutes 50 --output build/prose

The second line makes another model in the same way, a 21 M parameter Mistral-type model of docstrings (`variants.py`).

The recipe:

- Data: the standard library of the running Python (`corpus.py`), about 2.3 million tokens of its own BPE
  vocabulary, or docstrings of installed packages. Each batch takes one window from each of B equal stretches
  of the corpus, so it is diverse and every file is seen equally often, without an epoch to keep book of.
- Steps of 8192 tokens (prose: 2048): windows of 256 tokens for most of the time, of 1024 (the whole context)
  for the last fifth.
- Muon for the matrices, AdamW for the embedding, the head and the norms, at one shared learning rate: Muon's updates
  are scaled to the root mean square of Adam's.
- The schedule follows the wall clock and not a number of steps, so the budget holds on a machine that is
  shared: a short warm-up, a plateau, then a linear decay to zero.
- bfloat16 autocast and torch.compile; CUDA is used when it is there.

After each evaluation on the held-back files the checkpoint is written if it is the best so far, and the whole
state goes to `--state`; a run that finds that file goes on from it.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from pyc.models.demo import DEMO_DIR
from pyc.models.demo.corpus import encode, held_back_sample, train_tokenizer
from pyc.models.demo.export import WEIGHTS_FILE, write_checkpoint
from pyc.models.demo.network import LanguageModel
from pyc.models.demo.variants import VARIANTS

Record = dict[str, float | int | str]
Tokens = np.ndarray[tuple[int], np.dtype[np.int64]]

SHORT_WINDOW = 256
LONG_WINDOW_FROM = 0.8  # of the time budget
EVALUATION_WINDOW = 512
EVALUATION_ROWS = 8
EVALUATION_TOKENS = 100_000  # at most
WARM_UP = 0.02  # of the time budget
DECAY_FROM = 0.4  # of the time budget
WEIGHT_DECAY = 0.1
LOG_EVERY_STEPS = 25


@dataclass(frozen=True, slots=True)
class Options:
    """The command line."""

    variant: str
    minutes: float
    output: Path
    state: Path | None
    learning_rate: float | None
    evaluate_every_s: float
    threads: int
    seed: int


@dataclass(slots=True)
class Progress:
    """What a run has done so far; saved with the weights."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    best_loss: float = math.inf
    train_losses: list[float] = field(default_factory=list)


def parse_options() -> Options:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train the embedded demo model on Python's standard library.")
    parser.add_argument("--variant", choices=sorted(VARIANTS), default="code", help="which model (default: code)")
    parser.add_argument("--minutes", type=float, default=50.0, help="wall-clock budget (default: 50)")
    parser.add_argument("--output", type=Path, default=None, help="where checkpoint/, text and log go")
    parser.add_argument("--state", type=Path, default=None, help="file to save the run to and resume it from")
    parser.add_argument("--learning-rate", type=float, default=None, help="default: that of the variant")
    parser.add_argument("--evaluate-every-s", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.output is None and given.variant != "code":
        parser.error(f"--variant {given.variant}: name the folder to write to with --output")
    given.output = given.output or DEMO_DIR
    return Options(**vars(given))


def learning_rate_factor(progress: float) -> float:
    """Return the factor in 0..1 at the share `progress` of the budget: warm-up, plateau, linear decay."""
    return max(0.0, min(1.0, (progress + 1e-3) / WARM_UP, (1.0 - progress) / (1.0 - DECAY_FROM)))


def draw_batch(tokens: Tokens, rows: int, window: int, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets, int64 `[rows, window]`, fixed by seed and step."""
    position = (np.arange(rows) + np.random.default_rng((seed, step)).random(rows)) / rows
    starts = (position * (len(tokens) - window - 1)).astype(np.int64)
    batch = torch.from_numpy(tokens[starts[:, None] + np.arange(window + 1)])
    return batch[:, :-1].contiguous(), batch[:, 1:].contiguous()


def evaluation_batches(tokens: Tokens) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets `[rows, EVALUATION_WINDOW]`, disjoint; a short last window is left out."""
    count = (len(tokens) - 1) // EVALUATION_WINDOW
    inputs = torch.from_numpy(tokens[: count * EVALUATION_WINDOW]).view(count, -1)
    targets = torch.from_numpy(tokens[1 : count * EVALUATION_WINDOW + 1]).view(count, -1)
    for first in range(0, count, EVALUATION_ROWS):
        yield inputs[first : first + EVALUATION_ROWS], targets[first : first + EVALUATION_ROWS]


def evaluate(model: LanguageModel, tokens: Tokens, device: torch.device, autocast: bool = True) -> float:
    """Return the mean cross entropy of the tokens in nats."""
    total, count = 0.0, 0
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        for inputs, targets in evaluation_batches(tokens):
            total += model(inputs.to(device), targets.to(device)).item() * inputs.numel()
            count += inputs.numel()
    return total / count


def make_optimizers(model: LanguageModel, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers; AdamW for the embedding, the head and the norms."""
    named = list(model.named_parameters())
    inner = [p for name, p in named if p.ndim == 2 and name.startswith("model.layers.")]
    outer = [p for name, p in named if p.ndim != 2 or not name.startswith("model.layers.")]
    return [
        torch.optim.Muon(
            inner, lr=learning_rate, weight_decay=WEIGHT_DECAY, momentum=0.95, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(outer, lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


class Run:
    """One training run: model, optimizers, data, and what was done so far."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.set_num_threads(options.threads)
        torch.manual_seed(options.seed)
        variant = VARIANTS[options.variant]
        self.shape = variant.shape
        self.batch_tokens = variant.batch_tokens
        self.learning_rate = options.learning_rate or variant.learning_rate
        corpus = variant.read()
        self.tokenizer: Tokenizer = train_tokenizer(corpus.training, self.shape.vocab_size)
        self.training_tokens = encode(self.tokenizer, corpus.training)
        held_back_tokens = encode(self.tokenizer, corpus.held_back)
        held_back_bytes = sum(len(file.text.encode()) for file in corpus.held_back)
        self.tokens_per_byte = len(held_back_tokens) / held_back_bytes
        self.held_back_tokens = held_back_tokens[:EVALUATION_TOKENS]
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "heldout.txt").write_text(held_back_sample(corpus.held_back), encoding="utf-8")
        self.model = LanguageModel(self.shape).to(self.device)
        self.optimizers = make_optimizers(self.model, self.learning_rate)
        self.progress = Progress()
        self.checkpoint_folder = options.output / "checkpoint"
        self.log_path = options.output / "training_log.jsonl"
        if options.state and options.state.exists():
            self.resume(options.state)
        else:
            self.log_path.write_text("", encoding="utf-8")

    def resume(self, path: Path) -> None:
        """Go on from a saved state."""
        saved = torch.load(path, map_location=self.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = Progress(**saved["progress"])

    def save_state(self, path: Path) -> None:
        """Save everything that `resume` needs, atomically."""
        staging = path.with_suffix(path.suffix + ".new")
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
        }
        torch.save(state, staging)
        staging.replace(path)

    def log(self, record: Record) -> None:
        """Append one line to the log and print it."""
        line = json.dumps(record)
        with self.log_path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def train(self) -> None:
        """Train until the time is over, then write the summary line."""
        compiled = torch.compile(self.model, dynamic=False)
        progress, budget_s = self.progress, self.options.minutes * 60
        started = time.monotonic() - progress.elapsed_s
        next_evaluation_s = progress.elapsed_s + self.options.evaluate_every_s
        while progress.elapsed_s < budget_s:
            share = progress.elapsed_s / budget_s
            for group in (group for optimizer in self.optimizers for group in optimizer.param_groups):
                group["lr"] = self.learning_rate * learning_rate_factor(share)
            window = SHORT_WINDOW if share < LONG_WINDOW_FROM else self.shape.context
            rows = self.batch_tokens // window
            inputs, targets = draw_batch(self.training_tokens, rows, window, self.options.seed, progress.step)
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = compiled(inputs.to(self.device), targets.to(self.device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            progress.step += 1
            progress.tokens += inputs.numel()
            progress.train_losses.append(loss.item())
            progress.elapsed_s = time.monotonic() - started
            if progress.elapsed_s >= next_evaluation_s:
                self.evaluate_and_save()
                next_evaluation_s = time.monotonic() - started + self.options.evaluate_every_s
            elif progress.step % LOG_EVERY_STEPS == 0:
                self.log(self.measured())
        self.evaluate_and_save()
        self.log(self.summary())

    def measured(self) -> Record:
        """Return the log record of this moment, with the mean training loss since the record before."""
        progress = self.progress
        train_loss = sum(progress.train_losses) / max(1, len(progress.train_losses))
        progress.train_losses.clear()
        return {
            "step": progress.step,
            "elapsed_s": round(progress.elapsed_s, 1),
            "tokens": progress.tokens,
            "train_loss": round(train_loss, 4),
        }

    def evaluate_and_save(self) -> None:
        """Measure the held-back files; write the checkpoint if it is the best so far, the state always."""
        loss = evaluate(self.model, self.held_back_tokens, self.device)
        held_back: Record = {
            "held_back_loss": round(loss, 4),
            "held_back_perplexity": round(math.exp(loss), 3),
        }
        self.log(self.measured() | held_back)
        if loss < self.progress.best_loss:
            self.progress.best_loss = loss
            write_checkpoint(self.model.state_dict(), self.shape, self.tokenizer, self.checkpoint_folder)
        if self.options.state:
            self.save_state(self.options.state)

    def summary(self) -> Record:
        """Return the closing record; it measures the checkpoint that was written, in float32 arithmetic."""
        stored = LanguageModel(self.shape).to(self.device)
        stored.load_state_dict(load_file(self.checkpoint_folder / WEIGHTS_FILE))
        loss = evaluate(stored, self.held_back_tokens, self.device, autocast=False)
        return {
            "summary": "checkpoint as stored (bfloat16), computed in float32",
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "elapsed_s": round(self.progress.elapsed_s, 1),
            "tokens_per_s": round(self.progress.tokens / self.progress.elapsed_s),
            "training_corpus_tokens": len(self.training_tokens),
            "held_back_tokens": len(self.held_back_tokens),
            "held_back_loss": round(loss, 4),
            "held_back_perplexity": round(math.exp(loss), 3),
            "held_back_bits_per_byte": round(loss / math.log(2) * self.tokens_per_byte, 4),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": device_name(self.device),
            "threads": torch.get_num_threads(),
        }


def device_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the CPU and the widest vectors torch uses on it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


def main() -> None:
    """Train from the command line."""
    Run(parse_options()).train()


if __name__ == "__main__":
    main()
