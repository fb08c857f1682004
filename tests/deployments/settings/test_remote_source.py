"""A URL says what and where, with its digest; what it may not say is refused with what would do."""

from __future__ import annotations

import pytest

from deployments.settings import remote_source
from deployments.settings.remote_source import SourceError, is_remote, is_url, parse, redacted
from deployments.settings_files import sources

HEX = "0123456789abcdef" * 4


def test_a_url_is_taken_apart():
    found = parse(f"https://host:8443/a%20b/m.onnx?x=1#sha256={HEX}")
    assert (found.url, found.scheme) == ("https://host:8443/a%20b/m.onnx?x=1", "https")
    assert (found.name, found.sha256, found.inside) == ("m.onnx", HEX, "")
    assert not found.is_archive
    assert str(found) == "https://host:8443/a%20b/m.onnx"


def test_a_path_inside_may_follow():
    found = parse(f"s3://bucket/models/m.tar.gz#sha256={HEX}&inside=m/model%20a.onnx")
    assert (found.is_archive, found.inside) == (True, "m/model a.onnx")


def test_a_hash_may_stand_in_a_key():
    assert parse(f"s3://bucket/a#1/m.onnx#sha256={HEX}").name == "m.onnx"


@pytest.mark.parametrize(
    ("url", "folder", "archive", "name"),
    [
        ("s3://bucket/minilm/", True, False, "minilm"),
        ("gs://bucket/minilm.zip/", True, False, "minilm.zip"),
        ("s3://bucket", False, False, "bucket"),
        ("https://h/M.TGZ", False, True, "M.TGZ"),
        ("https://h/m.pt2", False, False, "m.pt2"),
    ],
)
def test_folders_and_archives_are_told_by_their_ends(url, folder, archive, name):
    found = parse(f"{url}#sha256={HEX}")
    assert (found.is_folder, found.is_archive, found.name) == (folder, archive, name)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("https://h/m.onnx", "https://h/m.onnx has no digest; must end with #sha256="),
        ("s3://b/m.onnx", "has no digest"),
        ("gs://b/folder/", "has no digest"),
        ("https://h/m.onnx#inside=x", "has no digest"),
        ("https://h/m.onnx#sha256=abc", "sha256 is 'abc'; must be 64 digits"),
        (f"https://h/m.onnx#sha256={HEX.upper()}", "must be 64 digits, 0 to 9 and a to f"),
        ("https://h/m.onnx#sha256=../../etc", "must be 64 digits"),
        (f"https://h/m.onnx#sha512={HEX}", "is unknown; must be #sha256=DIGITS"),
        (f"https://h/m.onnx#{HEX}", "is unknown"),
        (f"https://h/m.zip#sha256={HEX}&inside=../x", "leads out of it"),
        (f"https://h/m.zip#sha256={HEX}&inside=/etc/passwd", "leads out of it"),
        (f"https://h/m.zip#sha256={HEX}&inside=a%2F..%2F..%2Fx", "leads out of it"),
        (f"https://h/folder/#sha256={HEX}", "is a folder, which https cannot list; name a file"),
        (f"https:///m.onnx#sha256={HEX}", "names no host"),
        (f"https://h/a/..#sha256={HEX}", "names no file"),
        (f"https://h/%2e%2e#sha256={HEX}", "names no file"),
        (f"https://h/..%2Fm.onnx#sha256={HEX}", "names no file"),
        (f"https://[h/m.onnx#sha256={HEX}", "is no URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_said(source, said):
    with pytest.raises(SourceError) as refused:
        parse(source)
    assert said in str(refused.value)


def test_passwords_and_signatures_are_never_said():
    with pytest.raises(SourceError, match="holds a user's name or password") as refused:
        parse(f"https://me:secret@h/m.onnx?token=secret#sha256={HEX}")
    assert "secret" not in str(refused.value)
    assert redacted("s3://me:secret@b/m?token=secret#sha256=x") == "s3://b/m"


@pytest.mark.parametrize(
    ("source", "url", "remote"),
    [
        ("https://h/m", True, True),
        ("s3://b/m", True, True),
        ("file:///m", True, False),
        ("models/m.onnx", False, False),
        ("/models/m.onnx", False, False),
        ("package:a/b", False, False),
        ("made:a/b", False, False),
        ("a/b://c", False, False),
    ],
)
def test_what_has_to_be_fetched(source, url, remote):
    assert (is_url(source), is_remote(source)) == (url, remote)


@pytest.mark.parametrize("source", ["file://host/m", "file://m", "file:///m#sha256=1"])
def test_a_file_url_is_a_whole_path_of_the_node(source):
    with pytest.raises(SourceError):
        remote_source.local_path(source)


def test_urls_do_not_depend_on_the_settings_files_folder(tmp_path):
    for url in (f"https://h/m.onnx#sha256={HEX}", "file:///a/b", "s3://b/recorded"):
        assert sources.absolute(url, tmp_path) == url


def test_a_file_url_is_found(tmp_path):
    (tmp_path / "m x").mkdir()
    assert sources.resolve(f"file://{tmp_path}/m%20x") == tmp_path / "m x"
    with pytest.raises(SourceError, match="no file or folder"):
        sources.resolve(f"file://{tmp_path}/gone")


def test_what_lies_elsewhere_is_on_no_path():
    with pytest.raises(SourceError, match=r"https://h/m.onnx is not on this machine"):
        sources.resolve(f"https://h/m.onnx#sha256={HEX}")


@pytest.mark.parametrize("here", [True, False])
def test_a_check_fetches_nothing_and_says_what_would_fail_everywhere(here, tmp_path):
    assert sources.check(f"https://127.0.0.1:1/m.onnx#sha256={HEX}", here=here) is None
    assert sources.check(f"memory://b/m.onnx#sha256={HEX}", here=here) is None
    assert "has no digest" in str(sources.check("https://h/m.onnx", here=here))
    unknown = sources.check(f"s4://b/m.onnx#sha256={HEX}", here=here)
    assert "the scheme s4 is unknown; must be s3, gs, https, file" in str(unknown)
    assert "must be file:///absolute/path" in str(sources.check("file://m.onnx", here=here))
    gone = sources.check(f"file://{tmp_path}/gone", here=here)
    assert (gone is not None) == here


@pytest.mark.parametrize(("scheme", "extra"), [("s3", "s3"), ("gs", "gs"), ("abfs", "azure")])
def test_a_store_whose_library_is_missing_says_what_to_install(monkeypatch, scheme, extra):
    def missing(_: str) -> None:
        raise ImportError("Install it")

    monkeypatch.setattr("fsspec.get_filesystem_class", missing)
    source = f"{scheme}://b/m.onnx#sha256={HEX}"
    assert f"pip install 'headrace[{extra}]'" in str(sources.check(source, here=True))
    assert sources.check(source, here=False) is None
