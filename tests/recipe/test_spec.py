"""What a stored result depends on: the keys that are not at their defaults."""

from __future__ import annotations

from polyphony._util.settings import Settings
from polyphony.recipe import Recipe, read_recipe
from polyphony.recipe.schema import Schedule, Teachers


class Inner(Settings):
    kind: str
    size: int = 3


class Outer(Settings):
    name: str
    inner: Inner = Inner(kind="a")
    several: tuple[Inner, ...] = ()
    share: float = 0.5


def test_a_spec_holds_only_settings_that_differ_from_defaults():
    assert Outer(name="x").spec() == {"name": "x"}
    assert Outer(name="x", share=0.5, inner=Inner(kind="a", size=3)).spec() == {"name": "x"}
    changed = Outer(name="x", inner=Inner(kind="a", size=4), several=(Inner(kind="b"),), share=0.25)
    assert changed.spec() == {
        "name": "x",
        "inner": {"kind": "a", "size": 4},
        "several": [{"kind": "b"}],
        "share": 0.25,
    }
    assert changed.spec({"share"}) == {"share": 0.25}


def test_a_new_key_at_its_default_changes_no_spec():
    class LaterTeachers(Teachers):
        clipping: float | None = None

    class LaterRecipe(Recipe):
        teachers: LaterTeachers

    now = read_recipe("digits")
    table = now.model_dump(mode="json", exclude_none=True)
    later = LaterRecipe.model_validate_json(LaterRecipe.model_validate(table).model_dump_json())
    fields = {*Schedule.model_fields, "clipping"}
    assert later.teachers.spec(fields) == now.teachers.spec(Schedule.model_fields)
    table["teachers"]["clipping"] = 1.0
    assert "clipping" in LaterRecipe.model_validate(table).teachers.spec(fields)
