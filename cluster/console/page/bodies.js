// The body of a message as text, JSON or hexadecimal digits. Each has an address, and none changes what was sent.

import { bytes, el } from "./dom.js";

/** A body has up to 4 MiB, and four times as many characters in hexadecimal digits. */
const HEX_MAX = 64 * 1024;
/** JSON that nests deeper is not indented further. */
const DEPTH_MAX = 32;
/** JSON with more characters is shown as it was sent, and so is what would have more than LINES_MAX with its blanks: a
 * body of brackets alone grows by sixty times, and a view of that size cannot be used. */
const JSON_MAX = 256 * 1024;
const LINES_MAX = 4 * JSON_MAX;
const NO_JSON = "It is no JSON, so it is shown as text.";
const TOO_LARGE = `JSON of more than ${bytes(JSON_MAX)}, or ${bytes(LINES_MAX)} with its blanks, is shown as text.`;
const FORMS = ["text", "json", "hex"];
const TITLES = { text: "Text", json: "JSON", hex: "Hex" };

/**
 * @param {{body?: string, encoding?: string}} message
 * @param {string|null} asked the form in the address
 * @param {(form: string) => string} address of the same view with another form
 */
export function bodyOf(message, asked, address) {
  if (message.body === undefined) return [];
  const text = message.encoding === "utf8" ? message.body : null;
  const wished = FORMS.find((each) => each === asked);
  const isJson = text !== null && (wished ?? "json") === "json";
  const [pretty, why] = isJson ? indented(text) : [null, wished === "json" ? NO_JSON : ""];
  const form = wished ?? (text === null ? "hex" : pretty === null ? "text" : "json");
  const [shown, note] = form === "hex" ? digits(message) : form === "json" && pretty !== null ? [pretty, ""] : [text ?? new TextDecoder().decode(raw(message)), ""];
  const isTold = form === "json" || why === TOO_LARGE; // a text that nobody took for JSON needs no word
  const said = note || (isTold && why) || (form === "text" && text === null ? "It is no text in UTF-8: what cannot be read is shown as �." : "");
  return [
    el("h2", {}, "Body"),
    el("ul", { class: "tabs" }, FORMS.map((each) => el("li", {}, el("a", { href: address(each), "aria-current": each === form ? "true" : undefined }, TITLES[each])))),
    ...(said ? [el("p", { class: "quiet" }, said)] : []),
    el("pre", { tabindex: 0, role: "region", "aria-label": "Body" }, shown),
  ];
}

/**
 * JSON with a line for each value; null and the reason if there is none. Only the blanks between its tokens change:
 * numbers stay as they are written, which a browser that read and wrote them would round.
 * @param {string} text
 * @returns {[string|null, string]}
 */
export function indented(text) {
  if (text.length > JSON_MAX) return [null, /^\s*[[{]/.test(text) ? TOO_LARGE : NO_JSON];
  try {
    return JSON.parse(text) instanceof Object ? lined(text) : [null, NO_JSON];
  } catch (error) {
    return [null, error instanceof SyntaxError ? NO_JSON : TOO_LARGE];
  }
}

/** @param {string} text that is JSON @returns {[string|null, string]} */
function lined(text) {
  let [depth, size] = [0, 0];
  const line = () => `\n${"  ".repeat(Math.min(depth, DEPTH_MAX))}`;
  const lines = [];
  for (const [token] of text.matchAll(/[{[]\s*[}\]]|[{}[\],:]|"(?:[^"\\]|\\.)*"|[^\s{}[\],:"]+/g)) {
    let next = token;
    if (token === "{" || token === "[") {
      depth += 1;
      next = token + line();
    } else if (token === "}" || token === "]") {
      depth -= 1;
      next = line() + token;
    } else {
      next = token === "," ? `,${line()}` : token === ":" ? ": " : /^[{[]/.test(token) ? token.replace(/\s/g, "") : token;
    }
    size += next.length;
    if (size > LINES_MAX) return [null, TOO_LARGE];
    lines.push(next);
  }
  return [lines.join(""), ""];
}

/** @param {{body?: string, encoding?: string}} message */
function raw({ body = "", encoding }) {
  return encoding === "utf8" ? new TextEncoder().encode(body) : Uint8Array.from(atob(body), (each) => each.charCodeAt(0));
}

/** @param {{body?: string, encoding?: string}} message */
function digits(message) {
  const data = raw(message);
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_MAX); at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const codes = row.map((each) => each.toString(16).padStart(2, "0")).join(" ");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.padEnd(48)} ${row.map((each) => (each >= 32 && each < 127 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return [lines.join("\n"), data.length > HEX_MAX ? `These are the first ${bytes(HEX_MAX)} of ${bytes(data.length)}.` : ""];
}
