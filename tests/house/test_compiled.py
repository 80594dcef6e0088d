"""What is marked as compiled is what was built, in the form under test: the sources, or ``make test-compiled``'s."""

from __future__ import annotations

from pathlib import Path

import exaserve

SOURCE = Path(__file__).parents[2] / "src" / "exaserve"
TESTED = Path(exaserve.__file__).parent


def marked(package: Path) -> set[str]:
    """Modules whose first line is the mark that scripts/hatch_build.py looks for."""
    return {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if path.read_text("utf-8").startswith("# compiled\n")
    }


def test_what_is_marked_was_built() -> None:
    built = {str(path.relative_to(TESTED)).partition(".")[0] for path in TESTED.rglob("*.so")}
    if TESTED == SOURCE:
        assert built == set(), "extension modules lie among the sources: they would hide them"
        return
    assert marked(TESTED) == marked(SOURCE), "built from other sources"
    assert built == marked(SOURCE)


def test_the_request_path_is_marked() -> None:
    """A file that is renamed or split keeps its mark: the gateway's speed hangs on these."""
    hot = {"gateway/core", "gateway/http/client", "gateway/http/exchange", "gateway/http/upstream"}
    hot |= {"scheduling/scheduler", "scheduling/ledger", "scheduling/entropy", "perfmodel/batch", "simulate/simulation"}
    assert hot - marked(SOURCE) == set()
