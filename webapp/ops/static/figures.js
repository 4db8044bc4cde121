// Pure functions: the difference between two points of the history, and how numbers are formatted.

// The growth of a counter; one that was reset in between counts from 0.
export const grown = (then, now) => (now >= then ? now - then : now);

export const total = (numbers) => numbers.reduce((sum, each) => sum + each, 0);

// The newest point that is at least `seconds` older than the last; the oldest when none is.
export function since(points, seconds) {
  const last = points[points.length - 1];
  for (let n = points.length - 2; n >= 0; n -= 1) if (last.at - points[n].at >= seconds) return points[n];
  return points[0];
}

// {code: count} between two points, for some tiers; with by="served", for some models.
export function codesBetween(then, now, names, by = "requests") {
  const codes = {};
  for (const name of names) {
    for (const [code, sum] of Object.entries(now[by]?.[name] ?? {})) {
      const more = grown(then[by]?.[name]?.[code] ?? 0, sum);
      if (more) codes[code] = (codes[code] ?? 0) + more;
    }
  }
  return codes;
}

// Like Prometheus' histogram_quantile: linear inside a bucket; beyond the last bound, that bound.
export function quantile(fraction, bounds, then, now) {
  if (!now) return null;
  const counts = now.map((sum, n) => grown(then?.[n] ?? 0, sum));
  const all = counts[counts.length - 1];
  if (!all) return null;
  const rank = fraction * all;
  const place = counts.findIndex((count) => count >= rank);
  if (place < 0 || place >= bounds.length) return bounds[bounds.length - 1];
  const low = place ? bounds[place - 1] : 0;
  const below = place ? counts[place - 1] : 0;
  const inside = counts[place] - below;
  return inside ? low + ((bounds[place] - low) * (rank - below)) / inside : bounds[place];
}

// Columns of a chart over the last `range` seconds: pairs of points, or null where there are none.
export function columns(points, range, count) {
  const last = points[points.length - 1].at;
  const width = range / count;
  const made = [];
  let place = 0;
  let before = null;
  const upTo = (at) => {
    while (place < points.length && points[place].at <= at) before = points[place++];
    return before;
  };
  let then = upTo(last - range);
  for (let n = 1; n <= count; n += 1) {
    const at = last - range + n * width;
    const now = upTo(at);
    const known = then && now && now !== then && now.at - then.at <= 4 * Math.max(width, 5);
    made.push(known ? { at, then, now, seconds: now.at - then.at } : { at, then: null, now: null });
    if (now) then = now;
  }
  return made;
}

const whole = new Intl.NumberFormat("en");
export const count = (number) => whole.format(Math.round(number));

export function short(number) {
  if (number === null || number === undefined || Number.isNaN(number)) return "–";
  if (number >= 1e6) return `${(number / 1e6).toFixed(1)}M`;
  if (number >= 1e4) return `${(number / 1e3).toFixed(1)}k`;
  if (number >= 100 || Number.isInteger(number)) return whole.format(Math.round(number));
  return number.toFixed(number >= 10 ? 1 : 2).replace(/\.?0+$/, "");
}

export const milliseconds = (seconds) => (seconds === null ? "–" : short(seconds * 1000));

export function percent(share, digits = 1) {
  if (share === null || Number.isNaN(share)) return "–";
  // Never rounded up to 100 %.
  const shown = share < 1 && share > 0.9 ? Math.floor(share * 100 * 10 ** (digits + 1)) / 10 ** (digits + 1) : share * 100;
  return `${shown.toFixed(share < 1 && share > 0.99 ? digits + 1 : digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")} %`;
}

export function span(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 120) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

export const clock = (epoch) => new Date(epoch * 1000).toLocaleTimeString("en-GB");

// The next round number above the highest value, for the axis.
export function ceiling(number) {
  if (!(number > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(number));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((step) => step * power >= number) * power;
}
