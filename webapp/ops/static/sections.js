// Draws each section of the page. Nothing here keeps state except the ticks of a table.
import { html, parts, svg } from "./charts.js";
import { clock, codesBetween, count, grown, milliseconds, percent, quantile, short, since, span, total } from "./figures.js";
import { asked } from "./scope.js";
import { fill } from "./tables.js";

const element = (id) => document.getElementById(id);
const NOW_S = 15;
// More lines cannot be told apart, and a longer list of models is not read.
const MOST_LINES = 6;
const MOST_QUEUES = 12;
const REFUSED = new Set(["SERVICE_OVERLOADED", "RATE_LIMITED"]);
const OUTCOMES = [
  { name: "OK", color: 1 }, { name: "caller's error", color: 3 }, { name: "refused", color: 2 },
  { name: "timed out", color: 5 }, { name: "failed", color: 4 },
];
const TIER_COLORS = { enterprise: 5, paid: 1, free: 6 };
const REASON_COLORS = { full: 1, delay: 2, idle: 6, deadline: 4, drain: 3 };
const CELL = { class: "n" };

function outcome(code, own) {
  if (code === "OK") return 0;
  if (REFUSED.has(code)) return 2;
  if (own.has(code)) return 1;
  return code === "DEADLINE_EXCEEDED" ? 3 : 4;
}

export function findings(found) {
  const shown = found.length ? found : [{ level: "good", text: "Nothing needs attention.", where: "" }];
  const list = element("findings-list");
  const items = shown.map((each) => {
    const item = html("li", { "data-level": each.level });
    if (each.level === "good") item.append(each.text);
    else item.append(html("b", {}, each.level === "bad" ? "Now: " : "Watch: "), each.text, " ", each.where ? html("a", { href: `#${each.where}` }, "Show") : "");
    return item;
  });
  const before = [...list.children].map((each) => each.textContent).join("\n");
  // A screen reader reads every change, so the list is replaced only when its text differs.
  if (before !== items.map((each) => each.textContent).join("\n")) list.replaceChildren(...items);
}

export function names(models) {
  element("filter-names").replaceChildren(...models.map((name) => html("option", { value: name })));
}

// How many models are hidden, and the button that shows them.
export function says({ idle, every, matching, shown }, all) {
  const fold = element("fold");
  fold.hidden = !idle;
  fold.setAttribute("aria-pressed", String(all));
  const text = all ? `Hide ${idle} idle` : `Show ${idle} idle`;
  if (fold.textContent !== text) fold.textContent = text;
  const said = matching.size ? (shown.size < every ? `${shown.size} of ${every} models shown` : "") : "no model name contains this";
  if (element("scope-says").textContent !== said) element("scope-says").textContent = said;
}

// Only where there are large payloads.
function payloads({ live = 0, kept = 0, shared = 0 }) {
  const more = [shared && `${bytes(shared)} in shared memory`, kept && `${bytes(kept)} with dead letters`].filter(Boolean);
  return live || kept || shared ? [["Payloads", bytes(live), more.join(", ")]] : [];
}

export function tiles(hello, points, now) {
  const then = since(points, NOW_S);
  const seconds = Math.max(1, now.point.at - then.at);
  const codes = codesBetween(then, now.point, hello.tiers);
  const all = total(Object.values(codes));
  const own = new Set(hello.callers_own);
  const served = all - total(Object.entries(codes).filter(([code]) => own.has(code)).map(([, number]) => number));
  const bad = served - (codes.OK ?? 0);
  const depth = total(now.queues.map((row) => row.depth));
  const oldest = Math.max(0, ...now.queues.map((row) => row.oldest_ms)) / 1000;
  const [busiest, [ready, busy]] = Object.entries(now.point.busy).sort((a, b) => b[1][1] - a[1][1])[0] ?? ["", [0, null]];
  const batches = total(Object.keys(now.point.sizes).map((model) => sizesBetween(then, now.point, model).batches));
  const batched = total(Object.keys(now.point.sizes).map((model) => sizesBetween(then, now.point, model).requests));
  const { healthy, unhealthy } = now.point.workers;
  const share = served ? bad / served : 0;
  // A tile has the colour of the finding about it, so that every colour has a sentence that explains it.
  const level = (name) => ["bad", "warn"].find((each) => now.findings.some((found) => found.tile === name && found.level === each)) ?? "";
  const rows = [
    ["Requests/s", short(all / seconds), ""],
    ["Not served", served ? percent(share) : "–", bad ? `${short(bad / seconds)}/s` : ""],
    ["Waiting", short(depth), depth ? `oldest ${span(oldest)}` : ""],
    ...payloads(now.payloads ?? {}),
    ["Mean batch", batches ? short(batched / batches) : "–", batches ? `${short(batches / seconds)}/s` : ""],
    ["Executors busy", busy === null ? "–" : percent(busy, 0), ready ? `${busiest}, ${ready} ready` : "none is ready"],
    ["Workers", String(healthy), unhealthy ? `and ${unhealthy} not healthy` : "healthy"],
    ["Dead letters", short(now.point.dead), ""],
  ];
  element("tiles").replaceChildren(...rows.map(([name, value, more]) =>
    html("div", { "data-level": level(name), "data-tile": name }, html("dt", {}, name), html("dd", {}, value, " ", html("small", {}, more)))));
}

export function tiers(hello, points, now) {
  const then = since(points, NOW_S);
  const seconds = Math.max(1, now.point.at - then.at);
  const own = new Set(hello.callers_own);
  const rows = hello.tiers.map((tier) => {
    const codes = codesBetween(then, now.point, [tier]);
    const all = total(Object.values(codes));
    const served = total(Object.entries(codes).filter(([code]) => !own.has(code)).map(([, number]) => number));
    const at = (fraction) => quantile(fraction, hello.bounds_s, then.latency[tier], now.point.latency[tier]);
    return { tier, rate: all / seconds, ok: served ? (codes.OK ?? 0) / served : null, at, slo: now.slo[tier], total: total(Object.values(now.point.requests[tier] ?? {})) };
  });
  const goal = (row) => row.slo.latency_ms / 1000;
  const met = (row, window) => (row.slo.counted[window] ? percent(row.slo.attained[window]) : "–");
  // The same rule as for the findings: a bad burn rate over 5 minutes, not fifteen seconds alone.
  const missed = (row) => row.slo.burn["5m"] > 1;
  const level = (row, window) => (row.slo.counted[window] && row.slo.attained[window] < row.slo.target ? "bad" : "");
  fill(element("tiers-table"), rows, (row) => row.tier, [
    { header: true, cell: (row) => row.tier },
    { ...CELL, cell: (row) => short(row.rate) },
    { ...CELL, cell: (row) => (row.ok === null ? "–" : percent(row.ok)), level: (row) => (missed(row) && row.ok !== null && row.ok < row.slo.target ? "bad" : "") },
    ...[0.5, 0.95, 0.99].map((fraction) => ({ ...CELL, cell: (row) => milliseconds(row.at(fraction)), level: (row) => (missed(row) && row.at(fraction) > goal(row) ? "bad" : "") })),
    { class: "half", cell: (row) => `${percent(row.slo.target)} in ${short(row.slo.latency_ms)} ms` },
    { ...CELL, cell: (row) => met(row, "5m"), level: (row) => level(row, "5m") },
    { ...CELL, cell: (row) => met(row, "1h"), level: (row) => level(row, "1h") },
    { ...CELL, cell: (row) => (row.slo.counted["5m"] ? short(row.slo.burn["5m"]) : "–"), level: (row) => (row.slo.burn["5m"] > 1 ? "bad" : "") },
    { class: "n total", cell: (row) => count(row.total) },
  ], "no tiers");
  const codes = {};
  for (const tier of hello.tiers) for (const [code, sum] of Object.entries(now.point.requests[tier] ?? {})) codes[code] = (codes[code] ?? 0) + sum;
  element("codes").replaceChildren(html("span", {}, "In total:"), ...Object.entries(codes).sort((a, b) => b[1] - a[1]).map(([code, sum]) =>
    html("span", { "data-code": code }, `${code} `, html("b", {}, count(sum)))));
}

export function makeCharts(Chart, hello) {
  const byTier = hello.tiers.map((tier) => ({ name: tier, color: TIER_COLORS[tier] ?? 3 }));
  const quantiles = [{ name: "p50", color: 1 }, { name: "p95", color: 2 }, { name: "p99", color: 4, faint: true }];
  const latency = {};
  element("latency-charts").replaceChildren(...hello.tiers.map((tier) => {
    const into = html("div", { class: "chart" });
    latency[tier] = new Chart(into, `Latency of ${tier}`, { series: quantiles, format: (seconds) => (seconds === null ? "–" : span(seconds)) });
    return html("div", {}, html("h3", {}, tier), into);
  }));
  return {
    latency,
    requests: new Chart(element("requests-chart"), "Requests per second", { series: OUTCOMES, format: short, stacked: true }),
    depth: new Chart(element("depth-chart"), "Queue depth", { series: byTier, format: short, stacked: true }),
    oldest: new Chart(element("oldest-chart"), "Age of the oldest in a queue", { series: byTier, format: (seconds) => (seconds === null ? "–" : span(seconds)) }),
    busy: new Chart(element("busy-chart"), "Executors busy", { series: [], format: (share) => (share === null ? "–" : percent(share, 0)), most: 1 }),
  };
}

export function charts(made, hello, columns, range, now, { matching, everything }) {
  const own = new Set(hello.callers_own);
  const rates = columns.map(({ at, then, now: end, seconds }) => {
    const values = OUTCOMES.map(() => (end ? 0 : null));
    const codes = !end ? {} : everything ? codesBetween(then, end, hello.tiers) : codesBetween(then, end, [...matching], "served");
    for (const [code, number] of Object.entries(codes)) values[outcome(code, own)] += number / seconds;
    return { at, values };
  });
  made.requests.update(rates, range);
  for (const tier of hello.tiers) {
    const lines = columns.map(({ at, then, now: end }) => ({
      at, values: [0.5, 0.95, 0.99].map((fraction) => (end ? quantile(fraction, hello.bounds_s, then.latency[tier], end.latency[tier]) : null)),
    }));
    made.latency[tier].update(lines, range, now.slo[tier].latency_ms / 1000);
  }
  const gauge = (get) => columns.map(({ at, now: end }) => ({ at, values: get(end) }));
  const perTier = (pick, combine) => (end) => hello.tiers.map((tier) =>
    (end ? combine(Object.entries(end.queues).filter(([model]) => matching.has(model)).map(([, row]) => (row[tier] ?? [0, 0])[pick])) : null));
  made.depth.update(gauge(perTier(0, total)), range);
  made.oldest.update(gauge(perTier(1, (ages) => Math.max(0, ...ages) / 1000)), range);
  const most = (model) => Math.max(0, ...columns.map(({ now: end }) => end?.busy[model]?.[1] ?? 0));
  const busiest = hello.models.filter((model) => matching.has(model)).map((model) => [model, most(model)]).sort((a, b) => b[1] - a[1]).filter(([, share], n) => share || n < 2).slice(0, MOST_LINES).map(([model]) => model);
  made.busy.series = busiest.map((name) => ({ name, color: (hello.models.indexOf(name) % 6) + 1 }));
  made.busy.update(gauge((end) => busiest.map((model) => end?.busy[model]?.[1] ?? null)), range);
}

export function queues(now) {
  const paused = (row) => now.models.find((each) => each.name === row.model).paused.includes(row.tier);
  const stirs = now.queues.filter((row) => row.depth || row.arrival_rps || paused(row));
  const rows = now.named || now.queues.length <= MOST_QUEUES ? now.queues : stirs;
  const empty = now.queues.length - rows.length;
  element("queues-rest").textContent = empty ? `${empty} empty queues are not listed; the filter shows them.` : "";
  fill(element("queues-table"), rows, (row) => `${row.model}.${row.tier}`, [
    { header: true, cell: (row) => `${row.model}.${row.tier}` },
    { class: "n depth", cell: (row) => count(row.depth) },
    { ...CELL, cell: (row) => (row.depth ? span(row.oldest_ms / 1000) : "–"), level: (row) => (row.depth && row.oldest_ms > now.slo[row.tier].latency_ms ? "bad" : "") },
    { ...CELL, cell: (row) => short(row.arrival_rps) },
    { cell: (row) => claims(row.model, row.tier, paused(row)) },
  ], "Nothing waits.");
}

// The cell that says whether a queue is claimed, with the button that changes it.
function claims(model, tier, paused) {
  const change = paused ? act("resume", "Resume", `${model}.${tier}`, { model, tier }) : act("pause", "Pause", `${model}.${tier}`, { model, tier });
  return html("span", { class: "state" }, html("span", { class: paused ? "bad" : "usual" }, paused ? "paused" : "yes"), change);
}

// A button that says what it would do before it does it. What it is about is part of its name.
function act(action, verb, what, given) {
  return html("button", { type: "button", class: "small", "data-action": action, "data-arguments": JSON.stringify(given), "data-title": `${verb} ${what}`, "aria-label": `${verb}… ${what}` }, `${verb}…`);
}

export function models(points, now) {
  const then = since(points, NOW_S);
  const seconds = Math.max(1, now.point.at - then.at);
  const rows = now.models.map((model) => {
    const all = asked(then, now.point, model.name);
    const ok = grown(then.served?.[model.name]?.OK ?? 0, now.point.served?.[model.name]?.OK ?? 0);
    const took = grown(then.took?.[model.name] ?? 0, now.point.took?.[model.name] ?? 0);
    const waiting = now.queues.filter((row) => row.model === model.name);
    const executors = now.workers.filter((worker) => worker.healthy).flatMap((worker) => worker.models).filter((each) => each.model === model.name);
    const ready = executors.filter((each) => each.state === "ready");
    return { ...model, all, ok, mean: all ? took / all : null, depth: total(waiting.map((row) => row.depth)), ready: ready.length, executors: executors.length, unloaded: executors.length > 0 && executors.every((each) => each.state === "unloaded"), onDemand: executors.some((each) => each.on_demand && each.state !== "failed"), busy: ready.length ? total(ready.map((each) => each.busy)) / ready.length : null };
  });
  fill(element("models-table"), rows, (row) => row.name, [
    { header: true, cell: (row) => row.name },
    { ...CELL, cell: (row) => short(row.all / seconds) },
    { ...CELL, cell: (row) => (row.all ? percent(row.ok / row.all) : "–") },
    { ...CELL, cell: (row) => (row.mean === null ? "–" : span(row.mean)) },
    { ...CELL, cell: (row) => count(row.depth) },
    { ...CELL, cell: (row) => (row.unloaded ? "unloaded" : `${row.ready} of ${row.executors}`), level: (row) => (row.ready || row.onDemand ? "" : "bad") },
    { ...CELL, cell: (row) => (row.busy === null ? "–" : percent(row.busy, 0)) },
    { cell: (row) => (row.paused.length ? `paused: ${row.paused.length === Object.keys(now.slo).length ? "all tiers" : row.paused.join(", ")}` : "yes"), level: (row) => (row.paused.length ? "bad" : "") },
    { cell: (row) => row.policy },
    { ...CELL, cell: (row) => count(row.max_batch_size) },
    { ...CELL, cell: (row) => span(row.wait_ms / 1000) },
    { class: "wrap full", cell: (row) => [(row.weight ?? null) === null ? "" : `weight ${row.weight} %`, row.tuned.join(", "), row.refusal ? `reload ${row.reload} refused: ${row.refusal}` : ""].filter(Boolean).join("; ") || "–", level: (row) => (row.refusal ? "bad" : "") },
    { class: "full bare", cell: (row) => html("span", { class: "buttons" },
      act("tune", "Tune", row.name, { model: row.name }),
      row.paused.length < Object.keys(now.slo).length ? act("pause", "Pause", row.name, { model: row.name }) : null,
      row.paused.length ? act("resume", "Resume", row.name, { model: row.name }) : null) },
  ], "no models");
}

function sizesBetween(then, now, model) {
  const sums = now.sizes[model] ?? [];
  const before = then.sizes[model] ?? [];
  const cumulative = sums.map((sum, n) => grown(before[n] ?? 0, sum));
  return {
    bins: cumulative.map((sum, n) => sum - (n ? cumulative[n - 1] : 0)),
    batches: cumulative[cumulative.length - 1] ?? 0,
    requests: grown(then.size_sums[model] ?? 0, now.size_sums[model] ?? 0),
  };
}

export function batches(hello, points, range, models) {
  const now = points[points.length - 1];
  const then = since(points, range);
  const made = models.map((model) => [model, sizesBetween(then, now, model.name)]).sort((a, b) => b[1].batches - a[1].batches);
  const those = made.slice(0, MOST_LINES);
  const more = made.length - those.length;
  const rest = more ? [html("p", { class: "facts" }, `and ${count(more)} models with fewer batches; the filter shows them`)] : [];
  element("batches-models").replaceChildren(...those.map(([{ name: model, max_batch_size: most }, { bins, batches: number, requests }]) => {
    if (!number) return html("div", { class: "model" }, html("h3", {}, model), html("p", { class: "facts" }, "No batches in the time shown."));
    const names = hello.sizes.map((bound, n) => (n && hello.sizes[n - 1] + 1 < bound ? `${hello.sizes[n - 1] + 1}–${bound}` : String(bound)));
    // Up to the first bucket that can hold the largest batch.
    const last = Math.max(hello.sizes.findIndex((bound) => bound >= most), bins.findLastIndex((each) => each > 0));
    const shown = bins.slice(0, last + 1);
    const highest = Math.max(...shown);
    const bars = shown.map((each, n) => svg("rect", { x: n + 0.08, y: 1 - each / highest, width: 0.84, height: each / highest }));
    const text = shown.map((each, n) => (each ? `${names[n] ?? "more"}: ${count(each)}` : "")).filter(Boolean).join(", ");
    const reasons = Object.entries(now.reasons[model] ?? {}).map(([reason, sum]) => [reason, grown(then.reasons[model]?.[reason] ?? 0, sum)]).filter(([, sum]) => sum);
    return html("div", { class: "model" },
      html("h3", {}, model, html("small", {}, `mean ${short(requests / number)} of at most ${most}, ${count(number)} batches`)),
      svg("svg", { class: "sizes", viewBox: `0 0 ${shown.length} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `Batches of ${model} by size: ${text}` }, ...bars),
      html("div", { class: "bin-labels", "aria-hidden": "true" }, ...shown.map((_, n) => html("span", {}, names[n] ?? "more"))),
      parts("released", reasons.map(([reason, sum]) => [`fill c${REASON_COLORS[reason] ?? 3}`, sum / number]), `Released by ${reasons.map(([reason, sum]) => `${reason} ${percent(sum / number, 0)}`).join(", ")}`),
      html("p", { class: "legend" }, ...reasons.map(([reason, sum]) => html("span", { class: `key c${REASON_COLORS[reason] ?? 3}` }, reason, " ", html("b", {}, percent(sum / number, 0))))));
  }), ...rest);
}

export function workers(now) {
  const rows = now.workers.flatMap((worker) => {
    const executors = [...worker.models];
    if (worker.others || !executors.length) executors.push(null);
    return executors.map((executor, n) => ({ worker, executor, first: n === 0 }));
  });
  const state = ({ worker }) => (worker.healthy ? worker.health : worker.state === "running" ? "silent" : worker.state);
  const of = (get, otherwise = "") => ({ executor }) => (executor ? get(executor) : otherwise);
  fill(element("workers-table"), rows, ({ worker, executor }) => `${worker.id} ${executor?.executor}`, [
    { header: true, cell: (row) => (row.first ? html("span", {}, row.worker.name, " ", html("small", {}, `${row.worker.pool ? `pool ${row.worker.pool}, ` : ""}pid ${row.worker.pid}`)) : "") },
    { cell: (row) => (row.first ? state(row) : ""), level: (row) => (row.worker.healthy && row.worker.health === "healthy" ? "" : "bad") },
    { ...CELL, cell: (row) => (row.first ? `${span(row.worker.age_ms / 1000)} ago` : ""), level: (row) => (row.worker.healthy ? "" : "bad") },
    { class: "half", cell: ({ worker, executor }) => executor?.executor ?? (worker.others ? `and ${worker.others} more` : "–") },
    { class: "half", cell: of((each) => each.device || "–") },
    { cell: of((each) => (each.error ? html("span", { title: each.error }, each.state) : each.state)), level: of((each) => (each.state === "failed" ? "bad" : ""), "") },
    { cell: of((each) => html("span", {}, html("span", { class: "meter", "aria-hidden": "true" }, parts("", [["fill c1", each.busy]], "")), percent(each.busy, 0))) },
    { ...CELL, cell: of((each) => count(each.in_flight)) },
    { ...CELL, cell: of((each) => count(each.batches)) },
    { ...CELL, cell: of((each) => (each.one_ms === null ? "–" : `${short(each.one_ms)} ms`)) },
    { ...CELL, cell: of((each) => (each.rate_rps === null ? "–" : count(each.rate_rps))) },
    { ...CELL, cell: of((each) => count(each.restarts)), level: () => "" },
    { cell: of((each) => each.breaker), level: of((each) => (each.breaker === "closed" ? "" : "bad"), "") },
    { class: "bare", cell: ({ worker, first }) => (first && worker.node ? drain(worker) : "") },
  ], "No worker is known.");
}

function drain(worker) {
  const given = { worker: worker.node };
  return worker.state.startsWith("drain") ? act("resume", "Resume", worker.node, given) : act("drain", "Drain", worker.node, given);
}

const bytes = (number) => (number ? `${short(number / 1048576)} MiB` : "–");

export function processes(now) {
  fill(element("processes-table"), now.processes, (row) => row.id, [
    { header: true, cell: (row) => html("span", {}, row.name, " ", html("small", {}, `pid ${row.pid}`)) },
    { cell: (row) => row.role },
    { cell: (row) => (row.silent ? "silent" : "alive"), level: (row) => (row.silent ? "bad" : "") },
    { ...CELL, cell: (row) => `${span(row.age_ms / 1000)} ago` },
    { ...CELL, cell: (row) => span(Math.max(0, now.at - row.started_at)) },
    { ...CELL, cell: (row) => bytes(row.usage.memory_bytes) },
    { ...CELL, cell: (row) => bytes(row.executors_bytes) },
    { ...CELL, cell: (row) => count(row.usage.fds) },
    { cell: (row) => row.version },
  ], "No process is known.");
}

const explains = (id, name, total = "") => html("button", { type: "button", class: "plain mono", "data-explain": id, "data-total": total, "aria-haspopup": "dialog", "aria-label": `Explain ${name}` }, name.slice(0, 13));

export function slow(now) {
  fill(element("slow-table"), now.slow.slice(0, 15), (row) => `${row.at} ${row.request_id}`, [
    { cell: (row) => clock(row.at) },
    { class: "half", cell: (row) => explains(row.task_id || row.request_id, row.request_id, row.total_ms) },
    { class: "half", cell: (row) => `${row.model}.${row.tier}` },
    { cell: (row) => row.code.toLowerCase().replaceAll("_", " "), level: (row) => (row.code === "OK" ? "" : "bad") },
    { ...CELL, cell: (row) => span(row.total_ms / 1000) },
    { class: "full", cell: whereTime },
  ], "None lately: every request met its objective.");
}

function whereTime(row) {
  if (row.compute_ms === null) return "it was not computed in time";
  const rest = Math.max(0, row.total_ms - row.queue_ms - row.compute_ms);
  const say = `queue ${span(row.queue_ms / 1000)}, compute ${span(row.compute_ms / 1000)}, the rest ${span(rest / 1000)}; attempt ${row.attempt}, in a batch of ${row.batch_size}`;
  const bar = parts("parts", [["queue", row.queue_ms / row.total_ms], ["compute", row.compute_ms / row.total_ms], ["rest", rest / row.total_ms]], say);
  bar.append(svg("title", {}, say));
  return bar;
}

export function dead(now) {
  element("dead-count").textContent = now.point.dead ? `${count(now.point.dead)} kept${now.point.dead > now.dead.length ? `, the newest ${now.dead.length} shown` : ""}` : "";
  fill(element("dead-table"), now.dead, (row) => row.id, [
    { class: "bare", keep: true, cell: (row) => html("input", { type: "checkbox", value: row.id, "aria-label": `Select ${row.id}` }) },
    { cell: (row) => clock(row.failed_at) },
    { class: "half", cell: (row) => explains(row.id, row.id) },
    { class: "half", cell: (row) => `${row.model}.${row.tier}` },
    { ...CELL, cell: (row) => count(row.attempts) },
    { class: "wrap full", cell: (row) => row.reason },
  ], "None: no request was given up.");
  for (const button of document.querySelectorAll("#dead button[data-action]")) button.disabled = !now.point.dead;
}

export const selected = () => [...document.querySelectorAll("#dead-table input:checked")].map((each) => each.value);
