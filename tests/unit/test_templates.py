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


def groups(*texts: str) -> list[set[str]]:
    """The texts that have one template, the largest group first."""
    found: dict[str, set[str]] = {}
    for text, place in mine(dict.fromkeys(texts, 1)).items():
        found.setdefault(place.template, set()).add(text)
    return sorted(found.values(), key=len, reverse=True)


def test_two_words_that_stand_for_each_other_in_several_contexts_are_names() -> None:
    said = ["unable to resolve host for {}", "added {} to the group of drivers", "{} left the depot without a key"]
    texts = [text.format(name) for text in said for name in ("tamsin", "orlo")]
    assert sorted(map(len, groups(*texts))) == [2, 2, 2]
    assert len(groups(*texts[:4])) == 4  # in fewer, they may be what failed


def test_words_of_failures_columns_and_kinds_of_things_stay_apart_in_however_many_contexts() -> None:
    said = [
        "the socket to the bank failed on {}",
        "gave up because of a late {} of the peer",
        "{} was not allowed here",
    ]
    for one, other in (("read", "write"), ("tax_rate", "ship_day"), ("order", "customer"), ("Tamsin", "Orlo")):
        texts = [text.format(word) for text in said for word in (one, other)]
        assert len(groups(*texts)) == len(texts)


def test_a_context_that_only_says_more_or_varies_itself_is_no_other() -> None:
    said = ["added {} to the group", "added {} to the group of drivers", "added {} to the group of many drivers"]
    one_more = [text.format(name) for text in said for name in ("tamsin", "orlo")]
    assert len(groups(*one_more)) == len(one_more)
    ways = [
        f"{way} {name} at the depot gate" for way in ("tamsin", "orlo", "ferris") for name in ("quilled", "wambled")
    ]
    assert len(groups(*ways)) == len(ways)


def test_names_beside_a_value_make_no_template_that_they_would_not_fit_when_it_is_known() -> None:
    said = ["unable to resolve host {} <*> here", "added {} <*> to the group of drivers", "{} <*> left the depot"]
    texts = [text.format(name) for text in said for name in ("tamsin", "orlo")]
    assert len(groups(*texts)) == len(texts)


def test_a_yes_and_a_no_behind_a_colon_are_answers() -> None:
    assert len(groups("shared memory possible: yes", "shared memory possible: no")) == 1
    assert len(groups("queue of hats, force:true, size <*>", "queue of hats, force:false, size <*>")) == 1
    assert len(groups("depot north: no route to the shop", "depot north: on route to the shop")) == 2
