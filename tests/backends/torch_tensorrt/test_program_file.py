"""program_file.py: torch ends the process where a file that it writes to raises, so such files never do."""

import subprocess
import sys

import pytest

SAVES = """
import errno, io, os, signal, sys
sys.path[:] = eval(sys.argv[1])
import torch
from torch import nn
from pyc.backends.torch_tensorrt.program_file import write_undisturbed

class File(io.BytesIO):
    def __init__(self, happens):
        super().__init__()
        self.happens = happens

    def write(self, data):
        happens = self.happens if self.tell() > 1000 else "nothing"
        if happens == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        if happens == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(data)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
program = torch.export.export(nn.Linear(64, 64), (torch.ones(1, 64),))
for happens in sys.argv[2:]:
    child = os.fork()  # torch, which is slow to import, would end the process
    if child:
        print("status", os.waitpid(child, 0)[1], flush=True)
        continue
    file = File(happens)
    try:
        write_undisturbed(file, lambda sink: torch.export.save(program, sink))
    except (OSError, KeyboardInterrupt) as error:
        print(type(error).__name__, error, flush=True)
    else:
        file.seek(0)
        print(len(torch.export.load(file).state_dict), flush=True)
    os._exit(0)
"""

SAID = {"nothing": "2", "disk": "OSError [Errno 28] No space left on device", "signal": "KeyboardInterrupt "}


@pytest.mark.slow
def test_what_happens_while_torch_writes_is_raised_when_it_is_done():
    command = [sys.executable, "-c", SAVES, repr(sys.path), *SAID]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.splitlines() == [line for says in SAID.values() for line in (says, "status 0")], done.stderr
