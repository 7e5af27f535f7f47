// Builds elements. Data only ever becomes text: nothing here, or elsewhere on the page, takes HTML.

/**
 * @param {string} tag
 * @param {Record<string, unknown>} [attributes] `on…` are listeners; false and undefined are left out
 * @param {...(Node|string|number|null|undefined|Array<Node|string>)} children
 */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined).map(textOrNode));
  return element;
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === undefined || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Characters of a text in a table that is not broken. */
const SHORT_MAX = 24;
const textOrNode = (child) => (child instanceof Node ? child : String(child));

/**
 * A table; `columns` are [heading, cell of a row, is a number].
 * @param {string} caption
 * @param {Array<[string, (row: any) => any, boolean?]>} columns
 * @param {Array<any>} rows
 * @param {string} [empty] said in place of rows
 */
export function table(caption, columns, rows, empty = "Nothing here.") {
  if (!rows.length) return el("section", {}, el("h2", {}, caption), el("p", { class: "quiet" }, empty));
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map(([heading, , number]) => el("th", { scope: "col", class: number ? "number" : undefined }, heading)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, columns.map(([, cell, number]) => (number ? el("td", { class: "number" }, cell(row)) : textCell(cell(row))))))),
    ),
  );
}

/** A cell in which a short text, such as a time, is not broken, and a long one has some room. */
function textCell(content) {
  const cell = el("td", {}, content);
  cell.className = (cell.textContent ?? "").length > SHORT_MAX ? "long" : "short";
  return cell;
}

/** Pairs of a name and a value. */
export function facts(pairs) {
  return el("dl", {}, pairs.filter(([, value]) => value !== undefined && value !== null && value !== "").flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

export const link = (href, text) => el("a", { href }, text);

/** Part of a hash address. */
export const part = encodeURIComponent;

export function time(ms) {
  if (ms === null || ms === undefined) return "";
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return String(ms); // a producer may send any number as the time of a message
  return el("time", { datetime: at.toISOString(), title: at.toISOString() }, at.toLocaleString());
}

/** How long ago a time in ms was. */
export function ago(ms) {
  if (ms === null || ms === undefined) return "";
  const at = new Date(ms);
  return el("time", { datetime: at.toISOString(), title: at.toLocaleString() }, duration(Math.max(0, Date.now() - ms)));
}

export const count = (number) => Number(number).toLocaleString("en");

export function duration(ms) {
  /** @type {Array<[string, number]>} */
  const units = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1_000]];
  const unit = units.find(([, size]) => Math.abs(ms) >= size);
  return unit ? `${+(ms / unit[1]).toFixed(1)} ${unit[0]}` : `${Math.round(ms)} ms`;
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) [number, unit] = [number / 1024, unit + 1];
  return `${+number.toFixed(1)} ${units[unit]}`;
}
