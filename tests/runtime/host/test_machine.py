"""runtime/host/machine.py: what the kernel says of this process, whatever the process is called."""

import pytest

from pyc.runtime.host import machine


@pytest.mark.parametrize("name", ["pyc", "x\u2028VmHWM:\u2028", "x\x85VmHWM: no", "x\x1cVmHWM:\t1 kB"])
def test_the_most_memory_of_a_process_by_any_name(tmp_path, monkeypatch, name):
    path = tmp_path / "status"
    path.write_bytes(f"Name:\t{name}\nUmask:\t0022\nVmHWM:\t   1234 kB\n".encode())
    monkeypatch.setattr(machine, "STATUS", path)
    assert machine.peak_rss_bytes() == 1234 * 1024
