// Transactions: the undecided ones by age, the timeline of one, and an operator's decision.

import { get, post } from "./api.js";
import { count, duration, el, facts, link, part, table, time } from "./dom.js";
import { problem } from "./problems.js";
import { timeline } from "./timeline.js";
import { next } from "./topics.js";

const STATES = ["prepared", "discarded", "committed", "rolled_back"];

export async function transactions(_, query) {
  const state = query.get("state") ?? "prepared";
  const page = await get("/v1/transactions", { state: state === "all" ? undefined : state, limit: 100, after: query.get("after") });
  return [
    el("h1", {}, "Transactions"),
    el("ul", { class: "tabs" }, [...STATES, "all"].map((each) => el("li", {}, el("a", { href: `#/transactions?state=${each}`, "aria-current": each === state ? "true" : undefined }, each.replace("_", " "))))),
    table(
      "The oldest first",
      [
        ["Transaction", (each) => link(`#/transactions/${part(each.transaction_id)}`, each.transaction_id)],
        ["State", (each) => each.state],
        ["Producer group", (each) => each.producer_group],
        ["Prepared", (each) => time(each.prepared_at_ms)],
        ["Age", (each) => duration((each.decided_at_ms ?? Date.now()) - each.prepared_at_ms), true],
        ["Checks", (each) => count(each.check_times), true],
        ["Messages", (each) => each.messages.map((message) => `${message.topic} × ${message.count}`).join(", ")],
      ],
      page.transactions,
      state === "prepared" ? "No transaction is undecided." : "None.",
    ),
    ...next(page.next, (after) => `#/transactions?state=${state}&after=${part(after)}`),
  ];
}

export async function transaction([id]) {
  const found = await get(`/v1/transactions/${part(id)}`);
  return [
    el("h1", {}, `Transaction ${id}`),
    facts([
      ["State", el("strong", {}, found.state)],
      ["Producer group", found.producer_group],
      ["Prepared", time(found.prepared_at_ms)],
      ["Decided", time(found.decided_at_ms)],
      ["Age", duration((found.decided_at_ms ?? Date.now()) - found.prepared_at_ms)],
      ["Next check", time(found.next_check_at_ms)],
      ["Messages", found.messages.map((each) => `${each.topic} × ${each.count}`).join(", ")],
    ]),
    ...(found.positions.length ? [el("p", {}, "Visible at ", found.positions.flatMap((each) => [...place(each), " "]))] : []),
    el("h2", {}, "Timeline"),
    timeline(found.timeline),
    ...(found.state === "prepared" || found.state === "discarded" ? [decision(id, found.state)] : []),
  ];
}

/** Where a committed batch is; a delayed one has no offset before its time. */
function place(position) {
  const queue = `${position.topic}, queue ${position.queue}`;
  if (position.offset === undefined) return [`${queue}, from `, time(position.deliver_at_ms), " on"];
  return [link(`#/topics/${part(position.topic)}/queues/${position.queue}?offset=${position.offset}`, `${queue}, offset ${position.offset}`)];
}

function decision(id, state) {
  const fields = [
    ["operator", "Your name"],
    ["reason", "Reason"],
  ];
  const inputs = fields.map(([name]) => /** @type {HTMLInputElement} */ (el("input", { id: name, name, required: true, maxlength: 255 })));
  const said = el("div", { role: "alert" });
  const form = /** @type {HTMLFormElement} */ (el("form", { onsubmit: (event) => event.preventDefault() }, el("h2", {}, "Decide it"), el("p", {}, "Only if you know what the database of the producer says: a decision is final, and this page cannot look there."), fields.flatMap(([name, label], at) => [el("label", { for: name }, label), inputs[at]])));
  const act = (verb, question) => async () => {
    if (!form.reportValidity() || !confirm(`${question}\n\n${id}`)) return;
    const [operator, reason] = inputs.map((input) => input.value.trim());
    const body = verb === "resume" ? { operator, reason } : { source: "operator", operator, reason, force: state === "discarded" };
    try {
      await post(`/v1/transactions/${part(id)}/${verb}`, body);
      /** @type {HTMLElement} */ (document.activeElement)?.blur();
      dispatchEvent(new HashChangeEvent("hashchange"));
    } catch (error) {
      said.replaceChildren(...(await problem(error)));
    }
  };
  const actions = [
    ["commit", "Commit: make its messages visible?"],
    ["rollback", "Roll back: drop its messages?"],
    ...(state === "discarded" ? [["resume", "Ask its producers again?"]] : []),
  ];
  form.append(el("p", { class: "row" }, actions.map(([verb, question]) => el("button", { type: "button", onclick: act(verb, question) }, verb))), said);
  return form;
}
