// The models that the page shows: those that match the filter and, if there are many, only the active ones.
import { grown, since, total } from "./figures.js";

// Up to this many models, idle ones are not hidden.
const FEW = 4;
const codes = (point, model) => Object.values(point.served?.[model] ?? {});

export const asked = (then, now, model) => grown(total(codes(then, model)), total(codes(now, model)));

function stirs(model, points, range, now) {
  if (asked(since(points, range), now.point, model.name)) return true;
  if (model.paused.length || model.tuned.length || model.refusal) return true;
  if (now.queues.some((row) => row.model === model.name && (row.depth || row.arrival_rps))) return true;
  const executors = now.workers.flatMap((worker) => worker.models).filter((each) => each.model === model.name);
  return !executors.length || executors.some((each) => (each.state !== "ready" && each.state !== "unloaded") || each.breaker !== "closed" || each.busy > 0);
}

// {every, matching, shown: sets of names; idle: how many are or can be hidden; now: the shown part of `now`}
export function scope(points, range, now, filter, all) {
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const matching = now.models.filter(({ name }) => !words.length || words.some((word) => name.includes(word)));
  const busy = matching.length > FEW ? matching.filter((each) => stirs(each, points, range, now)) : matching;
  const shown = new Set((all ? matching : busy).map((each) => each.name));
  const names = new Set(matching.map((each) => each.name));
  const workers = now.workers.map((worker) => {
    const models = worker.models.filter((each) => shown.has(each.model));
    return { ...worker, models, others: worker.models.length - models.length };
  });
  const of = (rows, those) => rows.filter((row) => those.has(row.model));
  return {
    every: now.models.length,
    matching: names,
    shown,
    idle: matching.length - busy.length,
    everything: names.size === now.models.length,
    now: {
      ...now,
      workers,
      models: now.models.filter((each) => shown.has(each.name)),
      queues: of(now.queues, shown),
      named: words.length > 0,
      // A model that was removed from the file may still have some.
      slow: names.size === now.models.length ? now.slow : of(now.slow, names),
      dead: names.size === now.models.length ? now.dead : of(now.dead, names),
    },
  };
}
