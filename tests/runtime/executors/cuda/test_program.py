"""runtime/executors/cuda/program.py: a program that contradicts itself is refused before a GPU is asked."""

import random

import msgspec
import pytest

from pyc.runtime.errors import ArtifactError
from pyc.runtime.executors.cuda.program import (
    Buffer,
    CudaProgram,
    DeviceFunction,
    InputArray,
    Kernel,
    Launch,
    decode_program,
    encode_program,
)

INPUT, RESULT = InputArray("x", "f32", (4, 8)), InputArray("y", "f32", (4, 8))
BUFFERS = (Buffer("input", "x", 0, 128), Buffer("workspace", "", 0, 128), Buffer("result", "", 0, 128))
LAUNCHES = (Launch(0, (1, 1, 1), (0, 1), ()), Launch(0, (1, 1, 1), (1, 2), (0,)))
FUNCTION = DeviceFunction("forward_4", (INPUT,), RESULT, 128, BUFFERS, LAUNCHES)
PROGRAM = CudaProgram((b"code",), (Kernel("copy", 0, 32, 0, 2),), (FUNCTION,))
replace = msgspec.structs.replace


def changed(**changes):
    return replace(PROGRAM, functions=(replace(FUNCTION, **changes),))


def test_a_program_is_what_was_written():
    assert decode_program(encode_program(PROGRAM)) == PROGRAM


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (replace(PROGRAM, kernels=(Kernel("copy", 1, 32, 0, 2),)), "kernel 'copy' is of unit 1 of 1"),
        (changed(workspace_bytes=127), "ends behind the workspace of 127 bytes"),
        (changed(launches=(Launch(1, (1, 1, 1), (0, 1), ()),)), "is of kernel 1 of 1"),
        (changed(launches=(Launch(0, (1, 1, 1), (0, 3), ()),)), "reads a buffer that there is not"),
        (changed(launches=(Launch(0, (1, 1, 1), (0, 1), (0,)),)), "waits for a later one"),
        (changed(launches=(Launch(0, (1, 1, 1), (0,), ()),)), "gives 1 buffers to a kernel of others"),
        (changed(launches=(Launch(0, (0, 1, 1), (0, 1), ()),)), "not valid"),
        (replace(PROGRAM, kernels=(Kernel("copy", 0, 2048, 0, 2),)), "not valid"),
    ],
)
def test_contradictions_are_named(program, message):
    with pytest.raises(ArtifactError, match=message):
        decode_program(encode_program(program))


def test_noise_is_a_typed_error():
    """What is refused is named; what still decodes may be run, as a program that was written so."""
    data, noise, refused = encode_program(PROGRAM), random.Random(0), []
    for _ in range(2000):
        mutated = bytearray(data)
        for _ in range(noise.randint(1, 3)):
            mutated[noise.randrange(len(mutated))] = noise.randrange(256)
        try:
            decoded = decode_program(bytes(mutated[: noise.randint(1, len(mutated))]))
        except ArtifactError as error:
            refused.append(str(error))
        else:
            assert decode_program(encode_program(decoded)) == decoded
    assert len(refused) > 1900
    assert all(message.startswith("the program for CUDA is not valid: ") for message in refused)
