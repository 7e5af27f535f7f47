"""Users are found by what they show, replaced as a whole, and the same after a restart."""

import pytest

from store.commands.users import DeleteUser, PutUser, Rule, Token, UserDeleted, UserPut
from store.errors import Refused
from store.index.index import Index
from store.users.users import Users

ALLOWED = Rule("allow", ("send",), "topic:orders")


def put(user: str, *tokens: bytes, replaces: int = 0, certificates: tuple[str, ...] = ()) -> PutUser:
    held = tuple(Token(f"t{ordinal}", sha256, 1, 0) for ordinal, sha256 in enumerate(tokens))
    return PutUser(user, certificates, held, (ALLOWED,), replaces)


def test_a_user_is_found_by_name_token_and_certificate(index: Index) -> None:
    users = Users(index)
    assert users.put(put("shop", b"one", b"two", certificates=("shop.example",)), 7) == UserPut(7)
    shop = users.get("shop")
    assert shop is not None
    assert (shop.revision, shop.rules) == (7, (ALLOWED,))
    owner = users.of_token(b"two")
    assert owner is not None
    assert (owner.user, owner.token.token_id) == (shop, "t1")
    assert users.of_certificate("shop.example") == shop
    assert (users.of_token(b"three"), users.of_certificate("x"), users.get("x")) == (None, None, None)


def test_what_a_replaced_user_no_longer_has_is_no_longer_valid(index: Index) -> None:
    users = Users(index)
    users.put(put("shop", b"one", b"two", certificates=("a", "b")), 7)
    before = users.version
    users.put(put("shop", b"two", replaces=7, certificates=("b",)), 9)
    assert users.version != before
    assert users.of_token(b"one") is None
    assert users.of_certificate("a") is None
    assert users.of_token(b"two") is not None
    assert users.of_certificate("b") is not None


def test_users_that_differ_only_in_case_are_found(index: Index) -> None:
    users = Users(index)
    users.put(put("Shop"), 7)
    assert (users.in_other_case("shop"), users.in_other_case("SHOP")) == ("Shop", "Shop")
    assert (users.in_other_case("Shop"), users.in_other_case("shops")) == (None, None)
    users.put(put("shop"), 8)  # as a log of before may have it
    assert (users.in_other_case("shop"), users.in_other_case("SHOP")) == ("Shop", "Shop")
    users.put(put("Shop", replaces=7), 9)
    users.delete(DeleteUser("Shop"))
    assert (users.in_other_case("Shop"), users.in_other_case("shop")) == ("shop", None)
    assert Users(index).in_other_case("SHOP") == "shop"
    users.delete(DeleteUser("shop"))
    assert users.in_other_case("SHOP") is None
    assert users._of_folded == {}


def test_of_two_changes_at_the_same_time_one_is_refused(index: Index) -> None:
    users = Users(index)
    users.put(put("shop"), 7)
    for replaces in (0, 6, 8):
        with pytest.raises(Refused, match="changed at the same time"):
            users.put(put("shop", b"late", replaces=replaces), 9)
    with pytest.raises(Refused, match="changed at the same time"):
        users.put(put("nobody", replaces=7), 9)
    assert users.of_token(b"late") is None
    assert len(users) == 1


def test_two_users_share_no_certificate(index: Index) -> None:
    users = Users(index)
    users.put(put("shop", certificates=("a",)), 7)
    with pytest.raises(Refused) as refused:
        users.put(put("bank", certificates=("b", "a")), 8)
    assert refused.value.code == "certificate_taken"
    assert users.get("bank") is None
    assert users.of_certificate("b") is None


def test_a_deleted_user_is_nobody(index: Index) -> None:
    users = Users(index)
    users.put(put("shop", b"one", certificates=("a",)), 7)
    assert users.delete(DeleteUser("shop")) == UserDeleted("shop")
    assert (users.of_token(b"one"), users.of_certificate("a"), users.get("shop"), len(users)) == (None, None, None, 0)
    with pytest.raises(Refused) as refused:
        users.delete(DeleteUser("shop"))
    assert refused.value.code == "user_not_found"
    assert users.put(put("shop"), 9) == UserPut(9), "the name may be used again"


def test_of_two_that_delete_one_revision_one_is_refused_and_a_later_revision_stays(index: Index) -> None:
    users = Users(index)
    users.put(put("shop", b"one"), 7)
    users.put(put("shop", b"two", replaces=7), 9)
    with pytest.raises(Refused, match="changed at the same time") as refused:
        users.delete(DeleteUser("shop", replaces=7))
    assert refused.value.code == "user_changed"
    assert users.of_token(b"two") is not None
    assert users.delete(DeleteUser("shop", replaces=9)) == UserDeleted("shop")
    with pytest.raises(Refused) as refused:
        users.delete(DeleteUser("shop", replaces=9))
    assert refused.value.code == "user_not_found"


def test_users_are_read_from_the_index(index: Index) -> None:
    users = Users(index)
    for number, name in enumerate(("c", "a", "b"), 1):
        users.put(put(name, name.encode(), certificates=(name,)), number)
    users.delete(DeleteUser("b"))
    again = Users(index)
    assert [each.user for each in again.after(None, 10)] == ["a", "c"]
    assert [each.user for each in again.after("a", 1)] == ["c"]
    assert again.of_token(b"c") == users.of_token(b"c")
    assert again.of_certificate("b") is None
