"""One load of tests/bench/loaders.py in a process of its own: `LOADER FILE`; prints JSON, also of a missing module.

Every loader ends with all tensors in memory, or mapped where its name says so; the clock starts when it is imported,
and as much memory as it may need was written and freed: a virtual machine's host takes back what is free, and gives it
again at a few hundred megabytes a second.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable

Load = Callable[[str], int]
"""Loads a file and returns the bytes of its tensors."""


def bare() -> Load:
    from streaming_worker import read

    return lambda path: int(read(path, [(0, os.stat(path).st_size)])["bytes"])


def pyc(mode: str) -> Load:
    from pyc.runtime.artifact import reader

    def load(path: str) -> int:
        with reader.open_artifact(path, mode=mode) as artifact:
            return sum(array.nbytes for array in artifact.tensors().values())

    return load


def safetensors_numpy() -> Load:
    from safetensors.numpy import load_file

    return lambda path: sum(array.nbytes for array in load_file(path).values())


def safetensors_torch() -> Load:
    from safetensors.torch import load_file

    return lambda path: sum(tensor.nbytes for tensor in load_file(path).values())


def fastsafetensors() -> Load:
    from fastsafetensors import SafeTensorsFileLoader

    def load(path: str) -> int:
        loader = SafeTensorsFileLoader(None, device="cpu", nogds=True, disable_cache=False)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        return sum(buffer.get_tensor(name).nbytes for name in buffer.key_to_rank_lidx)

    return load


def runai() -> Load:
    from runai_model_streamer import SafetensorsStreamer

    def load(path: str) -> int:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return sum(tensor.nbytes for _, tensor in streamer.get_tensors())

    return load


def tensorizer(verifies: bool) -> Load:
    from tensorizer import TensorDeserializer

    def load(path: str) -> int:
        with TensorDeserializer(path, device="cpu", verify_hash=verifies) as tensors:
            return sum(tensor.nbytes for tensor in tensors.values())

    return load


LOADERS: dict[str, tuple[str, str, Callable[[], Load]]] = {
    "bare read": ("pyc", ".pyca", bare),
    "pyc, mapped, BLAKE3": ("pyc", ".pyca", lambda: pyc("mmap")),
    "pyc, copied, BLAKE3": ("pyc", ".pyca", lambda: pyc("pread")),
    "safetensors, numpy, unchecked": ("safetensors", ".safetensors", safetensors_numpy),
    "safetensors, torch, mapped and unread": ("safetensors", ".safetensors", safetensors_torch),
    "fastsafetensors, unchecked": ("fastsafetensors", ".safetensors", fastsafetensors),
    "run:ai streamer, unchecked": ("runai_model_streamer", ".safetensors", runai),
    "tensorizer, unchecked": ("tensorizer", ".tensors", lambda: tensorizer(False)),
    "tensorizer, SHA-256": ("tensorizer", ".tensors", lambda: tensorizer(True)),
}
"""By name: the module that it takes, the file that it reads, and what makes it."""


def touch(size: int) -> None:
    """Write to so much memory and free it."""
    import numpy as np

    np.ones(size, np.uint8)


def write_files(artifact: str) -> None:
    """Write the tensors of an artifact as .safetensors, and as .tensors where tensorizer is there."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from pyc.runtime.artifact import reader

    with reader.open_artifact(artifact) as opened:
        arrays = {name: torch.from_numpy(np.array(array)) for name, array in opened.tensors().items()}
    stem = artifact.removesuffix(".pyca")
    save_file(arrays, stem + ".safetensors")
    try:
        from tensorizer import TensorSerializer
    except ImportError:
        return
    serializer = TensorSerializer(stem + ".tensors")
    serializer.write_state_dict(arrays)
    serializer.close()


def main() -> None:
    name, path = sys.argv[1:]
    if name == "write":
        write_files(path)
        return
    module, suffix, make = LOADERS[name]
    try:
        importlib.import_module(module)
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    load = make()
    touch(3 * os.stat(path).st_size)
    began_s = time.perf_counter()
    size = load(path.removesuffix(".pyca") + suffix)
    print(json.dumps({"seconds": time.perf_counter() - began_s, "bytes": size}))
    sys.stdout.flush()
    os._exit(0)  # threads of some loaders do not end


if __name__ == "__main__":
    main()
