"""What the estimate for GPUs counts."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # the modules of a script import each other from its folder

import cuda_check
from cuda_roofline import GPUS, least_seconds, work_of
from hollow_checkpoint import LLAMA_8B, LlamaShape, write_hollow_checkpoint

from pyc.runtime.executors.cuda.program import Buffer, CudaProgram, DeviceFunction, InputArray, Kernel, Launch


def program_of(symbol: str, buffers: tuple[Buffer, ...]) -> CudaProgram:
    kernel = Kernel(symbol, 0, 128, 0, len(buffers))
    launch = Launch(0, (1, 1, 1), tuple(range(len(buffers))), ())
    result = InputArray("y", "f32", (1, 1))
    function = DeviceFunction("forward_1", (), result, 0, buffers, (launch,))
    return CudaProgram((b"",), (kernel,), (function,), cache_block_bytes=1000)


@pytest.mark.parametrize(
    ("symbol", "kind", "size", "work"),
    [
        ("gemv_bf16_r2_n300_k400", "weight", 240000, (240000, 2 * 300 * 400)),
        ("gemm_int4_g32_r64_n300_k400_x_bf16_bias", "weight", 60000, (60000, 64 * 300 * 400)),
        ("embedding_bf16_r4_n1000_k64", "weight", 128000, (512, 0)),
        ("decode_attention_f16_1x8", "cache", 1000, (16 * 1000, 0)),
        ("qkv_append_f16_1x8", "cache", 1000, (0, 0)),
        ("rms_norm_1x256", "workspace", 1024, (1024, 0)),
    ],
)
def test_bytes_and_products_of_a_launch(symbol, kind, size, work):
    program = program_of(symbol, (Buffer(kind, "w", 0, size),))
    assert work_of(program.functions[0], program, 0) == work


def test_the_longer_of_the_two_counts():
    h100 = GPUS[0]
    few = program_of("gemv_bf16_r1_n4096_k4096", (Buffer("weight", "w", 0, 1 << 25),))
    assert least_seconds(few.functions[0], few, h100) == (1 << 25) / h100.bytes_a_second
    many = program_of("gemm_bf16_r4096_n4096_k4096", (Buffer("weight", "w", 0, 1 << 25),))
    assert least_seconds(many.functions[0], many, h100) == 4096**3 / h100.products_a_second


@pytest.mark.slow
def test_kernels_that_one_gpu_alone_has(monkeypatch, capsys):
    """A GPU with warpgroups has other GEMMs than one without, and others for one row."""
    shape = LlamaShape(hidden=256, inner=512, layers=1, heads=4, kv_heads=2, head_dim=64, is_tied=True, vocabulary=4096)
    monkeypatch.setitem(cuda_check.MODELS, "demo", (shape, {"scheme": "none", "activations": "bf16"}))
    monkeypatch.setattr(cuda_check, "SHAPES", {"context": 128, "tokens": [1, 64], "batch": [1], "logits": [1]})
    assert cuda_check.main(["--model", "demo", "--arch", "sm_80", "--arch", "sm_90a"]) == 0
    rows = {line.split()[0]: line.split()[3:] for line in capsys.readouterr().out.splitlines() if "_x_bf16" in line}
    assert any(columns[0] == "-" for name, columns in rows.items() if name.startswith("gemm_warpgroup"))
    assert any(columns[-1] == "-" for name, columns in rows.items() if name.startswith("gemm_bf16"))
    of_row = [columns for name, columns in rows.items() if name.startswith("gemv_row")]
    assert of_row and all(columns[0] == "-" and columns[-1] != "-" for columns in of_row)
    plain = [columns for name, columns in rows.items() if name.startswith("gemv_bf16")]
    assert plain and all(columns[0] != "-" and columns[-1] == "-" for columns in plain)


def test_a_hollow_checkpoint_has_a_shape_and_no_bytes(tmp_path):
    write_hollow_checkpoint(tmp_path, LLAMA_8B)
    file = tmp_path / "model.safetensors"
    assert file.stat().st_size > 16e9
    assert file.stat().st_blocks * 512 < 1e6
    assert json.loads((tmp_path / "config.json").read_text())["num_hidden_layers"] == 32
