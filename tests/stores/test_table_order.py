"""The order of keys and its encoding: laws, checked on keys that nobody chose."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepwell.actors import Actor, InvalidValue
from keepwell.stores import Atom
from keepwell.stores.key_codec import encode_key
from keepwell.stores.table_codec import DamagedRow, UnusableRow, decode_row, encode_row
from keepwell.stores.term_order import UnusableKey, exact_key, exactly_equal, order_key

# Few distinct values, so that keys often are equal or nearly so.
near = st.sampled_from(
    [
        0, 1, -1, 2**53, 2**53 + 1, 2**63, 2**64, 2**64 + 1, -(2**64), 2**130, 2**130 + 1,
        2**130 + 2**64, 10**400, -(10**400),
    ]
)  # fmt: skip
ints = st.one_of(st.integers(), near, st.integers(-3, 3))
floats = st.one_of(st.floats(allow_nan=False), near.filter(lambda n: abs(n) < 10**300).map(float))
texts = st.one_of(st.text(max_size=5), st.text(alphabet="\0\x01aé\ud800\U0001f600", max_size=4))
atoms = st.sampled_from(["a", "b", "tru", "trues", "undefine", "\0"]).map(Atom)
scalars = st.one_of(
    ints, floats, texts, st.binary(max_size=4), st.booleans(), st.none(), atoms
)
dict_keys = st.one_of(st.integers(-2, 2), st.floats(-2, 2), st.text(max_size=2), st.booleans())
keys = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(dict_keys, inner, max_size=3),
    ),
    max_leaves=6,
)


def sign(left: Any, right: Any) -> int:
    return (left > right) - (left < right)


@given(keys, keys)
@example(1, 1.0)
@example(1, True)
@example(2**53 + 1, float(2**53))
@example(10**400, math.inf)
@example(2**64, 2**64 + 1)
@example(-(2**64), -(2**64) - 1)
@example(2**130, 2**130 + 1)
@example(2**130, 2.0**130)
@example(5e-324, 0)
@example(-5e-324, 0)
@example("a", "a\0")
@example(("a",), ("a\0",))
@example({1: 0}, {1.0: 0})
@example({1: 1}, {1: 1.0})
@example([[]], [])
def test_encoded_order_is_the_order(left: Any, right: Any) -> None:
    """encode(a) < encode(b) exactly when a sorts before b; equal when they are the same key."""
    order = sign(order_key(left), order_key(right))
    first, second = encode_key(left, exact=False), encode_key(right, exact=False)
    assert sign(first, second) == order
    if order == 0:
        assert hash(order_key(left)) == hash(order_key(right))


@given(keys, keys)
@example(1, 1.0)
@example(0, -0.0)
@example(0.0, -0.0)
@example((1, True), (1.0, 1))
@example({1: 1}, {1.0: 1})
@example({1: 1}, {True: 1})
def test_exact_encodings_are_the_exact_keys(left: Any, right: Any) -> None:
    """ETS-2: in a set two keys are one if they are equal and of the same types throughout."""
    same = exact_key(left) == exact_key(right)
    assert (encode_key(left, exact=True) == encode_key(right, exact=True)) == same
    assert exactly_equal(left, right) == same
    if same:
        assert hash(exact_key(left)) == hash(exact_key(right))


@given(keys, keys, st.booleans())
@example(2**64, 2**64 + 1, True)
@example(-(2**130), -(2**130) - 2**64, False)
@example(2**130, 2**130 + 1, False)
@example("a", "a\0", True)
def test_no_encoding_is_the_beginning_of_another(left: Any, right: Any, exact: bool) -> None:
    first, second = encode_key(left, exact=exact), encode_key(right, exact=exact)
    assert first == second or not (first.startswith(second) or second.startswith(first))


@given(st.lists(keys, min_size=3, max_size=3))
def test_the_order_is_total(three: list[Any]) -> None:
    a, b, c = sorted(three, key=order_key)
    assert order_key(a) <= order_key(b) <= order_key(c)
    assert order_key(a) <= order_key(c)


@given(ints, floats)
def test_numbers_compare_by_exact_value(whole: int, real: float) -> None:
    assert sign(order_key(whole), order_key(real)) == sign(whole, real)


@given(texts, texts)
def test_text_compares_by_code_point(left: str, right: str) -> None:
    assert sign(order_key(left), order_key(right)) == sign(left, right)
    encoded = sign(encode_key(left, exact=True), encode_key(right, exact=True))
    assert encoded == sign(left, right)


def test_kinds_in_order() -> None:
    """number < word < ref < tuple < dict < list < str < bytes, whatever the values."""
    kinds = [[-1, 10**100, 1e300], [None, True, Atom("zzz")], [(), (1, 2)], [{}, {1: 1}]]
    kinds += [[[], [9]], ["", "z"], [b"", b"z"]]
    for lower, upper in itertools.combinations(kinds, 2):
        for left, right in itertools.product(lower, upper):
            assert order_key(left) < order_key(right)
            assert encode_key(left, exact=True) < encode_key(right, exact=True)


def test_words_compare_by_their_text() -> None:
    """As OTP's atoms: None is `undefined`."""
    words = [Atom("a"), False, Atom("g"), True, Atom("u"), None, Atom("v")]
    assert sorted(words, key=order_key) == words


def test_refs_have_a_place() -> None:
    ref = Actor.start()
    try:
        assert order_key(Atom("z")) < order_key(ref) < order_key(())
        assert order_key(ref) == order_key(ref)
        with pytest.raises(UnusableKey, match="on disk"):
            encode_key(ref, exact=True)
    finally:
        ref.stop()


def nested(depth: int) -> Any:
    key: Any = 0
    for _ in range(depth):
        key = (key,)
    return key


@pytest.mark.parametrize(
    "bad", [math.nan, (1, math.nan), [{1: math.nan}], {1, 2}, nested(101)], ids=repr
)
def test_what_can_be_no_key(bad: Any) -> None:
    for make in (
        exact_key,
        order_key,
        lambda key: encode_key(key, exact=True),
        lambda key: encode_key(key, exact=False),
    ):
        with pytest.raises(UnusableKey):
            make(bad)
    assert encode_key(nested(100), exact=True)
    assert order_key(nested(100))


@pytest.mark.parametrize("word", ["true", "false", "undefined"])
def test_atoms_that_have_a_value_of_their_own(word: str) -> None:
    with pytest.raises(InvalidValue, match="itself"):
        Atom(word)


# -- rows ----------------------------------------------------------------------------------------

values = st.recursive(
    st.one_of(scalars, st.floats()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(dict_keys, st.tuples(dict_keys)), inner, max_size=3),
    ),
    max_leaves=8,
)


@given(st.lists(values, min_size=1, max_size=4).map(tuple))
def test_rows_round_trip(row: tuple[Any, ...]) -> None:
    assert repr(decode_row(encode_row(row))) == repr(row)


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ((1, {1, 2}), "row[1] is a set"),
        ((1, [0, {"a": (object,)}]), "row[1][1]['a'][0] is a type"),
        ((bytearray(b"x"),), "row[0] is a bytearray"),
        ((1, {1: [2], (lambda: 0): 1}), "row[1] (a key) is a function"),
        ((1, nested(101)), "nests over 100 levels"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_what_cannot_be_stored_is_named(row: tuple[Any, ...], where: str) -> None:
    with pytest.raises(UnusableRow) as refused:
        encode_row(row)
    assert where in str(refused.value)


@given(st.lists(values, min_size=1, max_size=3).map(tuple), st.data())
def test_a_changed_row_is_found_out(row: tuple[Any, ...], data: st.DataObject) -> None:
    stored = bytearray(encode_row(row))
    at = data.draw(st.integers(0, len(stored) - 1))
    stored[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedRow):
        decode_row(bytes(stored))
    with pytest.raises(DamagedRow):
        decode_row(bytes(stored[:at]))
