"""One TOML file a record, read strictly, with an error that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from catalog.errors import CatalogError
from catalog.prose import Related, read

WHOLE = '''
family = "tensor-layout"
tags = ["a", "b"]
handling = "type-guard"
documentation = "What it means."
triggers = "When."
situations = "How."
solutions = ["One.", "Two."]
tips = ["Tip."]
validation = """
if x:
    raise ValueError("x")
"""
type_guard = "def f(x): return True"

[[related]]
check = "folder/check"
reason = "Why."
'''


def write(folder: Path, text: str) -> Path:
    path = folder / "some_check.toml"
    path.write_text(text, "utf-8")
    return path


def test_a_whole_file(tmp_path: Path) -> None:
    prose = read(write(tmp_path, WHOLE))
    assert prose.family == "tensor-layout"
    assert prose.tags == ("a", "b")
    assert prose.solutions == ("One.", "Two.")
    assert prose.validation == 'if x:\n    raise ValueError("x")'
    assert prose.try_catch is None
    assert prose.related == (Related("folder/check", "Why."),)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ('family = "tensor-layout"', 'family = "colours"', "family 'colours' is not one of"),
        ('handling = "type-guard"', 'handling = "hope"', "handling must be one of try-catch"),
        ('triggers = "When."', "", "triggers must be a text"),
        ('triggers = "When."', 'triggers = "  "', "triggers must be a text"),
        ('tips = ["Tip."]', "tips = []", "tips must be a list of texts"),
        ('tips = ["Tip."]', "tips = [1]", "tips must be a list of texts"),
        ('tags = ["a", "b"]', 'tags = ["a", "b"]\ncolour = "red"', "unknown keys colour"),
        ('reason = "Why."', "", "each [[related]] has the keys check and reason"),
        ('reason = "Why."', 'reason = ""', "reason must be a text"),
        ('family = "tensor-layout"', "family = tensor", "Invalid value"),
    ],
)
def test_what_is_wrong_is_named_with_its_file(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    assert WHOLE.count(old) == 1
    with pytest.raises(CatalogError) as raised:
        read(write(tmp_path, WHOLE.replace(old, new)))
    assert f"{tmp_path.name}/some_check.toml: " in str(raised.value)
    assert complaint in str(raised.value)
