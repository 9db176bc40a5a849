"""The page's style sheet: one column on a phone, figures side by side on a desk, plain on paper, light and dark."""

CSS = """\
:root {
  --paper: #ffffff; --ink: #1f2328; --muted: #8b929c; --soft: #5c636d;
  --rule: #dfe2e7; --tint: #fbf1ea; --accent: #a84a00;
  --serif: Charter, "Bitstream Charter", "Iowan Old Style", "Palatino Linotype", Palatino, Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  color-scheme: light dark;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181c; --ink: #e6e8eb; --muted: #8b929c; --soft: #a5acb5;
    --rule: #33373d; --tint: #2b221c; --accent: #f0a063;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink); font: 400 1.0625rem/1.55 var(--serif);
  overflow-wrap: anywhere; font-variant-numeric: lining-nums;
}
main { max-width: 66rem; margin: 0 auto; padding: 2.5rem 1rem 4rem; }
header { max-width: 42rem; }
.kicker { margin: 0; color: var(--soft); font: 400 0.875rem/1.4 var(--sans); }
h1 { margin: 0.15rem 0 1.1rem; font-size: 2.1rem; line-height: 1.15; font-weight: 600; letter-spacing: -0.01em; }
h2 {
  margin: 3.2rem 0 1.1rem; padding-top: 0.8rem; border-top: 1px solid var(--rule); font-size: 1.35rem;
  font-weight: 600;
}
h3 { margin: 0 0 0.5rem; font: 600 1rem/1.35 var(--sans); }
.lead { margin: 0 0 1.1rem; font-size: 1.2rem; line-height: 1.5; }
.notes p { margin: 0 0 0.2rem; color: var(--soft); font: 400 0.875rem/1.5 var(--sans); }
.facts {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 1rem 1.5rem; margin: 2rem 0 0;
  padding: 0; font-family: var(--sans);
}
.facts div { border-top: 2px solid var(--ink); padding-top: 0.45rem; }
.facts dt { color: var(--soft); font-size: 0.8125rem; line-height: 1.35; }
.facts dd { margin: 0.1rem 0 0; font-size: 1rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); gap: 2.6rem 3rem; }
figure { margin: 0; min-width: 0; max-width: 34rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { margin-top: 0.6rem; font-size: 0.9688rem; line-height: 1.5; }
.hint { margin: 0 0 1.4rem; max-width: 42rem; color: var(--soft); font: 400 0.875rem/1.5 var(--sans); }
.clips {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 15rem), 1fr)); gap: 0.9rem 1.5rem;
  margin: 0 0 1.8rem; font: 400 0.875rem/1.4 var(--sans);
}
.clip { min-width: 0; }
.clip p { margin: 0 0 0.25rem; }
.clip p:last-child { margin: 0.25rem 0 0; color: var(--soft); font-size: 0.8125rem; }
.clip audio { display: block; width: 100%; height: 2.4rem; }
.table { max-width: 100%; margin: 0 0 2rem; overflow-x: auto; }
.tall { max-height: 32rem; overflow-y: auto; }
.table:focus-visible, a:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
table { border-collapse: collapse; font: 400 0.875rem/1.4 var(--sans); font-variant-numeric: tabular-nums; }
th, td {
  padding: 0.32rem 1.4rem 0.32rem 0; border-bottom: 1px solid var(--rule); text-align: left; vertical-align: top;
}
th, td { white-space: nowrap; }
.words td { min-width: 5rem; max-width: 34rem; white-space: normal; }
thead th { color: var(--soft); font-weight: 400; border-bottom-color: var(--muted); }
tbody th { font-weight: 400; }
@media (max-width: 40rem) {
  tbody th { min-width: 8rem; white-space: normal; }
}
.marked th, .marked td { background: var(--tint); }
.marked th { color: var(--accent); font-weight: 600; }
pre {
  margin: 0 0 1.2rem; padding: 0.8rem 1rem; border-left: 3px solid var(--rule); white-space: pre-wrap;
  font: 400 0.875rem/1.5 ui-monospace, Menlo, Consolas, monospace;
}
code { font: inherit; }
a { color: var(--accent); text-underline-offset: 0.15em; }
.downloads { font: 400 0.875rem/1.6 var(--sans); }
@media print {
  :root { --paper: #ffffff; --ink: #000000; --soft: #444444; --rule: #cccccc; --tint: #f3f3f3; --accent: #000000; }
  body { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  .figures { grid-template-columns: 1fr 1fr; gap: 1.5rem 2rem; }
  .table { max-height: none; overflow: visible; }
  th, td { white-space: normal !important; }
  h2, h3, thead { break-after: avoid; }
  tr, pre { break-inside: avoid; }
  .downloads, .clip audio { display: none; }
}
"""
