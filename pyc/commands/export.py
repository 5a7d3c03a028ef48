"""`pyc export`: an artifact, or what a recipe makes, in the form of other tools."""

import click

from pyc.commands.opening import PATH_TEXT
from pyc.commands.screen import say

FORMATS = ("onnx", "hf", "compressed-tensors", "torch")


@click.command("export")
@click.argument("source", metavar="SOURCE", type=PATH_TEXT)
@click.argument("folder", metavar="DIR", type=PATH_TEXT)
@click.option("--to", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "--flavour",
    type=click.Choice(("fused", "standard", "float4")),
    help="Of onnx: operators of ONNX Runtime's own, or those of ONNX alone; float4: the latter, with fp4 as it is.  "
    "[default: fused]",
)
@click.option(
    "--dtype",
    type=click.Choice(("auto", "f32", "bf16", "f16")),
    help="Of hf: the type of weights; auto keeps it, and takes f32 for what is quantized. Of compressed-tensors: that "
    "of what stays unquantized.  [default: auto]",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe, when SOURCE is one."
)
def command(
    source: str, folder: str, form: str, flavour: str | None, dtype: str | None, overrides: tuple[str, ...]
) -> None:
    """Write SOURCE to the new folder DIR in the form of other tools.

    \b
    pyc export model.pyca --to onnx DIR    for onnxruntime, onnxruntime-genai and optimum
    pyc export model.yaml --to hf DIR      a checkpoint for transformers: adapters fused, weights dequantized
    pyc export model.yaml --to compressed-tensors DIR    the same with its codes, for transformers and vLLM
    pyc export model.yaml --to torch DIR   a program of torch.export, for torch and torch-tensorrt

    SOURCE is an artifact with a program for ONNX (`- backend: onnx` among its targets), here or at a URL, a recipe, or
    a checkpoint's folder. DIR must not be there, or be empty; it appears whole or not at all.
    """
    from pyc.commands.progress import report_progress
    from pyc.passes.export.checkpoint import export_checkpoint
    from pyc.passes.export.compressed import export_compressed
    from pyc.passes.export.folder import require_room
    from pyc.passes.export.onnx import export_onnx
    from pyc.passes.export.source import exportable
    from pyc.passes.export.torch import export_torch

    if flavour is not None and form != "onnx":
        raise click.UsageError("--flavour is for --to onnx")
    if dtype is not None and form not in ("hf", "compressed-tensors"):
        raise click.UsageError(
            "--dtype is for --to hf and compressed-tensors; what --to onnx and torch write has the dtypes of the recipe"
        )
    require_room(folder)  # before the work
    with report_progress() as report:
        if form == "torch":
            made = export_torch(source, folder, overrides=overrides, progress=report)
        else:
            with exportable(source, overrides=overrides, progress=report) as opened:
                if form == "onnx":
                    made = export_onnx(opened, folder, flavour=flavour or "fused")
                elif form == "compressed-tensors":
                    made = export_compressed(opened, folder, dtype=dtype or "auto", progress=report)
                else:
                    made = export_checkpoint(opened, folder, dtype=dtype or "auto")
    size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
    say(f"{made}: {size:,} bytes")
