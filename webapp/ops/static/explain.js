// The stages of one request, as `manage.py explain` reports them.
import { html, parts } from "./charts.js";
import { count, percent, span } from "./figures.js";

const NAMES = { admission: "Admission", queue: "Queue", batch_wait: "Waiting in its batch", transfer: "To the executor", compute: "Compute", reply: "Stored and sent", frontend: "HTTP, frontend" };
const KINDS = { queue: "queue", compute: "compute" };
const time = (ms) => (ms === null || ms === undefined ? "not known" : span(ms / 1000));

// `total_ms`: how long the caller waited, if that is known.
export function draw(about, total_ms = null) {
  return [facts(about), stages(about, total_ms), batch(about.batch), attempts(about.attempts)].filter(Boolean);
}

const list = (className, rows) => html("dl", { class: className }, ...rows.filter(([, value]) => value !== null && value !== undefined && value !== "")
  .flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, String(value))]));

function facts({ task_id, request_id, status, model, tier, attempt, where, error }) {
  const failure = error ? [error.code, error.type, error.message].filter(Boolean).join(": ") : null;
  return list("about", [
    ["Status", status], ["Task", task_id === request_id ? null : task_id],
    ["Queue", model && tier ? `${model}.${tier}` : model ?? tier], ["Attempt", attempt], ["Where", where], ["Error", failure],
  ]);
}

function stages({ stages: known, accounted_ms: accounted }, total_ms) {
  if (!known.length) return null;
  const all = Math.max(accounted, total_ms ?? 0);
  // The rest of the total: the frontend, before admission and after the reply.
  const frontend = total_ms === null ? [] : [{ stage: "frontend", ms: all - accounted }];
  const rows = [...known, ...frontend].map(({ stage, ms }) => html("tr", {}, html("th", { scope: "row" }, NAMES[stage] ?? stage), html("td", { class: "n" }, time(ms)),
    html("td", { class: "share" }, parts("parts", [[KINDS[stage] ?? "rest", ms && all ? ms / all : 0]], ms && all ? percent(ms / all, 0) : "no time"))));
  const sum = html("tr", {}, html("th", { scope: "row" }, total_ms === null ? "Accounted for" : "Total"), html("td", { class: "n" }, time(all)), html("td"));
  return html("table", { class: "stages" }, html("caption", {}, "Where the time went"), html("tbody", {}, ...rows, sum));
}

function batch(known) {
  if (!known) return null;
  const { neighbours } = known;
  const others = neighbours.length ? html("details", {}, html("summary", {}, `${count(neighbours.length)} other requests`),
    html("ul", { class: "mono" }, ...neighbours.map((each) => html("li", {}, `${each.task_id} ${each.tier}, attempt ${each.attempt}: ${each.outcome || "no outcome"}`)))) : null;
  return html("section", { "aria-label": "Its batch" }, html("h3", {}, "Batch"), list("about", [
    ["Id", known.id], ["Size", known.size], ["Released by", known.reason], ["Executor", known.executor], ["Worker", known.worker],
    ["Version", known.model_version], ["Compute", known.compute_ms === null || known.compute_ms === undefined ? null : time(known.compute_ms)],
    ["Passes", known.passes > 1 ? known.passes : null], ["Ended", known.ended],
  ]), others);
}

function attempts(earlier) {
  if (!earlier.length) return null;
  return html("section", { "aria-label": "Earlier attempts" }, html("h3", {}, "Earlier attempts"), html("ol", {}, ...earlier.map((each) =>
    html("li", {}, `${each.ended || "ended"}: in a batch of ${each.size} on ${each.executor} of ${each.worker}, ${time(each.compute_ms)} of compute`))));
}
