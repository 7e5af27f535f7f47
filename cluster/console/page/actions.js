// Forms that change something: what they ask before, and what they say afterwards.

import { ApiError, get } from "./api.js";
import { el } from "./dom.js";
import { problem } from "./problems.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {string} [kind] type of the input, or textarea
 * @property {string|number} [value]
 * @property {boolean} [required]
 * @property {Array<[string, string]>} [options] value and text: the field is a choice
 * @property {Record<string, unknown>} [more] further attributes
 *
 * @typedef {object} Action
 * @property {string} id begins the ids of the fields
 * @property {string} title
 * @property {string} [note]
 * @property {Array<Field>} [fields]
 * @property {string} button
 * @property {(values: Record<string, string>) => string|Promise<string>} question what is confirmed; raises ApiError
 * @property {(values: Record<string, string>) => Promise<Array<Node|string>>} run does it, and returns what to say
 * @property {(values: Record<string, string>) => Promise<Array<Node>>} [preview] shown first; only then the button works
 * @property {string} [denied] why the user may not do it
 * @property {boolean} [isPlain] nobody asks who did it, and why
 */

/** The name of the user, as it was given last in this tab. */
const OPERATOR = "keelmq.operator";
/**
 * Who does it, and why: the audit keeps both.
 * @returns {Array<Field>}
 */
const explanation = () => [
  { name: "operator", label: "Your name", value: sessionStorage.getItem(OPERATOR) ?? "", required: true, more: { maxlength: 255 } },
  { name: "reason", label: "Reason", required: true, more: { maxlength: 255 } },
];
const SAID = ["operator", "reason"];
const NOTE_BYTES_MAX = 255;

/** @param {string} message */
export const wrong = (message) => new ApiError(400, "invalid_request", message);

/**
 * Returns why the user may not do `action` on `resource`, as docs/security.md names both; empty when it may be done.
 * @param {string} resource
 * @returns {Promise<(action: string) => string>}
 */
export async function rights(resource) {
  const { principal, actions } = await get("/v1/principal", { resource });
  return (action) => (actions.includes(action) ? "" : `${principal} may not ${action} ${resource}. An administrator can allow it: keelmq auth acl allow ${principal} ${action} ${resource}`);
}

/** Says what was done, and has the view drawn anew. @param {Array<Node|string>} said */
export const done = (said) => dispatchEvent(new CustomEvent("done", { detail: said }));

/** What a form says of itself, as the API takes it. @param {Record<string, string>} values */
export const why = ({ operator = "", reason = "" }) => ({ operator, reason });

/** A form that is folded up until it is wanted. @param {Action} action */
export function form(action) {
  const [own, said_why] = [action.fields ?? [], action.isPlain ? [] : explanation()].map((fields) => fields.map((each) => ({ input: input(action.id, each), label: each.label })));
  const inputs = [...own, ...said_why].map((each) => each.input);
  const labelled = (fields) => fields.flatMap(({ input: each, label }) => [el("label", { for: each.id }, label), each]);
  const [said, shown] = [el("div", { role: "alert" }), el("div", { role: "status" })];
  const button = /** @type {HTMLButtonElement} */ (el("button", { disabled: Boolean(action.preview) }, action.button));
  const values = () => Object.fromEntries(inputs.map((each) => [each.name, each.value]));
  const attempt = attempts(said);
  const preview = action.preview;
  const look = () => attempt(async () => {
    if (!own.every((each) => each.input.reportValidity())) return;
    shown.replaceChildren(...(await /** @type {NonNullable<typeof preview>} */ (preview)(values())));
    button.disabled = false;
  });
  const submit = (event) => {
    event.preventDefault();
    attempt(async () => {
      const { operator = "", reason = "" } = values();
      if (!action.isPlain && !reason.trim()) throw wrong("Give a reason.");
      if (button.disabled || !confirm([await action.question(values()), ...(reason ? [`Reason: ${reason}`] : [])].join("\n\n"))) return;
      if (operator) sessionStorage.setItem(OPERATOR, operator);
      done(await action.run(values()));
    });
  };
  const change = (event) => {
    if (!preview || SAID.includes(event.target.name)) return;
    button.disabled = true; // what is confirmed is what was shown
    shown.replaceChildren();
  };
  const element = /** @type {HTMLFormElement} */ (
    el(
      "form",
      { onsubmit: submit, oninput: change, onchange: change },
      action.note ? el("p", {}, action.note) : null,
      action.denied ? el("p", { class: "warn" }, action.denied) : null,
      el(
        "fieldset",
        { disabled: Boolean(action.denied), "aria-label": action.title },
        labelled(own),
        preview ? el("p", {}, el("button", { type: "button", onclick: look }, "Preview")) : null,
        shown,
        labelled(said_why),
        el("p", {}, button),
      ),
      said,
    )
  );
  return el("details", { id: action.id }, el("summary", {}, action.title), element);
}

/**
 * A button that asks for a reason, does it, and says so. A title tells why the user may not.
 * @param {{label: string, about: string, question: string, run: (said: {operator: string, reason: string}) => Promise<Array<Node|string>>, denied?: string}} action
 */
export function button({ label, about, question, run, denied }) {
  const said = el("span", { role: "alert" });
  const attempt = attempts(said);
  const act = () => attempt(async () => {
    const reason = prompt(`${question}\n\nReason:`);
    if (reason === null) return;
    if (!reason.trim()) throw wrong("Give a reason.");
    done(await run({ operator: cut(sessionStorage.getItem(OPERATOR) ?? ""), reason: cut(reason) }));
  });
  return el("span", {}, el("button", { type: "button", onclick: act, disabled: Boolean(denied), title: denied || undefined, "aria-label": `${label} ${about}` }, label), said);
}

/** Cuts a text to the bytes that the log keeps of it: a prompt has no limit, and what is refused would be lost. @param {string} text */
function cut(text) {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(NOTE_BYTES_MAX));
  return text.slice(0, read);
}

/** Runs one attempt at a time, and shows what went wrong in `place`. @param {HTMLElement} place */
export function attempts(place) {
  let isRunning = false;
  return async (/** @type {() => Promise<void>} */ work) => {
    if (isRunning) return;
    isRunning = true;
    place.replaceChildren();
    try {
      await work();
    } catch (error) {
      place.replaceChildren(...(await problem(error)));
    } finally {
      isRunning = false;
    }
  };
}

/** @param {string} form @param {Field} field @returns {HTMLInputElement} */
function input(form, { name, label: _, kind = "text", value = "", required = false, options, more = {} }) {
  const given = { id: `${form}-${name}`, name, required, ...more };
  if (options) return /** @type {any} */ (el("select", given, options.map(([each, text]) => el("option", { value: each, selected: each === value }, text))));
  if (kind === "textarea") return /** @type {any} */ (el("textarea", { rows: 4, ...given }, value));
  return /** @type {any} */ (el("input", { type: kind, value, autocomplete: "off", ...given }));
}
