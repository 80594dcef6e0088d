"""Pages that are made from the code, or name things in it, are in step with it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.programs import PACKAGES, program

from exaserve.config import parse_cluster

ROOT = Path(__file__).parents[2]


def test_the_cluster_files_keys_are_in_step() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "config_reference.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert broken == []


def test_architecture_names_every_room_where_it_is() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "exaserve").glob("*/__init__.py")}
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert set(re.findall(r"^\| `(\w+)/` \|", page, re.MULTILINE)) == rooms
    drawn = re.search(r"```\n(cli\n.*?)```", page, re.DOTALL)
    assert drawn is not None
    assert set(re.findall(r"\w+", drawn[1])) == rooms
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)`", page))
    assert [file for file in named if not (ROOT / "src" / "exaserve" / file).exists()] == []


def test_files_that_recipes_name_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Three changes")[0]
    named = set(re.findall(r"`((?:src|tests|docs|scripts)/[\w/.-]+)", text))
    places = {file for file in named if "NAME" not in file and "AREA" not in file}
    assert len(places) > 15
    assert [file for file in places if not (ROOT / file).exists()] == []


def test_set_up_installs_what_tests_run() -> None:
    setup = (ROOT / "scripts" / "setup").read_text("utf-8")
    listed = re.search(r"for tool in (.*); do\n\s+command -v", setup)
    assert listed is not None
    packages = {word.rpartition(":")[2] for word in listed[1].split()}
    assert set(PACKAGES.values()) - packages == set()


def test_metrics_that_pages_name_exist() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    known = set(re.findall(r"exaserve_\w+", code))
    suffixes = ("", "_bucket", "_sum", "_count")
    unknown = set()
    for page in ("gateway.md", "operating.md", "scheduling.md"):
        for name in re.findall(r"\bexaserve_\w+", (ROOT / "docs" / page).read_text("utf-8")):
            made = any(name.startswith(stem) for stem in known if stem.endswith("_"))  # f"exaserve_agent_{…}"
            if not made and not any(name.removesuffix(suffix) in known for suffix in suffixes):
                unknown.add(f"{page}: {name}")
    assert unknown == set()


def test_cluster_files_that_pages_show_are_good() -> None:
    shown = []
    for page in ("README.md", "docs/cluster-file.md"):
        shown += re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert len(shown) >= 5
    for text in shown:
        assert parse_cluster(text).replicas()


def test_prometheus_takes_the_rules_that_operating_shows(tmp_path: Path) -> None:
    promtool = program("promtool")
    page = (ROOT / "docs" / "operating.md").read_text("utf-8")
    config, rules = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    queries = [
        query.replace("\\|", "|") for query in re.findall(r"\| `(.*)` \|$", page.split("## Alerts")[0], re.MULTILINE)
    ]
    assert len(queries) >= 10
    recorded = "".join(f"  - {{record: 'q:{i}', expr: '{query}'}}\n" for i, query in enumerate(queries))
    for name, text, check in (
        ("prometheus.yml", config, "config"),
        ("rules.yml", rules, "rules"),
        ("queries.yml", f"groups:\n- name: q\n  rules:\n{recorded}", "rules"),
    ):
        (tmp_path / name).write_text(text)
        done = subprocess.run(
            [promtool, "check", check, tmp_path / name], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr + done.stdout
