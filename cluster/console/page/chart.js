// Line charts of the last minutes, drawn as SVG.

import { count, el, svg, time } from "./dom.js";

const [WIDTH, HEIGHT, DOT, SAMPLES_MAX] = [600, 120, 4, 60];
/** Time in ms between two points: at least, since a rate over a moment says nothing, and at most, since a line has no gaps. */
const [BETWEEN_MIN_MS, BETWEEN_MAX_MS] = [1_000, 60_000];

/** Remembers what was measured of one thing while the page shows it, and draws it. */
export class Chart {
  /** @param {string} title @param {Record<string, string>} series their names, each with its style */
  constructor(title, series) {
    this.title = title;
    this.series = Object.entries(series);
    /** @type {string|number} */
    this.of = "";
    /** @type {Array<Record<string, number>>} */
    this.points = [];
    /** @type {Array<number>} Unix times in ms of the points */
    this.times = [];
    this.at = 0; // of the last point, or look at the counters
    /** @type {{at: number, sums: Record<string, number>} | undefined} */
    this.last = undefined;
  }

  /** Adds a point; of another thing, or after a while without one, it is the first. @param {string|number} of @param {Record<string, number>} values */
  measured(of, values) {
    this.begin(of);
    this.points.push(values);
    this.times.push(Date.now());
    if (this.points.length > SAMPLES_MAX) [this.points, this.times] = [this.points.slice(1), this.times.slice(1)];
  }

  /** Adds the rates since the counters were last seen; they are as of `at`. @param {string|number} of @param {Record<string, number>} sums */
  counted(of, sums, at = performance.now()) {
    this.begin(of);
    const last = this.last;
    if (last && at - last.at < BETWEEN_MIN_MS) return;
    this.last = { at, sums };
    if (last) this.measured(of, Object.fromEntries(this.series.map(([name]) => [name, (1000 * Math.max(0, sums[name] - last.sums[name])) / (at - last.at)])));
  }

  /** @param {string|number} of */
  begin(of) {
    const at = performance.now();
    if (of !== this.of || at - this.at > BETWEEN_MAX_MS) [this.of, this.points, this.times, this.last] = [of, [], [], undefined];
    this.at = at;
  }

  draw() {
    if (!this.points.length) return el("p", { class: "quiet" }, `${this.title}: shown in a few seconds.`);
    const top = Math.max(1, ...this.points.flatMap((point) => Object.values(point)));
    const [first, last] = [this.times[0], this.times.at(-1) ?? 0];
    const x = (at) => DOT + ((this.times[at] - first) * (WIDTH - 2 * DOT)) / Math.max(1, last - first);
    const y = (value) => HEIGHT - DOT - (value / top) * (HEIGHT - 2 * DOT);
    const now = this.series.map(([name, style]) => el("li", { class: style }, `${name}: ${count(Math.round(this.points.at(-1)?.[name] ?? 0))}`));
    const lines = this.series.map(([name, style]) => svg("polyline", { class: style, points: this.points.map((point, at) => `${x(at)},${y(point[name])}`).join(" ") }));
    const dots = this.points.length > 1 ? [] : this.series.map(([name, style]) => svg("circle", { class: style, cx: x(0), cy: y(this.points[0][name]), r: DOT })); // no line has one point
    return el(
      "figure",
      {},
      el("figcaption", {}, `${this.title}, up to ${count(Math.round(top))}`),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${this.title} in the last minutes` }, ...lines, ...dots),
      el("p", { class: "axis" }, time(first), last > first ? time(last) : null),
      el("ul", { class: "legend" }, now),
    );
  }
}
