// What a message caused: looked for in the log when the user wants it, since no index knows it.

import { attempts } from "./actions.js";
import { get } from "./api.js";
import { bytes, count, el, link, part, table, time } from "./dom.js";
import { messageLink } from "./messages.js";

/** Number of messages after which a search rests until the user wants more. */
const SHOWN_AT_ONCE = 1_000;

/** A section that searches. It stops when it is no longer shown, and once begun is used. @param {string} id @param {string} topic */
export function caused(id, topic) {
  const button = el("button", { type: "button" });
  const label = (text) => {
    button.replaceChildren(text);
    button.setAttribute("aria-label", `${text}: what ${id} of ${topic} caused`);
  };
  const bar = /** @type {HTMLProgressElement} */ (el("progress", { "aria-label": "Part of the log that was looked through", hidden: true }));
  const [far, said, wrong, found] = [el("span", { class: "quiet" }), el("p", { role: "status" }), el("div", { role: "alert" }), el("div", {})];
  const attempt = attempts(wrong);
  const sum = { messages: /** @type {Array<any>} */ ([]), looked: 0, areTopicsLeftOut: false, isCut: false };
  /** @type {string | null | undefined} where to go on: undefined before the first page, null after the last one */
  let next;
  let isRunning = false;

  async function search() {
    const rest = sum.messages.length + SHOWN_AT_ONCE;
    while (isRunning && next !== null && sum.messages.length < rest) {
      const page = await get(`/v1/messages/${part(id)}/caused`, { topic, after: next });
      if (!button.isConnected) return; // the user has gone on meanwhile
      next = page.next;
      sum.messages.push(...page.messages);
      sum.areTopicsLeftOut ||= page.topics_left_out;
      sum.looked += page.looked_bytes;
      sum.isCut ||= page.log_removed;
      bar.max = sum.looked + page.left_bytes || 1;
      bar.value = sum.looked;
      far.replaceChildren(`${bytes(sum.looked)} of ${bytes(sum.looked + page.left_bytes)} looked through, ${count(sum.messages.length)} found`);
      if (page.messages.length) found.replaceChildren(causedTable(id, sum.messages));
    }
  }

  async function press() {
    if (isRunning) {
      isRunning = false; // the page under way is the last one
      return;
    }
    isRunning = true;
    section.dataset.used = ""; // what was found is not taken away
    bar.hidden = false;
    said.replaceChildren();
    label("Stop");
    await attempt(search);
    isRunning = false;
    bar.hidden = next === null;
    label("Go on");
    button.hidden = next === null;
    if (!wrong.childNodes.length) said.replaceChildren(result());
  }

  function result() {
    const { length } = sum.messages;
    const parts = [next === null ? `The log is looked through: ${count(length)} found.` : `Stopped: ${count(length)} found so far.`];
    if (sum.areTopicsLeftOut) parts.push("Topics that you may not read were left out: there may be more.");
    if (sum.isCut) parts.push("A part of the log behind the message is removed, and the messages in it.");
    return parts.join(" ");
  }

  label("Search the log");
  button.addEventListener("click", press);
  const section = el(
    "section",
    {},
    el("h2", {}, "Caused"),
    el("p", { class: "quiet" }, "Messages that handlers sent while they processed this one. They are looked for in the log, from this message on."),
    el("p", { class: "row" }, button, bar, far),
    wrong,
    said,
    found,
  );
  return section;
}

function causedTable(id, messages) {
  return table(
    `Messages that ${id} caused`,
    [
      ["Message", (each) => (each.state === "removed" ? each.message_id : messageLink(each.message_id, each.topic))],
      ["Topic", (each) => link(`#/topics/${part(each.topic)}`, each.topic)],
      ["Queue", (each) => each.queue, true],
      ["Offset", (each) => each.offset ?? "", true],
      ["State", (each) => (each.names_topic ? each.state : `${each.state}; it names no topic, so its cause may be of another one`)],
      ["Sent", (each) => time(each.at_ms)],
      ["By group", (each) => (each.producer_group ? link(`#/groups/${part(each.producer_group)}`, each.producer_group) : "")],
    ],
    messages,
  );
}
