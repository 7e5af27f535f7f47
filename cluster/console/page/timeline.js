// Events of a message or a transaction: drawn on one axis of time, and listed in order.

import { duration, el, link, part, svg, time } from "./dom.js";

const SAID = new Set(["at_ms", "event"]);
const NAMES = { raft_index: "log entry" };
const ADDRESS = {
  transaction_id: (id) => `#/transactions/${part(id)}`,
  group: (name) => `#/groups/${part(name)}`,
  topic: (name) => `#/topics/${part(name)}`,
};
const [BARS_MAX, ROW_PX, AXIS_PX] = [12, 34, 16];
const DECIDED = ["committed", "rolled_back"];
const STORED = ["produced", "visible"];
const TAKEN = ["consumed", "popped", "skipped"];
const RETRIED = ["given_again", "dead_lettered"];

/** @param {Array<Record<string, any>>} events */
export function timeline(events) {
  return el("div", {}, drawing(events), el("ol", { class: "timeline" }, events.map((event) => el("li", {}, el("strong", {}, event.event), " ", time(event.at_ms), details(event)))));
}

function details(event) {
  const rest = Object.entries(event).filter(([name, value]) => !SAID.has(name) && value !== "" && value !== null);
  return el("span", { class: "quiet" }, rest.flatMap(([name, value]) => [` ${NAMES[name] ?? name.replaceAll("_", " ")} `, name in ADDRESS ? link(ADDRESS[name](value), value) : name.endsWith("_at_ms") ? time(value) : typeof value === "object" ? JSON.stringify(value) : value]));
}

/** A mark for each event, and a bar for each time in which something was waited for; nothing where all is one moment. */
function drawing(events) {
  const waits = bars(events);
  const times = [...events.map((each) => each.at_ms), ...waits.flatMap(({ from, to }) => [from, to])];
  const [first, last] = [Math.min(...times), Math.max(...times)];
  if (!(last > first)) return null;
  const x = (ms) => `${(1 + (98 * (ms - first)) / (last - first)).toFixed(2)}%`;
  const shown = waits.slice(0, BARS_MAX);
  const height = AXIS_PX + shown.length * ROW_PX;
  const said = `${events.length} events in ${duration(last - first)}`;
  const drawn = svg("svg", { class: "times", height, role: "img", "aria-label": [said, ...shown.map(({ label }) => label)].join("; ") });
  drawn.append(svg("line", { x1: "1%", x2: "99%", y1: AXIS_PX / 2, y2: AXIS_PX / 2 }));
  for (const { at_ms: ms, event } of events) drawn.append(svg("circle", { cx: x(ms), cy: AXIS_PX / 2, r: 5 }, svg("title", {}, event)));
  shown.forEach(({ label, from, to, isOpen }, at) => {
    const y = AXIS_PX + at * ROW_PX;
    const width = `${Math.max(0.5, (98 * (to - from)) / (last - first)).toFixed(2)}%`;
    drawn.append(svg("text", { x: "1%", y: y + 15 }, label), svg("rect", { x: x(from), y: y + 20, width, height: 8, class: isOpen ? "open" : undefined }));
  });
  const more = waits.length > BARS_MAX ? `, and ${waits.length - BARS_MAX} more times of waiting` : "";
  return el("figure", {}, el("figcaption", {}, said, more), drawn, el("p", { class: "axis" }, time(first), time(last)));
}

/**
 * The times in which something was waited for, in the order in which they began. What lasts ends now.
 * @param {Array<Record<string, any>>} events
 * @returns {Array<{label: string, from: number, to: number, isOpen: boolean}>}
 */
export function bars(events, now = Date.now()) {
  const found = [];
  const add = (what, from, end) => {
    const to = end?.at_ms ?? Math.max(now, from.at_ms);
    if (to > from.at_ms) found.push({ label: `${what}: ${duration(to - from.at_ms)}${end ? "" : " until now"}`, from: from.at_ms, to, isOpen: !end });
  };
  const after = (at, names, more = (/** @type {any} */ _) => true) => events.find((each, place) => place > at && names.includes(each.event) && more(each));
  const groups = new Set(events.filter((each) => TAKEN.includes(each.event)).map((each) => each.group));
  events.forEach((event, at) => {
    if (event.event === "prepared") add("undecided", event, after(at, DECIDED));
    if (event.event === "scheduled") add("delayed", event, after(at, ["visible", "taken_back"]));
    if (event.event === "given_back") add(`given back by ${event.group}`, event, after(at, RETRIED, (each) => each.group === event.group));
    if (!STORED.includes(event.event) || events.slice(0, at).some((each) => STORED.includes(each.event) && each.topic === event.topic)) return;
    for (const group of groups) {
      const taken = after(at, TAKEN, (each) => each.group === group && each.topic === event.topic);
      if (taken) add(`waits for ${group}`, event, taken);
    }
  });
  return found;
}
