"""passes/bundle/markers.py against the package packaging, and which packages a bundle has by them."""

import importlib.metadata

import pytest
from packaging.markers import Marker

from pyc.passes.bundle.markers import environment, holds
from pyc.passes.bundle.wheels import DISTRIBUTION, Target, pins
from pyc.runtime.errors import ArtifactError

MARKERS = [
    "platform_system == 'Windows'",
    'sys_platform != "win32" and os_name == "posix"',
    "python_version < '3.12'",
    "'3.9' <= python_version",
    "python_version >= '3.9' and python_version < '3.13' or platform_machine == 'riscv64'",
    "platform_machine == 'riscv64' or python_version >= '3.9' and python_version < '3.13'",
    "(sys_platform == 'win32' or sys_platform == 'linux') and (python_full_version >= '3.12.0')",
    "python_full_version <= '3.11.0a6'",
    "python_full_version < '3.13'",
    "python_version == '3.11.*'",
    "python_version != '3.11.*'",
    "python_version ~= '3.12'",
    "python_version > '3.9.1'",
    "platform_machine in 'x86_64 AMD64'",
    "platform_machine not in 'x86_64 AMD64'",
    "'linux' in sys_platform",
    "sys_platform  not  in 'win32,darwin'",
    'implementation_name == "cpython" and platform_python_implementation != "PyPy"',
    "os.name == 'nt'",
    "extra == 'onnx'",
    "python_version < '3.15' and extra == 'onnx'",
]


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_holds_where_packaging_says_so(marker):
    for machine in ("x86_64", "aarch64"):
        for python in ("3.11", "3.12", "3.13", "3.14"):
            for extra in ("", "onnx"):
                values = {**environment(machine, python), "extra": extra}
                assert holds(marker, values) == Marker(marker).evaluate(values), (machine, python, extra)


NO_MARKERS = (
    *("", "python_version", "python_version <", "<= '3'", "'3' and '4'", "os_name == 'posix' os_name"),
    *("(os_name == 'posix'", "os_name == 'posix')", "os_name == posix'", "colour == 'red'"),
    *("os_name ~= 'posix'", "python_version < 'new'"),
)


@pytest.mark.parametrize("marker", NO_MARKERS)
def test_what_is_no_marker_is_refused(marker):
    with pytest.raises(ValueError, match=r"expected|ends too early|read|closed|variable|version"):
        holds(marker, environment("x86_64", "3.11"))


@pytest.fixture
def installed(monkeypatch):
    """Pretends that these packages are installed; a version of "" stands for none."""
    found = {
        DISTRIBUTION: ("1", ["click>=8", "rest; extra == 'onnx'"]),
        "click": ("8", ["colorama; platform_system == 'Windows'", 'six>=1; python_version < "3.12"']),
        "rest": ("2", []),
        "colorama": ("3", []),
        "six": ("4", []),
    }

    def version(name):
        if name not in found:
            raise importlib.metadata.PackageNotFoundError(name)
        return found[name][0]

    monkeypatch.setattr("importlib.metadata.requires", lambda name: found[name][1])
    monkeypatch.setattr("importlib.metadata.version", version)
    return found


@pytest.mark.parametrize("has_colorama", [False, True])
def test_a_bundle_has_what_its_target_needs_whatever_is_installed(has_colorama, installed):
    if not has_colorama:
        del installed["colorama"]
    assert pins(Target("x86_64", "3.11")) == {"click": "8", "six": "4"}
    assert pins(Target("x86_64", "3.12")) == {"click": "8"}
    assert pins(Target("x86_64", "3.12"), ("onnx",)) == {"click": "8", "rest": "2"}


def test_a_package_that_only_the_target_needs_is_asked_for(installed):
    del installed["six"]
    assert pins(Target("aarch64", "3.12")) == {"click": "8"}
    with pytest.raises(ArtifactError, match="six: is not installed here, so its version is not known; pip install six"):
        pins(Target("aarch64", "3.11"))


def test_a_marker_that_cannot_be_read_is_said(installed):
    installed["click"] = ("8", ["six; colour == 'red'"])
    with pytest.raises(ArtifactError, match=r"six; colour == 'red': .*unknown variable 'colour'"):
        pins(Target("aarch64", "3.11"))
