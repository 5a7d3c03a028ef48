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
    def write(self, data):
        happen = self.tell() > 1000
        if happen and sys.argv[2] == "disk":
            raise OSError(errno.ENOSPC, "No space left on device")
        if happen and sys.argv[2] == "signal":
            os.kill(os.getpid(), signal.SIGINT)
        return super().write(data)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
program, file = torch.export.export(nn.Linear(64, 64), (torch.ones(1, 64),)), File()
try:
    write_undisturbed(file, lambda sink: torch.export.save(program, sink))
except (OSError, KeyboardInterrupt) as error:
    print(type(error).__name__, error)
else:
    file.seek(0)
    print(len(torch.export.load(file).state_dict))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("happens", "says"),
    [("nothing", "2"), ("disk", "OSError [Errno 28] No space left on device"), ("signal", "KeyboardInterrupt ")],
)
def test_what_happens_while_torch_writes_is_raised_when_it_is_done(happens, says):
    command = [sys.executable, "-c", SAVES, repr(sys.path), happens]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{says}\n"), done.stderr
