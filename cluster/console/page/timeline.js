// Events of a message or a transaction, in order.

import { el, link, part, time } from "./dom.js";

const SAID = new Set(["at_ms", "event"]);
const ADDRESS = {
  transaction_id: (id) => `#/transactions/${part(id)}`,
  group: (name) => `#/groups/${part(name)}`,
  topic: (name) => `#/topics/${part(name)}`,
};

/** @param {Array<Record<string, any>>} events */
export function timeline(events) {
  return el("ol", { class: "timeline" }, events.map((event) => el("li", {}, el("strong", {}, event.event), " ", time(event.at_ms), details(event))));
}

function details(event) {
  const rest = Object.entries(event).filter(([name, value]) => !SAID.has(name) && value !== "" && value !== null);
  return el("span", { class: "quiet" }, rest.flatMap(([name, value]) => [` ${name.replaceAll("_", " ")} `, name in ADDRESS ? link(ADDRESS[name](value), value) : typeof value === "object" ? JSON.stringify(value) : value]));
}
