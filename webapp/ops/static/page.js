// The page: keeps the points, and redraws at each event.
import { Chart } from "./charts.js";
import { clock, columns } from "./figures.js";
import { dialogs, say } from "./dialogs.js";
import { scope } from "./scope.js";
import * as sections from "./sections.js";
import { Unauthorised, follow } from "./stream.js";

const state = { hello: null, points: [], now: null, range: 900, charts: null, filter: "", all: false, heardAt: null };
const element = (id) => document.getElementById(id);
// By then two events have been missed, and the figures are out of date.
const STALE_S = 4;
// Never narrower than two steps, or a column might hold no point.
const MOST_COLUMNS = 90;

function greet(hello) {
  state.hello = hello;
  state.points = hello.points;
  if (state.charts) return;
  state.charts = sections.makeCharts(Chart, hello);
  sections.names(hello.models);
}

function hear(now) {
  if (now.error) {
    state.error = now.error;
    age();
    return;
  }
  state.error = null;
  state.now = now;
  state.heardAt = performance.now();
  // Events come between two steps too: only the newest such point is kept.
  const points = state.points;
  if (points.length > 1 && now.point.at - points[points.length - 2].at < state.hello.step_s) points.pop();
  points.push(now.point);
  while (points.length > 2 && now.point.at - points[0].at > 3700) points.shift();
  draw();
}

function draw() {
  const { hello, points, now, range, charts } = state;
  if (!hello || !now || document.hidden) return;
  const about = scope(points, range, now, state.filter, state.all);
  // The health endpoint may say healthy while callers notice something: show the worse of the two.
  const worst = now.findings[0]?.level;
  const level = worst === "bad" ? "unhealthy" : worst === "warn" && now.status === "healthy" ? "degraded" : now.status;
  const word = now.status !== "healthy" ? now.status : { bad: "needs attention", warn: "worth a look" }[worst] ?? now.status;
  element("status").dataset.level = level;
  element("status-text").textContent = word;
  document.title = `${worst === "bad" ? "● " : ""}Bunch: ${word}`;
  sections.findings(now.findings);
  sections.tiles(hello, points, now);
  sections.tiers(hello, points, now);
  sections.says(about, state.all);
  sections.charts(charts, hello, columns(points, range, Math.min(MOST_COLUMNS, range / (2 * hello.step_s))), range, now, about);
  sections.queues(about.now);
  sections.batches(hello, points, range, about.now.models);
  sections.models(points, about.now);
  sections.workers(about.now);
  sections.processes(now);
  sections.slow(about.now);
  sections.dead(about.now);
  age();
}

// Old figures must not look current: neither their colours nor the sentences above them.
function age() {
  const seconds = state.heardAt === null ? Infinity : Math.round((performance.now() - state.heardAt) / 1000);
  const stale = seconds >= STALE_S || Boolean(state.error);
  element("main").classList.toggle("stale", stale && state.now !== null);
  if (!stale) {
    element("freshness").textContent = "live";
    return;
  }
  if (state.now === null && !state.error) return;
  element("freshness").textContent = state.now ? `last update ${seconds} s ago` : "";
  element("status").dataset.level = state.error ? "unhealthy" : "stale";
  element("status-text").textContent = "no current data";
  document.title = "● Bunch: no current data";
  const shown = state.now ? `. The page shows the state of ${clock(state.now.at)}.` : "";
  sections.findings([{ level: "bad", text: `${state.error ?? "No update from the server: it, Redis or the network does not answer"}${shown}`, where: "" }]);
}

const open = dialogs(() => listen());
let listening = false;

async function listen() {
  if (listening) return;
  listening = true;
  await follow("/ops/events", (name, data) => (name === "hello" ? greet(data) : hear(data)), (error) => {
    age();
    if (error instanceof Unauthorised) {
      element("status-text").textContent = "not signed in";
      open.token(error.message);
      return false;
    }
    return true;
  });
  listening = false;
}

for (const input of document.querySelectorAll("input[name=range]")) {
  input.addEventListener("change", () => { state.range = Number(input.value); draw(); });
}
document.addEventListener("visibilitychange", draw);
element("filter").addEventListener("input", () => { state.filter = element("filter").value; draw(); });
element("scope").addEventListener("submit", (event) => event.preventDefault());
element("fold").addEventListener("click", () => { state.all = !state.all; draw(); });
element("main").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  const { action, ids, explain, total, title } = button?.dataset ?? {};
  if (explain) open.explain(explain, Number(total) || null);
  else if (ids) {
    const given = ids === "all" ? "all" : sections.selected();
    if (!given.length) say("Select dead letters first.");
    else open.action(action, { ids: given }, button.textContent);
  } else if (action) {
    const given = JSON.parse(button.dataset.arguments);
    if (action === "tune") open.tune(state.now.models.find((each) => each.name === given.model), state.hello.policies);
    else open.action(action, given, title);
  }
});
element("explain-form").addEventListener("submit", (event) => {
  event.preventDefault();
  open.explain(element("explain-input").value.trim());
});
setInterval(age, 1000);
listen();
