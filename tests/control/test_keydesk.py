"""What can be done with keys: one secret finds one key, as long as it is to."""

from __future__ import annotations

import msgspec
import pytest

from exaserve.control.document import Document
from exaserve.control.keydesk import KeyChange, Keydesk, KeyWish, TenantChange, shown
from exaserve.control.records import Allowance
from exaserve.control.wish import Wish
from exaserve.domain.errors import ConfigError

NOW = 1_000_000.0
SECRETS = {"a": b"s" * 32}


class Desk:
    def __init__(self) -> None:
        self.document = Document("here")
        self.desk = Keydesk(self.document, SECRETS)

    def write(self, wish: Wish) -> Wish:
        for kind, name, value in wish.changes:
            self.document.put(kind, name, value, int(NOW * 1000))
        return wish

    def create(self, number: int = 1, **wish: object) -> str:
        wanted = KeyWish(**wish)  # type: ignore[arg-type]
        done = self.write(self.desk.create(wanted, f"key_{number}", f"random{number}" * 4, NOW))
        return str(wanted.secret or done.answer["secret"])

    def finds(self, text: str, at: float = NOW) -> str:
        found = self.desk.book().find(text.encode(), at)
        return "" if found is None else found[0].id


def test_a_secret_finds_its_key_and_stands_nowhere():
    d = Desk()
    text = d.create(tenant="acme", name="one")
    assert d.finds(text) == "key_1"
    assert d.finds(text + "x") == ""
    stored = d.document.get("key", "key_1") or b""
    assert text.encode() not in stored
    assert text[-4:].encode() in stored
    assert "digest" not in shown(d.desk.key("one"))


def test_a_revoked_key_and_those_of_a_disabled_tenant_find_nothing():
    d = Desk()
    one, two = d.create(1, tenant="acme"), d.create(2, tenant="acme")
    wish = d.write(d.desk.revoke("key_1"))
    assert (d.finds(one), d.finds(two)) == ("", "key_2")
    assert wish.before is not None
    assert "digest" not in wish.before
    d.write(d.desk.set_tenant("acme", TenantChange(disabled=True)))
    assert d.finds(two) == ""


def test_a_key_ends_at_its_time_and_a_rotated_secret_after_its_grace():
    d = Desk()
    old = d.create(expires_at=NOW + 100)
    assert (d.finds(old, NOW + 99), d.finds(old, NOW + 100)) == ("key_1", "")
    new = d.write(d.desk.rotate("key_1", "other" * 8, 10.0, NOW)).answer["secret"]
    assert (d.finds(old, NOW + 9), d.finds(old, NOW + 10)) == ("key_1", "")
    assert d.finds(new, NOW + 50) == "key_1"


def test_a_secret_from_elsewhere_is_taken_once():
    d = Desk()
    secret = "sk-existing-000000"
    d.create(secret=secret)
    assert d.finds(secret) == "key_1"
    with pytest.raises(ConfigError, match="is here already") as error:
        d.create(2, secret=secret)
    assert secret not in error.value.message


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"tenant": ""}, "tenant"),
        ({"tenant": "a*"}, "tenant"),
        ({"models": ()}, "models"),
        ({"routes": ()}, "routes"),
        ({"expires_at": NOW}, "expires_at"),
        ({"secret": "short"}, "secret"),
        ({"secret": "with a space in it"}, "secret"),
        ({"allowance": Allowance(requests_per_minute=-1)}, "requests_per_minute"),
        ({"name": "x" * 201}, "name"),
    ],
)
def test_what_cannot_be_is_named(wish, field):
    with pytest.raises(ConfigError) as error:
        Desk().create(**wish)
    assert error.value.param == field


def test_a_change_leaves_what_it_does_not_name():
    d = Desk()
    d.create(name="one", models=("a", "b"))
    d.write(d.desk.change("one", KeyChange(priority="high")))
    key = d.desk.key("one")
    assert (key.models, key.priority) == (("a", "b"), "high")


def test_two_keys_of_one_name_are_told_apart_by_id_only():
    d = Desk()
    d.create(1, name="same")
    d.create(2, name="same")
    with pytest.raises(ConfigError, match="2 keys are called that"):
        d.desk.key("same")
    assert d.desk.key("key_2").id == "key_2"


def test_a_tenant_with_keys_in_use_stays():
    d = Desk()
    d.create(tenant="acme")
    d.write(d.desk.set_tenant("acme", TenantChange(weight=2.0)))
    with pytest.raises(ConfigError, match="revoke them first"):
        d.desk.remove_tenant("acme")
    d.write(d.desk.revoke("key_1"))
    d.write(d.desk.remove_tenant("acme"))
    assert d.desk.tenants() == []


def test_a_record_of_a_newer_version_is_left_alone():
    d = Desk()
    d.create()
    d.document.put("key", "key_9", msgspec.json.encode({"id": "key_9", "shape": "new"}), int(NOW * 1000))
    assert [key.id for key in d.desk.all_keys()] == ["key_1"]
    assert d.document.get("key", "key_9") is not None


def test_a_book_that_is_kept_up_to_date_is_the_book_that_is_made_anew():
    d = Desk()
    book = d.desk.book()
    first, second = d.create(1), d.create(2)
    for wish in (
        d.desk.rotate("key_1", "other" * 8, 10.0, NOW),
        d.desk.revoke("key_2"),
    ):
        d.write(wish)
    for key in d.desk.all_keys():
        book.put_key(key.id, key)
    for text in (first, second, "sk-exa-" + "other" * 8):
        for at in (NOW, NOW + 20):
            assert book.find(text.encode(), at) == d.desk.book().find(text.encode(), at)
    assert len(book) == len(d.desk.book()) == 2
