// A line chart of rates over the last minutes, drawn as SVG.

import { count, el, svg } from "./dom.js";

const [WIDTH, HEIGHT, SAMPLES_MAX] = [600, 120, 60];

/** Remembers samples of counters, and draws their rates. */
export class Rates {
  /** @param {Array<{metric: string, label: string, style: string}>} series */
  constructor(series) {
    this.series = series;
    /** @type {Array<{at: number, sums: Record<string, number>}>} */
    this.samples = [];
  }

  /** @param {Record<string, number>} sums */
  add(sums) {
    this.samples.push({ at: performance.now(), sums });
    if (this.samples.length > SAMPLES_MAX) this.samples.shift();
  }

  /** @param {string} metric */
  of(metric) {
    return this.samples.slice(1).map(({ at, sums }, before) => {
      const [from, grown] = [this.samples[before], (sums[metric] ?? 0) - (this.samples[before].sums[metric] ?? 0)];
      return (1000 * Math.max(0, grown)) / (at - from.at);
    });
  }

  draw() {
    if (this.samples.length < 2) return el("p", { class: "quiet" }, "The rates of messages follow in a few seconds.");
    const rates = this.series.map(({ metric }) => this.of(metric));
    const top = Math.max(1, ...rates.flat());
    const now = this.series.map(({ label, style }, at) => el("li", { class: style }, `${label}: ${count(Math.round(rates[at].at(-1) ?? 0))} a second`));
    const lines = rates.map((points, at) => svg("polyline", { class: this.series[at].style, points: points.map((rate, x) => `${(x * WIDTH) / (SAMPLES_MAX - 2)},${HEIGHT - (rate / top) * (HEIGHT - 4)}`).join(" ") }));
    return el(
      "figure",
      {},
      el("figcaption", {}, `Messages a second at this node, up to ${count(Math.round(top))}`),
      svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Rates over the last minutes" }, ...lines),
      el("ul", { class: "legend" }, now),
    );
  }
}
