// Charts in SVG: areas or lines over time, readable by eye, with the pointer and with the arrow keys.
import { ceiling, clock } from "./figures.js";

const NS = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(NS, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function html(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children.filter((each) => each !== null));
  return made;
}

export class Chart {
  // series: [{name, color: 1…6, faint?}]; format: number → text; most: a fixed top
  constructor(into, label, { series, format, stacked = false, most = null }) {
    Object.assign(this, { label, series, format, stacked, most, columns: [], at: null });
    this.svg = svg("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.top = html("span", { class: "top", "aria-hidden": "true" });
    this.mid = html("span", { class: "mid", "aria-hidden": "true" });
    this.cursor = html("span", { class: "cursor", hidden: "" });
    this.plot = html("div", { class: "plot", tabindex: "0", role: "img" }, this.svg, this.top, this.mid, this.cursor);
    this.from = html("span");
    this.legend = html("p", { class: "legend" });
    into.replaceChildren(this.plot, html("div", { class: "axis", "aria-hidden": "true" }, this.from, html("span", {}, "now")), this.legend);
    this.plot.addEventListener("pointermove", (event) => {
      const box = this.plot.getBoundingClientRect();
      this.pointAt(Math.floor(((event.clientX - box.left) / box.width) * this.columns.length));
    });
    this.plot.addEventListener("pointerleave", () => this.pointAt(null));
    this.plot.addEventListener("blur", () => this.pointAt(null));
    this.plot.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
    const last = this.columns.length - 1;
    if (event.key in steps) this.pointAt((this.at ?? last + (steps[event.key] < 0 ? 1 : 0)) + steps[event.key]);
    else if (event.key === "Home") this.pointAt(0);
    else if (event.key === "End" || event.key === "Escape") this.pointAt(null);
    else return;
    event.preventDefault();
  }

  pointAt(place) {
    this.at = place === null || !this.columns.length ? null : Math.max(0, Math.min(this.columns.length - 1, place));
    this.read();
  }

  // columns: [{at, values: [number or null for each series]}]; goal: a line across
  update(columns, range, goal = null) {
    this.columns = columns;
    this.from.textContent = range >= 3600 ? "1 hour ago" : `${range / 60} minutes ago`;
    const heights = columns.flatMap(({ values }) =>
      this.stacked ? [values.reduce((sum, each) => sum + (each ?? 0), 0)] : values.filter((each) => each !== null));
    const seen = Math.max(0, ...heights);
    // A goal far above all values would flatten them, so it is left out of the picture.
    const highest = this.most ?? ceiling(Math.max(seen, goal !== null && goal < 4 * seen ? goal * 1.05 : 0));
    this.top.textContent = this.format(highest);
    this.mid.textContent = this.format(highest / 2);
    const parts = [svg("line", { class: "grid-line", x1: 0, x2: 100, y1: 50, y2: 50 }), svg("line", { class: "grid-line", x1: 0, x2: 100, y1: 0.5, y2: 0.5 })];
    parts.push(...(this.stacked ? this.areas(highest) : this.lines(highest)));
    if (goal !== null && goal <= highest) {
      const y = 100 - (goal / highest) * 100;
      parts.push(svg("line", { class: "goal", x1: 0, x2: 100, y1: y, y2: y }));
    }
    this.svg.replaceChildren(...parts);
    this.read();
  }

  // Bars without gaps: a sum over a stretch of time belongs to the whole stretch.
  areas(highest) {
    const width = 100 / this.columns.length;
    const floors = this.columns.map(() => 0);
    return this.series.map((each, n) => {
      let path = "";
      this.columns.forEach(({ values }, place) => {
        const height = ((values[n] ?? 0) / highest) * 100;
        if (height <= 0) return;
        const y = 100 - floors[place] - height;
        path += `M${(place * width).toFixed(2)} ${y.toFixed(2)}h${width.toFixed(2)}v${height.toFixed(2)}h${(-width).toFixed(2)}z`;
        floors[place] += height;
      });
      return svg("path", { class: `fill c${each.color}`, d: path });
    });
  }

  lines(highest) {
    const width = 100 / this.columns.length;
    return this.series.map((each, n) => {
      let path = "";
      let pen = "M";
      this.columns.forEach(({ values }, place) => {
        if (values[n] === null) {
          pen = "M";
          return;
        }
        const x = (place + 0.5) * width;
        const y = Math.max(0.5, 100 - (values[n] / highest) * 100);
        // A value alone between gaps would be a point, which has no visible length.
        path += pen === "M" ? `M${(x - width / 3).toFixed(2)} ${y.toFixed(2)}L${x.toFixed(2)} ${y.toFixed(2)}` : `L${x.toFixed(2)} ${y.toFixed(2)}`;
        pen = "L";
      });
      return svg("path", { class: `stroke c${each.color}${each.faint ? " faint" : ""}`, d: path });
    });
  }

  // The legend shows the values of the column under the pointer, or of the newest.
  read() {
    const place = this.at ?? this.columns.length - 1;
    const column = this.columns[place];
    if (!column) return;
    const shown = this.series.map((each, n) => [each, this.format(column.values[n])]);
    const when = this.at === null ? "now" : clock(column.at);
    this.legend.replaceChildren(
      ...shown.map(([each, text]) => html("span", { class: `key c${each.color}${this.stacked ? "" : " line"}` }, each.name, " ", html("b", {}, text))),
      html("span", {}, this.at === null ? "" : when));
    this.plot.setAttribute("aria-label", `${this.label}, ${when}: ${shown.map(([each, text]) => `${each.name} ${text}`).join(", ")}`);
    this.cursor.hidden = this.at === null;
    this.cursor.style.left = `${((place + 0.5) / this.columns.length) * 100}%`;
  }
}

// A bar of parts, each [class, share of the whole].
export function parts(className, shares, label) {
  const bar = svg("svg", { class: className, viewBox: "0 0 100 1", preserveAspectRatio: "none", role: "img", "aria-label": label });
  let x = 0;
  for (const [kind, share] of shares) {
    if (share > 0) bar.append(svg("rect", { class: kind, x: x * 100, y: 0, width: share * 100, height: 1 }));
    x += Math.max(0, share);
  }
  return bar;
}
