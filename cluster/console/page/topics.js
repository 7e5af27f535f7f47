// Topics, their queues, and the messages in a queue.

import { rights } from "./actions.js";
import { asOf, get } from "./api.js";
import { Chart } from "./chart.js";
import { bytes, count, duration, el, link, part, table, time } from "./dom.js";
import { address, after, fromName, lagColumns, next, none } from "./lists.js";
import { messageLink, messageTable } from "./messages.js";
import { missing } from "./problems.js";
import { alterTopic, createTopic, sendForm, takeBack } from "./topic_actions.js";

const [PAGE, READERS, DELAYED] = [20, 20, 50];
const READ_BY = "Groups that read it";
const rates = new Chart("Messages a second", { sent: "first" });
const held = (topic) => topic.queue_offsets.reduce((sum, each) => sum + each.max_offset - each.min_offset, 0);
const size = (of) => (of.bytes === null || of.bytes === undefined ? "" : bytes(of.bytes));
const limit = (topic) => (topic.retention_bytes > 0 ? `, at most ${bytes(topic.retention_bytes)}` : "");
const retention = (topic) => (topic.retention_ms < 0 ? "for ever" : duration(topic.retention_ms)) + limit(topic);

/**
 * By topic: how many messages were ever stored as of which time, and the rate since the look before.
 * @type {Map<string, {at: number, stored: number, rate: number|null}>}
 */
let looks = new Map();
const stored = (topic) => topic.queue_offsets.reduce((sum, each) => sum + each.max_offset, 0);

/** Notes the rates of the topics since the page was drawn before. @param {Array<any>} found */
function look(found, at) {
  looks = new Map(
    found.map((topic) => {
      const [last, sum] = [looks.get(topic.topic), stored(topic)];
      const isClose = last && at - last.at < 1_000; // a rate over a moment says nothing
      if (isClose || !last || at - last.at > 60_000) return [topic.topic, isClose ? last : { at, stored: sum, rate: null }];
      return [topic.topic, { at, stored: sum, rate: (1_000 * Math.max(0, sum - last.stored)) / (at - last.at) }];
    }),
  );
}

function rate(topic) {
  const found = looks.get(topic.topic)?.rate;
  return found === null || found === undefined ? "" : count(found < 10 ? +found.toFixed(1) : Math.round(found));
}

export async function topics(_, query) {
  const system = query.get("system") === "true";
  const page = await get("/v1/topics", { limit: 100, after: after(query), system: system || undefined });
  look(page.topics, asOf(page));
  return [
    el("h1", {}, "Topics"),
    el("p", {}, system ? link("#/topics", "Hide the system's topics") : link("#/topics?system=true", "Show the system's topics too")),
    fromName("Topics from the name", "#/topics", query, system ? { system: "true" } : {}),
    table(
      "Topics by name",
      [
        ["Topic", (topic) => link(`#/topics/${part(topic.topic)}`, topic.topic)],
        ["Type", (topic) => (topic.system ? "system" : topic.type)],
        ["Queues", (topic) => count(topic.queues), true],
        ["Messages", (topic) => count(held(topic)), true],
        ["Messages/s", rate, true],
        ["Size", size, true],
        ["Kept", retention],
        ["Created", (topic) => time(topic.created_at_ms)],
      ],
      page.topics,
      none("No topics yet."),
    ),
    ...next(page.next, (after) => address("#/topics", { after, system: system ? "true" : "" })),
    createTopic(),
  ];
}

export async function topic([name]) {
  const [found, may, readers, scheduled] = await Promise.all([get(`/v1/topics/${part(name)}`), rights(`topic:${name}`), get("/v1/lags", { topic: name, limit: READERS }).catch((error) => missing(READ_BY, error)), get(`/v1/topics/${part(name)}/scheduled`, { limit: DELAYED }).catch((error) => missing("Delayed messages", error))]);
  const system = found.system ? "This topic is the system's: only the broker writes to it." : "";
  rates.counted(name, { sent: stored(found) }, asOf(found));
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
    readers instanceof Node ? readers : table(readers.next ? `The first ${readers.groups.length} groups that read it` : READ_BY, [["Group", (each) => link(`#/groups/${part(each.group)}`, each.group)], ["Members", (each) => count(each.members), true], ...lagColumns.slice(0, 2)], readers.groups, none("No group reads it.")),
    ...(readers instanceof Node ? [] : next(readers.next, (after) => address("#/groups", { topic: name, after }))),
    sendForm(found, system || may("send")),
    alterTopic(found, system || may("alter")),
    ...(scheduled instanceof Node ? [scheduled] : scheduled.messages.length ? delayedTable(name, scheduled, may("send")) : []),
  ];
}

/** The delayed messages of a topic after one, the next one first. */
export async function delayed([name], query) {
  const [page, may] = await Promise.all([get(`/v1/topics/${part(name)}/scheduled`, { limit: DELAYED, after: query.get("after") }), rights(`topic:${name}`)]);
  return [el("h1", {}, "Delayed messages of topic ", link(`#/topics/${part(name)}`, name)), ...delayedTable(name, page, may("send"))];
}

function delayedTable(name, { messages, next: more }, denied) {
  return [
    table(
      "Delayed messages, the next one first",
      [
        ["Message", (each) => messageLink(each.message_id, name)],
        ["Queue", (each) => each.queue, true],
        ["Delivered at", (each) => time(each.deliver_at_ms)],
        ["Sent at", (each) => time(each.scheduled_at_ms)],
        ["Action", (each) => takeBack(name, each.message_id, denied)],
      ],
      messages,
      "None from here on: they were delivered, or taken back.",
    ),
    ...next(more, (after) => `#/topics/${part(name)}/delayed?after=${part(after)}`),
  ];
}

export async function queue([name, number], query) {
  const base = `#/topics/${part(name)}/queues/${number}`;
  const path = `/v1/topics/${part(name)}/queues/${number}/messages`;
  const ends = (await get(`/v1/topics/${part(name)}`)).queue_offsets[Number(number)];
  if (!ends) return [el("h1", {}, `Topic ${name}`), el("p", { role: "alert" }, `It has no queue ${number}.`)];
  const [asked, at] = [query.get("offset"), query.get("at")];
  const from = at === null ? asked : (await get(`/v1/topics/${part(name)}/queues/${number}/offsets`, { at: Number(at) || 0 })).offset;
  const offset = Math.max(ends.min_offset, from === null ? ends.max_offset - PAGE : Number(from) || 0);
  const page = offset < ends.max_offset ? await get(path, { offset, max_messages: PAGE }) : { messages: [] };
  return [
    el("h1", {}, link(`#/topics/${part(name)}`, name), `, queue ${number}`),
    goTo(`Offset, ${count(ends.min_offset)} to ${count(ends.max_offset)}`, { type: "number", id: "offset", min: ends.min_offset, max: ends.max_offset, value: offset }, (value) => `${base}?offset=${value}`),
    goTo("Stored at or after (your time zone)", { type: "datetime-local", id: "at", step: 1, value: at === null ? "" : localTime(Number(at)) }, (value) => `${base}?at=${new Date(value).getTime()}`),
    messageTable("Messages", name, page.messages, "No message from this offset on."),
    el(
      "p",
      {},
      offset > ends.min_offset ? link(`${base}?offset=${Math.max(ends.min_offset, offset - PAGE)}`, "Earlier") : null,
      " ",
      page.messages.length && page.next_offset < ends.max_offset ? link(`${base}?offset=${page.next_offset}`, "Later") : null,
    ),
  ];
}

/** A form with one field, which leads to an address. */
function goTo(label, field, href) {
  const input = /** @type {HTMLInputElement} */ (el("input", { required: true, ...field }));
  const go = (event) => {
    event.preventDefault();
    location.hash = href(input.value);
  };
  return el("form", { onsubmit: go, class: "row" }, el("label", { for: field.id }, label), input, el("button", {}, "Show"));
}

/** A time in ms as a field takes it. */
const localTime = (ms) => new Date(ms - new Date(ms).getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
