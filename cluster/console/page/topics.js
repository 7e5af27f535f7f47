// Topics, their queues, and the messages in a queue.

import { rights } from "./actions.js";
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, count, duration, el, link, part, table, time } from "./dom.js";
import { messageTable } from "./messages.js";
import { alterTopic, createTopic, sendForm, takeBack } from "./topic_actions.js";

const PAGE = 20;
const rates = new Chart("Messages a second", { sent: "first" });
const held = (topic) => topic.queue_offsets.reduce((sum, each) => sum + each.max_offset - each.min_offset, 0);
const size = (of) => (of.bytes === null || of.bytes === undefined ? "" : bytes(of.bytes));
const limit = (topic) => (topic.retention_bytes > 0 ? `, at most ${bytes(topic.retention_bytes)}` : "");
const retention = (topic) => (topic.retention_ms < 0 ? "for ever" : duration(topic.retention_ms)) + limit(topic);

export async function topics(_, query) {
  const system = query.get("system") === "true";
  const page = await get("/v1/topics", { limit: 100, after: query.get("after"), system: system || undefined });
  return [
    el("h1", {}, "Topics"),
    el("p", {}, system ? link("#/topics", "Hide the system's topics") : link("#/topics?system=true", "Show the system's topics too")),
    table(
      "Topics by name",
      [
        ["Topic", (topic) => link(`#/topics/${part(topic.topic)}`, topic.topic)],
        ["Type", (topic) => (topic.system ? "system" : topic.type)],
        ["Queues", (topic) => count(topic.queues), true],
        ["Messages", (topic) => count(held(topic)), true],
        ["Size", size, true],
        ["Kept", retention],
        ["Created", (topic) => time(topic.created_at_ms)],
      ],
      page.topics,
      "No topics yet.",
    ),
    ...next(page.next, (after) => `#/topics?after=${part(after)}${system ? "&system=true" : ""}`),
    createTopic(),
  ];
}

export const next = (after, href) => (after === null || after === undefined ? [] : [el("p", {}, link(href(after), "Next page"))]);

export async function topic([name]) {
  const [found, may, scheduled] = await Promise.all([get(`/v1/topics/${part(name)}`), rights(`topic:${name}`), get(`/v1/topics/${part(name)}/scheduled`, { limit: 50 }).catch(() => ({ messages: [] }))]);
  const system = found.system ? "This topic is the system's: only the broker writes to it." : "";
  rates.counted(name, { sent: found.queue_offsets.reduce((sum, each) => sum + each.max_offset, 0) });
  return [
    el("h1", {}, `Topic ${name}`),
    el("p", {}, `${found.system ? "system" : found.type}, ${count(held(found))} messages, kept ${retention(found)}. `, link(`#/find?topic=${part(name)}`, "Find messages by key")),
    table(
      "Queues",
      [
        ["Queue", (each) => link(`#/topics/${part(name)}/queues/${each.queue}`, each.queue)],
        ["First offset", (each) => count(each.min_offset), true],
        ["End", (each) => count(each.max_offset), true],
        ["Messages", (each) => count(each.max_offset - each.min_offset), true],
        ["Size", size, true],
        ["First stored", (each) => time(each.first_stored_at_ms)],
        ["Last stored", (each) => time(each.last_stored_at_ms)],
      ],
      found.queue_offsets,
    ),
    rates.draw(),
    sendForm(found, system || may("send")),
    alterTopic(found, system || may("alter")),
    ...(scheduled.messages.length
      ? [
          table(
            scheduled.next ? "The next 50 delayed messages" : "Delayed messages, the next one first",
            [
              ["Message", (each) => link(`#/messages/${part(each.message_id)}`, each.message_id)],
              ["Queue", (each) => each.queue, true],
              ["Delivered at", (each) => time(each.deliver_at_ms)],
              ["Sent at", (each) => time(each.scheduled_at_ms)],
              ["Action", (each) => takeBack(name, each.message_id, may("send"))],
            ],
            scheduled.messages,
          ),
        ]
      : []),
  ];
}

export async function queue([name, number], query) {
  const base = `#/topics/${part(name)}/queues/${number}`;
  const path = `/v1/topics/${part(name)}/queues/${number}/messages`;
  const ends = (await get(`/v1/topics/${part(name)}`)).queue_offsets[Number(number)];
  if (!ends) return [el("h1", {}, `Topic ${name}`), el("p", { role: "alert" }, `It has no queue ${number}.`)];
  const asked = query.get("offset");
  const offset = Math.max(ends.min_offset, asked === null ? ends.max_offset - PAGE : Number(asked) || 0);
  const page = offset < ends.max_offset ? await get(path, { offset, max_messages: PAGE }) : { messages: [] };
  const input = el("input", { type: "number", id: "offset", min: ends.min_offset, max: ends.max_offset, value: offset });
  const go = (event) => {
    event.preventDefault();
    location.hash = `${base}?offset=${/** @type {HTMLInputElement} */ (input).value}`;
  };
  return [
    el("h1", {}, link(`#/topics/${part(name)}`, name), `, queue ${number}`),
    el("form", { onsubmit: go, class: "row" }, el("label", { for: "offset" }, `Offset, ${count(ends.min_offset)} to ${count(ends.max_offset)}`), input, el("button", {}, "Show")),
    messageTable("Messages", page.messages, "No message from this offset on."),
    el(
      "p",
      {},
      offset > ends.min_offset ? link(`${base}?offset=${Math.max(ends.min_offset, offset - PAGE)}`, "Earlier") : null,
      " ",
      page.messages.length && page.next_offset < ends.max_offset ? link(`${base}?offset=${page.next_offset}`, "Later") : null,
    ),
  ];
}
