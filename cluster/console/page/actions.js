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
 */

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

/** A form that is folded up until it is wanted. @param {Action} action */
export function form(action) {
  const inputs = (action.fields ?? []).map((each) => input(action.id, each));
  const [said, shown] = [el("div", { role: "alert" }), el("div", { role: "status" })];
  const button = /** @type {HTMLButtonElement} */ (el("button", { disabled: Boolean(action.preview) }, action.button));
  const values = () => Object.fromEntries(inputs.map((each) => [each.name, each.value]));
  const attempt = attempts(said);
  const preview = action.preview;
  const look = () => attempt(async () => {
    if (!element.reportValidity()) return;
    shown.replaceChildren(...(await /** @type {NonNullable<typeof preview>} */ (preview)(values())));
    button.disabled = false;
  });
  const submit = (event) => {
    event.preventDefault();
    attempt(async () => {
      if (button.disabled || !confirm(await action.question(values()))) return;
      done(await action.run(values()));
    });
  };
  const change = () => {
    if (!preview) return;
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
        inputs.flatMap((each, at) => [el("label", { for: each.id }, (action.fields ?? [])[at].label), each]),
        shown,
        el("p", { class: "row" }, preview ? el("button", { type: "button", onclick: look }, "Preview") : null, button),
      ),
      said,
    )
  );
  return el("details", { id: action.id }, el("summary", {}, action.title), element);
}

/**
 * A button that asks, does it, and says so. A title tells why the user may not.
 * @param {{label: string, about: string, question: string, run: () => Promise<Array<Node|string>>, denied?: string}} action
 */
export function button({ label, about, question, run, denied }) {
  const said = el("span", { role: "alert" });
  const attempt = attempts(said);
  const act = () => attempt(async () => {
    if (confirm(question)) done(await run());
  });
  return el("span", {}, el("button", { type: "button", onclick: act, disabled: Boolean(denied), title: denied || undefined, "aria-label": `${label} ${about}` }, label), said);
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
