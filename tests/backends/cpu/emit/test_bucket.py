"""backends/cpu/emit/bucket.py: an operation is a call, of the version that a number of rows takes."""

import pytest

from pyc.backends.cpu.emit.operands import weight_types
from pyc.backends.cpu.tir.imports import import_tvm
from pyc.backends.cpu.versions import find_version, version_of
from pyc.compiler.recipe.api import recipe_from
from pyc.passes.driver.lower_recipe import lower_recipe

SIZES = {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "head_dim": 32}
ROWS = (1, 4, 32, 96, 100)


@pytest.mark.parametrize(
    ("strategy", "scheme", "versions"),
    [
        ("scale_folded", "int4-g32", {"", "scale_folded", "scale_folded_whole"}),
        ("scale_folded", "none", {"", "scale_folded"}),
        ("amx", "int4-g32", {"", "amx"}),
        ("amx", "bf16", {"", "amx"}),
        ("amx", "none", {""}),
    ],
)
def test_every_operation_is_one_call(strategy, scheme, versions, tiny_checkpoint):
    import_tvm()
    from pyc.backends.cpu.emit.program import ProgramBuilder

    recipe = recipe_from({"model": str(tiny_checkpoint("qwen3", **SIZES)), "quantize": {"scheme": scheme}})
    module = lower_recipe(recipe).part("cpu").module
    builder, seen = ProgramBuilder(module.info, module.graph, weight_types(module.weights), (strategy,)), set()
    for function in module.graph.functions:
        for rows in ROWS:
            inputs, weights = builder.add_function(function, rows, f"{function.name}_{rows}")
            common, own = (builder.variants[each].functions[-1] for each in ("simd", strategy))
            version = find_version(module.graph, function.name, version_of(rows, strategy))
            assert len(common.calls) == len(function.operations)
            assert len(own.calls) == len(version.operations)
            for made in (common, own):  # the runtime binds the same arguments to either
                assert len(made.parameters) == len(inputs) + len(weights)
                assert [tensor.shape for tensor in made.parameters] == [tensor.shape for tensor in common.parameters]
            seen.add(version.version)
    assert seen == versions


def test_sums_in_place_need_no_memory(tiny_checkpoint):
    import_tvm()
    from pyc.backends.cpu.emit.program import ProgramBuilder

    recipe = recipe_from({"model": str(tiny_checkpoint("qwen3", **SIZES)), "quantize": {"scheme": "int4-g32"}})
    module = lower_recipe(recipe).part("cpu").module
    builder = ProgramBuilder(module.info, module.graph, weight_types(module.weights))
    function = module.graph.function("forward")
    builder.add_function(function, 4, "forward_4")
    calls = builder.variants["simd"].functions[0].calls
    sums = {index: operation for index, operation in enumerate(function.operations) if operation.also}
    assert len(sums) == 3
    for index, operation in sums.items():
        assert dict(operation.attributes)["in_place"]
        assert len(calls[index].results) == 1
        (total,) = operation.also
        readers = [at for at, reader in enumerate(function.operations) if total.name in reader.operands]
        assert readers
        assert all(calls[index].operands[0] in calls[at].operands for at in readers)


def test_a_matmul_that_appends_takes_the_arguments_of_both(tiny_checkpoint):
    """In the order of the kernel's signature (backends/cpu/kernels/linear.py), of which types alone would not tell."""
    import_tvm()
    from pyc.backends.cpu.emit.program import ProgramBuilder

    recipe = recipe_from({"model": str(tiny_checkpoint("qwen3", **SIZES)), "quantize": {"scheme": "int4-g32"}})
    module = lower_recipe(recipe).part("cpu").module
    builder = ProgramBuilder(module.info, module.graph, weight_types(module.weights), ("scale_folded",))
    inputs, weights = builder.add_function(module.graph.function("forward"), 96, "forward_96")
    made = builder.variants["scale_folded"].functions[-1]
    names = dict(zip(made.parameters, (*inputs, *weights), strict=True))
    version = find_version(module.graph, "forward", "scale_folded_whole")
    found = [
        [names.get(tensor, "made") for tensor in call.operands]
        for call, operation in zip(made.calls, version.operations, strict=True)
        if operation.kind == "linear_quantized_append"
    ]
    layers = [f"model.layers.{layer}.self_attn." for layer in range(2)]
    assert found == [
        [
            "made", f"{layer}q_proj+k_proj+v_proj.weight", "made", "positions", "sequences", "block_table",
            f"{layer}q_norm.weight", f"{layer}k_norm.weight", f"kv_{index}", f"{layer}o_proj.weight",
        ]
        for index, layer in enumerate(layers)
    ]  # fmt: skip
