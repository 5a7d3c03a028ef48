"""`pyc install`: build ahead what an artifact needs of this machine before its first run."""

from pathlib import Path

import click

from pyc.commands.opening import ARTIFACT_FILE
from pyc.commands.screen import say, tell
from pyc.runtime.host.sizes import human_bytes


@click.command("install")
@click.argument("artifact", type=ARTIFACT_FILE)
@click.option("--again", is_flag=True, help="Build every engine, also where there is one.")
def command(artifact: Path, again: bool) -> None:
    """Build the TensorRT engines of ARTIFACT for this machine's GPU, as its first run would.

    Engines are kept for this GPU, driver and TensorRT, signed by a key of this machine, in the folder `engines` beside
    its keys ($PYC_HOME). ARTIFACT needs a program for TensorRT (`- backend: tensorrt` among its targets) and the
    signature of a trusted key. A line for each engine: its graph, what was done, its size. What else is in an artifact
    needs no installing.
    """
    from pyc.runtime.artifact.reader import open_artifact
    from pyc.runtime.artifact.trust.decision import require_trusted
    from pyc.runtime.executors.tensorrt.engines import prepare_engines
    from pyc.runtime.executors.tensorrt.executor import choose_program
    from pyc.runtime.executors.tensorrt.program import decode_program
    from pyc.runtime.executors.tensorrt.toolkit import open_toolkit

    def begins(graph: str, refusal: str | None) -> None:
        if refusal is not None:
            tell(f"{graph}: an engine was there, and is not used: {refusal}")
        tell(f"{graph}: building; this takes minutes")

    with open_artifact(artifact) as opened:
        require_trusted(opened)
        decoded = decode_program(opened.blob(choose_program(opened.header.programs, None).library))
        toolkit = open_toolkit()
        prepared = prepare_engines(opened, decoded, toolkit, again=again, begins=begins)
    for engine in prepared:
        done = f"built in {engine.seconds:.0f} s" if engine.is_built else "there already"
        say(f"{engine.graph}: {done}, {human_bytes(len(engine.engine))}")
    device = toolkit.device
    say(f"for {device.name} ({device.capability}), driver for CUDA {device.driver}, TensorRT {toolkit.version}")
