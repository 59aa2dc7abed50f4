"""The style of the page, in light and dark. Loads no fonts or files from other hosts."""

STYLE = """
:root{--ink:#1c2330;--soft:#5b6675;--paper:#fbfbfa;--line:#dfe3e8;--c0:#1a5fd0;--c1:#c2410c;--c2:#0f766e;--c3:#7c3aed;--c4:#b45309;--c5:#be185d;
--good:#0f766e;--bad:#b42318}
@media (prefers-color-scheme:dark){:root{--ink:#e7eaf0;--soft:#9aa5b4;--paper:#12161d;--line:#2b333f;--c0:#6ea8fe;--c1:#fb923c;--c2:#2dd4bf;
--c3:#b794f6;--c4:#fbbf24;--c5:#f472b6;--good:#2dd4bf;--bad:#fb7185}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:56rem;margin:0 auto;padding:2.5rem 1.25rem 5rem}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .5rem}
h2{font-size:1.25rem;margin:3rem 0 .4rem}
p{margin:.4rem 0 1rem;color:var(--soft);max-width:44rem}
.warning{color:var(--bad);font-weight:600}
svg{width:100%;height:auto;display:block}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}
svg .label{fill:var(--ink);font-size:13px}
svg .axis{font-size:13px}
.grid{stroke:var(--line)}
.one{stroke:var(--soft);stroke-dasharray:4 3}
.line{fill:none;stroke:currentColor;stroke-width:2}
.dot{fill:currentColor}
.spread{stroke:currentColor;stroke-width:3;stroke-linecap:round;opacity:.45}
.color-0{color:var(--c0)}.color-1{color:var(--c1)}.color-2{color:var(--c2)}.color-3{color:var(--c3)}.color-4{color:var(--c4)}.color-5{color:var(--c5)}
.better{color:var(--good)}.worse{color:var(--bad)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;padding:0;margin:.25rem 0 .5rem;font-size:.85rem;color:var(--soft)}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;background:currentColor;margin-right:.4em}
section{overflow-x:auto}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%;margin:.75rem 0}
th,td{padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th:first-child{text-align:left;font-weight:500}
td.text{text-align:left;white-space:normal;color:var(--soft);min-width:18rem}
summary{cursor:pointer;color:var(--soft);font-size:.85rem}
"""
