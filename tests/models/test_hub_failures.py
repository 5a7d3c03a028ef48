"""models/hub_failures.py: what an error of the network or of the cache says."""

import errno
import os

import pytest

from pyc.models.hub_failures import explained
from pyc.runtime.errors import IngestError


def said(problem):
    return explained(problem, "org/name", "org/name", "https://hub", IngestError, is_known=False)


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch):
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EPERM, errno.EACCES, errno.ENOTDIR])
def test_errors_of_paths_are_the_caches_where_they_name_one(number):
    of_file, of_socket = said(OSError(number, os.strerror(number), "/cache/file")), said(OSError(number, "refused"))
    assert (type(of_file), of_file.filename) == (type(OSError(number, "")), "/cache/file")
    assert isinstance(of_socket, IngestError) and "check the network" in str(of_socket)
    assert said(OSError(errno.ENOSPC, "full")).errno == errno.ENOSPC


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
def test_certificates_that_are_not_there(name, tmp_path, monkeypatch):
    place = str(tmp_path / "ca.pem")
    monkeypatch.setenv(name, place)
    problems = (
        FileNotFoundError(errno.ENOENT, "No such file or directory"),
        OSError(f"Could not find a suitable TLS CA certificate bundle, invalid path: {place}"),
    )
    for problem in problems:
        assert str(said(problem)) == f"org/name: {name} is {place}, which is not there; unset or correct it"
    assert "check the network" in str(said(OSError("connection reset")))
    (tmp_path / "ca.pem").touch()
    assert "check the network" in str(said(problems[0]))
