// The console's own behavior: refresh, theme, charts, live tail. No page needs it to be read.
"use strict";

const REFRESH_MS = 3000;
const TAIL_ROWS_MAX = 200;
const root = document.documentElement;
const keep = (name, value) => { try { localStorage.setItem(name, value); } catch { /* not kept */ } };
const kept = (name) => { try { return localStorage.getItem(name); } catch { return null; } };
const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();

// ---- theme ----
const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
document.getElementById("theme").addEventListener("click", () => {
  root.dataset.theme = dark() ? "light" : "dark";
  keep("waltz-theme", root.dataset.theme);
  charts.forEach((chart) => chart.redraw());
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.redraw()));

// ---- refresh ----
const live = document.getElementById("live");
let refreshing = kept("waltz-live") !== "off";
const showLive = () => live.setAttribute("aria-pressed", String(refreshing));
showLive();
live.addEventListener("click", () => {
  refreshing = !refreshing;
  keep("waltz-live", refreshing ? "on" : "off");
  showLive();
});
const selecting = () => { const found = getSelection(); return found && !found.isCollapsed; };
const typing = () => document.activeElement && document.activeElement.matches("input, select, textarea");
const refreshes = () => document.querySelector('[hx-trigger^="refresh"]') !== null;
const tick = () => {
  if (document.hidden) return;
  showAge();
  if (refreshing && refreshes() && !selecting() && !typing()) {
    document.body.dispatchEvent(new CustomEvent("refresh"));
    charts.forEach((chart) => chart.load());
  } else askState();
};
setInterval(tick, REFRESH_MS);
document.addEventListener("visibilitychange", tick);

// ---- how old the data is ----
// The server says how old its data was when it answered; the rest is counted here, so that a page without answers shows it too.
const OLD_S = 10;
const ANSWER_MS = 5000;
const main = document.getElementById("content");
let contents = document.getElementById("fresh").cloneNode(true); // the line of what the page shows, also while there is no data
let answered = performance.now();
let lost = "";
const agesInWords = (seconds) => seconds < 120 ? `${Math.floor(seconds)} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
const showAge = () => {
  const line = document.getElementById("fresh");
  const age = Number(contents.dataset.age ?? 0) + (performance.now() - answered) / 1000;
  const level = lost ? "bad" : line.dataset.level === "ok" && age > OLD_S ? "warn" : line.dataset.level;
  line.querySelector(".dot").className = `dot ${level}`;
  line.querySelector(".age").textContent = line.dataset.level !== "bad" && age > OLD_S ? `, ${agesInWords(age)} old` : "";
  main.classList.toggle("stale", level === "bad");
  const notice = document.getElementById("lost");
  if (notice) notice.lastElementChild.textContent = ` What you see is ${agesInWords(age)} old.`;
};
const showState = (text, contentsToo) => {
  const page = new DOMParser().parseFromString(text, "text/html");
  const [line, state] = [page.getElementById("fresh"), page.getElementById("state")];
  if (!line || !state) return false;
  lost = "";
  const shown = document.getElementById("state");
  if (shown.textContent !== state.textContent) shown.replaceWith(document.adoptNode(state));
  if (contentsToo) {
    contents = document.adoptNode(line.cloneNode(true));
    answered = performance.now();
  }
  document.getElementById("fresh").replaceWith(line.dataset.level === "bad" ? document.adoptNode(line) : contents.cloneNode(true));
  showAge();
  return true;
};
const showLost = (reason) => {
  lost = reason;
  let notice = document.getElementById("lost");
  if (!notice) {
    notice = document.createElement("div");
    notice.id = "lost";
    notice.className = "notice bad";
    notice.append(document.createElement("strong"), document.createElement("span"));
    notice.firstElementChild.setAttribute("role", "alert");
    document.getElementById("state").replaceChildren(notice);
  }
  if (notice.firstElementChild.textContent !== reason) notice.firstElementChild.textContent = reason;
  showAge();
};
const noAnswer = (status) => showLost(status ? `The console refuses to show this page (status ${status}).` : "The console does not answer.");
const askState = async () => {
  try {
    const answer = await fetch("/state", { signal: AbortSignal.timeout(ANSWER_MS) });
    if (!showState(await answer.text(), !refreshes())) noAnswer(answer.status);
  } catch { noAnswer(0); }
};

// The keyboard's place survives a refresh: the same link, button or region gets the focus again. What was unfolded stays so.
let focused = null;
let opened = [];
const placeOf = (element) => element.id ? `#${CSS.escape(element.id)}` : element.getAttribute("href") ? `a[href="${CSS.escape(element.getAttribute("href"))}"]` : null;
document.body.addEventListener("htmx:beforeSwap", (event) => {
  const active = document.activeElement;
  focused = active && event.detail.target.contains(active) ? placeOf(active) : null;
  opened = [...event.detail.target.querySelectorAll("details[open][id]")].map((each) => each.id);
  if (event.detail.xhr.status >= 400 && event.detail.requestConfig.triggeringEvent?.type === "refresh") event.detail.shouldSwap = false;
});
document.body.addEventListener("htmx:afterSettle", () => {
  for (const id of opened) document.getElementById(id)?.setAttribute("open", "");
  opened = [];
  if (focused) document.querySelector(focused)?.focus({ preventScroll: true });
  focused = null;
});
document.body.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.requestConfig.triggeringEvent?.type !== "refresh") return;
  const { status, responseText } = event.detail.xhr;
  if (!status || !showState(responseText, event.detail.successful)) noAnswer(status);
});

// ---- keyboard ----
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing()) return;
  event.preventDefault();
  const field = document.getElementById("text");
  if (field) { field.focus(); field.select(); } else location.href = "/transactions#text";
});
if (location.hash === "#text") document.getElementById("text")?.focus();

// ---- charts ----
const charts = [];
const hours = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);
class Chart {
  constructor(figure) {
    this.place = figure.querySelector(".plot");
    this.kind = figure.dataset.chart;
    this.source = figure.dataset.src;
    this.plot = null;
    this.data = null;
    new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: 180 })).observe(this.place);
    this.load();
  }
  async load() {
    try {
      const answer = await fetch(this.source);
      if (!answer.ok) return;
      const [times, appended, rejected] = await answer.json();
      this.data = [times, this.kind === "appended" ? appended : rejected];
      if (this.plot) this.plot.setData(this.data); else this.draw();
    } catch { /* the page says that the console does not answer */ }
  }
  redraw() { this.plot?.destroy(); this.plot = null; if (this.data) this.draw(); }
  draw() {
    const stroke = color(this.kind === "appended" ? "--accent" : "--warn");
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px Inter, sans-serif" };
    const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
    this.plot = new uPlot({
      width: this.place.clientWidth, height: 180, padding: [8, 8, 0, 0], cursor: { points: { size: 7 }, drag: { x: false } }, legend: { live: true },
      scales: { y: { range: (_plot, _low, high) => [0, Math.max(1, (high || 0) * 1.1)] } },
      axes: [{ ...axis, space: 70, values: (_plot, values) => values.map(hours) }, { ...axis, size: 56, values: (_plot, values) => values.map(number) }],
      series: [{ label: "Time", value: (_plot, value) => value === null ? "–" : hours(value) }, {
        label: this.kind === "appended" ? "Appended per second" : "Rejected per second", stroke, width: 1.75, fill: color(this.kind === "appended" ? "--accent-soft" : "--warn-soft"), value: (_plot, value) => number(value), points: { show: false } }],
    }, this.data, this.place);
  }
}
document.querySelectorAll(".chart[data-chart=appended], .chart[data-chart=rejected]").forEach((figure) => charts.push(new Chart(figure)));

// ---- live tail ----
const tail = document.getElementById("tail");
if (tail) {
  const rows = document.getElementById("rows");
  const state = document.getElementById("tail-state");
  let source = null;
  const stop = (text) => {
    source?.close();
    source = null;
    tail.textContent = "Start live tail";
    tail.setAttribute("aria-pressed", "false");
    state.textContent = text;
  };
  const start = () => {
    source = new EventSource(tail.dataset.src);
    tail.textContent = "Stop live tail";
    tail.setAttribute("aria-pressed", "true");
    state.textContent = "Waiting for transactions…";
    source.addEventListener("rows", (event) => {
      const body = document.createElement("tbody");
      body.innerHTML = event.data;
      rows.prepend(...body.children);
      while (rows.children.length > TAIL_ROWS_MAX) rows.lastElementChild.remove();
      state.textContent = "Live";
    });
    source.addEventListener("problem", (event) => { state.textContent = event.data; });
    source.addEventListener("ended", () => stop("Stopped after ten minutes."));
    source.addEventListener("error", () => {
      if (source && source.readyState === EventSource.CLOSED) stop("No live tail is free. Close another one, then try again.");
      else state.textContent = "Connecting again…";
    });
  };
  tail.addEventListener("click", () => source ? stop("") : start());
  addEventListener("pagehide", () => source?.close());
}
