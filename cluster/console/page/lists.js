// What lists of topics and groups have in common: where they begin, how they go on, and columns of lags.

import { hasToken } from "./api.js";
import { ago, count, el, link, part } from "./dom.js";

/** What an empty list says: to who has signed in, that it is of what he may see. @param {string} text */
export const none = (text) => (hasToken() ? `${text} What you may not see is left out.` : text);

/**
 * Columns of groups with their lag.
 * @type {Array<[string, (group: any) => any, boolean?]>}
 */
export const lagColumns = [
  ["Lag", (group) => el("span", { class: group.lag > 0 ? "warn" : undefined }, count(group.lag)), true],
  ["The first waits", (group) => ago(group.waits_since_ms), true],
  ["Dead letters", (group) => count(group.dead_letters), true],
];

/** The view at `base` with what is given. @param {string} base @param {Record<string, string>} values */
export function address(base, values) {
  const given = Object.entries(values).filter(([, value]) => value);
  return `${base}${given.length ? "?" : ""}${given.map(([name, value]) => `${name}=${part(value)}`).join("&")}`;
}

/** The name after which a list begins: one before all that begin with `from`, or the last one of the page before. */
export function after(query) {
  const from = query.get("from");
  return from ? `${from.slice(0, -1)}${String.fromCharCode(from.charCodeAt(from.length - 1) - 1)}\x7f` : query.get("after");
}

/** A form that goes to where names begin so, in a list that is too long to turn its pages. */
export function fromName(label, base, query, more = {}) {
  const input = /** @type {HTMLInputElement} */ (el("input", { id: "from", name: "from", value: query.get("from") ?? "", autocomplete: "off" }));
  const go = (event) => {
    event.preventDefault();
    location.hash = address(base, { ...more, from: input.value.trim() });
  };
  return el("form", { onsubmit: go, class: "row" }, el("label", { for: "from" }, label), input, el("button", {}, "Show"));
}

export const next = (after, href) => (after === null || after === undefined ? [] : turns([[href(after), "Next page"]]));

/** Links to other pages of a list. @param {Array<[string, string]>} pages address and text */
export const turns = (pages) => (pages.length ? [el("p", { class: "row" }, pages.map(([href, text]) => link(href, text)))] : []);
