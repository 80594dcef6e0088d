"""The report as one self-contained HTML page: no script, no font, no request to anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from exaserve.preflight.checks import AREAS
from exaserve.preflight.model import CheckFinding, CheckResult, CheckVerdict
from exaserve.preflight.report import PreflightReport

__all__ = ["render_html"]

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2024;--dim:#60646c;--line:#e0e3e7;--card:#f7f8fa;
--ok:#18794e;--ok-bg:#e6f6ec;--warn:#8a5a00;--warn-bg:#fff4d5;--bad:#b42318;--bad-bg:#fee9e7;--none:#60646c;--none-bg:#eef0f2}
@media(prefers-color-scheme:dark){:root{--bg:#121416;--fg:#edeef0;--dim:#a0a6ad;--line:#2b2f34;--card:#1a1d20;
--ok:#5bd08b;--ok-bg:#12301f;--warn:#f2c14e;--warn-bg:#36290a;--bad:#ff8f85;--bad-bg:#3d1512;--none:#a0a6ad;--none-bg:#24282c}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1120px;padding:32px 20px 64px;background:var(--bg);color:var(--fg);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:24px;margin:0 0 4px}h2{font-size:19px;margin:36px 0 8px;overflow-wrap:anywhere}
h3{font-size:13px;margin:20px 0 6px;color:var(--dim);font-weight:600;text-transform:capitalize}
p{margin:4px 0}.dim{color:var(--dim)}.tag{display:inline-block;min-width:74px;padding:1px 8px;border-radius:10px;
font-size:12.5px;font-weight:600;text-align:center;white-space:nowrap}
.ok{color:var(--ok);background:var(--ok-bg)}.warning{color:var(--warn);background:var(--warn-bg)}
.failed{color:var(--bad);background:var(--bad-bg)}.not-run{color:var(--none);background:var(--none-bg)}
.counts{display:flex;gap:10px;flex-wrap:wrap;margin:16px 0}.counts .tag{font-size:14px;padding:4px 12px}
table{border-collapse:collapse;width:100%}td,th{padding:7px 10px 7px 0;
border-top:1px solid var(--line);vertical-align:top;text-align:left}
td.v{width:96px}td.t{width:290px}td{overflow-wrap:anywhere}
.f{margin:6px 0 2px;padding:6px 10px;border-left:3px solid var(--line);background:var(--card)}
.f.warning{border-color:var(--warn);color:inherit;background:var(--card)}.f.failed{border-color:var(--bad);color:inherit;background:var(--card)}
code{font:13px ui-monospace,SFMono-Regular,Menlo,monospace}.scroll{overflow-x:auto}.grid{width:auto;font-size:13px}
.grid th{font-weight:500;white-space:nowrap}.grid th.s{height:150px;vertical-align:bottom;padding:0 2px 6px;border:0}
.grid th.s span{writing-mode:vertical-rl;transform:rotate(180deg)}.grid td{padding:3px 2px;text-align:center}
.dot{display:inline-block;width:18px;height:18px;border-radius:4px;line-height:18px;font-size:11px;font-weight:700;text-align:center}
@media(max-width:640px){td.t{width:auto}}
"""
_SIGNS = {CheckVerdict.OK: "✓", CheckVerdict.NOT_RUN: "·", CheckVerdict.WARNING: "!", CheckVerdict.FAILED: "✕"}


def _css(verdict: CheckVerdict) -> str:
    return verdict.label.replace(" ", "-")


def _tag(verdict: CheckVerdict, text: str = "") -> str:
    return f'<span class="tag {_css(verdict)}">{escape(text or verdict.label)}</span>'


def _finding(finding: CheckFinding) -> str:
    repair = f'<p class="dim">{escape(finding.repair)}</p>' if finding.repair else ""
    said = f"<p><code>{escape(finding.code)}</code> {escape(finding.text)}</p>"
    return f'<div class="f {_css(finding.verdict)}">{said}{repair}</div>'


def _row(result: CheckResult) -> str:
    findings = "".join(_finding(f) for f in result.findings if f.verdict is not CheckVerdict.NOT_RUN)
    lines = "".join(f'<p class="dim">{escape(line)}</p>' for line in result.lines)
    return (
        f'<tr><td class="v">{_tag(result.verdict)}</td><td class="t">{escape(result.title)}</td>'
        f"<td>{escape(result.summary)}{lines}{findings}</td></tr>"
    )


def _host(host: str, results: Sequence[CheckResult]) -> str:
    parts = [f"<h2>{escape(host)}</h2>"]
    for area in AREAS:
        rows = sorted((r for r in results if r.area == area), key=lambda r: -r.verdict)
        if rows:
            parts.append(f"<h3>{escape(area)}</h3><table>{''.join(map(_row, rows))}</table>")
    return "".join(parts)


def _grid(report: PreflightReport) -> str:
    """Hosts by checks, for more hosts than one: where the bad ones are."""
    checks = list(dict.fromkeys((r.check, r.title) for r in report.results))
    cells = {(r.host, r.check): r for r in report.results}
    head = "".join(f'<th class="s"><span>{escape(title)}</span></th>' for _, title in checks)
    rows = []
    for host in report.hosts():
        row = [f"<tr><th>{escape(host)}</th>"]
        for check, _ in checks:
            result = cells.get((host, check))
            if result is None:
                row.append("<td></td>")
                continue
            title = escape(f"{result.title}: {result.summary}", quote=True)
            row.append(
                f'<td><span class="dot {_css(result.verdict)}" title="{title}">{_SIGNS[result.verdict]}</span></td>'
            )
        rows.append("".join(row) + "</tr>")
    return f'<div class="scroll"><table class="grid"><tr><th class="s"></th>{head}</tr>{"".join(rows)}</table></div>'


def render_html(report: PreflightReport, *, title: str, when: str) -> str:
    """The page. ``when`` is shown as given; nothing else varies, so equal reports give equal pages."""
    counts = "".join(
        _tag(verdict, f"{count} {verdict.label}")
        for verdict in sorted(CheckVerdict, reverse=True)
        if (count := report.counts()[verdict.label])
    )
    hosts = report.hosts()
    by_host = {host: [r for r in report.results if r.host == host] for host in hosts}
    grid = _grid(report) if len(hosts) > 1 else ""
    body = "".join(_host(host, by_host[host]) for host in hosts)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f'<p class="dim">{escape(when)}</p><div class="counts">{counts}</div>{grid}{body}</body></html>\n'
    )
