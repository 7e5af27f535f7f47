// Transactions: the undecided ones by age, the timeline of one, and an operator's decision.

import { attempts, done, rights } from "./actions.js";
import { get, post } from "./api.js";
import { count, duration, el, facts, link, part, table, time } from "./dom.js";
import { timeline } from "./timeline.js";
import { next, none } from "./lists.js";

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
      none(state === "prepared" ? "No transaction is undecided." : "None."),
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
    ...(found.state === "prepared" || found.state === "discarded" ? [await decision(id, found)] : []),
  ];
}

/** Where a committed batch is; a delayed one has no offset before its time. */
function place(position) {
  const queue = `${position.topic}, queue ${position.queue}`;
  if (position.offset === undefined) return [`${queue}, from `, time(position.deliver_at_ms), " on"];
  return [link(`#/topics/${part(position.topic)}/queues/${position.queue}?offset=${position.offset}`, `${queue}, offset ${position.offset}`)];
}

/** What each decision is called on its button, asks before, and says afterwards. */
const DECISIONS = {
  commit: ["commit", "Commit: make its messages visible?", "Committed"],
  rollback: ["rollback", "Roll back: drop its messages?", "Rolled back"],
  resume: ["resume", "Ask its producers again?", "Its producers are asked again"],
};

/** Why the user may not decide or resume it; a discarded transaction is decided by force. */
async function denials({ state, producer_group: group }) {
  const [ofGroup, ofCluster] = await Promise.all([rights(`producer-group:${group}`), rights("cluster")]);
  const admin = ofCluster("admin");
  const decide = ofGroup("decide") || (state === "discarded" ? admin : "");
  return state === "discarded" ? { commit: decide, rollback: decide, resume: admin } : { commit: decide, rollback: decide };
}

async function decision(id, found) {
  const denied = await denials(found);
  const fields = [
    ["operator", "Your name"],
    ["reason", "Reason"],
  ];
  const inputs = fields.map(([name]) => /** @type {HTMLInputElement} */ (el("input", { id: name, name, required: true, maxlength: 255, disabled: Object.values(denied).every(Boolean) })));
  const said = el("div", { role: "alert" });
  const form = /** @type {HTMLFormElement} */ (el("form", { onsubmit: (event) => event.preventDefault() }, el("h2", {}, "Decide it"), el("p", {}, "Only if you know what the database of the producer says: a decision is final, and this page cannot look there."), [...new Set(Object.values(denied))].filter(Boolean).map((why) => el("p", { class: "warn" }, why)), fields.flatMap(([name, label], at) => [el("label", { for: name }, label), inputs[at]])));
  const attempt = attempts(said);
  const act = (verb) => () => attempt(async () => {
    const [, question, past] = DECISIONS[verb];
    if (!form.reportValidity() || !confirm(`${question}\n\n${id}`)) return;
    const [operator, reason] = inputs.map((input) => input.value.trim());
    await post(`/v1/transactions/${part(id)}/${verb}`, verb === "resume" ? { operator, reason } : { source: "operator", operator, reason, force: found.state === "discarded" });
    done([`${past}: transaction ${id}`]);
  });
  form.append(el("p", { class: "row" }, Object.entries(denied).map(([verb, why]) => el("button", { type: "button", onclick: act(verb), disabled: Boolean(why), title: why || undefined }, DECISIONS[verb][0]))), said);
  return form;
}
