"""`pyc keygen`: makes a trusted key once, and never replaces one."""

from pyc.runtime import trust


def test_a_new_key(pyc, key_home):
    code, out, err = pyc("keygen")
    assert code == 0
    assert err == f"wrote {key_home / 'keys' / 'default.pem'}\n"
    assert trust.is_trusted(trust.parse_public_key(out).raw)
    assert trust.signing_key(create=False).public == trust.parse_public_key(out)


def test_a_named_key(pyc, key_home):
    assert pyc("keygen", "--name", "ci")[0] == 0
    assert sorted(path.name for path in (key_home / "keys").iterdir()) == ["ci.pem", "ci.pub"]


def test_an_existing_key_is_kept(pyc, key_home):
    pyc("keygen")
    before = (key_home / "keys" / "default.pem").read_bytes()
    code, out, err = pyc("keygen")
    assert (code, out) == (8, "")
    assert "the key exists already" in err
    assert (key_home / "keys" / "default.pem").read_bytes() == before


def test_a_bad_name(pyc, key_home):
    code, out, err = pyc("keygen", "--name", "../x")
    assert (code, out) == (8, "")
    assert "is not a key name" in err
    assert not key_home.exists()
