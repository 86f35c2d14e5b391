"""Which words of templates are values, told by how many there are in one place."""

from redrive.classification.templates import mine


def test_so_many_names_in_one_place_are_values() -> None:
    names = [
        "sku",
        "email",
        "phone",
        "brim",
        "band",
        "lace",
        "sole",
        "heel",
        "cuff",
        "hem",
        "seam",
        "felt",
        "crown",
        "rim",
    ]
    few = mine({f"Field '{name}' is missing in hat of order": 1 for name in names[:8]})
    many = mine({f"Field '{name}' is missing in hat of order": 1 for name in names})
    assert len({place.template for place in few.values()}) == 8
    assert len({place.template for place in many.values()}) == 1


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
    places = mine({f"{kind} <*> not found in shop": 1 for kind in kinds})
    assert len({place.template for place in places.values()}) == len(kinds)
