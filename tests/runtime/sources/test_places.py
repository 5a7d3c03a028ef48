"""runtime/sources/places.py, address.py, credentials.py: what a place is, what of it is shown, who gets credentials."""

from pathlib import Path

import pytest

from pyc.runtime.errors import FetchError
from pyc.runtime.sources.address import parse_address, redirected
from pyc.runtime.sources.credentials import authorization
from pyc.runtime.sources.places import Remote, open_place, place_of, without_credentials


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("https://host/m.pyca", "https://host/m.pyca"),
        ("https://user:password@host:1/m.pyca?signature=x#y", "https://host:1/m.pyca"),
        ("S3://bucket/a/m.pyca", "S3://bucket/a/m.pyca"),
        ("https://host/\x1b[2J", "https://host/\\x1b[2J"),
        ("http://a@b@host/m", "http://host/m"),
        ("https://user:as/base64+@host:1/m.pyca", "https://.../m.pyca"),
        ("https://user:password", "https://..."),
        ("oci://host:5000/name@sha256:00", "oci://host:5000/name@sha256:00"),
        ("https://[::1]:80/m", "https://[::1]:80/m"),
    ],
)
def test_urls_and_what_is_shown_of_them(named: str, shown: str) -> None:
    place = place_of(named)
    assert isinstance(place, Remote) and str(place) == shown and place.address == named


def test_urls_in_a_text_lose_what_they_have_of_a_user() -> None:
    text = "https:/u:SECRET@host:1/m.pyca?sig=SECRET: a URL; fetch it: pyc pull 'https://u:SECRET@host/m?sig=SECRET'"
    assert without_credentials(text) == "https://host:1/m.pyca: a URL; fetch it: pyc pull 'https://host/m'"


@pytest.mark.parametrize("host", ["models..example.com", ".example.com", f"{'a' * 64}.com"])
def test_names_that_no_host_has(host: str) -> None:
    with pytest.raises(FetchError, match="is no name that a host can have"):
        open_place(place_of(f"https://{host}/m"), "mmap")


@pytest.mark.parametrize("place", ["https://host:0/m", "http://127.0.0.1:0/m", "oci://localhost:0/m", "oci://host:0/m"])
def test_a_port_that_no_server_has_is_not_another(place: str) -> None:
    with pytest.raises(FetchError, match="port 0 is none that a server has"):
        open_place(place_of(place), "mmap")


@pytest.mark.parametrize("text", ["machine host login me SECRET", "machine host\nlogin me SECRET x"])
def test_a_netrc_that_is_none_is_not_quoted(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text(text)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(FetchError, match=r"line \d is not as a netrc file has it; mend it") as caught:
        authorization(parse_address("https://host/m"))
    assert "SECRET" not in str(caught.value)


def test_a_token_for_a_port_of_many_digits_is_for_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYC_HTTP_TOKEN", f"host:{'1' * 5000}=token")
    assert authorization(parse_address("https://host/m")) is None


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


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("/ok/a b.pyca", "/ok/a b.pyca"),
        ("a b.pyca?secret", "a b.pyca"),
        ("//me:secret@other.example/a b", "//other.example/a b"),
        ("/login?to=https://me:secret@other.example/a b", "/login"),
        ("https://me:secret@other.example/a b?secret", "https://other.example/a b"),
    ],
)
def test_a_redirect_that_leads_nowhere_is_shown_as_it_was_given(location: str, shown: str) -> None:
    with pytest.raises(FetchError, match=f"redirects to {shown!r}, which is no http") as caught:
        redirected(parse_address("https://models.example/m"), location)
    assert "secret" not in str(caught.value)


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


@pytest.mark.parametrize(
    ("named", "url", "is_for_it"),
    [
        ("[::1]:8399", "http://[::1]:8399/m", True),
        ("::1:8399", "http://[::1]:8399/m", True),
        ("[::1]", "http://[::1]/m", True),
        ("::1", "http://[::1]/m", True),
        ("[::1]:80", "http://[::1]/m", True),
        ("[0:0:0:0:0:0:0:1]:8399", "http://[::1]:8399/m", True),
        ("[2001:DB8::5]:8443", "https://[2001:db8::5]:8443/m", True),
        ("2001:db8::5", "https://[2001:db8::5]/m", True),
        ("2001:db8::abcd", "https://[2001:db8::abcd]/m", True),
        ("[::1]:8398", "http://[::1]:8399/m", False),
        ("[::1]", "http://[::1]:8399/m", False),
        ("[::2]:8399", "http://[::1]:8399/m", False),
        ("[2001:db8::5]", "https://[2001:db8::6]/m", False),
        ("[2001:db8::5]:8443", "https://[2001:db8::5:8443]/m", False),
    ],
)
def test_a_token_for_an_address_of_ipv6(
    named: str, url: str, is_for_it: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("PYC_HTTP_TOKEN", f"{named}=T")
    assert authorization(parse_address(url)) == ("Bearer T" if is_for_it else None)


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
    for name in ("::1", "[::1]"):
        file.write_text(f"machine {name} login me password secret\n")
        assert authorization(parse_address("http://[::1]:8399/m")) == "Basic bWU6c2VjcmV0"
    file.write_text("machine one.example login me password secret\ndefault login anybody password everywhere\n")
    assert authorization(parse_address("https://two.example/m")) is None, "`default` names no host"
    file.write_text("machine one.example login me passw")
    with pytest.raises(FetchError, match="netrc: line 1 is not as"):
        authorization(parse_address("https://one.example/m"))
