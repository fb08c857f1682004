"""What a class may declare, and what is said of one that cannot be served."""

from __future__ import annotations

import pytest

from headrace.declaration import DTYPES, DeclarationError, Settings, TensorType, declared
from runtimes.types import DTYPES as OF_RUNTIMES


class Iris:
    inputs = {"flower": "FP32[4]"}
    outputs = {"kind": "INT64"}

    def load(self, settings):
        pass

    def predict(self, batch):
        pass


def of(**attributes):
    return type("Own", (Iris,), attributes)


@pytest.mark.parametrize(
    ("written", "datatype", "shape", "kind"),
    [
        ("FP32[4]", "FP32", (4,), ""),
        ("INT64", "INT64", (), ""),
        ("INT64[]", "INT64", (), ""),
        (" BOOL[ ? , 80 ] ", "BOOL", (-1, 80), ""),
        ("BYTES[2]", "BYTES", (2,), ""),
        ("text", "BYTES", (), "text"),
        ("image", "BYTES", (), "image"),
    ],
)
def test_declarations_are_read(written, datatype, shape, kind):
    assert TensorType.parsed(written, "x") == TensorType(datatype, shape, kind)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("float32[4]", "one of BOOL"),
        ("FP32[0]", "whole numbers from 1"),
        ("FP32[-1]", "whole numbers from 1"),
        ("FP32[4,]", "whole numbers from 1"),
        ("FP32[" + ",".join("1" * 9) + "]", "at most 8"),
        ("text[2]", "has no shape"),
        ("BYTES", "with a row's shape"),
        ("", "must be a text such as"),
        (float, "must be a text such as"),
    ],
)
def test_what_is_no_declaration_is_refused_by_name(written, said):
    with pytest.raises(DeclarationError, match=r"'Own\.inputs: x' .*" + said):
        declared(of(inputs={"x": written}))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"predict": None}, "lacks the method predict"),
        ({"load": 3}, "lacks the method load"),
        ({"inputs": None}, "lacks inputs"),
        ({"outputs": {}}, "lacks outputs"),
        ({"inputs": ["x"]}, "lacks inputs"),
        ({"inputs": {"x y": "FP32[1]"}}, "the name 'x y'"),
        ({"inputs": {3: "FP32[1]"}}, "the name 3"),
        ({"warm": True}, "Own.warm is no method"),
    ],
)
def test_class_that_lacks_something_is_told_what(attributes, said):
    with pytest.raises(DeclarationError, match=said):
        declared(of(**attributes))


def test_object_in_place_of_a_class_is_refused():
    with pytest.raises(DeclarationError, match="is no class"):
        declared(Iris())


@pytest.mark.parametrize(
    ("inputs", "name", "axis"),
    [
        ({"a": "FP32[4]"}, None, 0),
        ({"a": "FP32[4]", "b": "INT64[?]"}, "b", 1),
        ({"t": "text", "b": "FP32[80, ?]"}, "b", 2),
        ({"i": "image", "t": "text"}, "t", 0),
    ],
)
def test_length_is_the_first_free_axis_else_a_text(inputs, name, axis):
    found = declared(of(inputs=inputs))
    assert (found.length_input, found.length_axis) == (name, axis)


def test_settings_are_a_mapping_whose_errors_say_what_there_is(tmp_path):
    settings = Settings(folder=tmp_path, given={"trees": 3})
    assert dict(settings) == {"trees": 3}
    with pytest.raises(KeyError, match=r"no 'depth' .*trees"):
        settings["depth"]
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "absent")):
        settings.path("absent")
    (tmp_path / "there").touch()
    assert settings.path("there") == tmp_path / "there"


def test_datatypes_are_the_runtimes():
    """Each package has the table, so that neither needs the other."""
    assert dict(DTYPES) == dict(OF_RUNTIMES)
