"""``exaserve keys``, ``tenants`` and ``audit`` on a state folder."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from exaserve.cli.main import main


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def call(*args: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main([*args, "--state-dir", str(tmp_path / "state")])
        out, err = capsys.readouterr()
        assert ended.value.code == code, err
        return out if code == 0 else err

    return call


def test_a_secret_is_said_once_and_alone_where_a_program_reads(run):
    secret = run("keys", "create", "--tenant", "acme", "--name", "one", "--rpm", "60").strip()
    assert secret.startswith("sk-exa-")
    listed = run("keys", "list") + run("keys", "list", "--json") + run("keys", "show", "one") + run("audit", "--json")
    assert secret not in listed
    assert secret[-4:] in listed
    assert "60 rpm" in run("keys", "list")


def test_many_keys_at_once_as_csv(run):
    rows = list(csv.DictReader(io.StringIO(run("keys", "create", "--name", "u-{n}", "--count", "50", "--csv"))))
    assert [row["name"] for row in rows] == [f"u-{n}" for n in range(1, 51)]
    assert len({row["secret"] for row in rows}) == 50


def test_revoked_keys_are_hidden_unless_asked_for(run):
    run("keys", "create", "--name", "one")
    assert "revoked" in run("keys", "revoke", "one")
    assert "no keys; 1 others" in run("keys", "list")
    assert "one" in run("keys", "list", "--all")


def test_a_change_leaves_the_rest(run):
    run("keys", "create", "--name", "one", "--rpm", "60", "--tpm", "1000", "--model", "llama-*")
    changed = json.loads(run("keys", "change", "one", "--rpm", "10", "--priority", "high"))
    assert changed["allowance"] == {"requests_per_minute": 10, "tokens_per_minute": 1000}
    assert (changed["models"], changed["priority"]) == (["llama-*"], "high")
    assert json.loads(run("keys", "change", "one", "--unlimited")).get("allowance", {}) == {}


def test_import_takes_all_or_none(run, tmp_path: Path):
    good = tmp_path / "keys.csv"
    good.write_text(
        "secret,tenant,name,models,rpm\nsk-existing-0000001,acme,a,llama-* qwen-*,60\nsk-existing-0000002,acme,b,,\n"
    )
    assert run("keys", "import", str(good)).count("acme") == 2
    shown = json.loads(run("keys", "show", "a"))
    assert (shown["models"], shown["allowance"]) == (["llama-*", "qwen-*"], {"requests_per_minute": 60})
    assert "is here already" in run("keys", "import", str(good), code=2)
    bad = tmp_path / "bad.csv"
    bad.write_text("secret,name\nsk-existing-0000003,c\nshort,d\n")
    assert "secret: must have 16" in run("keys", "import", str(bad), code=2)
    assert "there is none" in run("keys", "show", "c", code=2)
    nothing = tmp_path / "none.csv"
    nothing.write_text("name\nx\n")
    assert "row 1: secret is missing" in run("keys", "import", str(nothing), code=2)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("keys", "create", "--expires", "soon"), "--expires soon: write"),
        (("keys", "create", "--route", "all"), "--route all: choose of inference, models, metrics"),
        (("keys", "create", "--may-say", "all"), "--may-say all: choose of"),
        (("keys", "create", "--label", "x"), "--label x: write NAME=TEXT"),
        (("keys", "rotate", "none"), "key 'none': there is none"),
        (("tenants", "set", "a*"), "tenant: must have"),
        (("tenants", "set", "a", "--weight", "0"), "weight: must be"),
        (("tenants", "remove", "a"), "tenant 'a': there is none"),
        (("keys", "list", "--admin-url", "http://127.0.0.1:1"), "--admin-url: give it, or --state-dir"),
    ],
)
def test_wrong_input_names_the_field_and_the_repair(run, args, said):
    assert said in run(*args, code=2)


def test_rotation_and_tenants_stand_in_the_audit_log(run):
    first = run("keys", "create", "--name", "one").strip()
    second = run("keys", "rotate", "one", "--grace", "0s").strip()
    assert first != second
    run("tenants", "set", "default", "--weight", "3")
    told = run("audit")
    assert [line.split("  ")[2].split(" ")[0] for line in told.splitlines()] == [
        "key.create",
        "key.rotate",
        "tenant.set",
    ]
    assert json.loads(run("tenants", "list"))[0]["weight"] == 3.0
