// What can be done to topics: create, alter, send, take a delayed message back.

import { ApiError, get, post, put, remove } from "./api.js";
import { button, form, why, wrong } from "./actions.js";
import { bytes, duration, link, part } from "./dom.js";
import { messageLink } from "./messages.js";

const [HOUR_MS, MIB] = [3_600_000, 1024 * 1024];
const LIMIT = "MiB of messages that are kept at most; -1 is no limit";
/** @type {Array<[string, string]>} */
const TYPES = [
  ["any", "any messages"],
  ["normal", "normal"],
  ["fifo", "fifo: in order of the sharding key"],
  ["delay", "delay: delayed messages only"],
  ["transaction", "transaction: half messages only"],
];

/** Settings as the API takes them; fields that are empty are left out. @param {Record<string, string>} values */
function settings({ queues, hours, limit, type }) {
  /** @type {Record<string, unknown>} */
  const found = { type };
  if (queues) found.queues = Number(queues);
  if (hours) found.retention_ms = Number(hours) < 0 ? -1 : Math.round(Number(hours) * HOUR_MS);
  if (limit) found.retention_bytes = Number(limit) < 0 ? -1 : Math.round(Number(limit) * MIB);
  return found;
}

const atMost = (limit) => (limit === undefined ? "" : limit < 0 ? ", whatever their size" : `, at most ${bytes(limit)}`);
const kept = (ms) => (ms === undefined ? "" : `, kept ${ms < 0 ? "for ever" : duration(ms)}`);

export const createTopic = () =>
  form({
    id: "create",
    title: "Create a topic",
    fields: [
      { name: "topic", label: "Name", required: true, more: { maxlength: 127, pattern: "[\\w%\\|\\-]+" } },
      { name: "queues", label: "Queues; their number can grow later, not shrink", kind: "number", value: 4, required: true, more: { min: 1 } },
      { name: "hours", label: "Hours for which messages are kept; -1 is for ever", kind: "number", value: 72, required: true, more: { min: -1, step: "any" } },
      { name: "limit", label: `${LIMIT}, as is nothing`, kind: "number", more: { min: -1, step: "any" } },
      { name: "type", label: "Type", value: "any", options: TYPES },
    ],
    button: "Create",
    question: (values) => `Create topic ${values.topic} with ${values.queues} queues of type ${values.type}${kept(/** @type {any} */ (settings(values).retention_ms))}${atMost(settings(values).retention_bytes)}?`,
    run: async (values) => {
      if (await exists(values.topic)) throw wrong(`Topic ${values.topic} exists. Its own view alters it.`);
      await put(`/v1/topics/${part(values.topic)}`, { ...settings(values), ...why(values) });
      return ["Created: topic ", link(`#/topics/${part(values.topic)}`, values.topic)];
    },
  });

/** The API's call that creates a topic alters one that exists. @param {string} name */
async function exists(name) {
  try {
    await get(`/v1/topics/${part(name)}`);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.code === "topic_not_found") return false;
    throw error;
  }
}

export function alterTopic(topic, denied) {
  const hours = topic.retention_ms < 0 ? -1 : topic.retention_ms / HOUR_MS;
  const changes = (values) => Object.fromEntries(Object.entries(settings(values)).filter(([name, value]) => value !== topic[name]));
  return form({
    id: "alter",
    title: "Alter the topic",
    note: "Messages beyond the time for which they are kept, or beyond the size, are removed, consumed or not.",
    fields: [
      { name: "queues", label: "Queues; their number cannot shrink", kind: "number", value: topic.queues, required: true, more: { min: topic.queues } },
      { name: "hours", label: "Hours for which messages are kept; -1 is for ever", kind: "number", value: hours, required: true, more: { min: -1, step: "any" } },
      { name: "limit", label: LIMIT, kind: "number", value: topic.retention_bytes < 0 ? -1 : topic.retention_bytes / MIB, required: true, more: { min: -1, step: "any" } },
      { name: "type", label: "Type", value: topic.type, options: TYPES },
    ],
    button: "Alter",
    question: (values) => {
      const changed = /** @type {Record<string, any>} */ (changes(values));
      if (!Object.keys(changed).length) throw wrong("Nothing is changed.");
      const said = [changed.queues && `${topic.queues} queues become ${changed.queues}`, changed.retention_ms && `messages are kept ${changed.retention_ms < 0 ? "for ever" : duration(changed.retention_ms)}`, changed.retention_bytes !== undefined && (changed.retention_bytes < 0 ? "no size is too large" : `at most ${bytes(changed.retention_bytes)} are kept`), changed.type && `type ${topic.type} becomes ${changed.type}`];
      return `Alter topic ${topic.topic}: ${said.filter(Boolean).join("; ")}?`;
    },
    run: async (values) => {
      await put(`/v1/topics/${part(topic.topic)}`, { ...changes(values), ...why(values) });
      return ["Altered."];
    },
    denied,
  });
}

export function sendForm(topic, denied) {
  return form({
    id: "send",
    title: "Send a message",
    isPlain: true,
    fields: [
      { name: "body", label: "Body", kind: "textarea", required: true },
      { name: "form", label: "The body is", value: "text", options: [["text", "text"], ["json", "JSON, sent as it is written"], ["hex", "hexadecimal digits"]] },
      { name: "keys", label: "Keys by which it is found, separated by commas" },
      { name: "tag", label: "Tag" },
      { name: "sharding", label: "Sharding key: messages with the same one stay in order" },
      { name: "queue", label: "Queue; empty: the broker chooses", kind: "number", more: { min: 0, max: topic.queues - 1 } },
      { name: "delay", label: "Seconds to delay it", kind: "number", more: { min: 0, step: "any" } },
    ],
    button: "Send",
    question: (values) => {
      messageOf(values);
      return `Send this message to ${topic.topic}? It cannot be taken back once it is delivered.`;
    },
    run: async (values) => {
      const { results } = await post(`/v1/topics/${part(topic.topic)}/messages`, { messages: [messageOf(values)] });
      const [{ message_id: id, offset }] = results;
      return ["Sent: message ", offset === undefined ? id : messageLink(id, topic.topic)];
    },
    denied,
  });
}

/** @param {Record<string, string>} values @returns {Record<string, unknown>} */
function messageOf({ body, form: kind, keys, tag, sharding, queue, delay }) {
  /** @type {Record<string, unknown>} */
  const message = kind === "hex" ? { body: btoa(unhex(body)), encoding: "base64" } : { body };
  if (kind === "json") check(body);
  const named = keys.split(",").map((each) => each.trim()).filter(Boolean);
  if (named.length) message.keys = named;
  if (tag) message.tag = tag;
  if (sharding) message.sharding_key = sharding;
  if (queue) message.queue = Number(queue);
  if (delay) message.delay_ms = Math.round(Number(delay) * 1000);
  return message;
}

function check(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw wrong(`The body is not JSON: ${/** @type {Error} */ (error).message}`);
  }
}

function unhex(text) {
  const digits = text.replace(/\s/g, "");
  if (!/^([0-9a-f]{2})+$/i.test(digits)) throw wrong("The body is not hexadecimal: pairs of digits 0-9 and a-f are, with or without spaces.");
  return (digits.match(/../g) ?? []).map((each) => String.fromCharCode(parseInt(each, 16))).join("");
}

export const takeBack = (topic, id, denied) =>
  button({
    label: "Take back",
    about: id,
    question: `Take this delayed message of ${topic} back? It will not be delivered.\n\n${id}`,
    run: async (said) => {
      await remove(`/v1/topics/${part(topic)}/scheduled/${part(id)}`, said);
      return [`Taken back: ${id} will not be delivered.`];
    },
    denied,
  });
