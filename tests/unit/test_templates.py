"""Which words of templates are values, told by how many there are in one place."""

from redrive.classification.templates import mine

NAMES = ["sku", "email", "phone", "brim", "band", "lace", "sole", "heel", "cuff", "hem", "seam", "felt", "crown"]


def places(text: str, names: list[str]) -> int:
    """Of how many templates the texts with these names are."""
    return len({place.template for place in mine({text.format(name): 1 for name in names}).values()})


def test_so_many_parts_of_a_program_in_one_place_are_values() -> None:
    assert places("The functions of module '{}' are being loaded now", NAMES) == 1
    assert places("The functions of module '{}' are being loaded now", NAMES[:8]) == 8


def test_columns_and_fields_stay_apart_however_many_there_are() -> None:
    assert places("Field '{}' is missing in hat of order", NAMES) == len(NAMES)
    assert places("null value in column '{}' violates constraint", NAMES) == len(NAMES)


def test_of_what_kind_a_value_is_tells_however_many_there_are() -> None:
    kinds = [
        "hat",
        "shoe",
        "glove",
        "scarf",
        "belt",
        "coat",
        "sock",
        "boot",
        "cap",
        "tie",
        "vest",
        "robe",
        "gown",
        "suit",
    ]
    assert places("{} <*> not found in shop", kinds) == len(kinds)
