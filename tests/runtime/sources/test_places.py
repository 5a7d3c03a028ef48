"""runtime/sources/places.py, address.py, credentials.py: what a place is, what of it is shown, who gets credentials."""

from pathlib import Path

import pytest

from pyc.runtime.errors import FetchError
from pyc.runtime.sources.address import parse_address, redirected
from pyc.runtime.sources.credentials import authorization
from pyc.runtime.sources.places import Remote, open_place, place_of


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("https://host/m.pyca", "https://host/m.pyca"),
        ("https://user:password@host:1/m.pyca?signature=x#y", "https://host:1/m.pyca"),
        ("S3://bucket/a/m.pyca", "S3://bucket/a/m.pyca"),
        ("https://host/\x1b[2J", "https://host/\\x1b[2J"),
        ("http://a@b@host/m", "http://host/m"),
    ],
)
def test_urls_and_what_is_shown_of_them(named: str, shown: str) -> None:
    place = place_of(named)
    assert isinstance(place, Remote) and str(place) == shown and place.address == named


@pytest.mark.parametrize("named", ["m.pyca", "-", "a:b", "https:/host/m.pyca", "://x", Path("https://host/m")])
def test_paths(named: str | Path) -> None:
    assert place_of(named) == Path(named) and not isinstance(place_of(named), Remote)


@pytest.mark.parametrize("named", ["ftp://host/m", "file:///m", "javascript://x"])
def test_other_schemes(named: str) -> None:
    with pytest.raises(FetchError, match=r"nothing is fetched by .*, expected one of http, https, oci, s3"):
        open_place(place_of(named), "mmap")


@pytest.mark.parametrize(
    "url",
    ["http:///m", "http://host:99999/m", "http://host:x/m", "http://[::1/m", "http://host/a b", "http://host/\r\nX: y"],
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(FetchError) as caught:
        parse_address(url)
    assert "\n" not in str(caught.value)


def test_the_parts_of_an_address() -> None:
    address = parse_address("HTTPS://u%40x:p%3A@HOST:8443/a/b?c=d#e")
    assert (address.scheme, address.host, address.port, address.target) == ("https", "host", 8443, "/a/b?c=d")
    assert (address.user, address.password, address.authority) == ("u@x", "p:", "host:8443")
    assert parse_address("http://[::1]/").authority == "[::1]"


def test_where_a_redirect_leads() -> None:
    https = parse_address("https://u:p@host/a/b?c")
    assert str(redirected(https, "../d")) == "https://host/d"
    assert redirected(https, "d").password == ""
    assert redirected(https, "//other/x").host == "other"
    with pytest.raises(FetchError, match="not encrypted"):
        redirected(https, "http://host/a")
    assert redirected(parse_address("http://host/"), "https://host/").scheme == "https"


def test_tokens_are_for_their_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_HTTP_TOKEN", "one.example=111 two.example:8443=222 127.0.0.1:80=333 plain.example:80=444")
    for url, expected in (
        ("https://one.example/m", "Bearer 111"),
        ("https://ONE.example/m", "Bearer 111"),
        ("https://one.example:444/m", None),
        ("https://sub.one.example/m", None),
        ("https://two.example:8443/m", "Bearer 222"),
        ("https://two.example/m", None),
        ("http://127.0.0.1/m", "Bearer 333"),
        ("http://plain.example/m", None),
        ("https://u:p@one.example/m", "Basic dTpw"),
    ):
        assert authorization(parse_address(url)) == expected, url


@pytest.mark.parametrize("value", ["abc", "host=", "host=a\x7fb", "host=\xe9"])
def test_a_token_without_a_host(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_HTTP_TOKEN", value)
    with pytest.raises(FetchError, match="expected HOST=TOKEN") as caught:
        authorization(parse_address("https://host/m"))
    assert value not in str(caught.value)


def test_netrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine one.example login me password secret\ndefault login anybody password everywhere\n")
    monkeypatch.setenv("NETRC", str(file))
    monkeypatch.delenv("PYC_HTTP_TOKEN", raising=False)
    assert authorization(parse_address("https://one.example/m")) == "Basic bWU6c2VjcmV0"
    assert authorization(parse_address("http://one.example/m")) is None, "not in the clear"
    assert authorization(parse_address("https://two.example/m")) is None, "`default` names no host"
    file.write_text("machine one.example login me passw")
    with pytest.raises(FetchError, match="netrc: bad follower token"):
        authorization(parse_address("https://one.example/m"))
