"""A stand-in for torch_tensorrt, which is not installed here: it records calls and refuses what the package would.

The parameters are those of torch-tensorrt 2.13.0, read out of its wheel: `torch_tensorrt/dynamo/_compiler.py`
(compile), `torch_tensorrt/_compile.py` (save, load) and `torch_tensorrt/_Input.py` (Input). Where these take
`**kwargs`, which swallow names that mean nothing, this refuses all that has no parameter or documented keyword.

It builds nothing: `compile` gives back the program's own module, and `save` exports that again, as the package's does
with an explicit `dynamic_shapes`.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

VERSION = "2.13.0"

COMPILE = frozenset(
    (
        "arg_inputs", "kwarg_inputs", "device", "disable_tf32", "assume_dynamic_shape_support", "sparse_weights",
        "engine_capability", "num_avg_timing_iters", "workspace_size", "dla_sram_size", "dla_local_dram_size",
        "dla_global_dram_size", "truncate_double", "require_full_compilation", "min_block_size",
        "torch_executed_ops", "torch_executed_modules", "pass_through_build_failures", "max_aux_streams",
        "version_compatible", "optimization_level", "use_python_runtime", "use_fast_partitioner",
        "enable_experimental_decompositions", "dryrun", "hardware_compatible", "timing_cache_path",
        "lazy_engine_init", "cache_built_engines", "reuse_cached_engines", "engine_cache_dir", "engine_cache_size",
        "custom_engine_cache", "use_fp32_acc", "refit_identical_engine_weights", "strip_engine_weights",
        "immutable_weights", "enable_weight_streaming", "tiling_optimization_level", "l2_limit_for_tiling",
        "offload_module_to_cpu", "use_distributed_mode_trace", "enable_autocast", "autocast_low_precision_type",
        "autocast_excluded_nodes", "autocast_excluded_ops", "autocast_max_output_threshold",
        "autocast_max_depth_of_reduction", "autocast_calibration_dataloader", "cpu_memory_budget",
        "enable_resource_partitioning", "dynamically_allocate_resources", "decompose_attention",
        "attn_bias_is_causal", "fallback_data_dependent_ops",
    )
)
"""Keywords of dynamo.compile; `inputs` is positional beside `exported_program`."""
INPUT = frozenset(
    (
        "shape", "min_shape", "opt_shape", "max_shape", "dtype", "format", "tensor_domain", "torch_tensor", "name",
        "is_shape_tensor", "shared_dims",
    )
)
SAVE = frozenset(
    (
        "extra_files", "output_format", "inputs", "arg_inputs", "kwarg_inputs", "retrace", "use_legacy_exporter",
        "pickle_protocol", "dynamic_shapes",
    )
)
CONVERTERS = frozenset(
    (
        "_to_copy.default", "add.Tensor", "addmm.default", "arange.start_step", "bitwise_and.Tensor",
        "bitwise_or.Tensor", "cat.default", "clamp.default", "clone.default", "cos.default", "div.Tensor",
        "embedding.default", "eq.Tensor", "expand.default", "floor.default", "ge.Scalar", "gelu.default",
        "gt.Tensor", "le.Tensor", "mean.dim", "mm.default", "mul.Tensor", "native_layer_norm.default", "ne.Scalar",
        "neg.default", "permute.default", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "relu.default", "rsqrt.default",
        "scaled_dot_product_attention.default", "select.int", "sigmoid.default", "sin.default", "slice.Tensor",
        "sqrt.default", "sub.Tensor", "sum.dim_IntList", "sym_size.int", "unsqueeze.default", "view.default",
        "where.self",
    )
)
"""Operators aten.* that `dynamo/conversion/aten_ops_converters.py` and `ops_evaluators.py` register, among those that
programs of pyc have: one that is not here has to be looked up there."""
FORMATS = ("exported_program", "torchscript", "aot_inductor", "executorch")
FLAGS = frozenset(
    ("disable_tf32", "immutable_weights", "cache_built_engines", "reuse_cached_engines", "enable_autocast")
)


def refuse(function, given, known):
    unknown = set(given) - known
    if unknown:
        raise TypeError(f"torch_tensorrt.{function} {VERSION} has no {', '.join(sorted(unknown))}")


class Input:
    def __init__(self, **given):
        refuse("Input", given, INPUT)
        shapes = [given.get(name) for name in ("min_shape", "opt_shape", "max_shape")]
        if any(shape is None for shape in shapes) == ("shape" not in given):
            raise ValueError("expected either shape or all three of min_shape, opt_shape, max_shape")
        if "shape" not in given:
            for low, likely, high in zip(*shapes, strict=True):
                if not 1 <= low <= likely <= high:
                    raise ValueError(f"sizes {low}, {likely}, {high}: TensorRT wants 1 <= min <= opt <= max")
        if not isinstance(given.get("dtype"), torch.dtype):
            raise TypeError(f"dtype is {given.get('dtype')!r}")
        self.given = given


class Double(ModuleType):
    """Set `fails` to an exception to have `compile` raise it."""

    def __init__(self):
        super().__init__("torch_tensorrt")
        self.__version__ = VERSION
        self.calls = []
        self.fails = None
        self.Input = Input
        self.dynamo = SimpleNamespace(compile=self._compile)

    def _compile(self, exported_program, inputs=None, **given):
        refuse("dynamo.compile", given, COMPILE)
        if not isinstance(exported_program, torch.export.ExportedProgram):
            raise TypeError(f"a program is a {type(exported_program).__name__}")
        if (inputs is None) == (given.get("arg_inputs") is None):
            raise AssertionError("expected one of inputs and arg_inputs")
        arguments = inputs or given["arg_inputs"]
        if not all(isinstance(argument, Input | torch.Tensor) for argument in arguments):
            raise TypeError("inputs are Input or Tensor")
        for name in FLAGS & given.keys():
            if not isinstance(given[name], bool):
                raise TypeError(f"{name} is {given[name]!r}")
        if given.get("autocast_low_precision_type") not in (None, torch.float16, torch.bfloat16):
            raise ValueError("autocast_low_precision_type must be float16 or bfloat16")
        if given.get("cache_built_engines") and given.get("immutable_weights", True):
            raise AssertionError("engines with immutable weights are not cached")
        if self.fails is not None:
            raise self.fails
        self.calls.append(("compile", {"arguments": arguments, **given}))
        return exported_program.module()

    def save(self, module, file_path="", **given):
        refuse("save", given, SAVE)
        if given.get("output_format", "exported_program") not in FORMATS:
            raise ValueError(f"output_format is {given['output_format']!r}")
        if not file_path or not isinstance(file_path, str):
            raise ValueError(f"file_path is {file_path!r}")
        if not all(isinstance(argument, Input | torch.Tensor) for argument in given["arg_inputs"]):
            raise ValueError("not all inputs are torch.Tensor or torch_tensorrt.Input")
        assert isinstance(module, torch.fx.GraphModule)
        self.calls.append(("save", {"file_path": file_path, **given}))
        program = torch.export.export(
            module, tuple(given["arg_inputs"]), dynamic_shapes=given.get("dynamic_shapes"), strict=False
        )
        torch.export.save(program, file_path, extra_files=given.get("extra_files"))

    def load(self, file_path="", extra_files=None):
        self.calls.append(("load", {"file_path": file_path}))
        return torch.export.load(file_path, extra_files=extra_files)


@pytest.fixture
def torch_tensorrt(monkeypatch):
    """The double, in the place of the package."""
    double = Double()
    monkeypatch.setitem(sys.modules, "torch_tensorrt", double)
    return double
